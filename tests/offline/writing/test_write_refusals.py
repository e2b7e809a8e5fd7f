"""What a program could not have, or would lose, is refused before anything counts; odd rows are taken as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing, writing
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.savepoints import restore
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.writing import write_state

V, W, L = ckpt.ValueState("v", "long"), ckpt.ValueState("w", "long"), ckpt.ListState("l", "long")
OFFSETS = ckpt.OperatorListState("o", "long")
ROWS = pa.table({"user": ["a", "b"], "value": [1, 2]})
Put: Any = writing.Put  # from Python, which does not check types
Drop: Any = writing.Drop
Transform: Any = writing.Transform


class _Program(ckpt.KeyedProcessor):
    v = V

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Any:  # noqa: ANN401
        self.v.update((self.v.value() or 0) + len(rows))
        yield key.user, self.v.value()


def _put(state: Any = V, rows: Any = ROWS, **more: Any) -> Any:  # noqa: ANN401
    return Put("u", state, rows, **{"key": "user string", **more})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A savepoint with two states."""
    write_state(None, tmp_path / "saved", [_put(), _put(W)], parallelism=2)
    return tmp_path / "saved"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            [_put(OFFSETS, pa.table({"partition": [2], "index": [0], "value": [1]}))],
            "the partition 2. It must",
        ),
        ([_put(OFFSETS, pa.table({"partition": [0], "index": [1 << 32], "value": [1]}))], "the index 4294967296"),
        ([_put(L, pa.table({"user": ["a"], "index": [(1 << 63) - 1], "value": [1]}))], "the index 9223372036854775807"),
        ([_put(), _put(W, key="account long")], "the operator has the key {'user': 'string'}"),
        ([_put(), _put(W, max_parallelism=7)], "its max_parallelism is 7, but the operator has 32768"),
        ([_put(max_parallelism=1)], "has max_parallelism 1, but the savepoint has the parallelism 2"),
        ([_put(key="user map<string, int>")], "cannot be a key"),
        ([_put(key="user variant")], "cannot be a key"),
        ([_put(ckpt.MetricCounter("c"))], "is a counter"),
        ([_put(), writing.Rename("u", "v#expiry", "v")], "names that end in '#expiry' are reserved"),
        ([_put(), Transform("u", "v", lambda rows: rows, "long")], "is not a declaration"),
        ([_put(rows=pd.Series([1]))], "Rows have 1 of type int"),
        ([_put(rows=pd.DataFrame({"user": ["a", 1], "value": [1, 2]}))], "cannot become an Arrow table"),
        ([_put(rows=ROWS.slice(0, 0).rename_columns(["user", "vale"]))], "Did you mean 'value'"),
        ([_put(rows=pa.table({"value": [1]}), key="value long")], "a column of the key, but also of the rows"),
        ([_put(), Drop(["u"])], "give a uid"),
    ],
)
def test_what_a_program_cannot_have_is_refused(given: Any, said: str, tmp_path: Path) -> None:  # noqa: ANN401
    with pytest.raises(InvalidInputError, match=said):
        write_state(None, tmp_path / "target", given, parallelism=2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"offsets": [5]},
        {"offsets": ["not json"]},
        {"offsets": [{"a": float("nan")}]},
        {"offsets": [{"a": object()}]},
        {"offsets": "x"},
        {"checkpoint_format": 1.0},
        {"checkpoint_format": 3},
        {"parallelism": 0},
        {"parallelism": 40_000},
        {"parallelism": True},
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(wrong: Any, tmp_path: Path) -> None:  # noqa: ANN401
    with pytest.raises(InvalidInputError, match=r"must be"):
        write_state(None, tmp_path / "target", [_put()], **wrong)
    assert not (tmp_path / "target").exists()


def test_a_reader_is_not_given_twice(tmp_path: Path) -> None:
    reader = ROWS.to_reader()
    with pytest.raises(InvalidInputError, match="a reader that another Put has"):
        write_state(None, tmp_path / "target", [_put(rows=reader), _put(W, rows=reader)])


def test_a_reader_that_fails_is_named_with_what_it_leaves(tmp_path: Path) -> None:
    def fail() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches()
        raise OSError("the network is gone")

    with pytest.raises(InvalidInputError, match=r"cannot be read to its end: .*the network is gone") as found:
        write_state(None, tmp_path / "target", [_put(rows=pa.RecordBatchReader.from_batches(ROWS.schema, fail()))])
    assert "unfinished" in f"{found.value} {found.value.hint}"


def test_rows_that_were_read_before_are_refused(saved: Path, tmp_path: Path) -> None:
    reader = ROWS.to_reader()
    reader.read_all()
    one = ROWS.to_reader()
    for number, rows in enumerate((reader, iter(()), (batch for batch in reader))):
        with pytest.raises(InvalidInputError, match="has no batches: it is empty, or was read before"):
            write_state(saved, tmp_path / f"{number}", [_put(rows=rows)])
    with pytest.raises(InvalidInputError, match="has no batches: it is empty, or was read before"):
        write_state(saved, tmp_path / "twice", [_put(rows=iter(one)), _put(W, rows=(batch for batch in one))])
    write_state(saved, tmp_path / "target", [_put(rows=ROWS.slice(0, 0)), _put(W, rows=[])])
    with open_state(tmp_path / "target") as state:
        assert {each.name: each.rows for each in state.states if each.uid} == {"v": 0, "w": 0}


@pytest.mark.parametrize("given", [{"parallelism": 2}, {"offsets": [None]}, {"checkpoint_format": 1}])
def test_what_a_source_has_is_not_given(given: Any, saved: Path, tmp_path: Path) -> None:  # noqa: ANN401
    with pytest.raises(InvalidInputError, match=f"`{next(iter(given))}` is given, but the source has its own"):
        write_state(saved, tmp_path / "target", [], **given)
    assert not (tmp_path / "target").exists()


def test_batches_may_differ_in_their_types_and_their_order(tmp_path: Path) -> None:
    batches = [
        pa.record_batch({"user": pa.array(["a"]), "value": pa.array([1], pa.int32())}),
        pa.record_batch({"value": pa.array([2], pa.int64()), "user": pa.array(["b"], pa.large_string())}),
        pa.record_batch({"user": pa.array([None]), "value": pa.array([3], pa.int8())}),
    ]
    write_state(None, tmp_path / "target", [_put(rows=iter(batches))])
    with open_state(tmp_path / "target") as state:
        assert {row["key"]["user"]: row["value"] for row in state.to_arrow().to_pylist()} == {"a": 1, "b": 2, None: 3}


def test_an_operator_without_any_state_begins_anew(saved: Path, tmp_path: Path) -> None:
    write_state(saved, tmp_path / "dropped", [writing.Drop("u")])
    restore(tmp_path / "dropped", tmp_path / "query", parallelism=3)
    stream = testing.keyed("user string", by="user", uid="u", parallelism=3, savepoint=tmp_path / "dropped")
    with stream.process(_Program(), "user string, v long") as harness:
        assert sorted(harness.run([("a",), ("c",)])) == [("a", 1), ("c", 1)]


def test_all_elements_of_operator_lists_stay(tmp_path: Path) -> None:
    rows = pa.table({"partition": [0, 1, 2, 3], "index": [0, 0, 0, 0], "value": [10, 11, 12, 13]})
    write_state(None, tmp_path / "target", [_put(OFFSETS, rows)], parallelism=4)
    for partitions in (1, 2, 4, 7):
        restore(tmp_path / "target", tmp_path / f"{partitions}", parallelism=partitions)
        with open_state(tmp_path / f"{partitions}", uid="u", state="o") as state:
            assert sorted(row["value"] for row in state.to_arrow().to_pylist()) == [10, 11, 12, 13]
