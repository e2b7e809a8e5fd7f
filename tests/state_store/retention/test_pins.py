"""Pins hold versions, and what they are made of, against retention."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.blobs.base.place_clock import PlaceTimes
from pyspark_ckpt.state_store.retention.pins import Pins
from tests.conftest import MakeLab
from tests.labs.lab import Lab, Server, expected


def clean_up(lab: Lab, ids: list[str]) -> int:
    """A clean-up that keeps one version below the newest; returns the number of deleted objects."""
    handle = lab.open(keep=1)
    lab.begin(handle, len(ids), ids[-1]).abort()
    deleted: int = lab.server.call("cleanup", handle=handle)["deleted"]
    lab.server.call("close", handle=handle)
    return deleted


def test_a_pinned_version_restores_until_it_is_given_free(lab: Lab) -> None:
    ids = lab.grow_with_snapshots(8)
    pins = Pins(LocalPlace(lab.checkpoint))
    pin = pins.add(3, for_s=3600)
    clean_up(lab, ids)
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(), 3, ids[2]).rows == expected(3)
    pin = pins.renew(pin, for_s=7200)
    assert clean_up(lab, ids) == 0
    pins.remove(pin)
    ids += lab.grow(lab.open(), 1, 8, ids[-1])
    assert clean_up(lab, ids) > 0
    assert not [name for name in lab.objects(".delta") if name.startswith(f"{3:020d}")]


def test_a_pin_ends_by_itself_when_its_owner_has_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(LocalPlace, "now_s", lambda _: now[0])
    pins = Pins(LocalPlace(tmp_path), PlaceTimes(lambda: now[0]))
    assert pins.oldest() is None
    pins.add(7, for_s=10)
    pins.add(9, for_s=20)
    assert pins.oldest() == 7
    now[0] = 1010.5
    assert [pin.version for pin in pins.list_held()] == [9]
    now[0] = 1030.0
    assert pins.oldest() is None
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2, "they are another's"
    now[0] = 1010.0 + 86400
    pins.list_held()
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
    now[0] = 1020.0 + 86400
    assert pins.oldest() is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("minutes", [11, 60, -11, -60])
@pytest.mark.parametrize("whose", ["owner", "cleaner"])
def test_a_pin_holds_its_version_whatever_the_clock_of_a_host_says(
    make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch, whose: str, minutes: int
) -> None:
    lab = make_lab(retentionGracePeriod="0")
    ids = lab.grow_with_snapshots(8)
    here = time.time

    def skewed() -> float:
        return here() + 60 * minutes

    with monkeypatch.context() as patched:
        if whose == "owner":
            patched.setattr(time, "time", skewed)
        pin = Pins(LocalPlace(lab.checkpoint)).add(3, for_s=600)
    cleaner = Server(lab.local_dir.with_name("cleaner"), lab.options, clock=skewed if whose == "cleaner" else here)
    with monkeypatch.context() as patched:
        if whose == "cleaner":
            patched.setattr(time, "time", skewed)
        lab.server, former = cleaner, lab.server
        clean_up(lab, ids)
    assert (lab.checkpoint / pin.name).exists()
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(), 3, ids[2]).rows == expected(3)
    former.stores.shut_down()


@pytest.mark.parametrize("hours", [-0.2, -2, -25, 2])
def test_a_pin_holds_its_version_when_the_clock_of_its_place_was_set(
    hours: float, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state server has asked for the time before that, and does so once an hour."""
    told, set_by_s = LocalPlace.now_s, [0.0]
    monkeypatch.setattr(LocalPlace, "now_s", lambda place: told(place) + set_by_s[0])
    ids = lab.grow_with_snapshots(8)
    dead = Pins(LocalPlace(lab.checkpoint)).add(1, for_s=-10)
    clean_up(lab, ids)
    set_by_s[0] = 3600 * hours
    pin = Pins(LocalPlace(lab.checkpoint)).add(7, for_s=600)
    handle = lab.open(keep=1)
    ids += lab.grow(handle, 3, len(ids), ids[-1])
    lab.begin(handle, len(ids), ids[-1]).abort()
    lab.server.call("snapshot", handle=handle, force=True)
    clean_up(lab, ids)
    assert (lab.checkpoint / pin.name).exists()
    assert (lab.checkpoint / dead.name).exists()
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(), 7, ids[6]).rows == expected(7)


def test_the_place_is_asked_once_whether_a_pin_has_ended(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    told, asked = LocalPlace.now_s, list[LocalPlace]()

    def tell(place: LocalPlace) -> float:
        asked.append(place)
        return told(place)

    monkeypatch.setattr(LocalPlace, "now_s", tell)
    times = PlaceTimes()
    pins = Pins(LocalPlace(lab.checkpoint), times)
    pins.add(1, for_s=-10)
    times.make_clock(LocalPlace(lab.checkpoint))()
    asked.clear()
    for _ in range(3):
        assert pins.oldest() is None
    assert len(asked) == 1


def test_a_stranger_among_the_pins_is_passed_over(tmp_path: Path) -> None:
    pins = Pins(LocalPlace(tmp_path))
    pins.add(7, for_s=10)
    (tmp_path / "_ckpt" / "pins" / "notes.txt").write_text("mine")
    assert pins.oldest() == 7


@pytest.mark.parametrize("minutes", [11, 24 * 60, -60])
def test_nothing_young_goes_because_the_clock_of_a_host_is_ahead(
    make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    """Table files of a snapshot that is being made elsewhere, what a young snapshot replaces, and a running upload."""
    lab = make_lab(retentionGracePeriod="10m")
    ids = lab.grow_with_snapshots(8)
    table = lab.remote / "sst" / f"{0:064x}-{0:08x}.sst"
    upload = lab.remote / f".a.{'0' * 32}.tmp"
    table.write_bytes(b"of a snapshot that is being made")
    upload.write_bytes(b"half")
    here, jumped_s = time.time, [0.0]
    skewed = lambda: here() + jumped_s[0]  # noqa: E731 - two clocks are replaced by it
    former, lab.server = lab.server, Server(lab.local_dir.with_name("ahead"), lab.options, clock=skewed)
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", skewed)
        for jumped_s[0] in (0.0, 60.0 * minutes, 0.0):
            before = lab.objects()
            assert clean_up(lab, ids) == 0
            assert lab.objects() == before
            ids += lab.grow(lab.open(), 1, len(ids), ids[-1])
    former.stores.shut_down()
