"""Files of a query, damaged: ``checkpoint repair`` says after which batch the query can continue, or what is lost."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt import savepoints
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.repair.damaged_checkpoint import DamagedCheckpoint
from pyspark_ckpt.state_store.repair.diagnosis import diagnose
from tests.fuzz.mutations import damaged, fuzzed
from tests.labs.saved_query import Query, written

NAMES = ("offsets/2", "commits/2", "sources/0/2", "metadata", "state/0/_metadata/metadata", "_ckpt/runs/0000000001.run")


@pytest.fixture(scope="module")
def query() -> Iterator[Query]:
    """Three batches are committed: 0 to 2."""
    with tempfile.TemporaryDirectory() as folder:
        made = written(Path(folder) / "query", 1, operators=(0,))
        made.place.put(NAMES[-1], b'{"format":1,"run_id":"a run"}')
        yield made


@pytest.mark.in_turn
@pytest.mark.parametrize("name", NAMES)
@fuzzed
@given(data=st.data())
def test_a_damaged_file_is_named_or_does_not_matter(name: str, data: st.DataObject, query: Query) -> None:
    whole = query.place.get(name)
    query.place.put(name, data.draw(damaged(whole)))
    try:
        found = diagnose(DamagedCheckpoint(query.location, parse({})), reads_all=False)
    finally:
        query.place.put(name, whole)
    batch = None if found.continuation is None else found.continuation.batch
    told = (*found.problems, *(each.reason for each in found.obstacles))
    names_ids = "the commit log names the ids" if name.startswith("commits/") else name
    assert batch == 2 or any(name in each or names_ids in each for each in told)
    assert batch in (1, 2) or name.startswith("state/")


@pytest.fixture(scope="module")
def carried() -> Iterator[LocalPlace]:
    """Batches 0 to 2 are committed, and a restore has carried over the plans of 3 and 4."""
    with tempfile.TemporaryDirectory() as folder:
        made, saved, new = written(Path(folder) / "query", 1, operators=(0,)), f"{folder}/saved", f"{folder}/new"
        savepoints.savepoint(made.location, saved)
        made.run(2)
        savepoints.restore(saved, new, replay_from=made.location)
        yield LocalPlace(Path(new))


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["_ckpt/replay/3", "_ckpt/replay/4", "_ckpt/replay.json", "sources/0/4"])
@fuzzed
@given(data=st.data())
def test_a_damaged_plan_is_named_or_does_not_matter(name: str, data: st.DataObject, carried: LocalPlace) -> None:
    whole = carried.get(name)
    carried.put(name, data.draw(damaged(whole)))
    try:
        found = diagnose(DamagedCheckpoint(carried.url, parse({})), reads_all=False)
    finally:
        carried.put(name, whole)
    assert found.continuation is not None
    assert found.continuation.batch == 2
    assert found.continuation.last_planned == 4 or any(name in each for each in found.problems)
    assert found.is_healthy or found.removed
