"""A query on a cluster: drivers, executors, their checkpoint in a place, and what befalls them."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import partial
from pathlib import Path

from pyspark_ckpt.state_store.errors import CkptError, StorageError
from pyspark_ckpt.state_store.failpoints import AFTER_WRITE
from tests.labs.lab import CallError, Rows, Server
from tests.simulation import s3_client, shared_folder
from tests.simulation.driver import Driver
from tests.simulation.events import EVENTS
from tests.simulation.executor import Executor, LostError, Run
from tests.simulation.history import History, Query
from tests.simulation.invariants import StoredQuery, Violation
from tests.simulation.object_service import ObjectService
from tests.simulation.plan import CARELESS, S3, Plan
from tests.simulation.scheduler import Scheduler
from tests.simulation.shared_folder import SharedFolder
from tests.simulation.tools import Tools
from tests.simulation.weather import CALM, LATE_S

GRACE_S = 120
LAST_OF_BEGIN = "begin.after_ticket"
BASE = "s3://bucket"
_CHECKSUMS = re.compile(r" = \d{4,}")
RECOVERY_S = 4000.0
"""How long a query may need for a few batches when nothing fails any more."""


class World:
    """One simulation; see the module."""

    def __init__(self, plan: Plan, scheduler: Scheduler, folder: Path) -> None:
        """Make the machines, with their disks in ``folder``. Nothing runs yet."""
        self.plan = plan
        self.scheduler = scheduler
        self.draw = random.Random(f"world {plan.seed}")
        self.service: ObjectService | SharedFolder
        self.storms: tuple[str, ...]
        self.is_careless = plan.place == CARELESS
        if plan.place in (S3, CARELESS):
            self.service = ObjectService(scheduler, plan.seed, is_careless=self.is_careless)
            self.base, self.storms = BASE, s3_client.STORMS
        else:
            self.service, self.base = SharedFolder(scheduler, plan.seed, folder / "shared"), str(folder / "shared")
            self.storms = shared_folder.STORMS
        self.service.weather = plan.weather
        self.go_on_in(Query(f"{self.base}/checkpoint", plan.partitions))
        options = {
            "retentionGracePeriod": f"{GRACE_S}s",
            "localCheckpoints": "1",
            "snapshotEveryVersions": str(self.draw.choice((1, 2, 4))),
            "placeTimeout": "60s",
            "scrubInterval": self.draw.choice(("0", "0", "100s")),
            "packCommits": "true",
            "durability": random.Random(f"durability {plan.seed}").choice(("task", "batch")),
        }
        self.local = folder / "local"
        """Where the executors have their disks."""
        self.local.mkdir()
        self.executors = [Executor(name, self.local, scheduler, options, plan.seed) for name in "ABC"[: plan.executors]]
        self.history = History()
        self.drivers: list[Driver] = []
        self.epochs: dict[str, tuple[str, int]] = {}
        """The checkpoint of each run, and its number there."""
        self.format = plan.format
        self.told: list[str] = []
        self.quiet_until_s = 0.0
        self.counts: Counter[str] = Counter()
        """How often each event has come, and each fail point was met."""
        self.is_read_only = False
        """Whether a local disk was read-only once, so that something may be left there."""
        self.has_rotted = self.is_damaged = self.is_calm = self.is_stopped = self.is_settled = self.has_ended = False
        self.acknowledged = 0
        """The newest version that a driver has committed, and knows it."""
        self.went_back = 0
        """How often a user has deleted the newest entries of the logs."""
        self.grace_s = GRACE_S
        self.tools: Tools = Tools(self)

    @property
    def met(self) -> Counter[str]:
        """How often each fault was met, and each kind of object was deleted."""
        return self.service.met + self.stored.deleted + self.counts

    # --- what its drivers and executors ask for -----------------------------------------------------------------------

    def go_on_in(self, query: Query) -> None:
        """Let the next driver run this query."""
        self.query = query
        self.stored = StoredQuery(self.service, query.checkpoint, self.plan.keep, is_careless=self.is_careless)
        self.stored.look_again()
        self.stored.first_kept = self.acknowledged = self.stored.newest

    def tell(self, what: str) -> None:
        """Add a line to the story. RocksDB writes ids of its own into files, so checksums of damaged ones differ."""
        self.told.append(f"{self.scheduler.now_s:>9.2f} {_CHECKSUMS.sub(' = ...', what)}")

    def pause_s(self) -> float:
        """Return how long a driver waits for the rows of its next batch."""
        pause_s = self.draw.choice((0, 1, 5, 40)) * self.draw.random()
        return max(pause_s, self.quiet_until_s - self.scheduler.now_s)

    def pass_fail_point(self, name: str) -> None:
        """Be at a fail point: others may go on, the process may end or sleep as at a request, or the step fails."""
        self.counts[f"fail point: {name}"] += 1
        self.scheduler.current.process.note_request()
        self.scheduler.pass_by()
        # Nothing that can fail comes after the last step of a begin.
        if name != LAST_OF_BEGIN and not self.is_calm and self.draw.random() < self.plan.failures:
            self.counts[f"failure: {name}"] += 1
            raise StorageError(f"{name} fails.", outcome="unknown" if name == AFTER_WRITE else "not_applied")

    def lose_power(self, draw: random.Random) -> None:
        """Forget what is not durable. Fail unless the newest version is there that a driver has committed."""
        if isinstance(self.service, SharedFolder):
            self.service.lose_power(draw)
        self.stored.look_again()
        self.stored.forget_published()
        if self.stored.newest < self.acknowledged:
            raise Violation(f"version {self.acknowledged} was committed, and {self.stored.newest} is left")

    def acknowledge(self, version: int, chain: str) -> None:
        """Note that a driver has committed a batch, and knows it."""
        self.acknowledged = max(self.acknowledged, version)
        self.tell(f"version {version} is committed: {chain}")

    def start_driver(self) -> Driver:
        """Start the query, whether another driver runs it or not."""
        driver = Driver(self, len(self.drivers) + 1, self.format)
        self.drivers.append(driver)
        self.scheduler.spawn(driver.run, "query", driver.process)
        return driver

    # --- what must be ------------------------------------------------------------------------------------------------

    def require_read(self, query: Query, version: int, partition: int, rows: Rows, chain: str, run_id: str) -> None:
        """Fail unless a task reads what its run has committed, or, of a run that is over, what some run has."""
        right = self.history.rows(chain, partition, query.partitions, query.made_with(version))
        if rows == right:
            return
        if not self._is_over(run_id):
            raise Violation(f"{run_id} reads {rows} at version {version} of {partition}, not {right} of {chain}")
        if not self.history.has(rows, partition, query.partitions):
            raise Violation(f"{run_id} reads {rows} at version {version} of {partition}, which nobody has written")

    def judge(self, problem: Exception, run_id: str) -> None:
        """Fail unless a failure has a reason in what has befallen the world."""
        if not isinstance(problem, CallError | CkptError):
            return
        kind = problem.kind if isinstance(problem, CallError) else type(problem).__name__
        allowed = {
            "StorageError": not self.is_settled,
            "FormatError": self.has_rotted or self.is_damaged or (not self.is_settled and self.corrupts_answers),
            "DamagedCopyError": self.has_rotted,
            "ConflictError": self._is_over(run_id),
            "NotFoundError": self._is_over(run_id),
            "LifecycleError": True,
        }
        if not allowed.get(kind, False):
            raise Violation(f"{run_id} fails without a reason: {kind}: {problem}")

    @property
    def corrupts_answers(self) -> bool:
        """Whether bodies of answers may be cut or have wrong bits."""
        return not {"cut", "flipped"}.isdisjoint(self.plan.weather.kinds)

    def _is_over(self, run_id: str) -> bool:
        """Return whether a later run has begun, whoever knows it. A reader, which is no run, is never over."""
        if not run_id:
            return False
        checkpoint, epoch = self.epochs.get(run_id, (self.query.checkpoint, 0))
        return checkpoint != self.query.checkpoint or epoch < self.stored.newest_epoch

    # --- how it goes -------------------------------------------------------------------------------------------------

    def live(self) -> None:
        """Run from the start until nothing fails any more and the query works without help."""
        for executor in self.executors:
            self.scheduler.spawn(partial(self._maintain, executor), f"maintenance of {executor.name}")
        self.start_driver()
        self.scheduler.spawn(self._supervise, "supervisor")
        for event in self.plan.events:
            self.scheduler.sleep(event.after_s)
            self.tell(f"event: {event}")
            self.counts[f"event: {event.kind}"] += 1
            EVENTS[event.kind](self, random.Random(event.seed))
        self.scheduler.sleep(30)
        self._recover()
        self._require_readable()
        self.tools.finish(self.draw)

    def _supervise(self) -> None:
        """Start a driver again whenever none is left, as a cluster does."""
        while True:
            self.scheduler.wait(self._lacks_driver)
            # On a careless service, a request of the last driver may replace an entry that the next one has written.
            self.scheduler.sleep(LATE_S if self.is_careless else self.draw.choice((1, 30)))
            if self._lacks_driver():
                self.start_driver()

    def _lacks_driver(self) -> bool:
        return self.drivers[-1].process.is_dead and not self.is_stopped and not self.is_calm

    def _maintain(self, executor: Executor) -> None:
        """Call each store of an executor now and then, as Spark's maintenance does."""
        while not self.has_ended:
            has_driver = any(not driver.process.is_dead for driver in self.drivers)
            is_quiet = not has_driver or self.quiet_until_s > self.scheduler.now_s
            self.scheduler.sleep(self.draw.uniform(5, 60) * (10 if is_quiet else 1))
            for (run_id, _), handle in list(executor.handles.items()):
                try:
                    executor.call("maintenance", partial(self._tidy, handle))
                except (CallError, LostError) as problem:
                    self.judge(problem, run_id)
                if self.draw.random() < 0.05:
                    executor.compact()
                if self._is_over(run_id) and self.draw.random() < 0.3:
                    self._let_go(executor, run_id)

    def begin_snapshot(self, executor: Executor, key: tuple[str, int]) -> None:
        """Let an executor make a snapshot of a store: of a run, by its id, and a partition."""
        run_id, handle = key[0], executor.handles[key]

        def make(server: Server) -> None:
            try:
                server.call("snapshot", handle=handle, force=True)
            except CallError as problem:
                self.judge(problem, run_id)

        executor.begin("snapshot", make)

    def read(self, draw: random.Random) -> None:
        """Let a reader read a version that is retained."""
        retained, stored = self.stored.retained(), self.stored
        if not retained:
            return
        number, partition, executor = (
            draw.choice(retained),
            draw.randrange(self.query.partitions),
            draw.choice(self.executors),
        )
        ids, chain, backward = stored.located_ids_of(number), stored.chain_of(number), self.went_back
        named = None if ids is None else ids[partition]
        right = self.history.rows(chain, partition, self.query.partitions, self.query.made_with(number + 1))

        def is_asked_for() -> bool:
            return self.went_back == backward and number in stored.retained()

        def read(server: Server) -> None:
            try:
                rows = self._read(executor, number + 1, partition, named, server)
            except CallError as problem:
                if is_asked_for() or problem.kind not in ("NotFoundError", "ConflictError"):
                    self.judge(problem, "")
                return
            if is_asked_for() and rows != right:
                raise Violation(f"a reader finds {rows} at version {number + 1} of {partition}, not those of {chain}")

        executor.begin("reader", read)

    def let_go(self, executor: Executor) -> None:
        """Let an executor close all its stores."""
        for run_id in {run_id for run_id, _ in executor.handles}:
            self._let_go(executor, run_id)

    def _tidy(self, handle: int, server: Server) -> None:
        server.call("snapshot", handle=handle, force=self.draw.random() < 0.2)
        server.call("cleanup", handle=handle)

    def _let_go(self, executor: Executor, run_id: str) -> None:
        """Close the stores of a run that is over, as Spark does with those that are not to stay."""
        handles = [executor.handles.pop(key) for key in list(executor.handles) if key[0] == run_id]
        for handle in handles:
            try:
                executor.call("close", partial(self._close, handle))
            except (CallError, LostError) as problem:
                self.judge(problem, run_id)

    @staticmethod
    def _close(handle: int, server: Server) -> None:
        server.call("close", handle=handle)

    # --- how it ends -------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Let nothing fail any more. Fail unless the query goes on."""
        self.tell("everything is well from now on")
        self.is_calm = True
        self.service.weather = CALM
        for process in self.tools.processes:
            self.scheduler.kill(process)
        self.quiet_until_s = 0.0
        for driver in self.drivers:
            self.scheduler.kill(driver.process)
        asleep_s = max(executor.process.asleep_until_s for executor in self.executors) - self.scheduler.now_s
        self.scheduler.sleep(max(0.0, asleep_s) + 2 * LATE_S)
        self.is_settled = True
        for executor in self.executors:
            if self.draw.random() < 0.3:
                executor.kill(keeps_disk=self.draw.random() < 0.5)
        driver, goal = self.start_driver(), self.plan.keep + 3
        self.scheduler.wait(lambda: driver.batches >= goal or driver.process.is_dead, RECOVERY_S)
        if driver.batches < goal:
            raise Violation(f"the query does not go on: {self.told[-1]}")
        self.scheduler.kill(driver.process)

    def _require_readable(self) -> None:
        """Fail unless an executor without any local file reads all versions that are retained."""
        self.scheduler.sleep(LATE_S)
        for each in self.executors:
            if not self.is_read_only and (left := each.call("left over", each.list_left_over)):
                raise Violation(f"transactions of {each.name} have ended, and {left} are left")
        executor, stored = self.executors[0], self.stored
        executor.kill(keeps_disk=False)
        for number in stored.retained():
            ids = stored.located_ids_of(number)
            for partition in range(self.query.partitions):
                named = None if ids is None else ids[partition]
                rows = executor.call("last look", partial(self._read, executor, number + 1, partition, named))
                made_with = self.query.made_with(number + 1)
                if rows != self.history.rows(stored.chain_of(number), partition, self.query.partitions, made_with):
                    raise Violation(f"version {number + 1} of {partition} is {rows}, not that of its batch")

    def _read(self, executor: Executor, version: int, partition: int, named: str | None, server: Server) -> Rows:
        reader = Run("", 2, 0, self.plan.keep)
        state_dir = f"{self.query.checkpoint}/state/0/{partition}"
        handle = executor.open(server, state_dir, self.query.checkpoint, partition, reader)
        txn = executor.transaction(server, handle, version, named)
        txn.abort()
        return txn.rows
