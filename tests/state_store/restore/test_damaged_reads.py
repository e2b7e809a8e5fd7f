"""Bodies that are damaged in storage or on the way, and objects that go or fail while they are read."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.state_store.attempts.runs import RunObject
from pyspark_ckpt.state_store.attempts.winners import WinnerObject
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.errors import FormatError, StorageError
from pyspark_ckpt.state_store.format.delta import read_delta
from pyspark_ckpt.state_store.format.manifest import decode
from pyspark_ckpt.state_store.format.names import DeltaName, parse
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from tests.conftest import MakeLab
from tests.labs.lab import CallError, Lab, damage, expected

STORED_OTHERWISE = (12, 14)
"""Ways to compress that Python's zipfile knows, and deltas do not: bzip2 and LZMA."""


def kept_in_a_snapshot(lab: Lab, versions: int = 3) -> list[str]:
    """A store whose newest version has a snapshot and no delta below it."""
    handle = lab.open(keep=0)
    ids = lab.grow(handle, versions)
    lab.begin(handle, versions, ids[-1]).abort()
    lab.server.call("snapshot", handle=handle, force=True)
    lab.server.call("cleanup", handle=handle)
    assert lab.objects(".delta") == []
    return ids


def damaged_once(monkeypatch: pytest.MonkeyPatch, suffix: str) -> list[str]:
    """Let the first body of each object of that kind arrive with a flipped bit; the names of those that did."""
    hit: list[str] = []
    get, download = LocalPlace.get, LocalPlace.download

    def flipped(name: str, data: bytes) -> bytes:
        if not name.endswith(suffix) or name in hit:
            return data
        hit.append(name)
        at = len(data) // 2
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    def get_flipped(place: LocalPlace, name: str, start: int = 0, end: int | None = None) -> bytes:
        return flipped(name, get(place, name, start, end))

    def download_flipped(place: LocalPlace, name: str, path: Path) -> int:
        download(place, name, path)
        path.write_bytes(flipped(name, path.read_bytes()))
        return path.stat().st_size

    monkeypatch.setattr(LocalPlace, "get", get_flipped)
    monkeypatch.setattr(LocalPlace, "download", download_flipped)
    return hit


@pytest.mark.parametrize("suffix", [".snapshot", ".sst", ".delta"])
def test_what_comes_damaged_is_read_again(lab: Lab, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = kept_in_a_snapshot(lab)
    ids += lab.grow(lab.open(), 1, 3, ids[-1])
    lab.restart(lose_local=True)
    hit = damaged_once(monkeypatch, suffix)
    assert lab.begin(lab.open(), 4, ids[-1]).rows == expected(4)
    assert hit


def test_a_winner_that_comes_damaged_is_read_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lab.open(fmt=1)
    one, two = lab.begin(handle, 0), lab.begin(handle, 0)
    first = one.commit()["id"]
    hit = damaged_once(monkeypatch, ".winner")
    assert two.commit()["id"] == first
    assert hit


def test_no_flipped_bit_of_an_object_that_decides_is_believed(lab: Lab) -> None:
    kept_in_a_snapshot(lab)
    handle = lab.open(run="run-2", fmt=1)
    lab.begin(handle, 0).commit()
    manifest, winner = lab.remote / lab.objects(".snapshot")[0], lab.remote / lab.objects(".winner")[0]
    (run,) = (lab.checkpoint / "_ckpt" / "runs").iterdir()

    def read_as(kind: type[msgspec.Struct]) -> Callable[[Path], object]:
        return lambda path: read_sealed(LocalPlace(path.parent), path.name, kind)

    def read_manifest(path: Path) -> object:
        return decode(path.read_bytes(), str(path))

    for path, read in ((manifest, read_manifest), (winner, read_as(WinnerObject)), (run, read_as(RunObject))):
        whole, right = path.read_bytes(), read(path)
        for bit in range(0, len(whole) * 8, 5 if len(whole) < 1000 else 37):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            try:
                assert read(path) == right, f"bit {bit} of {path.name}"
            except FormatError as problem:
                assert path.name in problem.message  # noqa: PT017 - or the bit was one that says nothing
        path.write_bytes(whole)


@pytest.mark.parametrize("way", STORED_OTHERWISE)
def test_a_delta_that_is_compressed_otherwise_is_damage(lab: Lab, way: int, tmp_path: Path) -> None:
    lab.grow(lab.open(), 1)
    path = lab.remote / lab.objects(".delta")[0]
    name, content = parse(path.name), bytearray(path.read_bytes())
    assert isinstance(name, DeltaName)
    with zipfile.ZipFile(path) as archive:
        local, central = archive.getinfo("0000.sst").header_offset, archive.start_dir
    content[local + 8] = content[central + 10] = way
    path.write_bytes(content)
    with pytest.raises(FormatError, match=path.name):
        read_delta(LocalPlace(lab.remote), name, len(content), tmp_path / "delta")


def test_an_outage_is_not_called_damage_when_no_other_base_is_left(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = kept_in_a_snapshot(lab)
    lab.restart(lose_local=True)
    handle = lab.open()

    def refuse(_: LocalPlace, name: str, __: Path) -> int:
        raise StorageError(f"Could not read {name}: slow down.")

    with monkeypatch.context() as outage:
        outage.setattr(LocalPlace, "download", refuse)
        with pytest.raises(CallError, match="slow down") as caught:
            lab.begin(handle, 3, ids[-1])
    assert (caught.value.kind, caught.value.retryable) == ("StorageError", True)
    assert lab.begin(handle, 3, ids[-1]).rows == expected(3)


def test_what_spark_tries_again_says_once_which_snapshots_are_damaged(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    ids = lab.grow_with_snapshots(4)
    snapshots = lab.objects(".snapshot")
    for name in (*snapshots, *lab.objects(".delta")):
        damage(lab.remote / name)
    lab.restart(lose_local=True)
    handle = lab.open()
    for _ in range(4):
        with pytest.raises(CallError, match="damaged"):
            lab.begin(handle, 4, ids[-1])
    told = [message for message in caplog.messages if "an older base" in message]
    assert len(told) == len(snapshots) == 2
    assert all(name in "".join(told) for name in snapshots)


def test_a_restore_goes_on_from_a_snapshot_when_its_deltas_are_retired_meanwhile(make_lab: MakeLab) -> None:
    """It has listed the deltas; then another executor makes a snapshot and cleans up."""
    lab = make_lab(retentionGracePeriod="0")
    ids = lab.grow(lab.open(), 4)
    lab.restart(lose_local=True)
    handle = lab.open()
    elsewhere = Lab(lab.local_dir.with_name("elsewhere"), retentionGracePeriod="0")
    elsewhere.checkpoint = lab.checkpoint

    def retire(point: str) -> None:
        if point == "restore.before_download" and lab.objects(".delta"):
            other = elsewhere.open(keep=0)
            elsewhere.begin(other, 4, ids[-1]).abort()
            elsewhere.server.call("snapshot", handle=other, force=True)
            elsewhere.server.call("cleanup", handle=other)

    lab.server.stores._resources.failpoints.hit = retire  # type: ignore[assignment,method-assign]
    txn = lab.begin(handle, 4, ids[-1])
    assert txn.rows == expected(4)
    assert txn.answer["metrics"]["replayed_deltas"] == 0
    elsewhere.server.stores.shut_down()


def test_a_loser_commits_when_its_delta_cannot_be_dropped(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lab.open(fmt=1)
    one, two = lab.begin(handle, 0), lab.begin(handle, 0)
    first = one.commit()["id"]

    def refuse(_: LocalPlace, name: str) -> None:
        raise StorageError(f"Could not delete {name}.")

    monkeypatch.setattr(LocalPlace, "delete", refuse)
    assert two.commit()["id"] == first
    assert len(lab.objects(".delta")) == 2
