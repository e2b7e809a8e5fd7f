"""States of Spark's whose keys have several values: a query goes on from the same rows as one that was not touched."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from integration.operators import test_join
from integration.operators.providers import OURS
from integration.operators.replay import collect_into, read_state, replay, run, write_inputs
from integration.short import has
from pyspark_ckpt import writing
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.savepoints import restore, savepoint
from pyspark_ckpt.writing import write_state

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.replay import Lines

CASES = {}
if has("4.1"):
    from integration.operators import test_transform_with_state as processors

    for each in ("rows", "rows, Avro", "values that live for a day"):  # a batch without data would fire all timers
        once = replace(processors.CASES[each], runs=(2, 1, 1), one_batch_a_run=True)
        CASES[f"transformWithState, {each}"] = once
if has("4.3"):
    CASES |= {name: test_join.CASES[name] for name in ("fullOuter, format 4", "null keys, format 4")}
WITH_CLOCKS = "transformWithState, values that live for a day"
"""Its state has instants of the time when it ran."""
STALE = "$ttl_words"
"""Spark leaves rows in it for entries that were removed from a map."""


FOLLOWING = ("$rowCounter_", "$count_", "$min_", "$ttl_", "$eventTimers_timestampToKey", "$procTimers_keyToTimestamp")
"""How the names of states begin that Spark makes of others, and so does a write."""


def _put_back(saved: Path, *, all_of_them: bool) -> list[writing.Change]:
    """Put all states of Spark's, or those that follow from no other, as they are."""
    puts: list[writing.Change] = []
    with open_state(saved) as found:
        states = found.states
    for each in states:
        if all_of_them or not (each.name.startswith(FOLLOWING) or each.name.endswith("-tsWithKey")):
            with open_state(saved, operator=each.operator.number, store=each.store, state=each.name) as state:
                puts.append(writing.Put(each.operator.number, each.name, state.to_arrow(), store=each.store))
    assert any(each.descriptor.multiple_values and each.rows for each in states)
    assert all_of_them or len(puts) < len(states)
    return puts


@pytest.mark.in_turn
@pytest.mark.parametrize("name", CASES)
def test_a_query_goes_on_when_its_rows_are_put_back(name: str, spark: SparkSession, tmp_path: Path) -> None:
    case = CASES[name]
    batches: dict[int, Lines] = {}
    expected = replay(spark, case, OURS, tmp_path / "expected")
    folder, (first, *others) = tmp_path / "actual", case.runs
    write_inputs(case, folder, 0, first)
    session = OURS.session(spark, **case.settings)
    run(session, case, folder, collect_into(batches))
    before = savepoint(folder / "checkpoint", folder / "saved", kind="canonical")
    for target, all_of_them in (("all", True), ("written", False)):
        puts = _put_back(folder / "saved", all_of_them=all_of_them)
        after = write_state(folder / "saved", folder / target, puts)
        old, new = (dict(each.digests_of(0, "default")) for each in (before, after))
        if not all_of_them and name == WITH_CLOCKS:
            assert old.pop(STALE).rows >= new.pop(STALE).rows
        assert old == new
    restore(folder / "written", folder / "again")
    for more in others:
        write_inputs(case, folder, first, first + more)
        run(session, case, folder, collect_into(batches), "again")
        first += more
    assert batches == expected.batches
    assert read_state(session, case, folder, "again") == expected.state
    if name != WITH_CLOCKS:
        ends = [
            savepoint(each, tmp_path / f"end-{number}", kind="canonical").digests_of(0, "default")
            for number, each in enumerate((tmp_path / "expected" / "checkpoint", folder / "again"))
        ]
        assert ends[0] == ends[1]


@pytest.mark.skipif(not has("4.1"), reason="Spark has no transformWithState in Python before")
def test_a_processor_sees_lists_that_a_spark_frame_has_put_and_a_function_has_mended(
    spark: SparkSession, tmp_path: Path
) -> None:
    def mend(rows: pa.Table) -> pa.Table:
        ids = pc.subtract(-1, pc.struct_field(rows["value"].combine_chunks(), "id"))
        mended = rows.set_column(2, "value", pa.StructArray.from_arrays([ids], ["id"]))
        return mended.filter(pc.not_equal(mended["index"], 1))  # leaves a gap

    case = CASES["transformWithState, rows"]
    write_inputs(case, tmp_path, 0, 3)
    session = OURS.session(spark, **case.settings)
    run(session, case, tmp_path, collect_into({}))
    before = savepoint(tmp_path / "checkpoint", tmp_path / "saved", kind="canonical")
    frame = spark.read.format("ckpt_state").options(operator=0, state="ids").load(str(tmp_path / "saved"))
    after = write_state(tmp_path / "saved", tmp_path / "put", [writing.Put(0, "ids", frame.orderBy("index"))])
    assert after.digests_of(0, "default") == before.digests_of(0, "default")
    write_state(tmp_path / "put", tmp_path / "mended", [writing.Transform(0, "ids", mend)])
    stored: dict[int, list[int]] = {}
    with open_state(tmp_path / "saved", operator=0, state="ids") as state:
        for row in state.to_arrow().to_pylist():
            stored.setdefault(row["key"]["user"], []).append(-1 - row["value"]["id"])
    expected = {user: [each for index, each in enumerate(ids) if index != 1] for user, ids in stored.items()}
    with open_state(tmp_path / "mended", operator=0, state="$rowCounter_ids") as state:
        counts = {row["key"]["user"]: row["value"]["count"] for row in state.to_arrow().to_pylist()}
    assert counts == {user: len(ids) for user, ids in expected.items()}
    restore(tmp_path / "mended", tmp_path / "again", parallelism=3)
    write_inputs(case, tmp_path, 3, 4)
    shown: dict[int, set[int]] = {}

    def see(rows: DataFrame, _batch: int) -> None:
        for row in rows.collect():
            if row.what == "rows" and row.user is not None:
                shown[row.user] = {each for each in ast.literal_eval(row.ids) if each < 0}

    run(session, case, tmp_path, see, "again")
    kept = {user: ids for user, ids in shown.items() if ids}
    assert kept
    assert all(ids == set(expected[user]) for user, ids in kept.items())
