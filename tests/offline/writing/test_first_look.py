"""A mistake in the rows of a savepoint is found before its target is touched; rows come in any form of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import writing
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.state_store.errors import CkptError, InvalidInputError
from pyspark_ckpt.writing import write_state

VIEWS = ckpt.ValueState("views", "long")
ROWS = pa.table({"user": ["a", "b", "c"], "value": [1, 2, 3]})


class Stream:
    """What has an Arrow stream and is nothing that this package knows, as a frame of polars or duckdb."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


class Once(Stream):
    """Its stream can be read once."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        rows, self.rows = self.rows, ROWS.slice(0, 0)
        return rows.__arrow_c_stream__(requested_schema)


def _put(rows: Any, *more: Any) -> list[Any]:  # noqa: ANN401
    return [writing.Put("visits", VIEWS, rows, key="user string"), *more]


def _batches(rows: pa.Table) -> Any:  # noqa: ANN401
    return iter(rows.to_batches(max_chunksize=1))


FORMS: dict[str, Any] = {
    "table": lambda rows: rows,
    "pandas": lambda rows: rows.to_pandas(),
    "reader": lambda rows: rows.to_reader(1),
    "batches": _batches,
    "stream": Stream,
    "stream read once": Once,
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@every_form
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (ROWS.rename_columns(["user", "vale"]), "Did you mean 'value'"),
        (ROWS.rename_columns(["usr", "value"]), "Did you mean 'user'"),
        (ROWS.set_column(1, "value", pa.array(["1", "2", "3"])), "does not fit the type int64"),
        (ROWS.set_column(1, "value", pa.array([None, 2, 3], pa.int64())), "null|double is not accepted"),
    ],
)
def test_a_mistake_in_rows_leaves_nothing_at_the_target(form: Any, rows: pa.Table, said: str, tmp_path: Path) -> None:  # noqa: ANN401
    target = tmp_path / "target"
    with pytest.raises(InvalidInputError, match=said) as refused:
        write_state(None, target, _put(form(rows)), parallelism=2)
    assert "unfinished" not in str(refused.value)
    assert not list(target.rglob("*"))
    write_state(None, target, _put(form(ROWS)), parallelism=2)


@pytest.mark.parametrize("rows", [ROWS.set_column(1, "value", pa.array([1, 2, None])), pa.table({"user": []})])
def test_all_rows_in_memory_are_looked_at_before_the_target(rows: pa.Table, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError):
        write_state(None, tmp_path / "target", _put(rows), parallelism=2)
    assert not (tmp_path / "target").exists()


def test_a_mistake_in_a_function_leaves_nothing_at_the_target(tmp_path: Path) -> None:
    transform = writing.Transform("visits", "views", lambda rows: rows.set_column(1, "value", rows["count"]))
    with pytest.raises((KeyError, CkptError), match="count"):
        write_state(None, tmp_path / "target", _put(ROWS, transform), parallelism=2)
    assert not (tmp_path / "target").exists()


@every_form
def test_all_rows_are_written_when_a_part_of_them_was_looked_at(form: Any, tmp_path: Path) -> None:  # noqa: ANN401
    double = writing.Transform(
        "visits", "views", lambda rows: rows.set_column(1, "value", pc.multiply(rows["value"], 2))
    )
    write_state(None, tmp_path / "plain", _put(form(ROWS)), parallelism=2)
    write_state(None, tmp_path / "changed", _put(form(ROWS), double), parallelism=2)
    for name, factor in (("plain", 1), ("changed", 2)):
        with open_state(tmp_path / name, uid="visits", state="views") as state:
            assert {user: state.get(user) for user in "abc"} == {"a": factor, "b": 2 * factor, "c": 3 * factor}


def test_encoded_columns_are_taken_as_their_values(tmp_path: Path) -> None:
    many = pa.table({"user": ["a", "a", "b"], "map_key": ["x", "y", "x"], "value": [1, 1, 1]})
    chunks = [pa.array(["a"]).dictionary_encode(), pa.array(["a", "b"]).dictionary_encode()]
    pages = ckpt.MapState("pages", "string", "struct<n bigint>")
    values = pa.StructArray.from_arrays([pc.run_end_encode(many["value"].combine_chunks())], ["n"])
    columns = [pa.chunked_array(chunks), pc.run_end_encode(many["map_key"].combine_chunks()), values]
    rows = pa.table(columns, names=["user", "map_key", "value"])
    write_state(None, tmp_path / "saved", [writing.Put("visits", pages, rows, key="user string")], parallelism=2)
    with open_state(tmp_path / "saved", uid="visits", state="pages") as state:
        assert state.get("a") == {"x": (1,), "y": (1,)}
        assert state.get("b") == {"x": (1,)}
    given: Any = {"user": pd.Categorical(["a", "b", "a"]), "map_key": ["x", "x", "y"], "value": [{"n": 1}] * 3}
    category = pd.DataFrame(given)
    write_state(None, tmp_path / "other", [writing.Put("visits", pages, category, key="user string")], parallelism=2)
    with open_state(tmp_path / "other", uid="visits", state="pages") as state:
        assert sorted(state.get("a")) == ["x", "y"]
