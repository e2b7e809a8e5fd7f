"""Only plain files of a checkpoint are read: a link leads elsewhere, a pipe blocks, a device has no end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.moving import branch
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.errors import CkptError, InvalidInputError
from tests.labs.saved_query import Query, files, stored, written

PRIVATE = b"a password"


def put_link(path: Path) -> None:
    path.symlink_to(path.with_name("private"))
    path.with_name("private").write_bytes(PRIVATE)


def put_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)


KINDS: dict[str, Callable[[Path], None]] = {
    "a link": put_link,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_reads_plain_files_alone(kind: str, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    KINDS[kind](tmp_path / "place" / "x")
    place = LocalPlace(tmp_path / "place")
    reads: list[Callable[[], object]] = [
        lambda: place.get("x"),
        lambda: place.get("x", 0, 10),
        lambda: place.download("x", tmp_path / "copy"),
        lambda: LocalPlace(tmp_path / "other").link_from(place, "x", "y"),
    ]
    for read in reads:
        with pytest.raises(InvalidInputError, match="only plain files are read") as caught:
            read()
        assert str(tmp_path / "place" / "x") in caught.value.message
    assert not (tmp_path / "other" / "y").is_symlink()


def test_a_socket_is_no_file(tmp_path: Path) -> None:
    put_socket(tmp_path / "x")
    with pytest.raises(CkptError):
        LocalPlace(tmp_path).get("x")


def test_a_place_that_is_reached_through_a_link_is_read(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "x").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "place")
    place = LocalPlace(tmp_path / "link")
    assert place.get("x") == b"content"
    assert place.download("x", tmp_path / "copy") == 7


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["sources/0/0", "metadata", "offsets/2", "commits/2", "state/0/_metadata/metadata"])
def test_no_copy_of_a_checkpoint_is_made_with_what_is_no_plain_file(kind: str, name: str, quick_path: Path) -> None:
    query = written(quick_path / "query", 1, operators=(1,), batches=3)
    path = Path(query.location, name)
    path.unlink()
    KINDS[kind](path)
    acts: tuple[Callable[[str, str], object], ...] = (branch, savepoints.savepoint)
    for number, act in enumerate(acts):
        with pytest.raises(CkptError):
            act(query.location, str(quick_path / f"target-{number}"))
        for content in files(quick_path / f"target-{number}").values():
            assert PRIVATE not in content


@pytest.mark.parametrize("kind", KINDS)
def test_a_savepoint_with_what_is_no_plain_file_is_refused(kind: str, quick_path: Path) -> None:
    query = written(quick_path / "query", 1, operators=(1,), batches=2)
    savepoints.savepoint(query.location, str(quick_path / "saved"))
    for name in ("savepoint.json", next(each for each in files(quick_path / "saved") if each.endswith(".delta"))):
        path = quick_path / "saved" / name
        content = path.read_bytes()
        path.unlink()
        KINDS[kind](path)
        with pytest.raises(CkptError):
            savepoints.restore(str(quick_path / "saved"), str(quick_path / "target"))
        path.unlink()
        path.write_bytes(content)
        path.with_name("private").unlink(missing_ok=True)
    savepoints.restore(str(quick_path / "saved"), str(quick_path / "new"))
    assert stored(str(quick_path / "new")) == (query.version, 1, query.rows)


def test_commands_end_when_a_table_file_is_a_pipe(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = Query(str(quick_path / "query"), 1, operators=(1,))
    query.run(3, snapshots=True)
    for pattern in ("*.delta", "*.snapshot"):
        for path in Path(query.location, "state").rglob(pattern):
            path.unlink()
            os.mkfifo(path)
    assert main(["checkpoint", "verify", query.location]) != 0
    assert "pipe" in capsys.readouterr().out
    with pytest.raises(CkptError, match="pipe"):
        savepoints.savepoint(query.location, str(quick_path / "saved"))
