"""A local disk that is full or read-only: calls say so, nothing is left over, and all works again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.database import Database, write_table_file
from tests.faults.faulty_disk import FULL, READ_ONLY, Trouble, broken, nearly_full
from tests.labs.fragile_executor import FragileExecutor
from tests.labs.lab import TUNING, CallError, Rows

TROUBLES = pytest.mark.parametrize(
    "trouble", [FULL, READ_ONLY, nearly_full(100), nearly_full(1500)], ids=lambda trouble: trouble.name
)


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[FragileExecutor]:
    """An executor whose state is kept in memory, so that only its local disk is one."""
    made = FragileExecutor(tmp_path)
    yield made
    made.end()


def commit(executor: FragileExecutor, rows: Rows, version: int = 0, base: str | None = None) -> str:
    txn = executor.begin(executor.handle, version, base)
    txn.changes.update(rows)
    return str(txn.commit()["id"])


def folders(executor: FragileExecutor, name: str) -> set[Path]:
    executor.server.settled()
    return set((executor.server.stores.local_dir / name).glob("*/*" if name == "stores" else "*"))


@TROUBLES
@pytest.mark.parametrize("version", [0, 1])
def test_a_begin_says_so_and_leaves_nothing(executor: FragileExecutor, trouble: Trouble, version: int) -> None:
    base = commit(executor, {"k": "v"}) if version else None
    executor.lose()
    opened = executor.handle
    executor.server.trouble = trouble
    with pytest.raises(CallError) as caught:
        executor.begin(opened, version, base)
    assert (caught.value.kind, caught.value.retryable) == ("StorageError", True)
    executor.server.trouble = None
    assert folders(executor, "staging") == set()
    if trouble is not READ_ONLY:
        assert folders(executor, "stores") == set()
    assert executor.begin(opened, version, base).rows == ({"k": "v"} if version else {})


@TROUBLES
def test_a_begin_leaves_nothing_when_its_ticket_cannot_be_written(executor: FragileExecutor, trouble: Trouble) -> None:
    base = commit(executor, {"k": "v"})
    opened = executor.handle
    executor.begin(opened, 1, base).abort()
    executor.server.trouble = nearly_full(100) if trouble.errno == 0 else trouble
    with pytest.raises(CallError, match="staging folder"):
        executor.begin(opened, 1, base)
    executor.server.trouble = None
    assert folders(executor, "staging") == folders(executor, "tickets") == set()
    assert executor.begin(opened, 1, base).answer["live"]


@TROUBLES
def test_a_commit_is_answered_when_the_local_database_cannot_follow(
    executor: FragileExecutor, trouble: Trouble
) -> None:
    base = commit(executor, {"k": "old"})
    txn = executor.begin(executor.handle, 1, base)
    txn.changes["k"] = "new"
    state = executor.server.call("create_state", txn=txn.number, name="default", descriptor={})["number"]
    staged = txn.stage()
    executor.server.trouble = trouble
    done = executor.server.call("commit", txn=txn.number, files=[staged], rows={str(state): 0})
    executor.server.trouble = None
    assert executor.begin(executor.handle, 2, done["id"]).rows == {"k": "new"}
    newer = commit(executor, {"k": "newer"}, 2, done["id"])
    txn = executor.begin(executor.handle, 3, newer)
    assert txn.rows == {"k": "newer"}
    assert txn.answer["live"], "no transaction that has ended holds the live copy"


def test_a_full_disk_is_told_in_the_log_and_in_a_metric_when_the_query_survives_it(
    executor: FragileExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    base, told = commit(executor, {"k": "old"}), []
    for version in range(1, 4):
        txn = executor.begin(executor.handle, version, base)
        txn.changes["k"] = str(version)
        state = executor.server.call("create_state", txn=txn.number, name="default", descriptor={})["number"]
        staged = txn.stage()
        executor.server.trouble = FULL if version < 3 else None
        done = executor.server.call("commit", txn=txn.number, files=[staged], rows={str(state): 0})
        executor.server.settled()
        executor.server.trouble = None
        told.append(done["metrics"]["full_disks"])
        base = str(done["id"])
    assert told == [0, 1, 1]
    warnings = [each.message for each in caplog.records if "is full: local copies" in each.message]
    assert len(warnings) == 1, "once in an hour"
    assert str(executor.server.stores.local_dir) in warnings[0]


def test_a_commit_is_answered_when_its_ticket_cannot_be_removed(executor: FragileExecutor) -> None:
    txn = executor.begin(executor.handle, 0, None)
    txn.changes["k"] = "v"
    state = executor.server.call("create_state", txn=txn.number, name="default", descriptor={})["number"]
    staged = txn.stage()
    executor.server.trouble = READ_ONLY
    done = executor.server.call("commit", txn=txn.number, files=[staged], rows={str(state): 1})
    executor.server.trouble = None
    assert executor.begin(executor.handle, 1, done["id"]).rows == {"k": "v"}


def test_a_database_closes_when_its_disk_is_full(tmp_path: Path) -> None:
    """The place where RocksDB runs out of room is found by trying many."""
    for room in range(0, 1000, 97):
        folder = tmp_path / str(room)
        folder.mkdir()
        for name in ("a", "b"):
            write_table_file(folder / f"{name}.sst", [(name.encode(), b"v")], TUNING)
        database = Database(folder / "db", TUNING)
        database.ingest([folder / "a.sst"])
        with broken(folder, nearly_full(room)):
            failure = None
            try:
                database.ingest([folder / "b.sst"])
            except Exception as problem:  # noqa: BLE001 - it is looked at when files can be written again
                failure = problem
            database.close()
            database.close()
        assert failure is None or type(failure).__name__ == "StorageError"
        again = Database(folder / "db", TUNING)
        assert dict(again.rows()).keys() >= {b"a"}
        again.close()
