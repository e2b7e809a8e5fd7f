"""Commits of several stores that come together are one object, and every reader finds them there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from pyspark_ckpt.state_store.errors import NotFoundError, StorageError
from pyspark_ckpt.state_store.packs import gathering, store_place
from pyspark_ckpt.state_store.packs.slots import PACKS_FOLDER, split_id
from pyspark_ckpt.state_store.transactions import commit_writer
from tests.labs.lab import CallError, Lab, Rows, Txn, damage, expected

STORES = 6


class Query:
    """A query with several stores, whose tasks commit together."""

    def __init__(self, folder: Path, keep: int = 100, **options: str) -> None:
        self.lab = Lab(folder, **{"packCommits": "true", **options})
        self.lab.partition = 0
        self.keep = keep
        self.ids: list[list[str]] = []
        self.handles: list[int] = []
        self.open()

    def open(self) -> None:
        self.handles = [self.open_store(number) for number in range(STORES)]

    def open_store(self, number: int, name: str = "default", **more: object) -> int:
        folder = self.lab.checkpoint / "state" / "0" / str(number)
        state_dir = str(folder if name == "default" else folder / name)
        given: dict[str, Any] = {"keep": self.keep, **more}
        return self.lab.open(state_dir=state_dir, partition=number, name=name, **given)

    def call(self, method: str, number: int, **more: object) -> None:
        self.lab.server.call(method, handle=self.handles[number], **more)

    def snapshot(self) -> None:
        """Make a snapshot of the newest version of each store."""
        for number in range(STORES):
            self.begin(number, len(self.ids)).abort()
            self.call("snapshot", number, force=True)

    def begin(self, number: int, version: int) -> Txn:
        return self.lab.begin(self.handles[number], version, self.ids[version - 1][number] if version else None)

    def run(self, batches: int, stores: Sequence[int] = range(STORES)) -> None:
        for _ in range(batches):
            version, barrier = len(self.ids), Barrier(len(stores))

            def task(number: int, version: int = version, barrier: Barrier = barrier) -> str:
                txn = self.begin(number, version)
                txn.put(f"key-{version + 1}", f"value-{version + 1}")
                barrier.wait()
                return str(txn.commit()["id"])

            with ThreadPoolExecutor(len(stores)) as pool:
                ids = dict(zip(stores, pool.map(task, stores), strict=True))
            self.ids.append([ids.get(number, "") for number in range(STORES)])

    def run_one_by_one(self) -> None:
        version, ids = len(self.ids), []
        for number in range(STORES):
            txn = self.begin(number, version)
            txn.put(f"key-{version + 1}", f"value-{version + 1}")
            ids.append(str(txn.commit()["id"]))
        self.ids.append(ids)

    def restart(self) -> None:
        self.lab.restart(lose_local=True)
        self.open()

    def rows(self, number: int, version: int) -> Rows:
        txn = self.begin(number, version)
        txn.abort()
        return txn.rows

    def problem(self, number: int, version: int) -> str:
        """What keeps a version from being read; empty if nothing does."""
        try:
            self.begin(number, version).abort()
        except CallError as problem:
            return problem.message
        return ""

    def log_commits(self) -> None:
        """Write the newest entry of Spark's commit log."""
        named = json.dumps({"0": [[each] for each in self.ids[-1]]})
        folder = self.lab.checkpoint / "commits"
        folder.mkdir(exist_ok=True)
        (folder / str(len(self.ids) - 1)).write_text('v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":' + named + "}")

    @property
    def packs(self) -> list[Path]:
        return sorted((self.lab.checkpoint / PACKS_FOLDER).glob("*.pack"))


@pytest.fixture(autouse=True)
def _waits_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit waits for all tasks that have begun, however busy the machine is."""
    monkeypatch.setattr(gathering, "MOST_WAIT_S", 60.0)
    monkeypatch.setattr(gathering, "WAIT_SHARE", 1e6)


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    query = Query(tmp_path)
    yield query
    query.lab.server.die()


def test_commits_that_come_together_are_one_object(query: Query) -> None:
    query.run(1)
    assert not query.packs, "the first commit of a store makes its folder"
    query.run(3)
    assert [path.name[:20] for path in query.packs] == [f"{version:020d}" for version in (2, 3, 4)]
    assert all(split_id(each)[1] is not None for each in query.ids[1] + query.ids[3])
    query.restart()
    for number in range(STORES):
        for version in (4, 2, 1):
            assert query.rows(number, version) == expected(version)
    query.run(1)
    assert query.rows(2, 5) == expected(5)


def test_a_commit_that_is_alone_is_an_object_of_its_own(query: Query) -> None:
    query.run(2)
    query.run(2, [3])
    assert len(query.packs) == 1


def test_a_pack_is_deleted_when_a_snapshot_replaces_the_commits_of_all_its_stores(tmp_path: Path) -> None:
    query = Query(tmp_path, keep=2, retentionGracePeriod="0s")
    query.run(10)
    query.snapshot()
    query.run(4)
    for number in range(STORES):
        query.begin(number, 14).abort()
        assert len(query.packs) == 13
        query.call("cleanup", number)
    query.call("cleanup", 0)
    assert [int(path.name[:20]) for path in query.packs] == [11, 12, 13, 14]
    assert query.lab.objects(".delta") == []
    query.restart()
    for number in range(STORES):
        for version in (14, 12, 11, 10):
            assert query.rows(number, version) == expected(version)
        with pytest.raises(CallError, match="retired") as caught:
            query.begin(number, 9)
        assert caught.value.kind == "NotFoundError"
    query.lab.server.die()


def test_a_chain_that_ends_early_goes_on_in_the_delta_of_its_last_commit(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_place, "CHAIN_KEPT", 2)
    query.run(9)
    query.restart()
    for number in range(STORES):
        assert query.rows(number, 9) == expected(9)


def test_a_server_that_goes_on_with_local_copies_writes_chains_that_others_can_follow(query: Query) -> None:
    query.run(4)
    query.lab.restart()
    query.open()
    query.run(3)
    query.restart()
    for number in range(STORES):
        assert query.rows(number, 7) == expected(7)


def test_commits_in_packs_and_others_follow_each_other(query: Query) -> None:
    for together in (True, True, False, True, False, False, True, True):
        if together:
            query.run(1)
        else:
            query.run_one_by_one()
    assert [int(path.name[:20]) for path in query.packs] == [2, 4, 7, 8]
    query.restart()
    for number in range(STORES):
        assert query.rows(number, 8) == expected(8)


def test_without_packs_each_commit_is_an_object_and_packs_are_still_read(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.run(3)
    query.lab.options = {"packCommits": "false"}
    query.restart()
    query.run(2)
    assert [path.name[:20] for path in query.packs] == [f"{version:020d}" for version in (2, 3)]
    assert split_id(query.ids[4][0])[1] is None
    query.restart()
    for number in range(STORES):
        assert query.rows(number, 5) == expected(5)
    query.lab.server.die()


def test_format_1_continues_from_packs(query: Query) -> None:
    query.run(3)
    query.log_commits()
    query.restart()
    handle = query.open_store(4, fmt=1, run="run-2")
    txn = query.lab.begin(handle, 3)
    assert txn.rows == expected(3)
    txn.put("key-4", "value-4")
    txn.commit()
    query.restart()
    handle = query.open_store(4, fmt=1, run="run-3")
    assert query.lab.begin(handle, 4).rows == expected(4)


def test_an_older_snapshot_and_more_of_a_pack_chain_take_the_place_of_a_damaged_snapshot(query: Query) -> None:
    for _ in range(3):
        query.run(3)
        version = len(query.ids)
        query.begin(1, version).abort()
        query.call("snapshot", 1, force=True)
    query.run(1)
    newest = max((query.lab.checkpoint / "state" / "0" / "1").glob("*.snapshot"))
    assert newest.name.startswith(f"{9:020d}")
    damage(newest)
    query.restart()
    assert query.rows(1, 10) == expected(10)


def test_a_damaged_commit_in_a_pack_is_named_with_its_pack(query: Query) -> None:
    query.run(2)
    (pack,) = query.packs
    content = bytearray(pack.read_bytes())
    content[len(content) // 7] ^= 1
    pack.write_bytes(content)
    query.restart()
    damaged = [number for number in range(STORES) if query.problem(number, 2)]
    assert len(damaged) == 1
    assert f"{pack} (bytes " in query.problem(damaged[0], 2)
    assert query.rows((damaged[0] + 1) % STORES, 2) == expected(2)


def test_a_pack_that_is_gone_is_named(query: Query) -> None:
    query.run(3)
    query.packs[-1].unlink()
    query.restart()
    problem = query.problem(0, 3)
    assert "version 3 (id" in problem
    assert "objects are lost" in problem


def test_a_pack_that_cannot_be_written_fails_all_its_commits_and_the_next_attempts_succeed(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.run(1)

    def fail(*_: object) -> None:
        raise StorageError("no answer", outcome="unknown")

    with monkeypatch.context() as broken:
        broken.setattr(gathering, "write_pack", fail)
        with pytest.raises(CallError, match="no answer"):
            query.run(1)
    query.run(1)
    assert len(query.packs) == 1
    query.restart()
    assert query.rows(5, 2) == expected(2)


def test_a_large_delta_is_no_part_of_a_pack(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_writer, "PACKED_BYTES", 100)
    query.run(3)
    assert not query.packs


def test_stores_of_one_task_do_not_wait_for_each_other(query: Query) -> None:
    """A task commits its stores one after the other."""
    handles = [query.open_store(0, name=name) for name in ("left", "right")]
    transactions = [query.lab.begin(handle, 0) for handle in handles]
    for txn in transactions:
        txn.put("key-1", "value-1")
    ids = [txn.commit()["id"] for txn in transactions]
    transactions = [query.lab.begin(handle, 1, each) for handle, each in zip(handles, ids, strict=True)]
    for txn in transactions:
        txn.put("key-2", "value-2")
        txn.commit()


def test_the_commit_of_a_store_is_found_among_those_of_its_partition(query: Query) -> None:
    """The commit log names the commits of all stores of a partition, without their names."""
    names = ("left", "right", "more")
    handles = [query.open_store(0, name=name) for name in names]
    ids: list[str | None] = [None] * len(names)
    for version in range(3):
        barrier = Barrier(len(names))

        def task(number: int, before: str | None, version: int = version, barrier: Barrier = barrier) -> str:
            txn = query.lab.begin(handles[number], version, before)
            txn.put(f"{names[number]}-{version}", "value")
            barrier.wait()
            return str(txn.commit()["id"])

        with ThreadPoolExecutor(len(names)) as pool, pytest.MonkeyPatch.context() as patched:
            patched.setattr(gathering.Gathering, "_is_complete", lambda *_: False)
            patched.setattr(gathering, "MOST_WAIT_S", 1.0)
            ids = list(pool.map(task, range(len(names)), ids))
    assert all(split_id(str(each))[1] for each in ids)
    query.lab.log_commit(2, [str(each) for each in ids], 0)
    query.restart()
    for name in names:
        handle = query.open_store(0, name=name, fmt=1, run="run-2")
        rows = query.lab.begin(handle, 3).rows
        assert rows == {f"{name}-{version}": "value" for version in range(3)}


def test_a_chain_that_does_not_begin_with_the_parent_is_damage(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    query.run(3)
    with monkeypatch.context() as wrong:
        wrong.setattr(store_place.StorePlace, "chain", lambda *_: ("other-0123456789abcdef.0.100",))
        query.run(1, [1])
    query.restart()
    assert "its chain begins with other-0123456789abcdef.0.100" in query.problem(1, 4)


def test_a_restored_store_does_not_take_its_commits_for_ancient(tmp_path: Path) -> None:
    query = Query(tmp_path, snapshotInterval="600s")
    query.run(3)
    query.restart()
    for number in range(STORES):
        query.begin(number, 3).abort()
        query.call("snapshot", number)
        query.call("cleanup", number)
        folder = query.lab.checkpoint / "state" / "0" / str(number)
        assert [path.name for path in folder.iterdir() if path.suffix in {".snapshot", ".json"}] == []
    query.lab.server.die()


def test_a_chain_tells_the_place_of_its_base_below_a_snapshot_of_another_line(query: Query) -> None:
    query.run(3)
    transactions = [query.begin(number, 3) for number in range(STORES)]
    for shelf in query.lab.server.stores._shelves.values():
        shelf.store.lag.note_snapshot(8)
    for txn in transactions:
        txn.put("key-4", "value-4")
    with ThreadPoolExecutor(STORES) as pool:
        query.ids.append([str(answer["id"]) for answer in pool.map(Txn.commit, transactions)])
    query.restart()
    for number in range(STORES):
        assert query.rows(number, 4) == expected(4)


def test_a_replay_begins_with_the_snapshot_of_a_commit_in_a_pack(query: Query) -> None:
    query.run(3)
    query.begin(1, 3).abort()
    query.call("snapshot", 1, force=True)
    query.run(2)
    named = {"id": query.ids[4][1], "start_id": query.ids[2][1]}
    assert split_id(named["start_id"])[1] is not None
    answer = query.lab.server.call("replay", handle=query.handles[1], version=5, start=3, **named)
    assert Txn(query.lab.server, answer).rows == expected(5)


def test_a_snapshot_takes_the_place_of_a_damaged_commit_in_a_pack_whose_local_copy_is_there(query: Query) -> None:
    query.run(4)
    query.lab.server.settled()
    slot = split_id(query.ids[3][1])[1]
    assert slot is not None
    content = bytearray(query.packs[-1].read_bytes())
    end = slot.start + slot.size_bytes
    content[end - 200 : end] = bytes(200)
    query.packs[-1].write_bytes(content)
    query.lab.restart()
    query.open()
    query.run(2)
    query.lab.server.settled()
    query.call("cleanup", 1)
    query.call("snapshot", 1)
    query.run(1)
    query.lab.server.settled()
    query.restart()
    assert query.rows(1, 7) == expected(7)


def test_a_store_that_begins_anew_over_old_state_keeps_its_new_packs(tmp_path: Path) -> None:
    query = Query(tmp_path, keep=2, retentionGracePeriod="0s")
    query.run(10)
    query.snapshot()
    query.run(4)
    for number in range(STORES):
        query.begin(number, 14).abort()
        query.call("cleanup", number)
    query.ids = []  # somebody has deleted the logs, and left the state
    query.restart()
    query.run(5)
    query.call("cleanup", 0)
    query.restart()
    for number in range(STORES):
        assert query.rows(number, 5) == expected(5)
    query.lab.server.die()


def test_packs_of_an_earlier_process_go_although_none_are_written_any_more(tmp_path: Path) -> None:
    query = Query(tmp_path, keep=2, retentionGracePeriod="0s")
    query.run(4)
    query.snapshot()
    query.lab.options = {"packCommits": "false", "retentionGracePeriod": "0s"}
    query.restart()
    for _ in range(4):
        query.run_one_by_one()
    for number in (*range(STORES), 0):
        query.begin(number, 8).abort()
        query.call("cleanup", number)
    assert not query.packs
    query.lab.server.die()


def test_a_chain_ends_at_packs_that_are_gone_however_often_it_is_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of a copied delta do, or those below a snapshot that replaces them."""
    query = Query(tmp_path, keep=2)
    query.run(4)
    query.begin(0, 4).abort()
    query.call("snapshot", 0, force=True)
    query.run(3)
    for pack in query.packs[:2]:
        pack.unlink()
    query.restart()
    for _ in range(2):
        query.begin(0, 7).abort()
        query.call("cleanup", 0)
    assert "missing" not in caplog.text
    assert query.rows(0, 7) == expected(7)
    query.lab.server.die()


def test_a_damaged_index_hinders_nobody_who_knows_the_commit(query: Query) -> None:
    query.run(3)
    query.log_commits()
    content = bytearray(query.packs[-1].read_bytes())
    content[-40] ^= 1
    query.packs[-1].write_bytes(content)
    query.restart()
    handle = query.open_store(2, fmt=1, run="run-2")
    assert query.lab.begin(handle, 3).rows == expected(3)


def test_a_commit_names_its_base_although_the_pack_of_that_was_missing_for_a_moment(query: Query) -> None:
    query.run(3)
    txn = query.begin(0, 3)
    txn.put("key-4", "value-4")
    pack = query.packs[-1]
    hidden = pack.rename(pack.with_suffix(".away"))
    (shelf, *_) = (each for each in query.lab.server.stores._shelves.values() if each.store.identity.partition == 0)
    (delta,) = (blob.name for blob in shelf.store.place.list_packed() if blob.name.startswith(f"{3:020d}"))
    with pytest.raises(NotFoundError):
        shelf.store.place.get(delta)
    hidden.rename(pack)
    query.ids.append([str(txn.commit()["id"]), *query.ids[2][1:]])
    query.restart()
    assert query.rows(0, 4) == expected(4)
