"""Services that are away for a while: nothing fails before the timeout, and soon after it a clear error."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.state_store.blobs import BlobPlace, RetryPolicy, S3Settings, Traffic, place_at
from pyspark_ckpt.state_store.blobs.base.retries import RetriesExhaustedError, ask_now, get_left_of_try_s
from pyspark_ckpt.state_store.blobs.s3.place import S3Place
from pyspark_ckpt.state_store.checkpoints.inventory import list_operators
from pyspark_ckpt.state_store.errors import StorageError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints import creation as savepoint_creation
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from tests.conftest import MakeLab
from tests.faults.outages import KINDS, Wire, coming_and_going, live, outage_soon, wire
from tests.labs.lab import CallError
from tests.labs.saved_query import SAVEPOINT_KINDS, Query, stored
from tests.services.s3_server import S3Service
from tests.state_store.restore.test_remote import started

BIG = os.urandom(20 << 20)
LONG = pytest.mark.matrix


@pytest.fixture
def cut(s3: S3Service) -> Iterator[Wire]:
    """A wire to the service of S3."""
    there = urlsplit(s3.endpoint)
    with wire((str(there.hostname), int(there.port or 0))) as made:
        yield made


def far(service: S3Service, cut: Wire, timeout_s: float = 60.0, traffic: Traffic | None = None) -> BlobPlace:
    """A new place in S3, at the end of the wire."""
    retries = RetryPolicy(timeout_s) if traffic is None else RetryPolicy(timeout_s, traffic.note_wait)
    settings = S3Settings(endpoint=f"http://127.0.0.1:{cut.port}", addressing="path")
    return place_at(f"{service.new_folder()}/state", settings, retries=retries)


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("seconds", "writers"),
    [
        *((0.1, 1), (0.1, 40), (1.5, 8)),
        *(pytest.param(seconds, writers, marks=LONG) for seconds in (5, 30) for writers in (1, 8, 40)),
    ],
)
def test_no_request_fails_when_the_service_is_away_for_a_while(
    kind: str, seconds: float, writers: int, s3: S3Service, cut: Wire, tmp_path: Path
) -> None:
    """Writers of small and large objects, readers and lists, in the middle of which the wire is cut."""
    traffic = Traffic()
    place = far(s3, cut, 12 if seconds < 5 else 60, traffic)
    place.put("there", BIG)
    with outage_soon(cut, kind, 0.1, seconds) as over:

        def work(number: int) -> int:
            done = 0
            while not over.is_set() or done == 0:
                name = f"{number:02d}-{done:04d}"
                assert place.put_if_absent(name, name.encode())
                if done % 4 == 1 and number < 4:
                    with place.create(f"large/{name}") as sink:
                        sink.write(BIG)
                    assert place.download(f"large/{name}", tmp_path / name) == len(BIG)
                    assert (tmp_path / name).read_bytes() == BIG
                    place.delete(f"large/{name}")
                assert place.get(name) == name.encode()
                assert name in [blob.name for blob in place.list(prefix=f"{number:02d}-")]
                done += 1
            return done

        with ThreadPoolExecutor(writers) as pool:
            done = list(pool.map(work, range(writers)))
    written = [f"{number:02d}-{each:04d}" for number in range(writers) for each in range(done[number])]
    assert [blob.name for blob in place.list() if blob.name != "there"] == written
    assert place.list("large") == []
    assert traffic.take_wait()["place_wait_ms"] > 0


REQUESTS: dict[str, Callable[[BlobPlace, Path], object]] = {
    "put_if_absent": lambda place, _: place.put_if_absent("a", b"x"),
    "put": lambda place, _: place.put("a", b"x"),
    "get": lambda place, _: place.get("there"),
    "download": lambda place, path: place.download("there", path / "copy"),
    "list": lambda place, _: place.list(),
    "walk": lambda place, _: place.walk(),
    "delete": lambda place, _: place.delete("there"),
    "discard_unfinished": lambda place, _: place.discard_unfinished(60),
    "create": lambda place, _: create(place, BIG),
    "copy": lambda place, _: place.copy_from(place, "there", len(BIG), "copy"),  # type: ignore[attr-defined]
}


def create(place: BlobPlace, data: bytes, name: str = "large") -> None:
    with place.create(name) as sink:
        sink.write(data)


@pytest.mark.parametrize(
    ("request_kind", "kind"),
    [
        *(("put_if_absent", "silent"), ("create", "refused"), ("list", "reset")),
        *(pytest.param(request, kind, marks=LONG) for request in REQUESTS for kind in KINDS),
    ],
)
def test_what_outlasts_the_timeout_is_a_clear_error_when_it_is_over(
    request_kind: str, kind: str, s3: S3Service, cut: Wire, tmp_path: Path
) -> None:
    place = far(s3, cut, timeout_s=2)
    s3.client.put_object(Bucket=s3.bucket, Key=f"{place.url.removeprefix(f's3://{s3.bucket}/')}/there", Body=BIG)
    with cut.outage(kind):
        began = time.monotonic()
        with pytest.raises(StorageError, match=r"It was tried for \d s \(placeTimeout is 2 s\)") as caught:
            REQUESTS[request_kind](place, tmp_path)
        took_s = time.monotonic() - began
    assert caught.value.retryable
    assert caught.value.waited_s >= 2
    assert "placeTimeout" in caught.value.hint
    assert 2 <= took_s < 10


def test_queued_parts_do_not_wait_one_after_the_other_when_the_service_stays_away(s3: S3Service, cut: Wire) -> None:
    place = far(s3, cut, timeout_s=2)
    with cut.outage("refused"), ThreadPoolExecutor(20) as pool:
        began = time.monotonic()

        def fail(number: int) -> None:
            with pytest.raises(StorageError):
                create(place, BIG * 2, f"a{number}")

        list(pool.map(fail, range(20)))
        assert time.monotonic() - began < 15


def test_the_log_says_once_that_a_place_is_waited_for_and_once_that_it_answers(
    s3: S3Service, cut: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    place = far(s3, cut)
    with ThreadPoolExecutor(40) as pool, cut.outage("refused"):
        waiting = [pool.submit(place.put, f"a{number}", b"x") for number in range(40)]
        time.sleep(2)
        assert not any(each.done() for each in waiting)
        said = [record.getMessage() for record in caplog.records if record.name.endswith("places")]
        assert len(said) == 1
        assert s3.bucket in said[0]
        assert "has not answered since" in said[0]
        assert f"127.0.0.1:{cut.port}" in said[0]
        caplog.clear()
    for each in waiting:
        each.result()
    said = [record.getMessage() for record in caplog.records if record.name.endswith("places")]
    assert [f"s3://{s3.bucket} answers again, after" in each for each in said] == [True]


def test_a_try_that_began_as_the_outage_ended_leaves_time_for_another() -> None:
    """Whoever asks while a place is silent learns nothing until his try is over."""
    began, asked = time.monotonic(), list[float]()

    def request() -> str:
        asked.append(time.monotonic() - began)
        if asked[-1] < 5:
            time.sleep(get_left_of_try_s(60))
            raise TimeoutError("silent")
        return "answered"

    assert RetryPolicy(8).repeat("place", request, lambda _: True) == "answered"
    assert asked[-1] < 8


def test_what_is_asked_again_is_not_waited_for_as_long_again() -> None:
    """As by the second attempt of a task, of which Spark makes four: of a place that has been away all the time."""
    tries, is_away = list[float](), [True]

    def request() -> str:
        tries.append(get_left_of_try_s(60))
        if is_away[0]:
            raise TimeoutError("silent")
        return "answered"

    def ask(*, again: bool) -> str:
        tries.clear()
        with ask_now(again=again):
            return RetryPolicy(1.5).repeat("another place", request, lambda _: True)

    with pytest.raises(RetriesExhaustedError):
        ask(again=False)
    assert len(tries) > 2
    with pytest.raises(RetriesExhaustedError) as caught:
        ask(again=True)
    assert len(tries) == 1
    assert caught.value.after_s >= 1.5
    is_away[0] = False
    assert ask(again=True) == "answered"
    is_away[0] = True
    with pytest.raises(RetriesExhaustedError):
        ask(again=True)
    assert len(tries) > 2, "another outage has all of the time"


def test_waiting_ends_when_the_process_is_asked_to_stop(s3: S3Service, cut: Wire) -> None:
    stopping = threading.Event()
    settings = S3Settings(endpoint=f"http://127.0.0.1:{cut.port}", addressing="path")
    place = place_at(s3.new_folder(), settings, retries=RetryPolicy(600, stopping=stopping))
    with cut.outage("refused"):
        threading.Timer(0.5, stopping.set).start()
        with pytest.raises(StorageError, match="asked to stop"):
            place.list()


def test_tasks_that_wait_for_each_other_fail_together_when_the_service_stays_away(
    make_lab: MakeLab, s3: S3Service, cut: Wire
) -> None:
    """One of them numbers the run of format 1, and the others wait for it."""
    lab, root = (
        make_lab(s3Endpoint=f"http://127.0.0.1:{cut.port}", s3Addressing="path", placeTimeout="2s"),
        s3.new_folder(),
    )
    handles = [
        lab.open(fmt=1, partition=number, checkpoint_root=root, state_dir=f"{root}/state/0/{number}")
        for number in range(16)
    ]
    lab.grow(lab.open("run-0", fmt=1, checkpoint_root=root, state_dir=f"{root}/state/0/99"), 1)

    def fail(handle: int) -> None:
        with pytest.raises(CallError, match="placeTimeout is 2 s"):
            lab.begin(handle, 0)

    with cut.outage("refused"), ThreadPoolExecutor(16) as pool:
        began = time.monotonic()
        list(pool.map(fail, handles))
        assert time.monotonic() - began < 15
        with pytest.raises(CallError, match="placeTimeout is 2 s"):
            lab.server.call("begin", handle=handles[0], version=0, again=True)
    lab.server.call("begin", handle=handles[0], version=0, again=True)


def test_many_deletes_do_not_wait_one_after_the_other_when_the_service_stays_away(
    make_lab: MakeLab, s3: S3Service, cut: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = started(
        make_lab,
        remote=s3.new_folder(),
        s3Endpoint=f"http://127.0.0.1:{cut.port}",
        s3Addressing="path",
        placeTimeout="2s",
    )
    handle, ids = lab.open(keep=1), list[str]()
    for version in range(40):
        ids += lab.grow(handle, 1, version, ids[-1] if ids else None)
    lab.begin(handle, 40, ids[-1]).abort()
    lab.server.call("snapshot", handle=handle, force=True)
    lab.begin(handle, 40, ids[-1]).abort()
    ids += lab.grow(handle, 2, 40, ids[-1])
    lab.begin(handle, 42, ids[-1]).abort()
    with ExitStack() as stack:
        stop = threading.Event()
        original = S3Place.delete

        def delete(place: S3Place, name: str) -> None:
            if not stop.is_set():
                stop.set()
                stack.enter_context(cut.outage("refused"))
            original(place, name)

        monkeypatch.setattr(S3Place, "delete", delete)
        began = time.monotonic()
        with pytest.raises(CallError, match="placeTimeout is 2 s"):
            lab.server.call("cleanup", handle=handle)
        assert time.monotonic() - began < 9


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seconds", [1.5, *(pytest.param(seconds, marks=LONG) for seconds in (0.3, 30))])
def test_a_query_goes_on_when_its_place_is_away_in_the_middle_of_anything(
    kind: str, seconds: float, make_lab: MakeLab, s3: S3Service, cut: Wire
) -> None:
    """Commits, snapshots, clean-ups and restores, none of which is tried again by the caller."""
    endpoint = f"http://127.0.0.1:{cut.port}"
    lab = started(
        make_lab,
        remote=s3.new_folder(),
        s3Endpoint=endpoint,
        s3Addressing="path",
        placeTimeout="12s" if seconds < 5 else "60s",
    )
    draw = random.Random(kind)
    live(
        lab,
        4,
        lambda version: outage_soon(cut, kind, draw.random() * 0.1, seconds / 3 if version % 2 else seconds),
    )


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
@pytest.mark.parametrize(
    ("outage", "seconds"),
    [("reset", 0.1), *(pytest.param(outage, seconds, marks=LONG) for outage in KINDS for seconds in (5, 30))],
)
def test_a_savepoint_is_taken_and_restored_while_its_place_comes_and_goes(
    outage: str, seconds: float, kind: Kind, s3: S3Service, cut: Wire, quick_path: Path
) -> None:
    near, far_away = s3.options, {**s3.options, "s3Endpoint": f"http://127.0.0.1:{cut.port}"}
    query = Query(str(quick_path / "query"), 2, options=parse({"remote": s3.new_folder(), **near}), operators=(2,))
    query.run(snapshots=True)
    taken, there = s3.new_folder(), s3.new_folder()

    def away() -> AbstractContextManager[object]:
        if seconds < 1:
            return coming_and_going(lambda: cut.outage(outage), seconds, 1)
        return outage_soon(cut, outage, 0.1, seconds)

    with away():
        savepoints.savepoint(query.location, taken, kind=kind, options=far_away)
    with away():
        savepoints.restore(taken, there, parallelism=3, options=far_away)
    assert stored(there, parse(near)) == (query.version, 3, query.rows)


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_a_savepoint_fails_once_when_its_place_stays_away(
    kind: Kind, s3: S3Service, cut: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    """All of the checkpoint is there, too: what is tidied up after the failure is not waited for once more."""
    far_away = {**s3.options, "s3Endpoint": f"http://127.0.0.1:{cut.port}", "placeTimeout": "3s"}
    folder = s3.new_folder()
    query = Query(folder, 2, options=parse(s3.options), operators=(0,))
    query.run(2, snapshots=True)
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:

        def cut_soon(*given: Any) -> object:  # noqa: ANN401
            found = list_operators(*given)
            stack.enter_context(cut.outage("refused"))
            return found

        patch.setattr(savepoint_creation, "list_operators", cut_soon)
        with pytest.raises(StorageError, match="placeTimeout is 3 s"):
            savepoints.savepoint(folder, s3.new_folder(), kind=kind, options=far_away)
    (left,) = (record.getMessage() for record in caplog.records if "could not remove" in record.getMessage())
    assert "_ckpt/pins" in left
    assert "placeTimeout is 2 s" in left, "and not 3"
