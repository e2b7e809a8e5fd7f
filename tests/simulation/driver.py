"""A driver of a query: it plans batches, keeps Spark's logs as the fenced file manager does, and has tasks run."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark_ckpt.state_store.attempts.runs import RUN_FORMAT, Epochs, RunObject
from pyspark_ckpt.state_store.blobs import BlobPlace, place_at
from pyspark_ckpt.state_store.errors import CkptError, ConflictError
from tests.labs.lab import QUERY, CallError, Rows, Server, describe_operator, read_rows
from tests.simulation.executor import Executor, LostError, Run
from tests.simulation.history import CHAIN, START, Batch, chain_key, changes, partition_of
from tests.simulation.invariants import Violation
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

MAX_FAILURES = 4
"""So many times a task is tried, as in Spark."""


class StoppedError(Exception):
    """The query has failed, or its driver was told to stop."""


@dataclass(frozen=True)
class Base:
    """A batch, the history that its tasks go on from, and the ids of its stores if the log names them."""

    batch: Batch
    chain: str
    ids: list[str] | None


class Log:
    """One of Spark's logs, whose entries count only while their writer is the newest run."""

    def __init__(self, url: str, name: str, require_newest: Callable[[], None]) -> None:
        """Use the folder ``name`` of the checkpoint at ``url``."""
        self._place = place_at(url)
        self._name = name
        self._require_newest = require_newest

    def numbers(self) -> list[int]:
        """Return the numbers of all entries."""
        return sorted(int(blob.name.rpartition("/")[2]) for blob in self._place.list(self._name))

    def read(self, number: int) -> bytes:
        """Return an entry."""
        return self._place.get(f"{self._name}/{number}")

    def add(self, number: int, content: bytes) -> None:
        """Write an entry, as ``FencedCheckpointFileManager`` does. Raises ConflictError."""
        self._require_newest()
        if not self._place.put_if_absent(f"{self._name}/{number}", content):
            self._require_newest()
            raise StoppedError(f"{self._name}/{number} exists already")
        try:
            self._require_newest()
        except ConflictError:
            if self._is_old(number):
                self.delete(number)
            raise

    def _is_old(self, number: int) -> bool:
        """Return whether the successor has deleted an entry long ago, before it was created again just now."""
        numbers = self.numbers()
        return any(each > number for each in numbers) and number + 1 not in numbers

    def delete(self, number: int) -> None:
        """Delete an entry."""
        self._place.delete(f"{self._name}/{number}")


@dataclass(frozen=True)
class Done:
    """What a task has done: the id of its commit, and the pack that must be durable before its batch is committed."""

    id: str
    pack: str | None
    executor: Executor


def _await_pack(pack: str, server: Server) -> None:
    server.call("await_pack", pack=pack)


class Driver:
    """One run of the query, from its start until it fails or is stopped."""

    def __init__(self, world: World, number: int, format_: int) -> None:
        """Begin nothing yet."""
        self.world = world
        self.process = Process(f"driver-{number}")
        self.is_stopping = False
        self.batches = 0
        """How many batches this run has committed."""
        self._id, self._format = f"run-{number}", format_
        self._query = world.query

    def run(self) -> None:
        """Run batches until something fails."""
        world = self.world
        try:
            self._start()
            while not self.is_stopping:
                self._run_batch()
                self.batches += 1
                world.scheduler.sleep(world.pause_s())
            why = "it was stopped"
        except (CkptError, CallError, LostError, StoppedError) as problem:
            world.judge(problem, self._id)
            why = f"{type(problem).__name__}: {problem}"
        world.tell(f"{self.process} ends: {why}")
        self.process.is_dead = True

    def _start(self) -> None:
        world, place = self.world, place_at(self._query.checkpoint)
        self._describe_query(place)
        epochs = Epochs(place)
        self.epoch = epochs.take(RunObject(RUN_FORMAT, self._id))
        epochs.note(self._id, self.epoch)
        world.epochs[self._id] = (self._query.checkpoint, self.epoch)
        self.run_ = Run(self._id, self._format, self.epoch, world.plan.keep)

        def require_newest() -> None:
            if epochs.has_ended(self._id):
                raise ConflictError(f"{self._id} is over")

        self._offsets = Log(self._query.checkpoint, "offsets", require_newest)
        self._commits = Log(self._query.checkpoint, "commits", require_newest)
        planned, committed = self._offsets.numbers(), self._commits.numbers()
        self._next = committed[-1] + 1 if committed else 0
        self._ids = self._read_ids(self._next)
        self._before = self._read_chain(self._next - 1)
        self._planned = None
        if planned and planned[-1] == self._next:
            self._planned = Batch.decode(self._next, self._offsets.read(self._next))
        elif planned and planned[-1] > self._next:
            raise StoppedError(f"the offset log is at {planned[-1]}, the commit log at {self._next - 1}")
        world.tell(f"{self.process} is run {self.epoch}, format {self._format}, and goes on with batch {self._next}")

    def _describe_query(self, place: BlobPlace) -> None:
        """Write what Spark writes before the first batch."""
        described = describe_operator(0, "stateStoreSave", ["default"], self._query.partitions)
        place.put_if_absent("metadata", json.dumps({"id": QUERY}).encode())
        place.put_if_absent("state/0/_metadata/metadata", described)
        place.put_if_absent("state/0/0/_metadata/schema", b"\0\2v3")

    def _read_chain(self, number: int) -> str:
        return START if number < 0 else Batch.decode(number, self._offsets.read(number)).chain

    def _read_ids(self, version: int) -> list[str] | None:
        if not version:
            return None
        ids = json.loads(self._commits.read(version - 1).partition(b"\n")[2]).get("stateUniqueIds")
        return None if ids is None else [each[0] for each in ids["0"]]

    def _run_batch(self) -> None:
        world, number = self.world, self._next
        batch = self._planned
        if batch is None:
            batch = world.history.plan(number, self._before, world.draw.getrandbits(32))
            self._offsets.add(number, batch.encode(self._query.partitions))
            for log in (self._offsets, self._commits):
                for old in [each for each in log.numbers() if each < number - world.plan.keep]:
                    log.delete(old)
        done = self._run_tasks(batch)
        for pack, executor in {each.pack: each.executor for each in done if each.pack}.items():
            executor.call(f"pack of batch {number}", partial(_await_pack, pack))
        ids = [each.id for each in done]
        body: dict[str, object] = {"nextBatchWatermarkMs": 0}
        if self._format == 2:
            body["stateUniqueIds"] = {"0": [[each] for each in ids]}
        self._commits.add(number, f"v{self._format}\n{json.dumps(body)}".encode())
        world.acknowledge(number + 1, batch.chain)
        self._next, self._before, self._planned = number + 1, batch.chain, None
        self._ids = ids if self._format == 2 else None

    def _run_tasks(self, batch: Batch) -> list[Done]:
        world, found, failed = self.world, dict[int, Done](), list[Exception]()
        base = Base(batch, self._before, self._ids)

        def run(partition: int) -> None:
            for attempt in range(MAX_FAILURES):
                executor = world.draw.choice(world.executors)
                twin = world.draw.random() < world.plan.speculation
                if twin:  # another attempt of the same task, whose outcome may come too late
                    other = world.draw.choice(world.executors)
                    other.begin(
                        f"twin of batch {batch.number}, {partition}", partial(self._try, other, base, partition)
                    )
                try:
                    found[partition] = executor.call(
                        f"batch {batch.number}, {partition}", partial(self._task, executor, base, partition)
                    )
                except (CallError, CkptError, LostError) as problem:
                    world.judge(problem, self._id)
                    world.tell(f"a task of batch {batch.number}, {partition} fails on {executor.name}: {problem}")
                    if attempt == MAX_FAILURES - 1:
                        failed.append(problem)
                else:
                    return

        tasks = [
            world.scheduler.spawn(partial(run, partition), f"task {partition}", self.process)
            for partition in range(self._query.partitions)
        ]
        world.scheduler.wait(lambda: failed or all(task.has_ended for task in tasks))
        if failed:
            raise failed[0]
        return [found[partition] for partition in range(self._query.partitions)]

    def _try(self, executor: Executor, base: Base, partition: int, server: Server) -> None:
        try:
            self._task(executor, base, partition, server)
        except (CallError, CkptError) as problem:
            self.world.judge(problem, self._id)

    def _task(self, executor: Executor, base: Base, partition: int, server: Server) -> Done:
        """Run one attempt of a task in the process of an executor."""
        world, batch = self.world, base.batch
        state_dir = f"{self._query.checkpoint}/state/0/{partition}"
        handle = executor.open(server, state_dir, self._query.checkpoint, partition, self.run_)
        named = None if base.ids is None or self._format == 1 else base.ids[partition]
        txn = executor.transaction(server, handle, batch.number, named)
        world.require_read(self._query, batch.number, partition, txn.rows, base.chain, self._id)
        if not world.is_calm and world.draw.random() < world.plan.aborts:
            txn.abort()
            raise CallError({"kind": "StorageError", "message": "the task fails", "hint": "", "retryable": True})
        for key, value in self._changed(txn.rows, batch, partition).items():
            txn.changes[key] = value
        world.scheduler.pass_by()
        if not txn.answer["live"] and world.draw.random() < 0.1 and read_rows(txn.answer) != txn.rows:
            raise Violation(f"a base of {self._id} that nobody moves has other rows than before")
        try:
            answer = txn.commit(self._query.partitions)
        except (CallError, CkptError):  # as the shim does
            with suppress(CallError):
                txn.abort()
            raise
        if world.draw.random() < 0.1:  # the shim asks again if the answer was lost on its way
            again = server.call("commit", txn=txn.number, files=[])
            if again != answer:
                raise Violation(f"a commit of {self._id} is answered by {answer} and {again}")
        return Done(str(answer["id"]), answer["pack"], executor)

    def _changed(self, rows: Rows, batch: Batch, partition: int) -> dict[str, str | None]:
        changed: dict[str, str | None] = {key: None for key in rows if key.startswith(CHAIN)}
        changed[chain_key(partition, self._query.partitions)] = batch.chain
        for key, value in changes(batch.input).items():
            if partition_of(key, self._query.partitions) == partition:
                if value is not None:
                    changed[key] = f"{int(rows.get(key, '0')) + value}"
                elif key in rows:
                    changed[key] = None
        return changed
