"""A shared file system that is away for a while: nothing fails before the timeout, and what was begun is finished."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.blobs import BlobPlace, LocalPlace, RetryPolicy, place_at
from pyspark_ckpt.state_store.errors import ConflictError, StorageError
from tests.conftest import MakeLab
from tests.faults.outage_disk import away
from tests.faults.outages import coming_and_going, live
from tests.state_store.restore.test_remote import started

PASSING = [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN]
LASTING = [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT, errno.ENOTDIR]


@pytest.mark.parametrize(
    ("code", "writers"),
    [
        *((errno.EIO, 1), (errno.ESTALE, 8), (errno.ETIMEDOUT, 40)),
        *(pytest.param(code, writers, marks=pytest.mark.matrix) for code in PASSING for writers in (1, 8, 40)),
    ],
)
def test_no_request_fails_when_the_file_system_is_away_for_a_while(code: int, writers: int, tmp_path: Path) -> None:
    place, over = place_at(str(tmp_path / "shared")), threading.Event()
    place.put("there", b"x")

    def work(number: int) -> int:
        done = 0
        while not over.is_set() or done == 0:
            name = f"{number:02d}-{done:04d}"
            assert place.put_if_absent(name, name.encode())
            assert not place.put_if_absent(name, b"another")
            place.put(f"{name}.mark", b"1")
            assert place.get(name) == name.encode()
            assert len(place.list(prefix=name)) == 2
            place.delete(f"{name}.mark")
            done += 1
        return done

    with ThreadPoolExecutor(writers) as pool:
        working = [pool.submit(work, number) for number in range(writers)]
        for _ in range(3):
            time.sleep(0.1)
            with away(tmp_path / "shared", code):
                time.sleep(0.2)
        over.set()
        done = [each.result() for each in working]
    written = [f"{number:02d}-{each:04d}" for number in range(writers) for each in range(done[number])]
    assert [blob.name for blob in place.walk() if blob.name != "there"] == written


@pytest.mark.parametrize("call", ["fsync", "link", "replace", "open"])
@pytest.mark.parametrize("before", [True, False], ids=["not done", "done, and not answered"])
def test_a_write_is_whole_when_a_step_of_it_fails(
    call: str, *, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step fails twice, before or after it was done."""
    place = place_at(str(tmp_path / "place"))
    place.put("first", b"x")
    left, owner = [2], Path if call == "replace" else os
    original = getattr(owner, call)

    def fail(*arguments: object, **named: object) -> object:
        is_faulty, left[0] = left[0] > 0, left[0] - 1
        result = None if is_faulty and before else original(*arguments, **named)
        if is_faulty:
            if isinstance(result, int):
                os.close(result)
            raise OSError(errno.EIO, "away")
        return result

    def attempt(write: Callable[[], object]) -> object:
        with monkeypatch.context() as patch:
            left[0] = 2
            patch.setattr(owner, call, fail)
            return write()

    data = os.urandom(3 << 20)
    attempt(lambda: create(place, "sst/a", data))
    assert attempt(lambda: place.put_if_absent("b", b"once"))
    assert not attempt(lambda: place.put_if_absent("b", b"twice"))
    attempt(lambda: place.put("b", b"new"))
    with pytest.raises(ConflictError):
        create(place, "sst/a", data)
    assert (place.get("sst/a"), place.get("b")) == (data, b"new")
    assert [path.name for path in (tmp_path / "place").rglob(".*")] == []


def test_a_new_folder_is_durable_though_its_first_fsync_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder that is there already nobody asks whether its name has reached the disk."""
    place, synced, original = place_at(str(tmp_path / "place")), list[str](), os.fsync
    left = {str(tmp_path): 1, str(tmp_path / "place"): 2}

    def sync(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        left[path] = left.get(path, 0) - 1
        if left[path] >= 0:
            raise OSError(errno.EIO, "away")
        original(descriptor)
        synced.append(path)

    monkeypatch.setattr(os, "fsync", sync)
    place.put("sst/a", b"x")
    assert {str(tmp_path), str(tmp_path / "place"), str(tmp_path / "place" / "sst")} <= set(synced)


def test_a_write_goes_on_when_the_file_system_was_away_in_its_middle(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path / "place")
    with place.create("a") as sink:
        sink.write(b"1" * 1000)
        sink._file.close()  # type: ignore[attr-defined]  # as a handle is stale after its server has restarted
        with pytest.raises(ValueError, match="closed file"):
            sink._file.write(b"")  # type: ignore[attr-defined]
        sink.close()  # type: ignore[attr-defined]
        sink.write(b"2" * 1000)
    assert place.get("a") == b"1" * 1000 + b"2" * 1000


@pytest.mark.parametrize("code", [errno.ESTALE, *(pytest.param(code, marks=pytest.mark.matrix) for code in PASSING)])
def test_what_outlasts_the_timeout_is_a_clear_error_when_it_is_over(code: int, tmp_path: Path) -> None:
    place = place_at(str(tmp_path / "shared"), retries=RetryPolicy(1))
    place.put("a", b"x")
    for request in requests(place, tmp_path):
        began = time.monotonic()
        with (
            away(tmp_path / "shared", code),
            pytest.raises(StorageError, match=r"shared.*It was tried for 1 s \(placeTimeout is 1 s\)") as caught,
        ):
            request()
        assert caught.value.waited_s >= 1
        assert "file system" in caught.value.hint
        assert 1 <= time.monotonic() - began < 5
    assert place.get("a") == b"x"


@pytest.mark.parametrize("code", LASTING, ids=errno.errorcode.get)
def test_what_does_not_pass_fails_at_once(code: int, tmp_path: Path) -> None:
    place = place_at(str(tmp_path / "shared"))
    place.put("a", b"x")
    for request in requests(place, tmp_path):
        with away(tmp_path / "shared", code), pytest.raises(StorageError) as caught:
            request()
        assert caught.value.waited_s == 0


def requests(place: BlobPlace, folder: Path) -> list[Callable[[], object]]:
    return [
        lambda: place.put("b", b"x"),
        lambda: place.put_if_absent("b", b"x"),
        lambda: create(place, "c", b"x"),
        lambda: place.get("a"),
        lambda: place.download("a", folder / "copy"),
        place.list,
        place.walk,
        lambda: place.delete("a"),
    ]


def create(place: BlobPlace, name: str, data: bytes) -> None:
    with place.create(name) as sink:
        sink.write(data)


@pytest.mark.parametrize("code", [errno.ESTALE, pytest.param(errno.EIO, marks=pytest.mark.matrix)])
def test_a_query_goes_on_when_its_file_system_is_away_in_the_middle_of_anything(
    code: int, make_lab: MakeLab, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    lab = started(make_lab, remote=str(shared))
    with coming_and_going(lambda: away(shared, code), 0.1, 0.2):
        live(lab, 3, lambda _version: nullcontext())
