"""What the local disk damages never gets into the remote place, and the next attempt has it restored from there."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

from pyspark_ckpt.state_store.errors import CkptError
from pyspark_ckpt.state_store.format.manifest import decode
from pyspark_ckpt.state_store.local.damage_notes import write_note
from tests.conftest import MakeLab
from tests.labs.lab import CallError, Lab, Rows, read_rows

COLD_ROWS = 3000


def cold_rows() -> Rows:
    choose = random.Random(3)
    return {f"cold-{number:05d}": choose.randbytes(30).hex() for number in range(COLD_ROWS)}


class Query:
    """A query whose first batch has written much that later batches do not touch."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.handle = lab, lab.open(keep=1)
        self.ids: list[str] = []
        self.rows: Rows = {}
        self.metrics: dict[str, Any] = {}
        self.batch(cold_rows())

    @property
    def version(self) -> int:
        return len(self.ids)

    def begin(self) -> dict[str, Any]:
        commit_id = self.ids[-1] if self.ids else None
        return self.lab.server.call("begin", handle=self.handle, version=self.version, id=commit_id)

    def batch(self, rows: Rows) -> None:
        """Commit some rows without a look at others."""
        txn = self.lab.begin(self.handle, self.version, self.ids[-1] if self.ids else None)
        assert txn.rows == self.rows
        for key, value in rows.items():
            txn.put(key, value)
        answer = txn.commit()
        self.ids.append(answer["id"])
        self.rows |= rows
        self.metrics = answer["metrics"]
        self.lab.server.settled()

    def ask(self) -> None:
        """Begin the next version, so that the server knows of the newest one that it is committed."""
        self.lab.server.call("abort", txn=self.begin()["txn"])

    def snapshot(self) -> dict[str, Any]:
        return self.lab.server.call("snapshot", handle=self.handle, force=True)

    def clean(self) -> None:
        for _ in range(3):
            self.lab.server.call("cleanup", handle=self.handle)

    def require_restorable(self) -> None:
        """All of it is in the remote place."""
        self.lab.restart(lose_local=True)
        self.handle = self.lab.open(keep=1)
        txn = self.lab.begin(self.handle, self.version, self.ids[-1])
        assert txn.rows == self.rows
        txn.abort()


@pytest.fixture
def query(make_lab: MakeLab) -> Query:
    return Query(make_lab(retentionGracePeriod="0"))


def live_folder(query: Query) -> Path:
    answer = query.begin()
    query.lab.server.call("abort", txn=answer["txn"])
    assert answer["live"]
    return Path(answer["db"])


def cold_table(folder: Path) -> Path:
    return max(folder.glob("*.sst"), key=lambda path: path.stat().st_size)


def flip(path: Path, at: int, *, keeps_time: bool = False) -> None:
    """One bit of a file as it lies on the disk, so that all links to it have it."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))
    if keeps_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("part", [0.1, 0.5, 0.97, 0.999])
def test_rot_of_a_cold_table_file_is_not_published(query: Query, part: float, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        query.batch({f"hot-{number}": "v"})
    table = cold_table(live_folder(query))
    before = query.lab.objects()
    flip(table, int(table.stat().st_size * part))
    with caplog.at_level(logging.WARNING), pytest.raises(CallError, match=f"DamagedCopyError.*{table.name}"):
        query.snapshot()
    assert f"{table.name}" in caplog.text
    query.clean()
    assert query.lab.objects() == before
    query.batch({"hot": "again"})
    assert query.metrics["damaged_copies"] >= 2, "with it all copies that have the file"
    query.ask()
    assert query.snapshot()["version"] == query.version
    for _ in range(2):
        query.batch({"hot": "last"})
        query.ask()
    assert query.metrics["damaged_copies"] == 0
    query.clean()
    assert set(query.lab.objects()).isdisjoint(before), "a whole snapshot replaces what is below it"
    query.require_restorable()


def test_rot_after_the_checksums_were_taken_is_not_published(make_lab: MakeLab) -> None:
    """With full snapshots each uploads what one before has read."""
    query = Query(make_lab(retentionGracePeriod="0", snapshotMode="full"))
    query.ask()
    query.snapshot()
    query.batch({"hot": "v"})
    table = cold_table(live_folder(query))
    flip(table, 5000, keeps_time=True)
    with pytest.raises(CallError, match=r"DamagedCopyError.*changed since its checksums were verified"):
        query.snapshot()
    query.batch({"hot": "again"})
    query.require_restorable()


def remove_table(folder: Path) -> None:
    cold_table(folder).unlink()


def cut_table(folder: Path) -> None:
    with cold_table(folder).open("r+b") as file:
        file.truncate(4096)


def empty_table(folder: Path) -> None:
    with cold_table(folder).open("r+b") as file:
        file.truncate(0)


def zero_page(folder: Path) -> None:
    with cold_table(folder).open("r+b") as file:
        file.seek(8192)
        file.write(bytes(4096))


def lengthen_table(folder: Path) -> None:
    with cold_table(folder).open("ab") as file:
        file.write(b"\0" * 7)


def flip_manifest(folder: Path) -> None:
    (manifest,) = folder.glob("MANIFEST-*")
    flip(manifest, manifest.stat().st_size // 2)


def cut_manifest(folder: Path) -> None:
    (manifest,) = folder.glob("MANIFEST-*")
    with manifest.open("r+b") as file:
        file.truncate(manifest.stat().st_size - 10)


def flip_current(folder: Path) -> None:
    flip(folder / "CURRENT", 3)


def remove_database(folder: Path) -> None:
    shutil.rmtree(folder)


def remove_local_folder(folder: Path) -> None:
    for path in folder.parents[2].parent.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def put_a_file_for_the_store(folder: Path) -> None:
    shutil.rmtree(folder.parents[1])
    folder.parents[1].write_bytes(b"")


def put_files_for_all_folders(folder: Path) -> None:
    for name in ("stores", "staging"):
        shutil.rmtree(folder.parents[3] / name)
        (folder.parents[3] / name).write_bytes(b"")


def lead_current_elsewhere(folder: Path) -> None:
    (folder / "CURRENT").write_text("MANIFEST-000001\n")


def remove_all_tables(folder: Path) -> None:
    for path in folder.glob("*.sst"):
        path.unlink()


DAMAGES = [
    remove_table,
    cut_table,
    empty_table,
    zero_page,
    lengthen_table,
    flip_manifest,
    cut_manifest,
    flip_current,
    remove_database,
    remove_local_folder,
    put_a_file_for_the_store,
    put_files_for_all_folders,
]


def failure_to_read(query: Query, answer: dict[str, Any]) -> str | None:
    """What a reader finds wrong with the database that it was given; else its rows are those of the query."""
    try:
        found = read_rows(answer)
    except (CkptError, AssertionError) as problem:
        return str(problem)
    assert found == query.rows
    return None


damages = pytest.mark.parametrize("do_damage", DAMAGES, ids=lambda each: each.__name__)


@damages
def test_no_snapshot_has_local_damage(query: Query, do_damage: Callable[[Path], None]) -> None:
    query.batch({"hot": "v"})
    do_damage(live_folder(query))
    with suppress(CallError):
        query.snapshot()
    query.clean()
    query.require_restorable()


@pytest.mark.parametrize("do_damage", [lead_current_elsewhere, remove_all_tables], ids=lambda each: each.__name__)
def test_a_snapshot_succeeds_after_one_that_was_refused(query: Query, do_damage: Callable[[Path], None]) -> None:
    """Without a batch between the two, whose commit would find the damage as well."""
    query.batch({"hot": "v"})
    do_damage(live_folder(query))
    with pytest.raises(CallError, match="DamagedCopyError"):
        query.snapshot()
    query.ask()
    assert query.snapshot()["version"] == query.version
    query.require_restorable()


@pytest.mark.in_turn
@damages
def test_the_attempt_after_a_reported_damage_has_what_was_committed(
    query: Query, do_damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    query.batch({"hot": "v"})
    for _ in range(3):
        do_damage(live_folder(query))
        answer = query.begin()
        failure = failure_to_read(query, answer)
        if failure is not None:
            with caplog.at_level(logging.WARNING):
                told = query.lab.server.call("report_damage", txn=answer["txn"], failure=failure)
            assert told == {"discarded": True}
            assert answer["db"].removesuffix("/db") in caplog.text
        query.lab.server.call("abort", txn=answer["txn"])
        query.batch({"hot": "again"})
    query.require_restorable()


@pytest.mark.in_turn
@damages
def test_what_was_left_by_an_earlier_process_is_not_trusted(query: Query, do_damage: Callable[[Path], None]) -> None:
    query.batch({"hot": "v"})
    folder = live_folder(query)
    query.lab.restart()
    do_damage(folder)
    query.handle = query.lab.open(keep=1)
    answer = query.begin()
    failure = failure_to_read(query, answer)
    if failure is not None:
        query.lab.server.call("report_damage", txn=answer["txn"], failure=failure)
    query.lab.server.call("abort", txn=answer["txn"])
    query.batch({"hot": "again"})
    query.ask()
    with suppress(CallError):  # what RocksDB's cache still had is found only now
        query.snapshot()
    query.clean()
    query.require_restorable()


def test_a_frozen_copy_that_shares_the_damage_goes_too(query: Query) -> None:
    query.batch({"hot": "1"})
    query.batch({"hot": "2"})
    answer = query.begin()
    older = query.lab.server.call("begin", handle=query.handle, version=query.version - 1, id=query.ids[-2])
    assert not older["live"]
    flip(cold_table(Path(answer["db"])), 6000)
    query.lab.server.call("report_damage", txn=older["txn"], failure="Corruption: block checksum mismatch")
    for each in (answer, older):
        query.lab.server.call("abort", txn=each["txn"])
    query.lab.server.settled()
    assert not Path(answer["db"]).exists()
    assert not Path(older["db"]).exists()
    query.batch({"hot": "3"})


def test_a_copy_that_is_whole_stays_when_the_machine_has_run_out(query: Query) -> None:
    answer = query.begin()
    for failure in ("IO error: No space left on device: While appending", "IO error: Too many open files: x.sst"):
        told = query.lab.server.call("report_damage", txn=answer["txn"], failure=failure)
        assert told == {"discarded": False}
    query.lab.server.call("abort", txn=answer["txn"])
    assert query.begin()["db"] == answer["db"]


def test_a_copy_that_may_not_be_read_goes(query: Query) -> None:
    answer = query.begin()
    failure = f"IO error: Permission denied: While open a file for random read: {answer['db']}/000012.sst"
    assert query.lab.server.call("report_damage", txn=answer["txn"], failure=failure) == {"discarded": True}
    query.lab.server.call("abort", txn=answer["txn"])
    assert query.begin()["db"] != answer["db"]


def test_a_report_of_a_transaction_that_nobody_knows_is_no_error(query: Query) -> None:
    assert query.lab.server.call("report_damage", txn=1, failure="Corruption") == {"discarded": False}


def test_a_second_report_of_the_same_damage_spares_what_was_restored(query: Query) -> None:
    first, second = query.begin(), query.begin()
    query.lab.server.call("report_damage", txn=first["txn"], failure="Corruption")
    third = query.begin()
    query.lab.server.call("report_damage", txn=second["txn"], failure="Corruption")
    assert query.begin()["db"] == third["db"] != first["db"]


def test_a_note_of_a_worker_has_the_copy_discarded(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    answer = query.begin()
    write_note(Path(answer["staging"]), "Corruption: block checksum mismatch in 000012.sst")
    with caplog.at_level(logging.WARNING):
        query.lab.server.call("abort", txn=answer["txn"])
    assert "000012.sst" in caplog.text
    assert query.begin()["db"] != answer["db"]


def test_damage_that_was_stored_is_named_by_its_object(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    """As a release without these checks has left it: the checksums are right, and of the damaged file."""
    query.ask()
    query.snapshot()
    stored = query.lab.remote / query.lab.objects(".sst")[0]
    damage_with_right_checksums(query, stored, 5000)
    query.lab.restart(lose_local=True)
    query.handle = query.lab.open(keep=1)
    answer = query.begin()
    with pytest.raises(CkptError):
        read_rows(answer)
    query.lab.server.call("report_damage", txn=answer["txn"], failure="Corruption")
    query.lab.server.call("abort", txn=answer["txn"])
    with caplog.at_level(logging.WARNING):
        txn = query.lab.begin(query.handle, query.version, query.ids[-1])
    assert txn.rows == query.rows, "the deltas below were still there"
    assert f"{stored} is damaged" in caplog.text
    txn.abort()


def damage_with_right_checksums(query: Query, stored: Path, at: int) -> None:
    flip(stored, at)
    content = stored.read_bytes()
    (path,) = (path for path in query.lab.remote.rglob("*") if path.is_file() and b'"key_groups"' in path.read_bytes())
    manifest = decode(path.read_bytes(), str(path))
    name = str(stored.relative_to(query.lab.remote))
    files = tuple(
        msgspec.structs.replace(
            file, sha256=hashlib.sha256(content).hexdigest(), xxh3=xxhash.xxh3_128_hexdigest(content)
        )
        if file.object_name == name
        else file
        for file in manifest.files
    )
    path.write_bytes(msgspec.structs.replace(manifest, files=files).encode())
