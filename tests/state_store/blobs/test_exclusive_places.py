"""A service of S3 that ignores the condition of a write is refused for whatever relies on being the first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.state_store.blobs import BlobPlace, MeteredPlace, S3Settings, Traffic, place_at
from pyspark_ckpt.state_store.blobs.base.place_clock import PlaceTimes
from pyspark_ckpt.state_store.blobs.exclusive import is_exclusive
from pyspark_ckpt.state_store.blobs.local.place import LocalPlace
from pyspark_ckpt.state_store.checkpoints import ownership
from pyspark_ckpt.state_store.errors import ConflictError, InvalidInputError
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.manifest import read_manifest
from pyspark_ckpt.state_store.format.names import new_id, snapshot_name, table_object_name
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from tests.conftest import MakeLab
from tests.faults.faulty_s3 import Faults, proxy
from tests.labs.lab import QUERY, CallError, Lab, expected
from tests.labs.saved_query import SAVEPOINT_KINDS, written
from tests.services.s3_server import S3Service
from tests.state_store.restore.test_remote import started


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests have found out: a proxy may get the port of an earlier one, which was of another kind."""
    monkeypatch.setattr("pyspark_ckpt.state_store.blobs.s3.place._exclusive", {})


@pytest.fixture
def careless(s3: S3Service) -> Iterator[tuple[str, Faults]]:
    """The endpoint of a service that ignores ``If-None-Match``, and what it has seen."""
    faults = Faults(lambda _method, _number: "ignored")
    with proxy(s3.endpoint, faults) as endpoint:
        yield endpoint, faults


def test_a_service_that_ignores_conditions_is_found_out_once_and_nothing_is_left(
    careless: tuple[str, Faults], s3: S3Service
) -> None:
    endpoint, faults = careless
    folder = s3.new_folder()
    for number in range(3):
        place = place_at(f"{folder}/{number}", S3Settings(endpoint=endpoint, addressing="path"))
        assert not is_exclusive(MeteredPlace(place, Traffic()))
    assert faults.seen["requests"] == 3, "two writes and a delete"
    assert s3.files(folder) == []


def test_a_service_that_honours_conditions_is_one_that_can_be_relied_on(s3: S3Service, tmp_path: Path) -> None:
    folder = s3.new_folder()
    assert is_exclusive(place_at(folder, S3Settings(endpoint=s3.endpoint, addressing="path")))
    assert s3.files(folder) == []
    assert is_exclusive(MeteredPlace(LocalPlace(tmp_path), Traffic()))


@pytest.mark.parametrize("kind", ["slow_down", "no_answer", "refused", "late"])
def test_a_service_is_not_misjudged_when_requests_fail(kind: str, s3: S3Service) -> None:
    with proxy(s3.endpoint, Faults(lambda _method, number: kind if number % 2 else None)) as endpoint:
        assert is_exclusive(place_at(s3.new_folder(), S3Settings(endpoint=endpoint, addressing="path")))


@pytest.mark.parametrize("where", ["remote", "checkpoint"])
def test_format_1_is_refused_by_name_and_format_2_is_not(
    where: str, careless: tuple[str, Faults], make_lab: MakeLab, s3: S3Service
) -> None:
    options, place = {"s3Endpoint": careless[0], "s3Addressing": "path"}, dict[str, Any]()
    if where == "remote":
        lab = started(make_lab, remote=s3.new_folder(), **options)
    else:
        lab, root = make_lab(**options), s3.new_folder()
        place = {"checkpoint_root": root, "state_dir": f"{root}/state/0/3"}
    with pytest.raises(CallError, match=r"s3://.* cannot be used for checkpoint format 1") as caught:
        lab.begin(lab.open(fmt=1, **place), 0)
    assert caught.value.kind == "InvalidInputError"
    assert "checkpointFormatVersion to 2" in caught.value.hint
    ids = lab.grow(lab.open(fmt=2, **place), 2)
    assert lab.begin(lab.open(fmt=2, **place), 2, ids[-1]).rows == expected(2)


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_savepoints_and_restores_are_refused_by_name(
    kind: Kind, careless: tuple[str, Faults], s3: S3Service, quick_path: Path
) -> None:
    """Two of them in one folder would mix."""
    query = written(quick_path / "query", 2, operators=(0,))
    saved, folder = str(quick_path / "saved"), s3.new_folder()
    options = {"s3Endpoint": careless[0], "s3Addressing": "path"}
    with pytest.raises(InvalidInputError, match=r"s3://.* cannot be used for savepoints"):
        savepoints.savepoint(query.location, folder, kind=kind, options=options)
    savepoints.savepoint(query.location, saved, kind=kind)
    for target, given in ((folder, options), (str(quick_path / "new"), {**options, "remote": folder})):
        with pytest.raises(InvalidInputError, match=r"s3://.* cannot be used for restores"):
            savepoints.restore(saved, target, options=given)
        with pytest.raises(InvalidInputError, match=r"s3://.* cannot be used for restores"):
            savepoints.restore(query.location, target, parallelism=3, options=given)
    assert s3.files(folder) == []
    assert not (quick_path / "new").exists()


@pytest.fixture
def shared(careless: tuple[str, Faults], make_lab: MakeLab, s3: S3Service) -> tuple[Lab, dict[str, Any], BlobPlace]:
    """A query in such a service, what opens its store, and the folder of that."""
    lab, root = make_lab(s3Endpoint=careless[0], s3Addressing="path", retentionGracePeriod="0"), s3.new_folder()
    where: dict[str, Any] = {"checkpoint_root": root, "state_dir": f"{root}/state/0/3"}
    return lab, where, place_at(where["state_dir"], S3Settings(endpoint=s3.endpoint, addressing="path"))


def in_other_objects(place: BlobPlace, commit: Marker) -> bytes:
    """The manifest of the same snapshot as another owner would have made it; its table files are put."""
    _, manifest = read_manifest(place, commit)
    files = []
    for file in manifest.files:
        name = table_object_name(file.sha256, new_id()) if file.object_name else None
        if name is not None:
            place.put(name, place.get(str(file.object_name)))
        files.append(msgspec.structs.replace(file, object_name=name))
    return msgspec.structs.replace(manifest, files=tuple(files)).encode()


def test_a_snapshot_of_another_owner_is_not_taken_back_where_both_are_told_that_they_were_first(
    shared: tuple[Lab, dict[str, Any], BlobPlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, where, place = shared
    handle = lab.open(**where)
    ids = lab.grow(handle, 3)
    lab.begin(handle, 3, ids[-1]).abort()
    commit = Marker(3, ids[-1])
    hit, replaced = FailPoints.hit, list[bytes]()

    def meanwhile(points: FailPoints, name: str) -> None:
        hit(points, name)
        if name == "snapshot.after_manifest":  # the other's request lands, and a clean-up takes what nothing refers to
            theirs, ours = in_other_objects(place, commit), read_manifest(place, commit)[1].objects()
            place.put(snapshot_name(commit), theirs)
            replaced.append(theirs)
            for table in ours:
                place.delete(table)

    monkeypatch.setattr(FailPoints, "hit", meanwhile)
    assert lab.server.call("snapshot", handle=handle, force=True)["version"] is None
    assert place.get(snapshot_name(commit)) == replaced[0]
    for blob in place.list():
        if blob.name.endswith(".delta"):  # as a clean-up does that relies on it
            place.delete(blob.name)
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(**where), 3, ids[-1]).rows == expected(3)


def test_a_snapshot_that_may_still_be_replaced_replaces_nothing(
    shared: tuple[Lab, dict[str, Any], BlobPlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, where, place = shared
    handle = lab.open(**where, keep=0)
    ids = lab.grow(handle, 3)
    lab.begin(handle, 3, ids[-1]).abort()
    lab.server.call("snapshot", handle=handle, force=True)
    lab.server.call("cleanup", handle=handle)
    theirs = in_other_objects(place, Marker(3, ids[-1]))
    place.put(snapshot_name(Marker(3, ids[-1])), theirs)
    ids += lab.grow(handle, 1, 3, ids[-1])
    lab.begin(handle, 4, ids[-1]).abort()
    for _ in range(2):
        lab.server.call("cleanup", handle=handle)
    assert sum(blob.name.endswith(".delta") for blob in place.list()) == 4
    assert read_manifest(place, Marker(3, ids[2]))[1].objects().keys() <= {blob.name for blob in place.list("sst")}
    clock_of = PlaceTimes.make_clock
    monkeypatch.setattr(PlaceTimes, "make_clock", lambda times, of: lambda: clock_of(times, of)() + 700)
    lab.restart(lose_local=True)
    handle = lab.open(**where, keep=0)
    lab.begin(handle, 4, ids[-1]).abort()
    assert lab.server.call("cleanup", handle=handle)["deleted"] >= 3
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(**where), 4, ids[-1]).rows == expected(4)


def test_one_of_two_copies_owns_the_folder_of_their_query_where_both_are_told_that_they_were_first(
    careless: tuple[str, Faults], s3: S3Service, tmp_path: Path
) -> None:
    checkpoints = [LocalPlace(tmp_path / f"copy {number}") for number in range(4)]
    settings = S3Settings(endpoint=careless[0], addressing="path")
    for _ in range(3):
        remote = s3.new_folder()
        folder, line = f"{remote}/{QUERY}", threading.Barrier(len(checkpoints))

        def own(checkpoint: LocalPlace, folder: str = folder, remote: str = remote, line: Any = line) -> bool:  # noqa: ANN401
            line.wait()
            try:
                ownership.claim(place_at(folder, settings), checkpoint, remote)
            except (ConflictError, InvalidInputError):
                return False
            return True

        with ThreadPoolExecutor(len(checkpoints)) as pool:
            assert sum(pool.map(own, checkpoints)) <= 1
        owners = [each for each in checkpoints if own(each, line=threading.Barrier(1))]
        assert len(owners) == 1
        assert [key.rpartition("/")[2] for key in s3.files(remote)] == ["owner.json"]


def test_all_stores_of_a_checkpoint_may_claim_its_folder_at_once(
    careless: tuple[str, Faults], s3: S3Service, tmp_path: Path
) -> None:
    settings, remote, line = S3Settings(endpoint=careless[0], addressing="path"), s3.new_folder(), threading.Barrier(8)

    def own(_store: int) -> None:
        line.wait()
        ownership.claim(place_at(f"{remote}/{QUERY}", settings), LocalPlace(tmp_path), remote)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(own, range(8)))
    assert [key.rpartition("/")[2] for key in s3.files(remote)] == ["owner.json"]
