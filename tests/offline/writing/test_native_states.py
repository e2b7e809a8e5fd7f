"""States of Spark's own operators are written with the bytes that Spark has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import writing
from pyspark_ckpt.offline.writing.drafts.store_draft import StoreDraft, StoredRows
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.savepoints import restore, savepoint
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.meta import EMPTY_META, Descriptor
from pyspark_ckpt.writing import dry_run, write_state
from tests.compat import frozen_processors as processors
from tests.compat.frozen import HERE, VERSIONS, unpack

ALL = [(v, path.name.removesuffix(".tar.gz")) for v in VERSIONS for path in sorted((HERE / v).glob("*.tar.gz"))]
CHECKPOINTS = [(version, name) for version, name in ALL if not name.startswith(("keyed", "store-"))]


def _states(checkpoint: Path) -> list[dict[str, Any]]:
    with open_state(checkpoint) as opened:
        return [
            {"operator": each.operator.number, "store": each.store, "state": each.name}
            for each in opened.states
            if each.uid is None and "max_parallelism" not in each.descriptor.encoder
        ]


def _read(location: Path, which: dict[str, Any]) -> pa.Table:
    with open_state(location, **which) as state:
        return state.to_arrow()


PROCESSORS = [(f"{processors.PROCESSORS}/{each}", processors.SAVED) for each in processors.VERSIONS]


@pytest.mark.in_turn
@pytest.mark.parametrize(("version", "name"), CHECKPOINTS + PROCESSORS)
def test_rows_that_are_put_back_have_the_same_digest(version: str, name: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "query"
    if name == processors.SAVED:
        restore(unpack(version, name, tmp_path / "frozen"), checkpoint)
    else:
        unpack(version, name, checkpoint)
    before = savepoint(checkpoint, tmp_path / "saved", kind="canonical")
    written = 0
    for which in _states(checkpoint):
        rows = _read(tmp_path / "saved", which)
        where = {"store": which["store"]}
        put = writing.Put(which["operator"], which["state"], rows, **where)
        after = write_state(tmp_path / "saved", tmp_path / f"target-{written}", [put])
        of_store = which["operator"], which["store"]
        assert after.digests_of(*of_store) == before.digests_of(*of_store), which
        written += len(rows)
    assert written


@pytest.fixture(scope="module")
def aggregated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A savepoint of a query with an aggregation."""
    folder = tmp_path_factory.mktemp("aggregated")
    savepoint(unpack("v1", "aggregation", folder / "query"), folder / "saved", kind="canonical")
    return folder / "saved"


def _double(rows: pa.Table) -> pa.Table:
    values = rows["value"].combine_chunks()
    (first, *others), names = values.flatten(), [field.name for field in values.type]
    doubled = pa.StructArray.from_arrays([pc.multiply(first, 2), *others], names)
    return rows.set_column(rows.column_names.index("value"), "value", doubled)


@pytest.mark.parametrize("kind", ["canonical", "native"])
def test_values_are_mended_and_the_others_stay(kind: Any, aggregated: Path, tmp_path: Path) -> None:  # noqa: ANN401
    restore(aggregated, tmp_path / "query", parallelism=3)
    savepoint(tmp_path / "query", tmp_path / "saved", kind=kind)
    mend = writing.Transform(0, "default", _double)
    told = dry_run(tmp_path / "saved", [mend])
    write_state(tmp_path / "saved", tmp_path / "target", [mend])
    before, after = (_read(tmp_path / each, {"operator": 0}) for each in ("saved", "target"))
    assert len(before) == len(after) > 10
    (state,) = told.states
    assert (state.uid, state.name, state.outcome) == ("operator 0", "default", "written")
    assert state.former == "operator 0/default"
    assert "formerly" not in str(state)
    assert (state.rows_before, state.rows_after) == (len(before), len(after))
    first = before.schema.field("value").type[0].name
    old, new = ({repr(row["key"]): row["value"] for row in each.to_pylist()} for each in (before, after))
    assert new == {key: {**value, first: value[first] * 2} for key, value in old.items()}
    restore(tmp_path / "target", tmp_path / "again", parallelism=5)
    assert repr(sorted(map(repr, _read(tmp_path / "again", {"operator": 0})["value"].to_pylist()))) == repr(
        sorted(map(repr, after["value"].to_pylist()))
    )


def test_each_function_gets_the_columns_that_open_state_shows(aggregated: Path, tmp_path: Path) -> None:
    def shorten(rows: pa.Table) -> pa.Table:
        return _double(rows).select(["value", "key"])

    write_state(aggregated, tmp_path / "target", [writing.Transform(0, "default", each) for each in (shorten, _double)])
    old, new = (_read(each, {"operator": 0}) for each in (aggregated, tmp_path / "target"))
    first = old.schema.field("value").type[0].name
    assert sorted(4 * value[first] for value in old["value"].to_pylist()) == sorted(
        value[first] for value in new["value"].to_pylist()
    )


def test_a_state_of_sparks_may_have_a_slash_in_its_name() -> None:
    meta, _ = EMPTY_META.with_state("my/count", Descriptor())
    draft = StoreDraft(
        Operator(0, "transformWithStateExec", ("default",), 1),
        "default",
        Layout.REMAINDERS,
        meta,
        kept={"my/count": "my/count"},
    )
    rows = draft.find_rows("my/count", writing.Transform(0, "my/count", KEEP))
    assert isinstance(rows, StoredRows)
    assert (rows.uid, rows.stored_name) == (None, "my/count")


KEEP: Any = lambda rows: rows  # noqa: E731 - a function of a user
WRONG: Any = ckpt.ValueState("n", "long")
WRONG_UID: Any = 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (writing.Transform(1, "default", KEEP), "no state 'default'. States of Spark's operators are: 0, store"),
        (writing.Transform(0, "defualt", KEEP), "it has no state 'defualt'"),
        (writing.Transform(0, "default", KEEP, store="left"), "no state 'default' in store 'left'"),
        (writing.Transform(0, "default", KEEP, declared=WRONG), "a state of Spark's keeps its types"),
        (writing.Put(0, WRONG, pa.table({})), "a state of Spark's keeps its types"),
        (writing.Put(0, "default", pa.table({}), key="user bigint"), "which only keyed operators have"),
        (writing.Put(0, "default", pa.table({}), max_parallelism=8), "which only keyed operators have"),
        (writing.Put(True, "default", pa.table({})), "True is not the number of an operator"),
        (writing.Put(0, "default", pa.table({"x": [1]})), "rows have a column 'x'"),
        (writing.Put(0, "default", pa.table({"key": [1], "value": [1]})), "one column 'key', a struct of"),
        (writing.Put(0, "default", pa.table({"key": [{"x": 1}], "value": [{"n": 1}]})), "has the fields .'x'., not"),
        (writing.Transform(0, "default", lambda rows: pa.concat_tables([rows, rows])), "two rows are given for"),
        (writing.Drop(WRONG_UID, "default"), "A change of operator 0: states of Spark's own operators get rows by Put"),
        (writing.Rename(WRONG_UID, "x", "default"), "They cannot be dropped or renamed"),
        (writing.ReKey(WRONG_UID, "user string", KEEP), "and keep their key"),
    ],
)
def test_changes_of_sparks_states_that_do_not_fit_are_refused(
    change: Any,  # noqa: ANN401
    said: str,
    aggregated: Path,
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidInputError, match=said):
        write_state(aggregated, tmp_path / "target", [change])


def test_a_query_that_has_never_run_has_none_of_them(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="a query that has never run has no operators of Spark's"):
        write_state(None, tmp_path / "target", [writing.Put(0, "default", pa.table({}))])
