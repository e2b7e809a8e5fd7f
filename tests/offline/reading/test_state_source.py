"""The options of ``ckpt_state``, and what its tasks ask of the checkpoint."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

import pyspark_ckpt
from pyspark_ckpt.offline.reading import StateReader
from pyspark_ckpt.operators.declarations.states import ValueState
from pyspark_ckpt.state_source import StateDataSource, open_selected
from pyspark_ckpt.state_store.blobs.metered import READS, Traffic
from tests.offline.reading.conftest import MakeWritten
from tests.offline.reading.written import UID, Written


@pytest.fixture
def written(make_written: MakeWritten) -> Written:
    made = make_written({"user": pa.string()}, partitions=8)
    states = {"n": (ValueState("n", "bigint"), {"value": pa.int64()})}
    for _ in range(2):
        made.batch(states, [((f"user {n}",), lambda bound: bound.n.update(7)) for n in range(40)])
    return made


def test_options_have_no_case(written: Written) -> None:
    with open_selected(
        {"path": written.path, "UID": UID, "State": "n", "VERSION": "1", "INCLUDEEXPIRED": "False"}
    ) as state:
        assert isinstance(state, StateReader)
        assert (state.version, state.count()) == (1, 40)
    prefix = "spark.sql.streaming.stateStore.ckpt."
    with open_selected({"path": written.path, prefix.lower() + "s3endpoint": "http://127.0.0.1:1"}) as state:
        assert isinstance(state, StateReader)
        assert state.version == 2


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs a path"),
        ({"version": "new"}, "Option version of ckpt_state must be a whole number, got 'new'"),
        ({"operator": "-1"}, "Option operator"),
        ({"includeExpired": "maybe"}, "must be true or false, got 'maybe'"),
        ({"s3endpont": "x"}, "There is no option .*s3endpont"),
        (
            {"operater": "0"},
            "no option operater of ckpt_state. Did you mean 'operator'. Its own options are path, uid, operator, state",
        ),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], words: str, written: Written) -> None:
    with pytest.raises(pyspark_ckpt.InvalidInputError, match=words):
        open_selected({"path": written.path, **options} if options else {}).close()


def test_a_task_reads_its_own_partition_alone(written: Written, traffic: Traffic) -> None:
    source = StateDataSource({"path": written.path, "uid": UID})
    schema = source.schema()
    reader = pickle.loads(pickle.dumps(source.reader(schema)))  # noqa: S301 - as Spark hands it to tasks
    partitions = reader.partitions()
    traffic.take()
    batches = list(reader.read(partitions[3]))
    assert traffic.take()[READS] < 20
    for each in [*partitions[:3], *partitions[4:]]:
        batches += reader.read(each)
    table = pa.Table.from_batches(batches)
    assert table.schema == to_arrow_schema(schema, timezone="UTC")
    assert sorted(row["user"] for row in table["key"].to_pylist()) == sorted(f"user {n}" for n in range(40))
