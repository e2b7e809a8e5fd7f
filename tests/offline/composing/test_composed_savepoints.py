"""Operators of several savepoints in one: what they hold, what is refused, and what a kill leaves."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import writing
from pyspark_ckpt.offline.writing.held_state import hold_state
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.savepoints import restore, savepoint
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import CkptError, FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.state_store.savepoints.savepoint import Kind, Savepoint, read_info
from pyspark_ckpt.writing import compose_savepoint, write_state
from tests.compat.frozen import unpack
from tests.faults.mortal_process import Mortal, files_in, mortal, survives
from tests.services.hdfs_service import HdfsService
from tests.services.s3_server import S3Service

__all__ = ["mortal"]

N, ITEMS = ckpt.ValueState("n", "long"), ckpt.ListState("items", "string")
KAFKA = {"topic": {"0": 17}}


def _write(target: str | Path, uid: str, rows: int, parallelism: int = 2, **more: Any) -> None:  # noqa: ANN401
    counts = pa.table({"user": [f"{uid} {n}" for n in range(rows)], "value": list(range(rows))})
    lists = pa.table({"user": [f"{uid} 1"] * 3, "index": [0, 1, 2], "value": ["a", "b", "c"]})
    given = [writing.Put(uid, N, counts, key="user string"), writing.Put(uid, ITEMS, lists)]
    write_state(None, target, [writing.Migration(f"begin {uid}", given)], parallelism=parallelism, **more)


def _values(location: str | Path, uid: str, options: dict[str, str] | None = None) -> dict[str, int]:
    with open_state(location, uid=uid, state="n", options=options) as state:
        return {row["key"]["user"]: row["value"] for row in state.to_arrow().to_pylist()}


def _expect(uid: str, rows: int) -> dict[str, int]:
    return {f"{uid} {n}": n for n in range(rows)}


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two savepoints with other numbers of partitions, and of rows."""
    _write(tmp_path / "a", "a", 30, 2, offsets=[KAFKA])
    _write(tmp_path / "b", "b", 20, 5, offsets=[None, {"b": 2}])
    return tmp_path / "a", tmp_path / "b"


def test_all_state_is_there_under_new_numbers(two: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = two
    info = compose_savepoint(
        tmp_path / "both", [(b, "b"), None, (a, 0)], sources=[(a, 0), (b, 1), None, '{"c":3}', (b, 0)]
    )
    assert [(each.number, each.uids) for each in info.operators] == [(0, ("b",)), (1, ()), (2, ("a",))]
    assert (info.version, info.partitions) == (1, 5)
    assert info.query_id not in (read_info(_place(a)).query_id, read_info(_place(b)).query_id)
    restore(tmp_path / "both", tmp_path / "query", parallelism=3)
    for place in (tmp_path / "both", tmp_path / "query"):
        assert _values(place, "a") == _expect("a", 30)
        assert _values(place, "b") == _expect("b", 20)
        with open_state(place, uid="a", state="items") as items:
            assert [row["value"] for row in items.to_arrow().to_pylist()] == ["a", "b", "c"]
        offsets = (place / "offsets" / "0").read_text().splitlines()
        assert offsets[2:] == [json.dumps(KAFKA), '{"b": 2}', "-", '{"c":3}', "-"]
    done = ckpt.writing.dry_run(
        tmp_path / "query", [writing.Migration("begin a", []), writing.Migration("begin b", [])]
    )
    assert done.migrations == ()
    assert Savepoint(str(tmp_path / "both"), parse({})).verify_files() == []
    assert Savepoint(str(tmp_path / "both"), parse({})).verify_rows()[0] == []


def test_a_query_with_another_operator_keeps_its_id_and_its_sources(two: tuple[Path, Path], tmp_path: Path) -> None:
    a, _ = two
    compose_savepoint(tmp_path / "more", [None, (a, "a"), None])
    info = read_info(_place(tmp_path / "more"))
    assert info.query_id == read_info(_place(a)).query_id
    assert (tmp_path / "more" / "offsets" / "0").read_text().splitlines()[2:] == [json.dumps(KAFKA)]
    rows = pa.table({"user": ["x"], "value": [1]})
    with pytest.raises(InvalidInputError, match="no keyed operator with the uid 'new'"):  # which of the two?
        write_state(tmp_path / "more", tmp_path / "put", [writing.Put("new", N, rows, key="user string")])
    compose_savepoint(tmp_path / "one", [None, (a, "a")])
    write_state(tmp_path / "one", tmp_path / "put", [writing.Put("new", N, rows, key="user string")])
    assert _values(tmp_path / "put", "new") == {"x": 1}
    assert _values(tmp_path / "put", "a") == _expect("a", 30)


def test_one_savepoint_that_is_spelled_in_several_ways_is_one(
    two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = two
    monkeypatch.chdir(tmp_path)
    others: list[str | Path] = ["a", f"{a}/", f"file:{a}", tmp_path / "b" / ".." / "a"]
    for number, other in enumerate(others):
        compose_savepoint(tmp_path / f"{number}", [(a, "a")], sources=[(other, 0)])
        assert read_info(_place(tmp_path / f"{number}")).query_id == read_info(_place(a)).query_id
    compose_savepoint(tmp_path / "without", [None, ("a", "a"), None])
    with pytest.raises(InvalidInputError, match="has the uid 'a' twice"):
        compose_savepoint(tmp_path / "twice", [("a", "a"), (a, "a")])


def test_files_of_sources_move_with_them(two: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = two
    restore(a, tmp_path / "query a")
    restore(b, tmp_path / "query b")
    for query, source in (("a", 0), ("b", 0), ("b", 1)):
        folder = tmp_path / f"query {query}" / "sources" / f"{source}"
        folder.mkdir(parents=True)
        (folder / "0").write_text(f"{query} {source}")
    compose_savepoint(
        tmp_path / "both",
        [(tmp_path / "query a", "a"), (tmp_path / "query b", "b")],
        sources=[(tmp_path / "query b", 1), (tmp_path / "query a", 0)],
    )
    found = {
        path.parent.name: path.read_text() for path in (tmp_path / "both" / "sources").rglob("*") if path.is_file()
    }
    assert found == {"0": "b 1", "1": "a 0"}


def test_the_watermark_is_the_earliest_that_has_begun(two: tuple[Path, Path], tmp_path: Path) -> None:
    times = {"a": 5000, "b": 3000, "c": 0}
    _write(tmp_path / "c", "c", 1)
    for name, at_ms in times.items():
        restore(tmp_path / name, tmp_path / f"query {name}")
        _change(tmp_path / f"query {name}" / "commits" / "0", nextBatchWatermarkMs=at_ms)
        _change(tmp_path / f"query {name}" / "offsets" / "0", batchWatermarkMs=at_ms - 1 if at_ms else 0)
    parts = [(tmp_path / f"query {name}", name) for name in times]
    compose_savepoint(tmp_path / "all", parts, sources=[None])
    commit = json.loads((tmp_path / "all" / "commits" / "0").read_text().splitlines()[1])
    offsets = json.loads((tmp_path / "all" / "offsets" / "0").read_text().splitlines()[1])
    assert (commit["nextBatchWatermarkMs"], offsets["batchWatermarkMs"]) == (3000, 2999)
    assert two


def _change(path: Path, **fields: object) -> None:
    version, entry, *rest = path.read_text().splitlines()
    path.write_text("\n".join([version, json.dumps({**json.loads(entry), **fields}), *rest]))


KEY_ORDER = "spark.sql.dropDuplicates.deterministicKeyOrder.enabled"


@pytest.mark.in_turn
def test_a_conf_of_the_layout_of_state_goes_with_its_operator(two: tuple[Path, Path], tmp_path: Path) -> None:
    a, _ = two
    new = unpack("v1", "deduplication-and-limit", tmp_path / "new")
    _change_confs(new, **{KEY_ORDER: "true"})
    old = unpack("v1", "deduplication-and-limit", tmp_path / "old")
    _change_confs(old, **{KEY_ORDER: None})  # as Spark 4.0 logs it
    number = next(each.operator.number for each in _operators(old) if each.operator.name == "dedupe")
    for name, query, expected in (("before", old, "false"), ("after", new, "true")):
        compose_savepoint(tmp_path / name, [(a, "a"), (query, number)], sources=[None])
        assert _read_json(tmp_path / name / "offsets" / "1")["conf"][KEY_ORDER] == expected
    tried: list[list[Any]] = [[(new, number), (old, number)], [(a, "a"), (old, number), (new, number)]]
    for parts in tried:
        with pytest.raises(
            InvalidInputError, match=rf"{KEY_ORDER} is (true|false) for operator {number} of .*/(new|old)"
        ):
            compose_savepoint(tmp_path / "both", parts, sources=[None])
        assert not (tmp_path / "both").exists()


@pytest.mark.in_turn
def test_what_is_known_of_idle_inputs_stays_with_all_sources(two: tuple[Path, Path], tmp_path: Path) -> None:
    restore(two[0], tmp_path / "query")
    (tmp_path / "query" / "_ckpt" / "watermarks").mkdir(parents=True)
    entry = {"column": "time", "sources": [], "number": 0, "watermarkMs": 5, "seenMs": 6}
    (tmp_path / "query" / "_ckpt" / "watermarks" / "0").write_text(f"v1\n{json.dumps({'inputs': [entry]})}")
    compose_savepoint(tmp_path / "more", [None, (tmp_path / "query", "a")])
    restore(tmp_path / "more", tmp_path / "more now")
    assert json.loads((tmp_path / "more now/_ckpt/watermarks/0").read_text().split("\n")[1])["inputs"] == [entry]
    compose_savepoint(tmp_path / "other", [(tmp_path / "query", "a")], sources=[(tmp_path / "query", 0), None])
    assert not (tmp_path / "other" / "_ckpt" / "watermarks").exists()  # which input it was cannot be told


def test_a_damaged_log_is_found_before_rows_are_written(two: tuple[Path, Path], tmp_path: Path) -> None:
    restore(two[0], tmp_path / "query")
    for log, field in (("commits", "nextBatchWatermarkMs"), ("offsets", "batchWatermarkMs")):
        path = tmp_path / "query" / log / "0"
        before = path.read_text()
        _change(path, **{field: "soon"})
        with pytest.raises(FormatError, match=f"has 'soon' as {field}"):
            compose_savepoint(tmp_path / "target", [(tmp_path / "query", "a")])
        assert not (tmp_path / "target").exists()
        path.write_text(before)


def _change_confs(query: Path, **confs: str | None) -> None:
    for path in (query / "offsets").iterdir():
        if path.name.isdigit():
            found = _read_json(path)["conf"] | confs
            _change(path, conf={name: value for name, value in found.items() if value is not None})


def _read_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text().splitlines()[1])
    return found


def _operators(query: Path) -> Sequence[OperatorVersion]:
    with hold_state(Checkpoint(str(query), parse({}))) as held:
        return held.operators


def test_what_cannot_be_is_refused_and_nothing_is_written(two: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = two
    target = tmp_path / "target"
    refusals: list[tuple[Any, Any, str]] = [
        ([], None, "`operators` must be a list"),
        ("a", None, "`operators` must be a list"),
        ([None], None, "none is of a savepoint"),
        ([a], None, "An operator is"),
        ([(a, 1.5)], None, "neither a name nor a number"),
        ([(a, True)], None, "neither a name nor a number"),
        ([(a, "c")], None, "has no operator 'c'. It has the operators .*, with the uids .'a'"),
        ([(a, 1)], None, "has no operator 1"),
        ([(a, "a"), (a, 0)], None, "has the uid 'a' twice, at 0 and at 1"),
        ([(a, "a"), (b, "b")], None, "so `sources` must name those"),
        ([(a, "a")], [], "`sources` must be a list"),
        ([(a, "a")], [(a, 1)], "has no source 1. Its sources have the numbers .'0'"),
        ([(a, "a")], [(a, "kafka")], "has no source 'kafka'"),
        ([(a, "a")], [17], "An offset must be JSON"),
        ([(a, "a")], [(a, 0), "{"], "An offset must be JSON"),
        ([(a, "a")], ['{"a": "\ud800"}'], "An offset must be JSON"),
        ([(tmp_path / "none", "a")], None, "none"),
    ]
    for operators, sources, message in refusals:
        with pytest.raises(CkptError, match=message):
            compose_savepoint(target, operators, sources=sources)
        assert not target.exists(), message
    with pytest.raises(InvalidInputError, match="is not empty"):
        compose_savepoint(b, [(a, "a")])
    with pytest.raises(InvalidInputError, match="inside"):
        compose_savepoint(a / "inside", [(a, "a")])


def test_lists_of_partitions_need_the_same_number_of_them(tmp_path: Path) -> None:
    last = ckpt.OperatorListState("last", "long")
    rows = pa.table({"partition": [0, 4], "index": [0, 0], "value": [7, 8]})
    _write(tmp_path / "a", "a", 3, 2)
    put = writing.Put("b", last, rows, key="user string")
    write_state(None, tmp_path / "b", [put], parallelism=5)
    parts = [(tmp_path / "a", "a"), (tmp_path / "b", "b")]
    with pytest.raises(InvalidInputError, match="has a list in each of 5 partitions, but the new savepoint has 2"):
        compose_savepoint(tmp_path / "both", parts, sources=[None])
    compose_savepoint(tmp_path / "both", parts[::-1], sources=[None])
    with open_state(tmp_path / "both", uid="b", state="last") as state:
        assert [(row["partition"], row["value"]) for row in state.to_arrow().to_pylist()] == [(0, 7), (4, 8)]


DAMAGE = {
    "offsets/0": (rb'"0": ?17', b'"0":16'),
    "commits/0": (rb'"nextBatchWatermarkMs": ?0', b'"nextBatchWatermarkMs":5'),
    "state/0/_metadata/metadata": (rb'"numColsPrefixKey": ?0', b'"numColsPrefixKey":1'),
}
"""Changes of Spark's files after which they can still be read."""


@pytest.mark.parametrize("name", ["rows", *DAMAGE])
@pytest.mark.parametrize("kind", ["canonical", "native"])
def test_damage_is_found(kind: Kind, name: str, two: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = two
    if kind == "native":
        restore(a, tmp_path / "query")
        a = tmp_path / "native"
        savepoint(tmp_path / "query", a)
    if name == "rows":
        path = next(path for pattern in ("rows/**/*.parquet", "state/0/0/sst/*") for path in a.glob(pattern))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        changed, count = re.subn(*DAMAGE[name], (a / name).read_bytes())
        assert count == 1
        (a / name).write_bytes(changed)
    with pytest.raises((FormatError, NotFoundError), match=r"damaged"):
        compose_savepoint(tmp_path / "both", [(b, "b"), (a, "a")], sources=[(a, 0)])
    with pytest.raises((FormatError, NotFoundError), match=r"damaged"):
        write_state(a, tmp_path / "written", [])
    for target in ("both", "written"):
        assert not (tmp_path / target / "savepoint.json").exists()


@pytest.mark.in_turn
def test_it_is_composed_again_whenever_it_was_killed(mortal: Mortal, quick_path: Path) -> None:
    _write(quick_path / "a", "a", 30, 2)
    _write(quick_path / "b", "b", 20, 3)
    before = {path: path.read_bytes() for name in "ab" for path in files_in(quick_path / name)}
    write, ended = 0, False
    while not ended:
        target = quick_path / f"{write}"
        act = partial(
            compose_savepoint,
            target,
            [(quick_path / "b", "b"), None, (quick_path / "a", "a")],
            sources=[(quick_path / "a", 0), (quick_path / "b", 0)],
        )
        ended = survives(mortal, target, write, is_after=bool(write % 2), act=act)
        if not (target / "savepoint.json").exists() and files_in(target):
            with pytest.raises(InvalidInputError, match="is not a savepoint"):
                restore(target, quick_path / "never")
            delete(str(target), parse({}))
            assert files_in(target) == []
            act()
        if files_in(target):
            assert (_values(target, "a"), _values(target, "b")) == (_expect("a", 30), _expect("b", 20))
        write += 1
    assert write > 5
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.in_turn
@pytest.mark.parametrize("service_name", ["s3", "hdfs"])
def test_it_is_composed_in_other_places(service_name: str, request: pytest.FixtureRequest) -> None:
    service: S3Service | HdfsService = request.getfixturevalue(service_name)
    folder, options = service.new_folder(), service.options
    for uid in "ab":
        _write(f"{folder}/{uid}", uid, 10, options=options)
    parts = [(f"{folder}/b", "b"), (f"{folder}/a", "a")]
    compose_savepoint(f"{folder}/both", parts, sources=[(f"{folder}/a", 0)], options=options)
    restore(f"{folder}/both", f"{folder}/query", parallelism=3, options=options)
    assert _values(f"{folder}/query", "a", options) == _expect("a", 10)


def _place(location: Path) -> Any:  # noqa: ANN401
    return Workplace(parse({})).resolve(str(location))
