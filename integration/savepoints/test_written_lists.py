"""States of Spark's whose keys have several values: a query goes on from the same rows as one that was not touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.operators import test_join
from integration.operators.providers import OURS
from integration.operators.replay import collect_into, read_state, replay, run, write_inputs
from integration.short import has
from pyspark_ckpt import changes, open_state, restore, savepoint, write_state

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from integration.operators.replay import Lines

CASES = {}
if has("4.1"):
    from integration.operators import test_transform_with_state as processors

    CASES |= {f"transformWithState, {name}": processors.CASES[name] for name in ("rows", "rows, Avro")}
    CASES["transformWithState, values that live for a day"] = processors.CASES["values that live for a day"]
if has("4.3"):
    CASES |= {name: test_join.CASES[name] for name in ("fullOuter, format 4", "null keys, format 4")}
WITH_CLOCKS = "transformWithState, values that live for a day"
"""Its state has instants of the time when it ran."""


FOLLOWING = ("$rowCounter_", "$count_", "$min_", "$ttl_", "$eventTimers_timestampToKey", "$procTimers_keyToTimestamp")
"""How the names of states begin that Spark makes of others, and so does a write."""


def _put_back(saved: Path, *, all_of_them: bool) -> list[changes.Change]:
    """Put all states of Spark's, or those that follow from no other, as they are."""
    puts: list[changes.Change] = []
    with open_state(saved) as found:
        states = found.states
    for each in states:
        if all_of_them or not (each.name.startswith(FOLLOWING) or each.name.endswith("-tsWithKey")):
            with open_state(saved, operator=each.operator.number, store=each.store, state=each.name) as state:
                puts.append(changes.Put(each.operator.number, each.name, state.to_arrow(), store=each.store))
    assert any(each.descriptor.multiple_values and each.rows for each in states)
    assert all_of_them or len(puts) < len(states)
    return puts


@pytest.mark.parametrize("name", CASES)
def test_a_query_goes_on_when_its_rows_are_put_back(name: str, spark: SparkSession, tmp_path: Path) -> None:
    case = CASES[name]
    batches: dict[int, Lines] = {}
    expected = replay(spark, case, OURS, tmp_path / "expected")
    folder, (first, *others) = tmp_path / "actual", case.runs
    write_inputs(case, folder, 0, first)
    session = OURS.session(spark, **case.settings)
    case.prepare(session, case, folder)
    run(session, case, folder, collect_into(batches))
    before = savepoint(folder / "checkpoint", folder / "saved", kind="canonical")
    for target, all_of_them in (("all", True), ("written", False)):
        puts = _put_back(folder / "saved", all_of_them=all_of_them)
        after = write_state(folder / "saved", folder / target, puts)
        assert after.digests_of(0, "default") == before.digests_of(0, "default")
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
