"""Every operator, from n partitions to m: output and state equal those of a query that was never rescaled."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from itertools import accumulate, permutations
from typing import TYPE_CHECKING, Literal

import pytest

from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators import (
    test_aggregation,
    test_chains,
    test_deduplication,
    test_grouped_python,
    test_join,
    test_limit,
    test_scala_groups,
    test_session_windows,
)
from integration.operators.placement import partition_of, stored_rows
from integration.operators.providers import HDFS_BACKED, OURS, ROCKSDB
from integration.operators.replay import collect_into, read_state, replay, run, write_inputs
from integration.sample import ALL
from integration.short import has
from pyspark_ckpt.savepoints import restore, savepoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from integration.operators.placement import StoredRow
    from integration.operators.providers import Provider
    from integration.operators.replay import Lines

CASES = {
    # name: case, partitions of its three runs
    "aggregation of windows": (test_aggregation.CASES["window, watermark, append"], (2, 7, 1)),
    "aggregation by keys of all types": (test_aggregation.CASES["keys of all types"], (3, 2, 4)),
    "global aggregation": (test_aggregation.CASES["everything, update"], (3, 1, 4)),
    "deduplication": (test_deduplication.CASES["event time among the columns"], (1, 4, 3)),
    "deduplication within a watermark": (test_deduplication.CASES["within watermark, columns"], (3, 8, 2)),
    "session windows": (test_session_windows.CASES["one key"], (4, 2, 8)),
    "limit": (test_limit.CASES["reached in the third batch"], (2, 3, 1)),
    "join, format 1": (test_join.CASES["inner, format 1"], (2, 3, 1)),
    "join, format 2": (test_join.CASES["leftOuter, format 2"], (2, 4, 3)),
    "join, format 3": (test_join.CASES["fullOuter, format 3"], (3, 2, 4)),
    "join, format 4": (test_join.CASES["leftOuter, format 4"], (1, 3, 2)),
    "python groups": (test_grouped_python.CASES["event time"], (2, 4, 1)),
    "scala groups": (test_scala_groups.CASES["event time, format 2"], (2, 5, 2)),
    "scala groups, format 1": (test_scala_groups.CASES["event time, format 1"], (3, 4, 3)),
    "scala groups without time-outs": (test_scala_groups.CASES["without time-out, format 2"], (4, 1, 4)),
    "two operators": (test_chains.CASES["windows of a join"], (3, 4, 2)),
    "three operators": (test_chains.CASES["windows of python groups"], (2, 3, 4)),
}
if has("4.1"):
    from integration.operators import test_transform_with_state

    CASES |= {
        "transformWithState": (test_transform_with_state.CASES["rows"], (4, 2, 3)),
        "transformWithState, Avro": (test_transform_with_state.CASES["rows, Avro"], (2, 5, 3)),
        "transformWithState, times to live": (test_transform_with_state.CASES["values that live for a day"], (3, 2, 4)),
    }


ALL_NUMBERS = (1, 2, 3, 4, 7, 8, 16, 200)
LEFT_OUT = {
    "aggregation of windows",
    "deduplication",
    "join, format 1",
    "join, format 2",
    "join, format 3",
    "two operators",
    "global aggregation",
    "python groups",
    "scala groups, format 1",
} | {
    "scala groups without time-outs",
    "transformWithState",
    "timers of event time",
    "timers in columns",
}
"""Of these, another case has the same operator, or the same stores."""


def sampled(numbers: Mapping[str, tuple[int, ...]]) -> list[tuple[str, tuple[int, ...]]]:
    """Most cases once, with their own numbers; with ``CKPT_MATRIX=all`` from all numbers to all, and back."""
    if not ALL:
        return [(name, own) for name, own in numbers.items() if name not in LEFT_OUT]
    return [(name, (n, m, n, m)[: len(own)]) for name, own in numbers.items() for n, m in permutations(ALL_NUMBERS, 2)]


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "numbers"), sampled({name: numbers for name, (_, numbers) in CASES.items()}))
def test_a_query_goes_on_as_if_it_had_never_been_rescaled(
    name: str, numbers: tuple[int, ...], spark: SparkSession, tmp_path: Path
) -> None:
    case, _ = CASES[name]
    case = replace(case, runs=(2, 1, 1))
    expected = replay(spark, case, _reference(name), tmp_path / "expected")
    batches: dict[int, Lines] = {}
    folder = tmp_path / "actual"
    ends = tuple(accumulate(case.runs))
    checkpoint = "checkpoint"
    for first, last, partitions in zip((0, *ends), ends, numbers, strict=False):
        write_inputs(case, folder, first, last)
        if first:
            before, checkpoint = checkpoint, f"from-{first}"
            move(folder, before, checkpoint, partitions, kind="canonical" if first == ends[1] else None)
        session = OURS.session(spark, **{**case.settings, SHUFFLE_PARTITIONS: str(partitions)})
        run(session, case, folder, collect_into(batches), checkpoint)
        rows = list(stored_rows(folder / checkpoint))
        assert [row for row in rows if not _is_in_place(row, partitions, rows)] == []
    assert batches == expected.batches
    state = read_state(OURS.session(spark, **case.settings), case, folder, checkpoint)
    assert without_partitions(state) == without_partitions(expected.state)


@pytest.mark.parametrize("name", ["scala groups", pytest.param("join, format 1", marks=pytest.mark.matrix)])
def test_digests_are_those_of_the_beginning_when_state_comes_back(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    case, (first, second, *_) = CASES[name]
    write_inputs(case, tmp_path, 0, 2)
    run(OURS.session(spark, **{**case.settings, SHUFFLE_PARTITIONS: str(first)}), case, tmp_path, collect_into({}))
    before = restore(str(_taken(tmp_path)), str(tmp_path / "copy"))
    there = restore(str(tmp_path / "checkpoint"), str(tmp_path / "there"), parallelism=second)
    back = restore(there.checkpoint, str(tmp_path / "back"), parallelism=first)
    assert before.states == there.states == back.states
    assert sum(each.digest.rows for each in before.states) > 0


def _taken(folder: Path) -> Path:
    savepoint(str(folder / "checkpoint"), str(folder / "savepoint"))
    return folder / "savepoint"


def move(folder: Path, before: str, after: str, partitions: int, kind: Literal["native", "canonical"] | None) -> None:
    """Move a query to another checkpoint and number of partitions, by a savepoint of a kind or without one.

    What it came from is deleted: it must need nothing there.
    """
    if kind is None:
        restore(str(folder / before), str(folder / after), parallelism=partitions)
    else:
        saved = folder / f"{before}-saved"
        savepoint(str(folder / before), str(saved), kind=kind)
        restore(str(saved), str(folder / after), parallelism=partitions)
        shutil.rmtree(saved)
    shutil.rmtree(folder / before)


def without_partitions(views: tuple[Lines, ...]) -> list[list[str]]:
    """Rows of Spark's state reader as they are wherever they lie."""
    return [sorted(re.sub(r"partition_id=\d+", "", line) for line in view) for view in views]


def _is_in_place(row: StoredRow, partitions: int, rows: Sequence[StoredRow]) -> bool:
    """Where Spark looks for it: by its hash, or in the only partition that its operator has."""
    operator = row.store.partition("/")[0]
    is_alone = {other.partition for other in rows if other.store.startswith(f"{operator}/")} == {0}
    return partition_of(row.partition_hash, partitions) == row.partition or is_alone


def _reference(name: str) -> Provider:
    needs_families = name.endswith(("format 3", "format 4")) or name.startswith("transformWithState")
    return ROCKSDB if needs_families else HDFS_BACKED
