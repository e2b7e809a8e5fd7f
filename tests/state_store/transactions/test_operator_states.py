"""What a worker learns of the states in the other partitions of its operator, at the first batch of a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.state_store.blobs import BlobPlace, HadoopSettings, S3Settings, place_at
from pyspark_ckpt.state_store.format.meta import Descriptor
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.transactions.parts import Part, declare, write_part
from pyspark_ckpt.state_store.transactions.ticket import Ticket, WorkerTask, read_ticket, ticket_path
from tests.labs.lab import QUERY, CallError, Lab, Server

PARTITIONS = 3


def _descriptor(kind: str) -> Descriptor:
    return Descriptor(key_schema={"user": "int32"}, value_schema={"value": {"schemas": [kind], "current": 1}})


@dataclass
class Query:
    """A query of one operator, whose partitions have each what they were told to declare."""

    folder: Path
    fmt: int = 2
    options: Mapping[str, str] = field(default_factory=dict)
    run: int = 1
    version: int = 0
    ids: list[str | None] = field(default_factory=lambda: [None] * PARTITIONS)
    listed: Counter[str] = field(default_factory=Counter)
    listed_under_lock: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lab = Lab(self.folder, **self.options)
        self.lab.name_query()
        self.lab.server.stores.shut_down()
        self.start()

    def start(self) -> None:
        """Start a server, which counts listings of the folders of state."""

        def counted(url: str, s3: S3Settings, s3a: HadoopSettings) -> BlobPlace:
            place = place_at(url, s3, s3a)
            inner = place.list

            def listed(folder: str = "", prefix: str = "", start: str = "") -> Any:  # noqa: ANN401
                self.listed[prefix] += 1
                stores = [shelf.store for shelf in self.lab.server.stores._shelves.values()]
                if any(store.local.lock._is_owned() for store in stores):  # type: ignore[attr-defined]  # of RLock
                    self.listed_under_lock.append(f"{url} {folder} {prefix}")
                return inner(folder, prefix, start)

            place.list = listed  # type: ignore[method-assign]
            return place

        self.lab.server = Server(self.lab.local_dir, self.options, places=counted)
        self.handles = [self._open(partition) for partition in range(PARTITIONS)]

    def _open(self, partition: int) -> int:
        folder = str(self.lab.checkpoint / "state" / "0" / str(partition))
        return self.lab.open(f"run-{self.run}", self.fmt, partition=partition, state_dir=folder)

    def restart(self) -> None:
        """Begin another run."""
        self.run += 1
        self.handles = [self._open(partition) for partition in range(PARTITIONS)]

    def begin(self, partition: int, attempt: int = 7) -> tuple[int, Ticket]:
        """The number of a transaction, and the ticket of its worker."""
        answer = self.lab.server.call(
            "begin",
            handle=self.handles[partition],
            version=self.version,
            id=self.ids[partition] if self.fmt == 2 else None,
            attempt=attempt,
        )
        path = ticket_path(self.lab.local_dir, WorkerTask(attempt), Identity(0, partition, "default"))
        return answer["txn"], read_ticket(path)

    def commit(self, partition: int, declared: Mapping[str, str]) -> str:
        """Make the next version of a partition, in which a worker has declared states by name."""
        number, ticket = self.begin(partition)
        _, states = declare(ticket.meta, [(name, _descriptor(kind)) for name, kind in declared.items()])
        if states:
            write_part(Path(ticket.staging), "worker", Part(states, (), {}, 0, {}, ticket.new_id))
        answer = self.lab.server.call("commit", txn=number, files=[], rows={}, num_partitions=PARTITIONS)
        return str(answer["id"])

    def batch(self, declared: Sequence[Mapping[str, str]]) -> None:
        """One batch, in which partitions declare so."""
        ids = [self.commit(partition, each) for partition, each in enumerate(declared)]
        self.lab.log_commit(self.version, None)
        if self.fmt == 2:
            named = json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [[each] for each in ids]}})
            (self.lab.checkpoint / "commits" / str(self.version)).write_text(f"v2\n{named}")
        self.version, self.ids = self.version + 1, list(ids)


def told(ticket: Ticket) -> set[tuple[tuple[str, str], ...]]:
    """Names and types of the states in each partition."""
    return {
        tuple((state.name, state.descriptor.value_schema["value"]["schemas"][0]) for state in states)
        for states in ticket.operator_states
    }


@pytest.fixture(params=[1, 2], ids=["format 1", "format 2"])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> Any:  # noqa: ANN401
    made = Query(tmp_path, request.param)
    yield made
    made.lab.server.stores.shut_down()


def test_a_worker_is_told_what_other_partitions_have_when_its_own_has_nothing(query: Query) -> None:
    query.batch([{}, {"it/n": "long"}, {"it/n": "long", "it/m": "int"}])
    query.restart()
    for partition in (0, 1, 2):
        _, ticket = query.begin(partition)
        assert told(ticket) == {(("it/n", "long"),), (("it/n", "long"), ("it/m", "int"))}


def test_what_a_failed_batch_has_left_is_not_told(query: Query) -> None:
    query.batch([{"it/n": "int"}, {"it/n": "int"}, {}])
    query.restart()
    query.commit(2, {"it/n": "long"})  # and the batch fails, so that nobody commits it
    query.restart()
    assert told(query.begin(0)[1]) == {(("it/n", "int"),)}


def test_only_the_first_begin_of_a_run_looks_at_other_partitions(query: Query) -> None:
    query.batch([{"it/n": "int"}] * PARTITIONS)
    query.restart()
    version = f"{1:020d}-"
    query.begin(0)
    assert query.listed[version] == PARTITIONS - 1
    query.begin(1)
    query.batch([{"it/n": "int"}] * PARTITIONS)
    query.begin(2)
    assert query.listed[version] == PARTITIONS - 1
    assert query.listed[f"{2:020d}-"] == 0


def test_no_begin_waits_for_a_place_under_the_lock_of_its_store(query: Query) -> None:
    query.batch([{"it/n": "int"}] * PARTITIONS)
    query.restart()
    query.batch([{"it/n": "int"}] * PARTITIONS)
    assert sum(query.listed.values()) > PARTITIONS
    assert query.listed_under_lock == []


def test_other_partitions_are_found_when_state_is_kept_apart_from_the_checkpoint(tmp_path: Path) -> None:
    query = Query(tmp_path, options={"remote": str(tmp_path / "remote")})
    query.batch([{}, {"it/n": "int"}, {}])
    assert (tmp_path / "remote" / QUERY / "state" / "0" / "1").is_dir()
    query.restart()
    assert told(query.begin(0)[1]) == {(("it/n", "int"),)}
    query.lab.server.stores.shut_down()


def test_a_reader_outside_a_query_is_told_nothing(query: Query) -> None:
    query.batch([{"it/n": "int"}] * PARTITIONS)
    handle = query.lab.open("", query.fmt, partition=0, state_dir=str(query.lab.checkpoint / "state" / "0" / "0"))
    query.lab.server.call("begin", handle=handle, version=1, id=query.ids[0], attempt=9)
    assert read_ticket(ticket_path(query.lab.local_dir, WorkerTask(9), Identity(0, 0, "default"))).operator_states == ()


def test_a_damaged_partition_fails_the_batch_by_its_name(query: Query) -> None:
    query.batch([{"it/n": "int"}] * PARTITIONS)
    (delta,) = (query.lab.checkpoint / "state" / "0" / "2").glob("*.delta")
    delta.write_bytes(delta.read_bytes()[:-40])
    query.restart()
    with pytest.raises(Exception, match=r"/state/0/2/.*\.delta.* is damaged"):
        query.begin(0)


def test_a_missing_commit_of_another_partition_is_not_taken_for_one_of_the_own(query: Query) -> None:
    query.batch([{"it/n": "int"}] * PARTITIONS)
    store = query.lab.checkpoint / "state" / "0" / "2"
    (delta,) = store.glob("*.delta")
    delta.rename(delta.with_name(delta.name.replace(str(query.ids[2]), "f" * 32)))
    query.restart()
    with pytest.raises(
        CallError, match=r"partition, in .*/state/0/2, cannot be read: operator 0, partition 2"
    ) as caught:
        query.begin(0)
    assert (caught.value.kind, caught.value.retryable) == ("FormatError", False)
    assert str(query.ids[2]) in caught.value.message
