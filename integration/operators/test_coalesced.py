"""Several partitions of a state in one task of Spark's, or in one with another number: all comes to the same."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators import inputs
from integration.operators.keyed import TOTALS, Totals, keyed
from integration.operators.placement import stored_rows
from integration.operators.providers import OURS
from integration.operators.replay import Case, lines, run, write_inputs
from integration.operators.sources import Source
from integration.operators.test_group_states import Pauses, pause
from integration.operators.test_timers import ReminderColumns, Reminders, watched
from integration.sample import sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

    from integration.operators.placement import StoredRow
    from integration.operators.replay import Lines, Query

    Behind = Callable[[DataFrame, DataFrame], DataFrame]
    Played = tuple[Mapping[int, Lines], list[StoredRow]]

_SETTINGS = {SHUFFLE_PARTITIONS: "4"}
_RUNS = (0, 2, 4)
_USERS = ((0, 30), (5, 15), (6, 7), (0, 20))
"""From where to where those go that have a row in each batch: in the third, three partitions have none."""
_EVENTS = Source(
    "id long, user int, word string, at timestamp",
    tuple(
        tuple(
            (100 * batch + user, user, "ab"[user % 2], inputs.START + timedelta(minutes=10 * batch, seconds=user))
            for user in range(*users)
        )
        for batch, users in enumerate(_USERS)
    ),
)
_OTHERS = Source("other int", tuple(((-batch,), (-batch - 10,)) for batch in range(4)))


def _count_until_silent(
    key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    rows = (state.get[0] if state.exists else 0) + (1000 if state.hasTimedOut else sum(map(len, frames)))
    if rows > 2000:
        state.remove()
    else:
        state.update((rows,))
        state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 600_000)
    yield pd.DataFrame({"user": [key[0]], "rows": [rows]})


def _watched(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].withWatermark("at", "1 minute")


def _unchanged(frames: Sequence[DataFrame]) -> DataFrame:
    stream = ckpt.keyed(_watched(frames), "user", uid="it")
    arguments = ("user int, rows bigint", "rows bigint", "update", "EventTimeTimeout")
    return stream.apply_in_pandas_with_state(_count_until_silent, *arguments)


def _with_states(frames: Sequence[DataFrame]) -> DataFrame:
    called = ckpt.with_states(pause, Pauses(), uid="it")
    arguments = ("user int, ends bigint, seen string", "n int", "update", "EventTimeTimeout")
    return _watched(frames).groupBy("user").applyInPandasWithState(called, *arguments)


_OPERATORS: Mapping[str, Query] = {
    "process": watched(Reminders()),
    "process_batch": watched(ReminderColumns()),
    "apply_in_pandas_with_state": _unchanged,
    "with_states": _with_states,
}

_BEHIND: Mapping[str, Behind] = {
    "nothing": lambda frame, _: frame,
    "coalesce(1)": lambda frame, _: frame.coalesce(1),
    "coalesce(2)": lambda frame, _: frame.coalesce(2),
    "union": lambda frame, other: other.union(frame),
    "union and coalesce(1)": lambda frame, other: frame.union(other).coalesce(1),
}


def _others(frame: DataFrame, other: DataFrame) -> DataFrame:
    """Rows like those of ``frame``, of which the first column is not null."""
    first, *more = frame.schema
    nulls = [f.lit(None).cast(field.dataType).alias(field.name) for field in more]
    return other.select(f.col("other").cast(first.dataType).alias(first.name), *nulls)


def _play(
    spark: SparkSession,
    query: Query,
    behind: Sequence[str],
    folder: Path,
    collected: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    settings: Mapping[str, str] = _SETTINGS,
) -> Played:
    """The rows of every batch of two runs, with what is ``behind`` the operator in each, and the state then."""
    batches: dict[int, Lines] = {}

    def collect(frame: DataFrame, batch_id: int) -> None:
        batches[batch_id] = lines(collected(frame))

    for (first, last), name in zip(pairwise(_RUNS), behind, strict=True):

        def whole(frames: Sequence[DataFrame], name: str = name) -> DataFrame:
            frame = query(frames)
            return _BEHIND[name](frame, _others(frame, frames[1]))

        case = Case(whole, (_EVENTS, _OTHERS), "update")
        write_inputs(case, folder, first, last)
        run(OURS.session(spark, **settings), case, folder, collect)
    return batches, sorted(stored_rows(folder / "checkpoint"))


@pytest.fixture(scope="module")
def plain(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Played]:
    """What an operator does with nothing after it."""
    known: dict[str, Played] = {}

    def played(operator: str) -> Played:
        if operator not in known:
            folder = tmp_path_factory.mktemp(operator)
            known[operator] = _play(spark, _OPERATORS[operator], ["nothing"] * 2, folder)
        return known[operator]

    return played


_TAKEN = {
    "coalesce(1)": {"process", "process_batch"},
    "coalesce(2)": {"process"},
    "union": {"with_states"},
    "union and coalesce(1)": {"apply_in_pandas_with_state"},
}
"""The others show what these show."""


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("operator", "behind"),
    [
        pytest.param(operator, behind, marks=() if operator in taken else pytest.mark.matrix)
        for behind, taken in _TAKEN.items()
        for operator in _OPERATORS
    ],
)
def test_rows_and_state_are_the_same_when_spark_joins_partitions_behind_an_operator(
    operator: str, behind: str, plain: Callable[[str], Played], spark: SparkSession, tmp_path: Path
) -> None:
    expected, expected_rows = plain(operator)
    assert {row.partition for row in expected_rows} == {0, 1, 2, 3}
    assert len(expected) > 4, "there are batches without rows, in which all that is called has timed out"
    found, rows = _play(spark, _OPERATORS[operator], [behind] * 2, tmp_path)
    assert found.keys() == expected.keys()
    added = [Counter(batch) - Counter(expected[number]) for number, batch in found.items()]
    assert sum(added, Counter()).total() == (sum(map(len, _OTHERS.batches)) if "union" in behind else 0)
    assert not any(Counter(batch) - Counter(found[number]) for number, batch in expected.items())
    assert rows == expected_rows


@pytest.mark.in_turn
@pytest.mark.parametrize("operator", sampled(_OPERATORS, set(_OPERATORS) - {"with_states"}))
def test_rows_and_state_are_the_same_when_a_sink_joins_partitions_and_then_does_not(
    operator: str, plain: Callable[[str], Played], spark: SparkSession, tmp_path: Path
) -> None:
    turns = iter([1, 2] * 10)
    query = _OPERATORS[operator]
    joined = _play(spark, query, ["nothing"] * 2, tmp_path / "sink", lambda frame: frame.coalesce(next(turns)))
    changed = _play(spark, query, ["coalesce(1)", "nothing"], tmp_path / "changed")
    assert joined == changed == plain(operator)


def test_states_are_those_of_the_version_before_when_one_task_has_a_partition_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    def twice(frame: DataFrame) -> DataFrame:
        return frame.union(frame).coalesce(1)

    query, settings = _OPERATORS["with_states"], {SHUFFLE_PARTITIONS: "1"}
    plain, plain_rows = _play(spark, query, ["nothing"] * 2, tmp_path / "plain", settings=settings)
    found, rows = _play(spark, query, ["nothing"] * 2, tmp_path / "twice", twice, settings)
    assert found == {number: tuple(sorted(2 * batch)) for number, batch in plain.items()}
    assert rows == plain_rows


class Where(Totals):
    """Says in which partition it is called."""

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.rows.update(self.rows.value() + len(rows))
        yield key.user, self.rows.value(), ctx.partition


@pytest.mark.parametrize("behind", sampled(["coalesce(1)", "union"], ["coalesce(1)"]))
def test_a_processor_is_told_the_partition_of_its_state(behind: str, spark: SparkSession, tmp_path: Path) -> None:
    query = keyed(Where(), TOTALS)
    plain, _ = _play(spark, query, ["nothing"] * 2, tmp_path / "plain")
    found, _ = _play(spark, query, [behind] * 2, tmp_path / "behind")
    assert {line.rpartition("=")[2] for line in plain[0]} == {f"{partition})" for partition in range(4)}
    assert all(set(plain[number]) <= set(found[number]) for number in range(4))
