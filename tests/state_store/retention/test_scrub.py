"""Rot of stored objects: nothing is deleted for a snapshot that is damaged, and what can be put right is."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.blobs.base.place_clock import PlaceTimes
from pyspark_ckpt.state_store.local.copies import LocalCopy
from pyspark_ckpt.state_store.retention import scrub
from pyspark_ckpt.state_store.transactions.store import Store
from tests.conftest import MakeLab
from tests.labs.lab import CallError, Lab, damage, expected


def grown(lab: Lab, versions: int, *, start: int = 0, ids: list[str] | None = None) -> list[str]:
    """A store with a snapshot of every third version; the ids."""
    handle, ids = lab.open(keep=1), list(ids or [])
    while len(ids) < start + versions:
        ids += lab.grow(handle, 3, len(ids), ids[-1] if ids else None)
        lab.begin(handle, len(ids), ids[-1]).abort()
        lab.server.call("snapshot", handle=handle, force=True)
    return ids


def clean(lab: Lab, ids: list[str]) -> int:
    handle = lab.open(keep=1)
    lab.begin(handle, len(ids), ids[-1]).abort()
    deleted: int = lab.server.call("cleanup", handle=handle)["deleted"]
    return deleted


def commit(lab: Lab, ids: list[str]) -> dict[str, Any]:
    """One more commit; its metrics."""
    txn = lab.begin(lab.open(keep=1), len(ids), ids[-1])
    txn.put(f"key-{len(ids) + 1}", f"value-{len(ids) + 1}")
    done = txn.commit()
    ids.append(done["id"])
    metrics: dict[str, Any] = done["metrics"]
    return metrics


def tables_of(lab: Lab, version: int) -> list[Path]:
    (manifest,) = lab.remote.glob(f"{version:020d}-*.snapshot")
    names = [file["object"] for file in json.loads(manifest.read_text())["files"] if "object" in file]
    return [lab.remote / name for name in names]


def rot(path: Path) -> None:
    """Flip a bit, and leave size and time as they were: no listing tells."""
    state = path.stat()
    damage(path)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [rot, cut, empty, Path.unlink])
@pytest.mark.parametrize("which", [0, -1])
def test_nothing_goes_for_a_snapshot_one_of_whose_table_files_has_rotted(
    lab: Lab,
    harm: Callable[[Path], None],
    which: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ids = grown(lab, 6)
    lab.restart(lose_local=True)  # so that there is no local copy of a table file
    broken = tables_of(lab, 6)[which]
    harm(broken)
    commit(lab, ids)
    commit(lab, ids)
    clean(lab, ids)
    assert broken.name in caplog.text
    for version in (7, 8):
        lab.restart(lose_local=True)
        assert lab.begin(lab.open(), version, ids[version - 1]).rows == expected(version)


def test_a_table_file_that_has_rotted_is_written_again_from_a_good_local_copy(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    ids = grown(lab, 3)
    (before,) = {path.read_bytes() for path in tables_of(lab, 3)[:1]}
    rot(tables_of(lab, 3)[0])
    commit(lab, ids)
    commit(lab, ids)
    clean(lab, ids)
    assert tables_of(lab, 3)[0].read_bytes() == before
    assert "was written again from a local copy" in caplog.text
    metrics = commit(lab, ids)
    assert (metrics["healed_objects"], metrics["damaged_objects"]) == (1, 0)
    assert clean(lab, ids) > 0, "the snapshot can replace what is below it now"
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(), 6, ids[-1]).rows == expected(6)


def test_a_local_copy_that_has_rotted_as_well_heals_nothing(lab: Lab) -> None:
    ids = grown(lab, 3)
    lab.server.settled()
    path = tables_of(lab, 3)[0]
    content = path.read_bytes()
    rot(path)
    for local in lab.local_dir.rglob("*.sst"):
        if local.read_bytes() == content:
            damage(local)
    after = path.read_bytes()
    handle = lab.open(keep=1)
    lab.server.call("cleanup", handle=handle)
    assert path.read_bytes() == after
    assert min(int(name[:20]) for name in lab.objects(".delta")) == 1
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(), 3, ids[-1]).rows == expected(3)


@pytest.mark.parametrize("what", ["table", "missing table", "delta", "manifest"])
def test_a_scrub_finds_what_has_rotted_since_it_was_read(
    make_lab: MakeLab, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    lab = make_lab(retentionGracePeriod="0", scrubInterval="1s")
    ids = grown(lab, 3)
    commit(lab, ids)
    clean(lab, ids)
    commit(lab, ids)
    path = {
        "table": lambda: tables_of(lab, 3)[0],
        "missing table": lambda: tables_of(lab, 3)[0],
        "delta": lambda: next(lab.remote.glob(f"{4:020d}-*.delta")),
        "manifest": lambda: next(lab.remote.glob(f"{3:020d}-*.snapshot")),
    }[what]()
    content = path.read_bytes()
    if what == "missing table":
        path.unlink()
        for manifest in lab.remote.glob("*.snapshot"):  # nobody is about to take it back
            os.utime(manifest, (time.time() - 2 * 86400,) * 2)
    else:
        rot(path)
    time.sleep(1.1)
    clean(lab, ids)
    metrics = commit(lab, ids)
    assert metrics["scrubbed_objects"] > 0
    assert path.name in caplog.text
    if "table" in what:
        assert path.read_bytes() == content
        assert (metrics["healed_objects"], metrics["damaged_objects"]) == (1, 0)
    else:
        assert metrics["damaged_objects"] == 1
        assert "restore the object from a backup" in caplog.text
    handle = lab.open(keep=1)
    lab.begin(handle, len(ids), ids[-1]).abort()
    published = lab.server.call("snapshot", handle=handle)["version"]
    assert published == (None if "table" in what else len(ids)), "a snapshot that needs nothing of it is made at once"
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(), len(ids), ids[-1]).rows == expected(len(ids))


def test_a_scrub_that_is_switched_off_reads_nothing(make_lab: MakeLab) -> None:
    lab = make_lab(retentionGracePeriod="0", scrubInterval="0")
    ids = grown(lab, 3)
    clean(lab, ids)
    commit(lab, ids)
    time.sleep(1.1)
    clean(lab, ids)
    assert commit(lab, ids)["scrubbed_objects"] == 0


def test_a_snapshot_takes_over_nothing_that_is_known_to_be_damaged(lab: Lab) -> None:
    ids = grown(lab, 3)
    lab.restart(lose_local=True)
    commit(lab, ids)
    broken = tables_of(lab, 3)[0]
    content = broken.read_bytes()
    commit(lab, ids)
    store = lab.server.stores.handle(lab.open(keep=1)).store
    rot(broken)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "lease_for_snapshot", lambda _due: None)  # no local copy is at hand just then
        clean(lab, ids)
    assert broken.read_bytes() != content
    handle = lab.open(keep=1)
    assert lab.server.call("snapshot", handle=handle, force=True)["version"] == 5
    assert broken not in tables_of(lab, 5)
    lab.restart(lose_local=True)
    for path in lab.remote.glob("*.delta"):
        path.unlink()
    assert lab.begin(lab.open(), 5, ids[-1]).rows == expected(5)


def test_damage_on_the_way_is_no_damage_of_an_object(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = grown(lab, 3)
    commit(lab, ids)
    commit(lab, ids)
    get, spoiled = LocalPlace.get, set[str]()

    def once(place: LocalPlace, name: str, start: int = 0, end: int | None = None) -> bytes:
        content = get(place, name, start, end)
        if name.startswith("sst/") and name not in spoiled:
            spoiled.add(name)
            return content[::-1]
        return content

    monkeypatch.setattr(LocalPlace, "get", once)
    assert clean(lab, ids) > 0
    assert spoiled
    assert commit(lab, ids)["damaged_objects"] == 0
    with pytest.raises(CallError, match="retired"):
        lab.begin(lab.open(), 2, ids[1])


class ShortProcesses:
    """A query that runs for a minute once a day, by the time of its place."""

    DAY_S = 86400.0

    def __init__(self, lab: Lab, ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.lab, self.ids = lab, ids
        self.days = 0.0
        monkeypatch.setattr(PlaceTimes, "make_clock", lambda *_: lambda: time.time() + self.days * self.DAY_S)

    def run(self, *, lose_local: bool = False) -> int:
        """Start, do what Spark's maintenance does once in a minute, and be killed; how many objects were read."""
        self.lab.restart(lose_local=lose_local)
        handle = self.lab.open(keep=100)
        self.lab.begin(handle, len(self.ids), self.ids[-1]).abort()
        self.lab.server.call("snapshot", handle=handle)
        self.lab.server.call("cleanup", handle=handle)
        self.lab.server.settled()
        self.days += 1
        return self.lab.server.stores.handle(handle).store.scrub_counts.take()["scrubbed_objects"]


@pytest.fixture
def short(make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> ShortProcesses:
    lab = make_lab(retentionGracePeriod="0", scrubInterval="7d", snapshotEveryVersions="1000")
    return ShortProcesses(lab, grown(lab, 12), monkeypatch)


def test_processes_of_a_minute_a_day_read_each_object_once_in_an_interval(short: ShortProcesses) -> None:
    stored = sum(len(short.lab.objects(suffix)) for suffix in (".delta", ".snapshot", ".sst"))
    short.run()
    for _ in range(3):
        assert sum(short.run() for _ in range(7)) == stored
    short.days += 30
    assert short.run() == stored, "what was due while no process ran is read at once, and once"
    assert short.run() < stored


@pytest.mark.parametrize("days", [1.0, 3.5, 7.0, 40.0])  # the schedule of some repeats with the interval
def test_what_rots_is_named_or_healed_though_its_moment_lies_between_two_processes(
    short: ShortProcesses, days: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    short.run()
    lab = short.lab
    tables, deltas = sorted(lab.remote.glob("sst/*.sst")), sorted(lab.remote.glob("*.delta"))
    leased = list[set[bytes]]()  # the content of each local copy that was there to heal from: compaction changes it
    lease = Store.lease_for_snapshot

    def noted(store: Store, *args: Any) -> LocalCopy | None:  # noqa: ANN401
        copy = lease(store, *args)
        if copy is not None:
            leased.append({path.read_bytes() for path in copy.db.glob("*.sst")})
        return copy

    monkeypatch.setattr(Store, "lease_for_snapshot", noted)
    before = {path: path.read_bytes() for path in (*tables, *deltas)}
    for path in before:
        rot(path)
    short.days -= 1
    for _ in range(max(1, round(7 / days))):
        short.days += days
        short.run()
        short.days -= 1
    local = set.intersection(*leased)
    for path, content in before.items():
        assert path.name in caplog.text
        assert content not in local or path.read_bytes() == content
    assert any(content in local for path, content in before.items() if path in tables), "something can be healed"


def test_a_process_takes_up_what_one_that_was_killed_has_found(
    short: ShortProcesses, caplog: pytest.LogCaptureFixture
) -> None:
    short.run()
    lab = short.lab
    (broken,) = lab.remote.glob(f"{12:020d}-*.snapshot")
    rot(broken)
    short.days += 7
    short.run()  # has found it, and dies before it makes a snapshot
    assert broken.name in caplog.text
    commit(lab, short.ids)
    short.run()
    assert len(list(lab.remote.glob(f"{13:020d}-*.snapshot"))) == 1, "a snapshot that needs nothing of it"


@pytest.mark.parametrize("harm", [rot, cut, empty, lambda path: path.write_bytes(b'{"format":2}')])
def test_everything_is_read_again_when_nobody_knows_how_far_the_scrub_has_come(
    short: ShortProcesses, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    short.run()
    short.run()
    stored = sum(len(short.lab.objects(suffix)) for suffix in (".delta", ".snapshot", ".sst"))
    harm(short.lab.remote / "scrub.json")
    assert short.run() == stored
    assert "scrub.json" in caplog.text
    caplog.clear()
    assert short.run() < stored
    assert "scrub.json" not in caplog.text


def test_a_clock_of_the_place_that_is_put_back_does_not_stop_the_scrub(short: ShortProcesses) -> None:
    short.run()
    short.run()
    short.days -= 400
    assert short.run() > 0
    assert sum(short.run() for _ in range(7)) > 0


def test_what_is_too_much_for_one_process_is_read_by_the_next_ones(
    short: ShortProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = sum(len(short.lab.objects(suffix)) for suffix in (".delta", ".snapshot", ".sst"))
    short.run()
    monkeypatch.setattr(scrub, "PASS_BYTES", 1)
    short.days += 7
    assert [short.run() for _ in range(stored)] == [1] * stored
