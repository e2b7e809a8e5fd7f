"""Savepoints that are written by a process which is killed at any write: they are none, and are written again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import writing
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.savepoints import restore
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.writing import write_state
from tests.faults.mortal_process import Mortal, files_in, mortal, survives
from tests.services.hdfs_service import HdfsService
from tests.services.s3_server import S3Service

__all__ = ["mortal"]

N, ITEMS = ckpt.ValueState("n", "long"), ckpt.ListState("items", "string")
ROWS = pa.table({"user": [f"u{n}" for n in range(50)], "value": list(range(50))})
LISTS = pa.table({"user": [f"u{n}" for n in range(50)], "index": [0] * 50, "value": ["x"] * 50})


def _double(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.column_names.index("value"), "value", pc.multiply(rows["value"], 2))


CHANGES: list[writing.Change | writing.Migration] = [
    writing.Put("u", ITEMS, LISTS),
    writing.Migration("double", [writing.Transform("u", "n", _double)]),
]


def _values(location: str | Path, options: dict[str, str] | None = None) -> dict[str, int]:
    with open_state(location, uid="u", state="n", options=options) as state:
        return {row["key"]["user"]: row["value"] for row in state.to_arrow().to_pylist()}


@pytest.mark.in_turn
@pytest.mark.parametrize("source_kind", ["none", "savepoint"])
def test_it_is_written_again_whenever_it_was_killed(source_kind: str, mortal: Mortal, quick_path: Path) -> None:
    first = writing.Put("u", N, ROWS, key="user string")
    source: Path | None = None
    given: list[writing.Change | writing.Migration] = [first, *CHANGES]
    if source_kind != "none":
        write_state(None, quick_path / "first", [first], parallelism=2)
        source, given = quick_path / "first", list(CHANGES)
    before = {} if source is None else {path: path.read_bytes() for path in files_in(source)}
    write, ended = 0, False
    while not ended:
        target = quick_path / f"{write}"
        act = partial(write_state, source, target, given, parallelism=2 if source is None else None)
        ended = survives(mortal, target, write, is_after=bool(write % 2), act=act)
        if not (target / "savepoint.json").exists() and files_in(target):
            with pytest.raises(InvalidInputError, match="is not a savepoint"):
                restore(target, quick_path / "never")
            with pytest.raises(InvalidInputError, match="is not empty"):
                act()
            delete(str(target), parse({}))
            assert files_in(target) == []
            act()
        if files_in(target):
            assert _values(target) == {f"u{n}": 2 * n for n in range(50)}
            restore(target, quick_path / f"{write}-restored", parallelism=3)
        write += 1
    assert write > 5
    assert files_in(quick_path / "never") == []
    if source is not None:
        assert {path: path.read_bytes() for path in files_in(source)} == before


@pytest.mark.parametrize("service_name", ["s3", "hdfs"])
def test_it_is_written_in_other_places(service_name: str, request: pytest.FixtureRequest) -> None:
    service: S3Service | HdfsService = request.getfixturevalue(service_name)
    folder, options = service.new_folder(), service.options
    first = writing.Put("u", N, ROWS, key="user string")
    write_state(None, f"{folder}/first", [first], parallelism=2, options=options)
    write_state(f"{folder}/first", f"{folder}/second", CHANGES, options=options)
    restore(f"{folder}/second", f"{folder}/query", parallelism=3, options=options)
    assert _values(f"{folder}/query", options) == {f"u{n}": 2 * n for n in range(50)}
    told = ckpt.writing.dry_run(f"{folder}/query", CHANGES, options=options)
    assert told.migrations == ()
    with ckpt.reading.change_feed(f"{folder}/query", uid="u", state="n", options=options) as feed:
        assert feed.to_arrow().num_rows == 0
