"""With ``durability=batch``, commits are answered before their pack is durable, and somebody can wait for the pack."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.state_store.errors import StorageError
from pyspark_ckpt.state_store.packs import deferred
from pyspark_ckpt.state_store.packs.pack import write_pack
from pyspark_ckpt.state_store.packs.slots import PACKS_FOLDER, split_id
from tests.labs.lab import CallError, Lab, Rows, expected

STORES = 4


class Query:
    """A query with several stores, whose commits are durable later."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder, durability="batch")
        self.ids: list[str | None] = [None] * STORES
        self.version = 0
        self.open()

    def open(self) -> None:
        self.handles = [
            self.lab.open(state_dir=str(self.lab.checkpoint / "state" / "0" / str(number)), partition=number)
            for number in range(STORES)
        ]

    def commit(self, number: int, version: int) -> dict[str, Any]:
        txn = self.lab.begin(self.handles[number], version, self.ids[number])
        txn.put(f"key-{version + 1}", f"value-{version + 1}")
        return txn.commit()

    def run(self, batches: int = 1) -> set[str | None]:
        """Commit all stores, one after the other, as one task slot does; return the packs."""
        for _ in range(batches):
            answers = [self.commit(number, self.version) for number in range(STORES)]
            self.ids = [answer["id"] for answer in answers]
            self.version += 1
        return {answer["pack"] for answer in answers}

    def await_pack(self, pack: str | None) -> None:
        self.lab.server.call("await_pack", pack=pack)

    def rows(self, number: int) -> Rows:
        txn = self.lab.begin(self.handles[number], self.version, self.ids[number])
        txn.abort()
        return txn.rows

    @property
    def packs(self) -> list[Path]:
        return sorted((self.lab.checkpoint / PACKS_FOLDER).glob("*.pack"))


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Query]:
    monkeypatch.setattr(deferred, "MOST_WAIT_S", 60.0)
    monkeypatch.setattr(deferred, "WAIT_SHARE", 20.0)
    query = Query(tmp_path)
    yield query
    query.lab.server.die()


def test_one_pack_has_the_commits_of_all_tasks_of_a_batch(query: Query) -> None:
    assert query.run() == {None}, "the first commits make the folders of the stores"
    (pack,) = query.run()
    assert not query.packs, "it may get more"
    query.await_pack(pack)
    assert [path.name for path in query.packs] == [f"{2:020d}-{pack}.pack"]
    assert {split_id(str(each))[1].pack for each in query.ids} == {pack}  # type: ignore[union-attr]  # all are in it
    query.lab.restart(lose_local=True)
    query.open()
    assert [query.rows(number) for number in range(STORES)] == [expected(2)] * STORES


def test_the_next_batch_goes_on_from_local_copies_while_a_pack_is_written(query: Query) -> None:
    query.run(5)
    assert query.rows(3) == expected(5)


def test_a_pack_that_cannot_be_written_says_so_to_whoever_waits(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    query.run()

    def fail(*_: object) -> None:
        raise StorageError("the place is gone", outcome="unknown")

    with monkeypatch.context() as broken:
        broken.setattr(deferred, "write_pack", fail)
        (pack,) = query.run()
        for _ in range(2):
            with pytest.raises(CallError, match="the place is gone"):
                query.await_pack(pack)


def test_a_pack_of_another_process_is_not_known(query: Query) -> None:
    query.run()
    (pack,) = query.run()
    query.await_pack(pack)
    query.lab.restart()
    with pytest.raises(CallError, match="is not one of this state server") as caught:
        query.await_pack(pack)
    assert caught.value.kind == "LifecycleError"


def test_a_full_pack_is_written_at_once_and_the_next_commits_go_into_another(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferred, "PACK_BYTES", 4000)
    query.run()
    packs = query.run()
    assert len(packs) > 1
    for pack in packs:
        query.await_pack(pack)
    assert len(query.packs) == len(packs)


def test_a_pack_is_closed_when_nothing_comes_although_a_task_is_under_way(query: Query) -> None:
    query.run()
    slow = query.lab.begin(query.handles[0], query.version, query.ids[0])
    pack = query.commit(1, query.version)["pack"]
    query.await_pack(pack)
    slow.abort()


def test_commits_wait_when_too_much_is_not_yet_written(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    query.run()
    monkeypatch.setattr(deferred, "WAITING_BYTES", 2000)
    monkeypatch.setattr(deferred, "MOST_WAIT_S", 0.01)
    goes_on = threading.Event()

    def write_slowly(*given: Any) -> object:  # noqa: ANN401
        goes_on.wait(60)
        return write_pack(*given)

    monkeypatch.setattr(deferred, "write_pack", write_slowly)
    with ThreadPoolExecutor(STORES) as pool:
        commits = [pool.submit(query.commit, number, query.version) for number in range(STORES)]
        first = wait(commits, return_when=FIRST_COMPLETED).done.pop()
        assert first.result()["pack"]
        assert sum(each.done() for each in commits) < STORES
        goes_on.set()
        packs = {commit.result()["pack"] for commit in commits}
    for pack in packs:
        query.await_pack(pack)
