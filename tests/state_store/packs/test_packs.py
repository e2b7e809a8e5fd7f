"""Commits of several stores that come together are one object, and every reader finds them there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from pyspark_ckpt.state_store.format.slots import PACKS_FOLDER, split_id
from pyspark_ckpt.state_store.packs import gathering
from tests.labs.lab import CallError, Lab, Rows, Txn, expected

STORES = 6


class Query:
    """A query with several stores, whose tasks commit together."""

    def __init__(self, folder: Path, keep: int = 100, **options: str) -> None:
        self.lab = Lab(folder, **options)
        self.lab.partition = 0
        self.keep = keep
        self.ids: list[list[str]] = []
        self.handles: list[int] = []
        self.open()

    def open(self) -> None:
        self.handles = [
            self.lab.open(
                state_dir=str(self.lab.checkpoint / "state" / "0" / str(number)), partition=number, keep=self.keep
            )
            for number in range(STORES)
        ]

    def call(self, method: str, number: int, **more: object) -> None:
        self.lab.server.call(method, handle=self.handles[number], **more)

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

    def restart(self) -> None:
        self.lab.restart(lose_local=True)
        self.open()

    def rows(self, number: int, version: int) -> Rows:
        txn = self.begin(number, version)
        txn.abort()
        return txn.rows

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
    for number in range(STORES):
        query.begin(number, 10).abort()
        query.call("snapshot", number, force=True)
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
