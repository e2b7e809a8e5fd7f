"""A streaming query with one store on two executors: what its driver and its tasks ask for, and whether that is right.

The driver keeps a commit log as Spark does: a version counts once its batch is logged; what was committed and not
logged may be done again, by the same run or, after a restart, by a new one. Whatever goes wrong is an AssertionError.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pyspark_ckpt.state_store.database import tuning
from tests.faults.faulty_disk import FULL, READ_ONLY, nearly_full
from tests.faults.faulty_place import BODY_FAULTS, CALM, FAILURES, KINDS, Network, Weather
from tests.labs.lab import CallError
from tests.labs.memory_place import MemoryService
from tests.labs.stored_objects import StoredObjects
from tests.stateful.executor import CHECKPOINT, STATE, Executor
from tests.stateful.truth import NOTHING, Attempt, Commit, Logged, Run, Truth

T = TypeVar("T")
NEVER = 1 << 20
"""So many files make RocksDB compact by itself: it does so when a step says so, for else no seed would tell when."""

KEYS = [f"k{number}" for number in range(6)]


class Query:
    """One query under faults; see the module. ``life`` has the steps it takes."""

    def __init__(self, folder: Path, seed: object, draw: random.Random) -> None:
        """Keep local files in ``folder``; ``draw`` says which faults this query meets, and how many."""
        self.network = Network(seed)
        self.truth = Truth()
        self.run = Run(1, draw.choice((1, 2)))
        self.former: list[tuple[Run, list[Logged]]] = []
        self.attempts: list[Attempt] = []
        self.keep = draw.randint(1, 4)
        self._folder = folder
        self._compaction_files, tuning.LEVEL0_COMPACTION_FILES = tuning.LEVEL0_COMPACTION_FILES, NEVER
        self._weather = Weather(draw.choice((0.02, 0.1, 0.3)), tuple(draw.sample(KINDS, draw.randint(1, len(KINDS)))))
        service = MemoryService(self.network.clock)
        self._checkpoint, self._objects = service.place(CHECKPOINT), StoredObjects(service.place(STATE))
        self.executors = [Executor(name, folder, service, self.network) for name in "AB"]
        self.network.tell(f"{self._weather}, keep={self.keep}, {self.run}")

    # --- what befalls it ---------------------------------------------------------------------------------------------

    @contextmanager
    def trouble(self, draw: random.Random, in_the_middle: Callable[[random.Random, Executor], None]) -> Iterator[None]:
        """Let the calls of one step meet the weather, and perhaps a failing disk, a death, or another step."""
        self.network.step += 1
        is_burst = draw.random() < 0.1
        self.network.weather = Weather(0.8, ("slow_down",)) if is_burst else self._weather
        executor, what = draw.choice(self.executors), draw.random()
        if what < 0.08:
            executor.die_at(draw.randint(1, 9), in_threads=draw.random() < 0.3, keeps_disk=draw.random() < 0.6)
        elif what < 0.2:
            in_the_middle(draw, executor)
        elif what < 0.26:
            executor.server.trouble = draw.choice((FULL, READ_ONLY, nearly_full(int(2 ** draw.uniform(4, 14)))))
            executor.kept_by_disk |= executor.server.trouble is READ_ONLY
            self.network.tell(f"      the disk of {executor.name} is {executor.server.trouble.name}")
        yield
        self.network.weather = CALM
        for each in self.executors:
            each.server.trouble, each.link.at_pass = None, None
            if each.is_dead:
                self.replace(each)
        self.check()

    def attempt(self, executor: Executor, call: Callable[[], T], also: frozenset[str] = frozenset()) -> T | None:
        """Answer of a call; None if it failed as it may: by an error that says so, and only if something befell it.

        ``also`` are faults after which a conflict is in order.
        """
        executor.link.met.clear()
        try:
            answer = call()
        except CallError as problem:
            self.network.tell(f"    {executor.name} fails: {problem.kind}: {problem.message}")
            if not executor.is_dead:
                self._require_reason(executor, problem, also)
            return None
        return None if executor.is_dead else answer

    def _require_reason(self, executor: Executor, problem: CallError, also: frozenset[str]) -> None:
        met, is_on_disk = executor.link.met, executor.server.trouble is not None
        allowed = {
            "StorageError": bool(met & FAILURES) or is_on_disk,
            "FormatError": bool(met & BODY_FAULTS),
            "ConflictError": bool(met & also),
        }
        assert allowed.get(problem.kind), f"a call failed with {problem} after {sorted(met)}, disk: {is_on_disk}"
        assert problem.retryable or problem.kind != "StorageError", f"nobody would try again after {problem}"

    def replace(self, executor: Executor, *, keeps_disk: bool = True) -> None:
        """Another server takes over; what was open on the old one is gone."""
        self.attempts = [attempt for attempt in self.attempts if attempt.on is not executor]
        executor.replace(keeps_disk=keeps_disk)
        self.network.tell(f"    {executor.name} has another server")

    # --- what must be ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that may be asked for can be restored from what is stored, and nothing local is left over."""
        self._objects.require(self.truth.retained())
        for executor in self.executors:
            for what in ("staging", "tickets"):
                there = len(list((executor.server.stores.local_dir / what).iterdir()))
                left = there - sum(attempt.on is executor for attempt in self.attempts)
                assert left == 0 or (left > 0 and executor.kept_by_disk), (
                    f"{executor.name} has {left} {what} of transactions that have ended"
                )

    def require_no_litter(self) -> None:
        """Nothing is stored that nobody can ask for."""
        litter = self._objects.litter(self.truth.at(self.truth.newest).marker, self.keep)
        assert not litter, f"nobody deletes {sorted(litter)}"

    # --- what its tasks do -------------------------------------------------------------------------------------------

    def handle(self, executor: Executor, run: Run | None = None) -> int | None:
        """The handle of a run, by default the present one."""
        of = run or self.run
        return self.attempt(executor, lambda: executor.open(of.id, of.format, self.keep))

    def begin(self, executor: Executor, version: int, *, is_reader: bool = False) -> Attempt | None:
        """A transaction on a version that may be asked for; it reads exactly that, or fails as it may."""
        base = self.truth.log[version - 1] if version else None
        run = replace(self.run, number=0) if is_reader else self.run
        named = base.named_to(run) if base else None
        handle = self.handle(executor, run)
        if handle is None:
            return None
        try:
            txn = self.attempt(executor, lambda: executor.begin(handle, version, named))
        except AssertionError:
            if version >= self.truth.oldest:
                raise
            return None  # something in the middle of the call has retired it
        if txn is None:
            return None
        metrics = txn.answer["metrics"]
        how = f"restored, {metrics['replayed_deltas']} deltas" if metrics["restored"] else "at hand"
        self.network.tell(f"    {executor.name} begins version {version} in run {run.number}: {how}")
        executor.newest = version
        expected = base.commit if base else NOTHING
        assert txn.answer["id"] == (expected.marker.id if version else None), f"version {version} is another commit"
        assert txn.rows == expected.rows, f"version {version} reads {txn.rows}, {expected.rows} were committed"
        return Attempt(txn, executor, expected, run)

    def begin_late(self, executor: Executor, run: Run, log: list[Logged]) -> Attempt | None:
        """A transaction of a run that is over, where that was; it may be retired, and reads one commit or another."""
        handle = self.handle(executor, run)
        if handle is None:
            return None
        try:
            txn = executor.begin(handle, len(log), log[-1].named_to(run) if log else None)
        except CallError as problem:
            if problem.kind == "InternalError":
                raise
            self.network.tell(f"    a zombie of run {run.number} fails on {executor.name}: {problem.kind}")
            return None
        if executor.is_dead:
            return None
        executor.newest = len(log)
        base = self.truth.committed[txn.answer["id"]] if log else NOTHING
        self.network.tell(f"    a zombie of run {run.number} begins version {len(log)} on {executor.name}")
        assert txn.rows == base.rows
        return Attempt(txn, executor, base, run)

    def write(self, draw: random.Random, attempt: Attempt) -> None:
        """Put and delete some rows."""
        for key in draw.sample(KEYS, draw.randint(0, 2)):
            attempt.txn.changes[key] = None if draw.random() < 0.3 else f"{draw.randrange(1000)}"

    def commit(self, attempt: Attempt) -> Commit | None:
        """Commit, and ask once more; which commit stands then in this run, or None if the attempt has failed."""
        self.truth.ask(attempt)
        try:
            answer = self.attempt(attempt.on, attempt.txn.commit)
        except AssertionError:
            if attempt.version >= self.truth.oldest:
                raise
            return None  # something in the middle of the call has retired the version, and its winner with it
        what = f"commits {attempt.version} in run {attempt.run.number}: {bool(answer)}"
        self.network.tell(f"    {attempt.on.name} {what}")
        if answer is None:
            return None
        server, number = attempt.on.server, attempt.txn.number
        again = self.attempt(attempt.on, lambda: server.call("commit", txn=number, files=[]))
        assert again is None or again == answer, "a commit was answered in two ways"
        return self.truth.answered(attempt, answer["version"], answer["id"])

    def log(self, attempt: Attempt, done: Commit) -> None:
        """The batch is committed, unless it is already, or belongs to a run that is over."""
        truth, run = self.truth, attempt.run
        if run != self.run or done.parent != truth.at(truth.newest).marker:
            return
        body: dict[str, Any] = {"nextBatchWatermarkMs": 0}
        if run.format == 2:
            body["stateUniqueIds"] = {"0": [[done.marker.id]]}
        self._checkpoint.put(f"commits/{truth.newest}", f"v{run.format}\n{json.dumps(body)}".encode())
        truth.log.append(Logged(done, run.format == 2))
        truth.first_logged = max(truth.first_logged, truth.newest - self.keep)
        for batch in range(truth.first_logged - 1):
            self._checkpoint.delete(f"commits/{batch}")
        self.network.tell(f"    version {truth.newest} is logged")

    def forget(self, version: int) -> None:
        """Delete what the commit log has after ``version``."""
        for batch in range(version, self.truth.newest):
            self._checkpoint.delete(f"commits/{batch}")
        del self.truth.log[version:]

    def end(self) -> None:
        """Free everything."""
        for executor in self.executors:
            executor.end()
        tuning.LEVEL0_COMPACTION_FILES = self._compaction_files
        shutil.rmtree(self._folder)
