"""Canonical savepoints that are damaged, also by somebody who mends all checksums: refused, or the rows are right."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.savepoints import restore, savepoint
from pyspark_ckpt.state_store.blobs.transfers import StoredFile
from pyspark_ckpt.state_store.checkpoints.digests import require_equal
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.chunks import CHUNK_BYTES
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.json_objects import seal, seal_json
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.redistribution.canonical import SavedRows, WantedRows, digest_file, hashes_in, rows_in
from pyspark_ckpt.state_store.savepoints.savepoint import NAME, Savepoint, SavepointInfo
from tests.fuzz.mutations import REFUSED, damaged, damaged_json, fuzzed, read_or_refuse
from tests.labs.saved_query import Query, stored

HERE = Workplace(parse({}))
_NUMBERS = itertools.count()

Change: TypeAlias = Callable[[pa.Table], pa.Table]


@pytest.fixture(scope="module")
def query(tmp_path_factory: pytest.TempPathFactory) -> Query:
    """A query with a savepoint beside it, in which every layout has a few rows."""
    folder = tmp_path_factory.mktemp("query")
    query = Query(str(folder / "query"), 1)
    query.run(rows=4)
    savepoint(query.location, str(folder / "saved"), kind="canonical")
    return query


@pytest.fixture(scope="module")
def saved(query: Query) -> Path:
    return Path(query.location).with_name("saved")


@pytest.fixture(scope="module")
def info(saved: Path) -> SavepointInfo:
    return Savepoint(str(saved), parse({})).info


@pytest.fixture
def copy(saved: Path, quick_path: Path) -> Path:
    """A copy of the savepoint, for one test."""
    return Path(shutil.copytree(saved, quick_path / "copy"))


def sealed_anew(info: SavepointInfo, number: int, path: Path) -> SavepointInfo:
    """``info`` as if the file of its ``number``-th rows had always been the one at ``path``."""
    rows, content = info.rows[number], path.read_bytes()
    file = StoredFile(rows.files[0].name, len(content), xxhash.xxh3_128_hexdigest(content))
    changed = msgspec.structs.replace(rows, files=(file,))
    return msgspec.structs.replace(info, rows=(*info.rows[:number], changed, *info.rows[number + 1 :]))


def read_all(saved: Path, rows: SavedRows) -> None:
    """Read the only file of rows, and fail unless it holds what it should."""
    require_equal(rows.digests, digest_file(HERE, str(saved), rows, 0), rows.files[0].name)


def read_some(saved: Path, rows: SavedRows) -> None:
    """Count all rows by their hashes, and look for one hash in each state."""
    path = saved / rows.files[0].name
    found = sum(len(hashes) for hashes in hashes_in(path, str(saved), rows, 0))
    if found != sum(each.rows for each in rows.digests.values()):
        raise FormatError(f"{path} has {found} rows.")
    for state in rows.meta.states:
        list(rows_in(path, str(saved), rows, 0, WantedRows(state.number, 1 << 31)))


@pytest.mark.in_turn
@fuzzed
@given(data=st.data())
def test_a_savepoint_is_restored_as_it_was_or_refused_whatever_it_says_of_its_rows(
    data: st.DataObject, query: Query, info: SavepointInfo, copy: Path
) -> None:
    whole, rows = msgspec.json.encode(info), msgspec.json.encode(info.rows)
    changed = data.draw(damaged_json(json.loads(rows)))
    (copy / NAME).write_bytes(seal_json(whole.removesuffix(rows + b"}") + changed + b"}"))
    target = copy.with_name(f"restored-{next(_NUMBERS)}")
    try:
        restore(str(copy), str(target), parallelism=2)
    except (*REFUSED, NotFoundError) as problem:
        told = problem.message
        assert str(copy) in told or "operator " in told, told
    else:
        assert stored(str(target)) == (query.version, 2, query.rows)
    finally:
        shutil.rmtree(target, ignore_errors=True)


@pytest.mark.parametrize("number", range(4))
@fuzzed
@given(data=st.data())
def test_a_damaged_file_of_rows_is_never_read_as_other_rows(
    number: int, data: st.DataObject, saved: Path, info: SavepointInfo, copy: Path
) -> None:
    name = info.rows[number].files[0].name
    read_all(saved, info.rows[number])  # what is imported late is imported
    read_some(saved, info.rows[number])
    content = data.draw(damaged((saved / name).read_bytes()))
    (copy / name).write_bytes(content)
    if content != (saved / name).read_bytes():
        with pytest.raises(FormatError, match=f"{name} is damaged"):
            read_all(copy, info.rows[number])
    rows = sealed_anew(info, number, copy / name).rows[number]
    read_or_refuse(lambda: read_all(copy, rows), content, name, 2 * CHUNK_BYTES)
    read_or_refuse(lambda: read_some(copy, rows), content, name, 2 * CHUNK_BYTES)
    (copy / name).write_bytes((saved / name).read_bytes())


def with_column(name: str, change: Callable[[list[Any]], list[Any]]) -> Change:
    """A table with other values in one column."""

    def apply(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        return table.set_column(at, field, pa.array(change(table.column(at).to_pylist()), field.type))

    return apply


OTHERS: dict[str, tuple[Change, str]] = {
    "upside down": (lambda table: table.take(list(range(len(table)))[::-1]), "not in order"),
    "two rows change places": (lambda table: table.take([1, 0, *range(2, len(table))]), "not in order"),
    "a row is there twice": (lambda table: pa.concat_tables([table.slice(0, 1), table]), "not in order"),
    "a row is lost": (lambda table: table.slice(1), "had .* rows"),
    "all rows are lost": (lambda table: table.slice(0, 0), "had .* rows"),
    "of no state": (
        with_column("state", lambda states: [-1, *states[1:]]),
        "of a state that the savepoint does not list",
    ),
    "of a later state": (
        with_column("state", lambda states: [*states[:-1], 2**31 - 1]),
        "of a state that the savepoint does not list",
    ),
    "of one state": (with_column("state", lambda states: states[-1:] * len(states)), "not in order|had .* rows"),
    "of another hash": (with_column("hash", lambda hashes: [hashes[0] ^ 1, *hashes[1:]]), "not in order|had .* rows"),
    "without hashes": (with_column("hash", lambda hashes: [0] * len(hashes)), "not in order|had .* rows"),
    "another key": (with_column("key", lambda keys: [b"", *keys[1:]]), "not in order|had .* rows"),
    "another value": (with_column("value", lambda values: [b"", *values[1:]]), "had .* rows"),
    "a column is lost": (lambda table: table.drop_columns(["hash"]), "has other columns"),
    "a column more": (lambda table: table.append_column("more", table.column("hash")), "has other columns"),
    "columns in another order": (lambda table: table.select(["key", "state", "hash", "value"]), "has other columns"),
    "other types": (lambda table: table.set_column(0, "state", table.column(0).cast("int64")), "has other columns"),
    "columns with nulls": (
        lambda table: table.cast(pa.schema([field.with_nullable(True) for field in table.schema])),
        "has other columns",
    ),
}


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("how", OTHERS)
def test_a_file_of_other_rows_is_refused_though_its_checksum_is_right(
    how: str, number: int, info: SavepointInfo, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = OTHERS[how]
    path = copy / info.rows[number].files[0].name
    pq.write_table(change(pq.read_table(path)), path)
    (copy / NAME).write_bytes(seal(sealed_anew(info, number, path)))
    with pytest.raises(FormatError, match=words) as refused:
        restore(str(copy), str(copy.with_name("restored")), parallelism=2)
    assert str(copy) in refused.value.message
    assert main(["savepoint", "verify", str(copy)]) == 1
    assert "WRONG: " in capsys.readouterr().out
    shutil.rmtree(copy.with_name("restored"))
