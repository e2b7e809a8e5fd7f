"""Whatever deletes proves first whose the objects are: no pointer and no link leads it to those of another."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.running.leftovers import delete_checkpoint, delete_state
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.checkpoints.ownership import OWNER_NAME
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.json_objects import seal_json
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.server.homes import PREFIX, delete_forgotten
from tests.conftest import MakeLab
from tests.labs.lab import QUERY
from tests.labs.saved_query import Query, files, stored, written

GC = ("--keep", "1", "-o", "retentionGracePeriod=0")


def two(folder: Path, **remote: str) -> tuple[Query, Query]:
    """Two checkpoints, each with versions that nobody needs. The second one's state is in the folder ``remote``."""
    first = written(folder / "first", 2, operators=(1,))
    second = Query(str(folder / "second"), 2, operators=(1,), options=parse(remote))
    for query in (first, second):
        query.run(4, snapshots=True)
    return first, second


def list_left(folder: Path) -> set[str]:
    """The objects that are left, without those that say which commits are replaced."""
    return {name for name in files(folder) if not name.endswith(".replaced")}


def gc(query: Query, *more: str) -> int:
    return main(["checkpoint", "gc", query.location, *GC, *more])


def point(query: Query, url: str, partition: int = 0) -> None:
    (Path(query.location) / "state" / "0" / str(partition) / "remote.json").write_text(json.dumps({"place": url}))


@pytest.mark.parametrize("where", ["state/0/0", "state/0/1", ""])
def test_gc_deletes_nothing_of_a_checkpoint_to_which_a_pointer_leads(
    where: str, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = two(quick_path)
    before = files(quick_path / "second")
    point(first, f"{second.location}/{where}".rstrip("/"))
    assert gc(first) == 2
    assert "Nothing was deleted" in capsys.readouterr().err
    assert files(quick_path / "second") == before
    assert stored(second.location) == (second.version, 2, second.rows)


def test_gc_deletes_nothing_in_a_folder_below_remote_without_an_owner_or_with_another(
    quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = two(quick_path, remote=str(quick_path / "remote"))
    folder = quick_path / "remote" / QUERY
    before = files(folder)
    point(first, f"{folder}/state/0/0")
    assert gc(first) == 2
    assert f"belongs to the checkpoint {second.location}" in capsys.readouterr().err
    assert files(folder) == before
    (folder / OWNER_NAME).unlink()
    for query in (first, second):
        assert gc(query) == 2
        assert "start the query once" in capsys.readouterr().err
    assert files(folder) == {name: each for name, each in before.items() if name != OWNER_NAME}


def test_gc_cleans_up_what_the_checkpoint_owns_below_remote(quick_path: Path) -> None:
    _, second = two(quick_path, remote=str(quick_path / "remote"))
    before = files(quick_path / "remote")
    assert gc(second) == 0
    assert list_left(quick_path / "remote") < before.keys()


@pytest.mark.parametrize("linked", ["state", "state/0", "state/0/0", "state/0/0/sst"])
def test_gc_deletes_nothing_through_a_link(linked: str, quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = two(quick_path)
    if linked.endswith("sst"):  # all manifests are gone there: each table file is one that nobody needs
        for manifest in Path(first.location, "state/0/0").glob("*.snapshot"):
            manifest.unlink()
    before = files(quick_path / "second")
    own = Path(first.location, linked)
    shutil.rmtree(own, ignore_errors=True)
    own.symlink_to(Path(second.location, linked))
    assert gc(first) != 0
    assert "link" in capsys.readouterr().err
    assert files(quick_path / "second") == before


def test_gc_works_in_a_checkpoint_that_is_reached_through_a_link(quick_path: Path) -> None:
    first, _ = two(quick_path)
    (quick_path / "link").symlink_to(first.location)
    before = files(quick_path / "first")
    assert main(["checkpoint", "gc", str(quick_path / "link"), *GC]) == 0
    assert list_left(quick_path / "first") < before.keys()


def test_the_clean_up_of_a_query_deletes_nothing_where_a_link_leads(
    make_lab: MakeLab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lab = make_lab(retentionGracePeriod="0")
    ids = lab.grow_with_snapshots(6)
    elsewhere = tmp_path / "another"
    lab.remote.rename(elsewhere)
    lab.remote.symlink_to(elsewhere)
    before = files(elsewhere)
    handle = lab.open(keep=1)
    lab.begin(handle, 6, ids[-1]).abort()
    for _ in range(2):
        assert lab.server.call("cleanup", handle=handle)["deleted"] == 0
    assert files(elsewhere) == before
    assert sum("no old versions are deleted" in record.message for record in caplog.records) == 1
    lab.remote.unlink()
    elsewhere.rename(lab.remote)
    assert lab.server.call("cleanup", handle=handle)["deleted"] > 0


def test_a_deleted_object_is_never_one_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_bytes(b"theirs")
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "pins").symlink_to(tmp_path / "other")
    (tmp_path / "place" / "x").symlink_to(tmp_path / "other" / "x")
    place = LocalPlace(tmp_path / "place")
    with pytest.raises(InvalidInputError, match="is a link to"):
        place.delete("pins/x")
    place.delete("x")  # the link itself
    assert files(tmp_path / "other") == {"x": b"theirs"}
    assert not (tmp_path / "place" / "x").is_symlink()


@pytest.mark.parametrize("delete", [delete_state, lambda place, query: delete_checkpoint(place, query, None)])
def test_the_way_back_deletes_no_checkpoint_of_another_query(delete: object, quick_path: Path) -> None:
    first, _ = two(quick_path)
    before = files(quick_path / "first")
    with pytest.raises(InvalidInputError, match="is no longer the checkpoint of query another"):
        delete(LocalPlace(Path(first.location)), "another")  # type: ignore[operator]
    assert files(quick_path / "first") == before
    (Path(first.location) / "state" / "0" / "1").symlink_to(quick_path / "second")
    with pytest.raises(InvalidInputError):
        delete_checkpoint(LocalPlace(Path(first.location)), QUERY, None)
    assert set(before) <= set(files(quick_path / "first"))


def test_a_savepoint_with_a_link_in_it_is_not_deleted(quick_path: Path) -> None:
    first, _ = two(quick_path)
    savepoints.savepoint(first.location, str(quick_path / "saved"))
    before = files(quick_path / "second")
    (quick_path / "saved" / "state" / "0" / "7").symlink_to(quick_path / "second")
    assert main(["savepoint", "delete", str(quick_path / "saved")]) == 2
    assert (quick_path / "saved" / "savepoint.json").exists()
    assert files(quick_path / "second") == before


def test_a_restore_is_not_continued_where_a_link_was_put(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = two(quick_path)
    savepoints.savepoint(first.location, str(quick_path / "saved"))
    target = quick_path / "target"
    with monkeypatch.context() as patch:
        patch.setattr("pyspark_ckpt.state_store.savepoints.restoring.query_restore.Movement", None)
        with pytest.raises(TypeError):
            savepoints.restore(str(quick_path / "saved"), str(target))
    before = files(quick_path / "second")
    (target / "state").symlink_to(quick_path / "second" / "state")
    with pytest.raises(InvalidInputError, match="is a link to another folder"):
        savepoints.restore(str(quick_path / "saved"), str(target))
    assert files(quick_path / "second") == before
    (target / "state").unlink()
    savepoints.restore(str(quick_path / "saved"), str(target))
    assert stored(str(target)) == (first.version, 2, first.rows)


def test_a_home_whose_folder_is_a_link_is_not_deleted(tmp_path: Path) -> None:
    other, home = tmp_path / "other", tmp_path / f"{PREFIX}1-a"
    other.mkdir()
    (other / "file").write_bytes(b"theirs")
    home.mkdir(mode=0o700)
    (home / "owner.lock").touch()
    (home / "server").symlink_to(other)
    for path in (home / "owner.lock", other / "file", other, home):
        os.utime(path, (0, 0))
    delete_forgotten(tmp_path)
    assert (other / "file").exists()
    (home / "server").unlink()
    (home / "readers").symlink_to(other)
    for path in (home / "owner.lock", home):
        os.utime(path, (0, 0))
    os.utime(home / "readers", (0, 0), follow_symlinks=False)
    delete_forgotten(tmp_path)
    assert (other / "file").exists()
    assert not home.exists()


@pytest.mark.parametrize("query", ["../../x", "..", "/etc", "a/b", ""])
def test_a_savepoint_whose_query_id_leads_elsewhere_is_refused_before_anything_is_written(
    query: str, quick_path: Path
) -> None:
    first, _ = two(quick_path)
    saved = quick_path / "saved"
    savepoints.savepoint(first.location, str(saved))
    content = json.loads((saved / "savepoint.json").read_bytes())
    del content["xxh3"]
    (saved / "savepoint.json").write_bytes(
        seal_json(json.dumps({**content, "query_id": query}, separators=(",", ":")).encode())
    )
    (quick_path / "a" / "remote").mkdir(parents=True)
    before = files(quick_path)
    with pytest.raises(FormatError, match=r"savepoint\.json is damaged"):
        savepoints.restore(str(saved), str(quick_path / "target"), options={"remote": str(quick_path / "a" / "remote")})
    assert files(quick_path) == before


@pytest.mark.parametrize("is_apart", [False, True])
def test_nothing_is_left_of_a_checkpoint_although_a_snapshot_ends_while_it_is_deleted(
    quick_path: Path, *, is_apart: bool
) -> None:
    _, query = two(quick_path, **({"remote": str(quick_path / "remote")} if is_apart else {}))
    checkpoint, apart = Path(query.location), quick_path / "remote" / QUERY
    late = [(apart if is_apart else checkpoint) / "state/0/0" / f"{9:020d}-{9:032x}.snapshot"]

    class Written(LocalPlace):
        def delete(self, name: str) -> None:
            super().delete(name)
            if late and name.startswith("state/") and late[0].is_relative_to(self.url):
                late.pop().write_bytes(b"of the query that was stopped")

    delete_checkpoint(Written(checkpoint), QUERY, Written(apart) if is_apart else None)
    assert not late
    for folder in (checkpoint, apart):
        assert not folder.is_dir() or not list(folder.iterdir())
