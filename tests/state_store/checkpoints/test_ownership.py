"""A folder below ``remote`` belongs to one checkpoint, whatever copies of it there are."""

from __future__ import annotations

import json
import random
import shlex
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli import main as cli
from pyspark_ckpt.state_store.blobs import LocalPlace, place_at
from pyspark_ckpt.state_store.checkpoints.ownership import OWNER_NAME, claim, describe
from pyspark_ckpt.state_store.errors import ConflictError, InvalidInputError
from pyspark_ckpt.state_store.options import parse
from tests.conftest import MakeLab
from tests.labs.lab import QUERY, CallError, Lab, Server, expected
from tests.labs.saved_query import files, stored, written
from tests.services.hdfs_service import HdfsService
from tests.services.s3_server import S3Service


def started(make_lab: MakeLab, remote: Path | str, **options: str) -> Lab:
    """A lab whose query has an id, and its state in ``remote``."""
    lab = make_lab(remote=str(remote), retentionGracePeriod="0", **options)
    lab.name_query()
    return lab


def at(checkpoint: Path | str) -> dict[str, Any]:
    """How a store of another checkpoint than the lab's is opened."""
    return {"checkpoint_root": str(checkpoint), "state_dir": f"{checkpoint}/state/0/3"}


def copied(lab: Lab, name: str = "copy") -> Path:
    """What ``cp -r`` makes of the checkpoint."""
    return Path(shutil.copytree(lab.checkpoint, lab.checkpoint.with_name(name)))


@pytest.mark.parametrize("fmt", [1, 2])
@pytest.mark.parametrize("batches_before", [0, 1, 4])
@pytest.mark.parametrize("is_another_process", [True, False])
def test_a_copy_is_refused_and_the_original_goes_on(
    fmt: int, batches_before: int, *, is_another_process: bool, make_lab: MakeLab, tmp_path: Path
) -> None:
    lab = started(make_lab, tmp_path / "remote")
    ids = lab.grow(lab.open("run-1", fmt), batches_before)
    copy = copied(lab)
    server = Server(tmp_path / "other", lab.options) if is_another_process else lab.server
    opening = {
        "operator": 0,
        "partition": 3,
        "name": "default",
        "run_id": "run-2",
        "format": fmt,
        "options": lab.options,
    }
    for turn in range(3):
        with pytest.raises(CallError, match="belongs to the checkpoint") as caught:
            server.call("open", **opening, **at(copy), min_versions_to_retain=100)
        assert caught.value.kind == "InvalidInputError"
        assert str(lab.checkpoint) in caught.value.message
        assert str(copy) in caught.value.message
        assert f"`pyspark-ckpt checkpoint rescale {copy} " in caught.value.hint
        assert "--query-id new" in caught.value.hint
        ids += lab.grow(lab.open("run-1", fmt), 1, len(ids), ids[-1] if ids and fmt == 2 else None)
        assert len(ids) == batches_before + turn + 1
    if is_another_process:
        server.stores.shut_down()
    lab.restart(lose_local=True)
    last = ids[-1] if fmt == 2 else None
    assert lab.begin(lab.open("run-3", fmt), len(ids), last).rows == expected(len(ids))


def test_of_many_copies_that_begin_at_once_one_goes_on(make_lab: MakeLab, tmp_path: Path) -> None:
    """Executors of one query are among them: these all get the folder, or none."""
    lab = started(make_lab, tmp_path / "remote")
    copies = [copied(lab, f"copy-{number}") for number in range(4)]

    def begin(number: int) -> bool:
        place, folder = LocalPlace(copies[number % 4]), LocalPlace(tmp_path / "remote" / QUERY)
        try:
            claim(folder, place, str(tmp_path / "remote"))
        except InvalidInputError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(begin, range(64)))
    winners = {number % 4 for number, has_won in enumerate(done) if has_won}
    assert len(winners) == 1
    assert sum(done) == 16


def test_state_of_an_earlier_release_goes_to_the_first_that_comes(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = started(make_lab, tmp_path / "remote")
    ids = lab.grow(lab.open(), 2)
    owner = tmp_path / "remote" / QUERY / OWNER_NAME
    owner.unlink()  # which no earlier release has written
    copy = copied(lab)
    lab.restart()
    lab.grow(lab.open(), 1, 2, ids[-1])
    assert json.loads(owner.read_bytes())["checkpoint"] == str(lab.checkpoint)
    with pytest.raises(CallError, match="belongs to the checkpoint"):
        lab.open(**at(copy))


def test_a_reader_neither_takes_the_folder_nor_is_refused(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = started(make_lab, tmp_path / "remote")
    ids = lab.grow(lab.open(), 2)
    copy = copied(lab)
    (tmp_path / "remote" / QUERY / OWNER_NAME).unlink()
    reader = lab.open("", **at(copy))
    assert lab.begin(reader, 2, ids[-1]).rows == expected(2)
    lab.grow(lab.open("run-2"), 1, 2, ids[-1])
    assert lab.begin(reader, 2, ids[-1]).rows == expected(2)


def test_a_moved_checkpoint_is_told_what_to_do_and_then_goes_on(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = started(make_lab, tmp_path / "remote")
    ids = lab.grow(lab.open(), 2)
    moved = tmp_path / "moved"
    lab.checkpoint.rename(moved)
    lab.restart(lose_local=True)
    owner = tmp_path / "remote" / QUERY / OWNER_NAME
    with pytest.raises(CallError, match="under another path") as caught:
        lab.open(**at(moved))
    assert f"delete {owner} and start the query again" in caught.value.hint
    owner.unlink()
    assert lab.begin(lab.open(**at(moved)), 2, ids[-1]).rows == expected(2)


@pytest.mark.parametrize("spelling", ["{}", "{}/", "file:{}", "file://{}", "file://localhost{}/", "{}/state/..", "/{}"])
def test_one_checkpoint_may_be_spelled_in_many_ways(spelling: str, make_lab: MakeLab, tmp_path: Path) -> None:
    lab = started(make_lab, tmp_path / "remote")
    ids = lab.grow(lab.open(), 1)
    (lab.checkpoint / "state").mkdir(exist_ok=True)
    lab.restart()
    root = spelling.format(lab.checkpoint)
    handle = lab.open("run-2", **at(root))
    assert lab.begin(handle, 1, ids[-1]).rows == expected(1)


def test_a_link_to_a_checkpoint_is_that_checkpoint_and_one_to_a_copy_is_not(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = started(make_lab, tmp_path / "remote")
    link = tmp_path / "current"
    link.symlink_to(lab.checkpoint)
    ids = lab.grow(lab.open("run-1", **at(link)), 1)
    ids += lab.grow(lab.open("run-2"), 1, 1, ids[-1])
    copy = copied(lab)
    link.unlink()
    link.symlink_to(copy)
    with pytest.raises(CallError, match="belongs to the checkpoint"):
        lab.open("run-3", **at(link))
    lab.grow(lab.open("run-4"), 1, 2, ids[-1])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://bucket/a/b", "s3a://bucket/a/b"),
        ("s3n://bucket/a", "s3://bucket/a"),
        ("hdfs://Host:8020/a/b", "hdfs://host/a/b"),
        ("hdfs://host:8020/a/b", "hdfs:///a/b"),
    ],
)
def test_urls_of_one_checkpoint_are_the_same(one: str, other: str) -> None:
    first, second = describe(Named(one)), describe(Named(other))
    assert first.is_same(second)
    assert second.is_same(first)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://bucket/a/b", "s3://bucket/a"),
        ("s3://bucket/a", "s3://other/a"),
        ("s3://bucket/A", "s3://bucket/a"),
        ("hdfs://host:8020/a", "hdfs://other:8020/a"),
        ("hdfs://host:8020/a", "hdfs://host:9000/a"),
        ("hdfs:///a", "hdfs://host:8020/b"),
        ("s3://bucket/a", "/a"),
    ],
)
def test_urls_of_two_checkpoints_differ(one: str, other: str) -> None:
    first, second = describe(Named(one)), describe(Named(other))
    assert not first.is_same(second)
    assert not second.is_same(first)


class Named(LocalPlace):
    """A place that has nothing but a URL."""

    def __init__(self, url: str) -> None:
        super().__init__(Path("/nowhere"))
        self._url = url

    @property
    def url(self) -> str:
        return self._url


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_a_copy_is_refused_in_services_too(kind: str, make_lab: MakeLab, request: pytest.FixtureRequest) -> None:
    service: S3Service | HdfsService = request.getfixturevalue(kind)
    root, copy = service.new_folder(), service.new_folder()
    lab = make_lab(remote=service.new_folder(), retentionGracePeriod="0", **service.options)
    for each in (root, copy):
        place_at(each, parse(lab.options).s3).put("metadata", json.dumps({"id": QUERY}).encode())
    ids = lab.grow(lab.open(**at(root)), 2)
    with pytest.raises(CallError, match="belongs to the checkpoint") as refused:
        lab.open("run-2", **at(copy))
    for key, value in service.options.items():
        assert f" -o {key}={value}" in refused.value.hint
    lab.restart(lose_local=True)
    spelled = root.replace("s3:", "s3n:") + "/"
    assert lab.begin(lab.open("run-3", **at(spelled)), 2, ids[-1]).rows == expected(2)


def test_damage_of_the_owner_is_named_with_what_to_do(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = started(make_lab, tmp_path / "remote")
    lab.grow(lab.open(), 1)
    owner = tmp_path / "remote" / QUERY / OWNER_NAME
    content = bytearray(owner.read_bytes())
    for position in random.Random(1).sample(range(len(content)), 20):
        content[position] ^= 4
        owner.write_bytes(content)
        with pytest.raises(CallError, match=r"owner\.json is damaged") as caught:
            lab.open()
        assert "Delete it if no other checkpoint" in caught.value.hint
        content[position] ^= 4


def test_what_a_copy_does_not_need_is_not_collected(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remote, collect = str(quick_path / "remote"), ["--keep", "1", "-o", "retentionGracePeriod=0"]
    query = written(quick_path / "query", 2, batches=6, operators=(0,), remote=remote)
    query.purge(2)
    claim(LocalPlace(Path(remote, QUERY)), query.place, remote)
    copy = shutil.copytree(query.location, quick_path / "copy")
    before = files(Path(remote))
    assert cli.main(["checkpoint", "gc", str(copy), *collect]) == 2
    assert "belongs to the checkpoint" in capsys.readouterr().err
    assert files(Path(remote)) == before
    assert cli.main(["checkpoint", "gc", query.location, *collect]) == 0
    assert files(Path(remote)) != before


def test_an_owner_that_is_deleted_while_it_is_written_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = LocalPlace.put_if_absent

    def create_and_lose(place: LocalPlace, name: str, data: bytes) -> bool:
        created = create(place, name, data)
        place.delete(name)
        return created

    folder, checkpoint = LocalPlace(tmp_path / "remote" / QUERY), LocalPlace(tmp_path / "checkpoint")
    with monkeypatch.context() as patched:
        patched.setattr(LocalPlace, "put_if_absent", create_and_lose)
        with pytest.raises(ConflictError, match=f"{OWNER_NAME} was deleted while") as caught:
            claim(folder, checkpoint, str(tmp_path / "remote"))
    assert caught.value.retryable
    claim(folder, checkpoint, str(tmp_path / "remote"))


def test_what_a_copy_is_told_to_do_works(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remote = str(quick_path / "remote")
    query = written(quick_path / "query", 2, remote=remote)
    claim(LocalPlace(Path(remote, QUERY)), query.place, remote)
    copy = LocalPlace(Path(shutil.copytree(query.location, quick_path / "a copy")))
    with pytest.raises(InvalidInputError) as caught:
        claim(LocalPlace(Path(remote, QUERY)), copy, remote)
    command = caught.value.hint.partition("`pyspark-ckpt ")[2].partition("`")[0]
    target = str(quick_path / "own")
    words = shlex.split(command.replace("NEW_CHECKPOINT", target).replace("PARTITIONS", "2"))
    assert cli.main(words) == 0, capsys.readouterr().err
    assert stored(target, query.options) == (query.version, 2, query.rows)
    new_id = json.loads(Path(target, "metadata").read_bytes())["id"]
    assert json.loads(Path(remote, new_id, OWNER_NAME).read_bytes())["checkpoint"] == target
    with pytest.raises(InvalidInputError):
        claim(LocalPlace(Path(remote, new_id)), copy, remote)
    claim(LocalPlace(Path(remote, new_id)), LocalPlace(Path(target)), remote)


def test_of_two_restores_with_one_id_in_one_place_one_is_refused(quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(0,))
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    options = {"remote": str(quick_path / "remote")}

    def restore(number: int) -> bool:
        try:
            savepoints.restore(str(quick_path / "taken"), str(quick_path / f"restored-{number}"), options=options)
        except InvalidInputError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(restore, range(4)))
    assert sum(done) == 1
    target = str(quick_path / f"restored-{done.index(True)}")
    assert stored(target, parse(options)) == (query.version, 2, query.rows)
    with pytest.raises(InvalidInputError, match="belongs to the checkpoint"):
        savepoints.restore(str(quick_path / "taken"), str(quick_path / "later"), options=options)
    assert not (quick_path / "later").exists(), "it is refused before anything is written"


def test_a_restore_that_is_begun_anew_in_its_own_target_goes_on(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = written(quick_path / "query", 2, operators=(0,))
    target, options = str(quick_path / "restored"), {"remote": str(quick_path / "remote")}
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_ckpt.state_store.savepoints.restoring.query_restore.Movement", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            savepoints.restore(query.location, target, parallelism=3, options=options)
    shutil.rmtree(target)
    savepoints.restore(query.location, target, parallelism=3, options=options)
    assert stored(target, parse(options)) == (query.version, 3, query.rows)
