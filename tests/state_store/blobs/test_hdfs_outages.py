"""HDFS that is away for a while, wholly or in part: nothing fails before the timeout, and soon after it does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import cycle
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.state_store.blobs import BlobPlace, RetryPolicy, place_at
from pyspark_ckpt.state_store.errors import StorageError
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from tests.conftest import MakeLab
from tests.faults.outages import KINDS, Wire, coming_and_going, live, wire
from tests.labs.saved_query import SAVEPOINT_KINDS, stored, written
from tests.services.hdfs_service import HdfsService
from tests.state_store.restore.test_remote import started

BIG = os.urandom(5 << 20)
LONG = pytest.mark.matrix


@pytest.fixture
def cut(hdfs: HdfsService) -> Iterator[Wire]:
    """A wire to the name node; data nodes are reached without it."""
    host, _, port = hdfs.address.removeprefix("hdfs://").partition(":")
    with wire((host, int(port))) as made:
        yield made


def far(service: HdfsService, cut: Wire, timeout_s: float = 60.0) -> BlobPlace:
    """A new place, whose name node is at the end of the wire."""
    return place_at(f"hdfs://127.0.0.1:{cut.port}{service.path(service.new_folder())}", retries=RetryPolicy(timeout_s))


@contextmanager
def wire_cut(cut: Wire, kind: str, seconds: float) -> Iterator[None]:
    with cut.outage(kind):
        time.sleep(seconds)
        yield


def troubles(hdfs: HdfsService) -> dict[str, Callable[[], AbstractContextManager[None]]]:
    return {
        "safe mode": hdfs.in_safe_mode,
        "no data node": hdfs.without_data_node,
        "no name node": hdfs.without_name_node,
    }


def work_on(place: BlobPlace, number: int, over: threading.Event, folder: Path) -> int:
    """Write, read and list until the trouble is over; how often."""
    done = 0
    while not over.is_set() or done == 0:
        name = f"{number:02d}-{done:04d}"
        assert place.put_if_absent(name, name.encode())
        assert not place.put_if_absent(name, b"another")
        if number < 2:
            with place.create(f"large/{name}") as sink:
                for begin in range(0, len(BIG), 1 << 20):
                    sink.write(BIG[begin : begin + (1 << 20)])
            assert place.download(f"large/{name}", folder / name) == len(BIG)
            assert (folder / name).read_bytes() == BIG
            place.delete(f"large/{name}")
        assert place.get(name) == name.encode()
        assert [blob.name for blob in place.list(prefix=name)] == [name]
        done += 1
    return done


@pytest.mark.in_turn
@pytest.mark.parametrize("trouble", ["safe mode", "no data node", "no name node"])
@pytest.mark.parametrize(
    ("seconds", "writers"), [(1.5, 8), *(pytest.param(seconds, 40, marks=LONG) for seconds in (5, 30))]
)
def test_no_request_fails_when_a_part_of_hdfs_is_away_for_a_while(
    trouble: str, seconds: float, writers: int, hdfs: HdfsService, tmp_path: Path
) -> None:
    folder = f"{hdfs.new_folder()}/SASL/erasure"  # signs of what does not pass, where they say nothing
    place, over = place_at(folder, retries=RetryPolicy(120)), threading.Event()
    with ThreadPoolExecutor(writers) as pool:
        working = [pool.submit(work_on, place, number, over, tmp_path) for number in range(writers)]
        try:
            time.sleep(0.3)
            with troubles(hdfs)[trouble]():
                time.sleep(seconds)
        finally:
            over.set()
        done = [each.result() for each in working]
    written = [f"{number:02d}-{each:04d}" for number in range(writers) for each in range(done[number])]
    assert [blob.name for blob in place.walk()] == written


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("seconds", "writers"), [(0.1, 1), (1.5, 8), *(pytest.param(30, n, marks=LONG) for n in (8, 40))]
)
def test_no_request_fails_when_the_name_node_is_not_reached_for_a_while(
    kind: str, seconds: float, writers: int, hdfs: HdfsService, cut: Wire, tmp_path: Path
) -> None:
    place, over = far(hdfs, cut, 12 if seconds < 5 else 60), threading.Event()
    with ThreadPoolExecutor(writers) as pool:
        working = [pool.submit(work_on, place, number, over, tmp_path) for number in range(writers)]
        try:
            time.sleep(0.2)
            with wire_cut(cut, kind, seconds):
                pass
        finally:
            over.set()
        done = [each.result() for each in working]
    written = [f"{number:02d}-{each:04d}" for number in range(writers) for each in range(done[number])]
    assert [blob.name for blob in place.walk()] == written


REQUESTS: dict[str, Callable[[BlobPlace, Path], object]] = {
    "put_if_absent": lambda place, _: place.put_if_absent("a", b"x"),
    "put": lambda place, _: place.put("a", b"x"),
    "get": lambda place, _: place.get("there"),
    "download": lambda place, path: place.download("there", path / "copy"),
    "list": lambda place, _: place.list(),
    "delete": lambda place, _: place.delete("there"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("request_kind", "kind"),
    [
        *(("put_if_absent", "silent"), ("get", "refused"), ("list", "reset")),
        *(pytest.param(request, kind, marks=LONG) for request in REQUESTS for kind in KINDS),
    ],
)
def test_what_outlasts_the_timeout_is_a_clear_error_when_it_is_over(
    request_kind: str, kind: str, hdfs: HdfsService, cut: Wire, tmp_path: Path
) -> None:
    place = far(hdfs, cut, timeout_s=3)
    place.put("there", b"x")
    with cut.outage(kind):
        began = time.monotonic()
        with pytest.raises(StorageError, match=r"It was tried for \d s \(placeTimeout is 3 s\)") as caught:
            REQUESTS[request_kind](place, tmp_path)
        took_s = time.monotonic() - began
    assert caught.value.waited_s >= 3
    assert "name node" in caught.value.hint
    assert 3 <= took_s < 12


def test_a_data_node_that_is_gone_is_not_taken_for_the_name_node(hdfs: HdfsService) -> None:
    place = place_at(hdfs.new_folder(), retries=RetryPolicy(2))
    place.put("there", b"x")
    with hdfs.without_data_node():
        with pytest.raises(StorageError, match=r"a data node does not answer.* 127\.0\.0\.1:\d+") as reading:
            place.get("there")
        with pytest.raises(StorageError, match="a data node does not answer") as writing:
            place.put("b", b"x")
    for caught in (reading, writing):
        assert "Start the data nodes" in caught.value.hint
    assert place_at(place.url).get("there") == b"x"


@pytest.mark.in_turn
def test_a_query_goes_on_when_hdfs_is_away_in_the_middle_of_anything(
    hdfs: HdfsService, cut: Wire, make_lab: MakeLab
) -> None:
    folder = f"hdfs://127.0.0.1:{cut.port}{hdfs.path(hdfs.new_folder())}"
    lab = started(make_lab, remote=folder, placeTimeout="30s")
    kinds = cycle(("refused", "reset"))

    def with_new_name_node(version: int) -> AbstractContextManager[None]:
        if version == 2:
            hdfs.restart_name_node()
        return nullcontext()

    with coming_and_going(lambda: cut.outage(next(kinds)), 0.3, 1):
        live(lab, 4, with_new_name_node)


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_a_savepoint_is_taken_and_restored_while_hdfs_comes_and_goes(
    kind: Kind, hdfs: HdfsService, cut: Wire, quick_path: Path
) -> None:
    far_folder = f"hdfs://127.0.0.1:{cut.port}{hdfs.path(hdfs.new_folder())}"
    query = written(quick_path / "query", 2, operators=(2,), batches=2)
    outages = cycle(("refused", "reset"))
    with coming_and_going(lambda: cut.outage(next(outages)), 0.1, 1):
        savepoints.savepoint(query.location, f"{far_folder}/taken", kind=kind)
        savepoints.restore(f"{far_folder}/taken", f"{far_folder}/there", parallelism=3)
    assert stored(f"{far_folder}/there") == (query.version, 3, query.rows)
