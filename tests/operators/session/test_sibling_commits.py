"""A worker reads the base version of its transaction, however many other transactions on it have committed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.operators.session.views import READERS_KEPT, _views, find_view, open_reader
from pyspark_ckpt.state_store.errors import LifecycleError
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import PREFIX
from pyspark_ckpt.state_store.restore.versions import Leased, LocalVersions
from pyspark_ckpt.state_store.transactions.ticket import Ticket, WorkerTask, read_ticket, ticket_path
from tests.labs.lab import Lab, Server, read_rows

STORE = Identity(0, 3, "default")


class Query:
    """A store with one version, and tasks with tickets."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder, **{PREFIX + "localCheckpoints": "1"})
        self.local_dir = folder / "ckpt-0" / "server"
        self.lab.server.stores.shut_down()
        self.lab.server = Server(self.local_dir, self.lab.options)
        self.handle = self.lab.open()
        (self.base,) = self.lab.grow(self.handle, 1)
        self.lab.server.settled()

    def begin(self, attempt: int, version: int = 1, commit_id: str | None = None) -> dict[str, Any]:
        """Begin the transaction of a task."""
        base = commit_id or self.base
        return self.lab.server.call("begin", handle=self.handle, version=version, id=base, attempt=attempt)

    def ticket(self, attempt: int) -> Ticket:
        """Read the ticket of a task."""
        return read_ticket(ticket_path(self.local_dir, WorkerTask(attempt), STORE))

    def commit(self, begun: dict[str, Any]) -> str:
        """Commit a transaction that changes nothing; the id."""
        done = self.lab.server.call("commit", txn=begun["txn"], files=[], rows={}, num_partitions=None)
        self.lab.server.settled()
        return str(done["id"])


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    made = Query(tmp_path)
    yield made
    made.lab.server.stores.shut_down()
    while _views:
        _views.popitem()[1].reader.close()


def shows(ticket: Ticket) -> Marker | None:
    """Return the commit that the worker with a ticket reads."""
    reader = open_reader(ticket)
    assert reader is not None
    return reader.marker()


def test_a_worker_opens_its_base_after_others_have_committed(query: Query) -> None:
    begun = query.begin(7)
    early = query.ticket(7)
    others = [query.begin(attempt) for attempt in (8, 9)]
    last = query.commit(others[0])
    query.commit(others[1])
    for version in range(2, 6):  # later versions, each with a local copy of the one before
        last = query.commit(query.begin(10 + version, version, last))
    base = Marker(1, query.base)
    assert early.live
    assert not query.ticket(7).live
    assert shows(early) == shows(query.ticket(7)) == base
    made = query.commit(begun)
    assert read_rows(query.begin(20, 2, made)) == {"key-1": "value-1"}
    assert read_rows(query.begin(21, 6, last)) == {"key-1": "value-1"}


def test_a_worker_goes_on_with_what_it_has_opened_when_another_commits(query: Query) -> None:
    query.begin(7)
    reader = open_reader(query.ticket(7))
    query.commit(query.begin(8))
    assert reader is not None
    assert reader.marker() == Marker(1, query.base)


def test_a_worker_opens_its_base_when_another_commits_while_its_transaction_begins(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, leased = [query.begin(8)], LocalVersions.lease

    def late(versions: LocalVersions, marker: Marker) -> Leased:
        found = leased(versions, marker)
        while other:
            query.commit(other.pop())
        return found

    with monkeypatch.context() as patched:
        patched.setattr(LocalVersions, "lease", late)
        query.begin(7)
    assert shows(query.ticket(7)) == Marker(1, query.base)


def test_local_copies_go_when_the_transactions_that_kept_them_have_ended(query: Query) -> None:
    kept = [query.begin(attempt) for attempt in range(4)]
    last = query.base
    for version in range(1, 5):
        last = query.commit(query.begin(10 + version, version, last))
    for begun in kept:
        query.lab.server.call("abort", txn=begun["txn"])
    query.commit(query.begin(20, 5, last))
    (store,) = (query.local_dir / "stores").iterdir()
    assert len(list(store.iterdir())) == 2, "the live copy, and one other version"


def test_a_worker_is_told_when_its_transaction_has_ended(query: Query) -> None:
    begun = query.begin(7)
    ticket = query.ticket(7)
    query.commit(query.begin(8))
    query.lab.server.call("abort", txn=begun["txn"])
    with pytest.raises(LifecycleError, match=r"moved on from version 1 .*, and the transaction of the task has ended"):
        open_reader(ticket)


def keep_others(query: Query) -> None:
    """Read as many other stores as a worker keeps open, so that it opens the next one for one task."""
    for partition in range(100, 100 + READERS_KEPT):
        handle = query.lab.open(partition=partition, state_dir=str(query.lab.remote.with_name(str(partition))))
        (base,) = query.lab.grow(handle, 1)
        query.lab.server.settled()
        query.lab.begin(handle, 1, base, attempt=partition)
        of_store = Identity(0, partition, "default")
        assert find_view(read_ticket(ticket_path(query.local_dir, WorkerTask(partition), of_store))) is not None


def test_a_worker_of_many_stores_tries_again_while_a_compaction_deletes_files(query: Query) -> None:
    keep_others(query)
    query.begin(7)
    ticket = query.ticket(7)
    (table,) = Path(ticket.db).glob("*.sst")
    away = table.rename(query.local_dir / "away")
    back = threading.Timer(0.1, away.rename, [table])
    back.start()
    try:
        assert shows(ticket) == Marker(1, query.base)
    finally:
        back.join()


def test_a_worker_of_many_stores_reads_again_what_has_moved_on(query: Query) -> None:
    keep_others(query)
    first = query.begin(7)
    early = query.ticket(7)
    reader = open_reader(early)
    assert reader is not None
    assert not reader.follows
    assert open_reader(early) is reader, "a task opens it once"
    made = query.commit(first)
    frozen_since = msgspec.structs.replace(early, version=2, id=made, live=False)
    assert shows(frozen_since) == Marker(2, made)
    query.begin(8, 2, made)
    assert shows(query.ticket(8)) == Marker(2, made)
