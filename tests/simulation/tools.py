"""What people do with a query from other machines: savepoints, restores, branches, deletions, clean-ups."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import list_operators
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import CkptError, ConflictError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.keys import HASH_BYTES, MARKER_KEY, STATE_BYTES
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.redistribution.jobs import CopyHere, RunHere, Runner
from pyspark_ckpt.state_store.retention.collector import Collector
from pyspark_ckpt.state_store.savepoints.creation import create, hold_logs, require_newest
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.state_store.savepoints.restoring.plan import RestorePlan
from pyspark_ckpt.state_store.savepoints.restoring.query_restore import QueryRestore
from pyspark_ckpt.state_store.savepoints.restoring.request import RestoreRequest
from pyspark_ckpt.state_store.savepoints.restoring.source import RestoreSource
from pyspark_ckpt.state_store.savepoints.savepoint import Kind, Savepoint
from tests.labs.lab import Rows
from tests.simulation.history import MOST_PARTITIONS, Batch
from tests.simulation.invariants import Violation
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

TIDY_S = 3 * 24 * 3600.0
"""After this, pins and unfinished uploads of processes that have died are garbage."""
WHAT = ("savepoint", "restore", "branch", "look", "look that only reads", "deletion", "clean-up")
"""Their names in counts."""
KINDS: tuple[Kind, ...] = ("native", "canonical")


@dataclass(frozen=True)
class Folder:
    """A savepoint or a checkpoint that a tool has finished, and the history that its rows must have."""

    url: str
    chain: str
    version: int
    made_with: int
    """How many partitions the query had when it made the version."""
    partitions: int = 0
    """Of a checkpoint."""


@dataclass(frozen=True)
class Restore:
    """A restore of a savepoint that was begun."""

    source: str
    target: str
    partitions: int

    def __str__(self) -> str:
        """Return the form used in stories."""
        return f"of {self.source} to {self.target} with {self.partitions} partitions"


@dataclass(frozen=True)
class _Before:
    """What was so when a tool began."""

    is_calm: bool
    went_back: int
    has_batch: bool


class Tools:
    """The tools of one world. Each call is a process of its own, on a machine that may be killed or sleep."""

    def __init__(self, world: World) -> None:
        """Begin without savepoints."""
        self._world = world
        self._options = parse({"placeTimeout": "60s"})
        self.processes: list[Process] = []
        self.savepoints: dict[str, Folder] = {}
        """Those that are complete, by their URL."""
        self.checkpoints: list[Folder] = []
        """Those that a restore or a branch has made."""
        self.unfinished: list[Restore] = []
        """Those that have ended without an answer, and that nobody has finished since."""
        self.done = 0

    @property
    def is_working(self) -> bool:
        """Whether a process runs."""
        return any(not process.is_dead for process in self.processes)

    def save(self, draw: random.Random) -> None:
        """Take a savepoint of the running query."""
        form, digests, runner = draw.choice(KINDS), draw.random() < 0.5, _draw_runner(draw)
        target, query = f"{self._world.base}/savepoint-{len(self.processes)}", self._world.query

        def act() -> None:
            world = self._world
            newest, backward = world.stored.newest, world.went_back
            info = create(
                query.checkpoint, target, self._options, runner, _show, written_by="the simulation", kind=form,
                digests=digests,
            )  # fmt: skip
            if info.version < newest and world.went_back == backward:
                raise Violation(f"{target} is of version {info.version}, but {newest} was committed when it began")
            self.savepoints[target] = Folder(
                target, self._chain(target, info.version), info.version, query.made_with(info.version)
            )

        self._begin("savepoint", f"{target}, {form}", act)

    def restore(self, draw: random.Random) -> None:
        """Restore a savepoint, or finish a restore that was interrupted."""
        if self.unfinished and draw.random() < 0.5:
            self._restore(self.unfinished.pop(draw.randrange(len(self.unfinished))), draw)
        elif self.savepoints:
            source, target = draw.choice(list(self.savepoints)), f"{self._world.base}/restored-{len(self.processes)}"
            self._restore(Restore(source, target, draw.randint(1, MOST_PARTITIONS)), draw)

    def _restore(self, wanted: Restore, draw: random.Random) -> None:
        self.unfinished.append(wanted)
        runner, known = _draw_runner(draw), self.savepoints.get(wanted.source)

        def act() -> None:
            source = RestoreSource.of_savepoint(Savepoint(wanted.source, self._options))
            request = RestoreRequest(wanted.partitions)
            try:
                QueryRestore(RestorePlan.of(source, wanted.target, request, self._options)).run(runner, _show)
            except InvalidInputError as problem:
                if "already finished" not in str(problem):
                    raise
            self._forget(wanted)
            if known is not None:
                self.checkpoints.append(replace(known, url=wanted.target, partitions=wanted.partitions))

        self._begin("restore", str(wanted), act)

    def _forget(self, wanted: Restore) -> None:
        if wanted in self.unfinished:
            self.unfinished.remove(wanted)

    def branch(self, draw: random.Random) -> None:
        """Make a checkpoint of the running query's newest batch."""
        target = f"{self._world.base}/branch-{len(self.processes)}"
        partitions, runner, query = draw.randint(1, MOST_PARTITIONS), _draw_runner(draw), self._world.query

        def act() -> None:
            checkpoint = Checkpoint(query.checkpoint, self._options)
            with hold_logs(checkpoint) as (version, logs):
                source = RestoreSource.of_checkpoint(checkpoint, version, logs)
                request = RestoreRequest(partitions, query_id="new")
                QueryRestore(RestorePlan.of(source, target, request, self._options)).run(runner, _show)
            self.checkpoints.append(
                Folder(target, self._chain(target, version), version, query.made_with(version), partitions)
            )

        self._begin("branch", f"{target} with {partitions} partitions", act)

    def look(self, draw: random.Random) -> None:
        """Read all rows of a version of the running query."""
        world = self._world
        planned = set(world.stored.numbers("offsets"))
        retained = [number for number in world.stored.retained() if number in planned]
        if not retained:
            return
        version = draw.choice(retained) + 1
        query, stored = world.query, world.stored
        chain, backward = self._chain(query.checkpoint, version), world.went_back

        def act() -> None:
            checkpoint = Checkpoint(query.checkpoint, self._options)
            try:
                checkpoint.require_committed(version)
                rows = self._read(checkpoint, version)
            except (NotFoundError, ConflictError):
                if stored is world.stored and version - 1 in stored.retained():
                    raise
                return  # it was retired meanwhile
            if world.went_back == backward and rows != world.history.all_rows(chain, query.made_with(version)):
                raise Violation(f"a reader finds the rows {rows} at version {version}, not those of {chain}")

        self._begin("look", f"at version {version}", act, only_reads=draw.random() < 0.5)

    def delete(self, draw: random.Random) -> None:
        """Delete a savepoint, perhaps while it is restored."""
        if not self.savepoints:
            return
        target = draw.choice(list(self.savepoints))
        del self.savepoints[target]
        self._begin("deletion", f"of {target}", lambda: delete(target, self._options))

    def collect(self, *, waits: bool) -> None:
        """Delete the garbage of the query's checkpoint, as ``pyspark-ckpt checkpoint gc`` does.

        ``waits``: it goes on with table files after the grace period.
        """
        grace_s, keep, url = self._world.grace_s, self._world.plan.keep, self._world.query.checkpoint

        def act() -> None:
            checkpoint = Checkpoint(url, self._options)
            require_newest(checkpoint)
            collector = Collector(checkpoint, keep, grace_s)
            try:
                collector.discard_unfinished()
                for _, identity in checkpoint.stores():
                    collector.clean(identity)
                if waits and (waiting := collector.waiting()):
                    self._world.scheduler.sleep(grace_s + 1)
                    checkpoint.look_again()
                    for identity in waiting:
                        collector.clean(identity)
                collector.clean_packs()
            finally:
                collector.close()

        self._begin("clean-up", "", act)

    def _begin(self, tool: str, of: str, act: Callable[[], object], *, only_reads: bool = False) -> None:
        world, process = self._world, Process(f"tool-{len(self.processes)}")
        process.ahead_s = random.Random(f"clock {world.plan.seed} {process}").choice((0.0, 0.0, -300.0, 300.0))
        process.only_reads = only_reads
        self.processes.append(process)
        tool += " that only reads" * only_reads
        what = f"{tool} {of}".rstrip()
        world.tell(f"{process}: {what} begins")
        before = _Before(world.is_calm, world.went_back, has_batch=world.stored.newest > 0)

        def run() -> None:
            try:
                act()
                self.done += 1
                world.counts[f"tool: {tool} is done"] += 1
                world.tell(f"{process}: {what} is done")
            except CkptError as problem:
                world.counts[f"tool: {tool} fails"] += 1
                world.tell(f"{process}: {what} fails: {problem}")
                self._judge(process, problem, before)
            process.is_dead = True

        world.scheduler.spawn(run, what, process)

    def _judge(self, process: Process, problem: CkptError, before: _Before) -> None:
        """Fail unless a failure has a reason in what has befallen the world."""
        world = self._world
        went_back = world.went_back > before.went_back
        was_away = went_back or process.has_slept
        allowed = {
            "StorageError": not before.is_calm,
            "FormatError": world.is_damaged or (not before.is_calm and world.corrupts_answers),
            "NotFoundError": was_away or "minBatchesToRetain" in problem.hint or "/savepoint-" in str(problem),
            "ConflictError": was_away or "/savepoint-" in str(problem) or "/restored-" in str(problem),
            "InvalidInputError": world.is_careless
            or not before.has_batch
            or "/savepoint-" in str(problem)
            or "/restored-" in str(problem),
            "LifecycleError": went_back or not before.has_batch,
        }
        if not allowed.get(type(problem).__name__, False):
            raise Violation(f"{process} fails without a reason: {type(problem).__name__}: {problem}")

    def _chain(self, url: str, version: int) -> str:
        """Return the history that a folder says it has, from its own offset log."""
        place = self._world.service.place(url)
        return Batch.decode(version - 1, place.get(f"offsets/{version - 1}")).chain

    # --- how it ends -------------------------------------------------------------------------------------------------

    def finish(self, draw: random.Random) -> None:
        """Finish all restores, now that nothing fails, and restore each savepoint. Fail unless all rows are right."""
        for process in self.processes:
            self._world.scheduler.kill(process)
        for wanted in list(self.unfinished):
            if wanted.source in self.savepoints:
                self._finish(partial(self._restore, wanted, draw))
        for url in list(self.savepoints):
            wanted = Restore(url, url.replace("savepoint", "last"), draw.randint(1, MOST_PARTITIONS))
            self._finish(partial(self._restore, wanted, draw))
        self._require_tidy()
        process = Process("last look")
        self._world.scheduler.spawn(self._require_right, "last look", process)
        self._world.scheduler.wait(lambda: process.is_dead)

    def _require_tidy(self) -> None:
        """Fail unless a clean-up, once all pins and uploads are old, leaves nothing that is not needed."""
        world = self._world
        world.has_ended = True  # nobody calls the stores of the last run any more
        world.scheduler.sleep(TIDY_S)
        self._finish(partial(self.collect, waits=True))
        if unfinished := world.service.unfinished(world.query.checkpoint):
            raise Violation(f"unfinished objects are left: {unfinished}")
        if left := world.stored.find_left_over():
            raise Violation(f"objects are left that nothing needs: {left[:5]}, {len(left)} in all")

    def _finish(self, begin: Callable[[], None]) -> None:
        before = self.done
        begin()
        self._world.scheduler.wait(lambda: not self.is_working)
        if self.done == before:
            raise Violation(f"{self._world.told[-1]}, although nothing fails any more")

    def _require_right(self) -> None:
        for folder in self.checkpoints:
            rows = self.read(folder.url)
            if rows != self._world.history.all_rows(folder.chain, folder.made_with):
                raise Violation(f"{folder.url} has the rows {rows}, not those of {folder.chain}")
        self._world.scheduler.kill(self._world.scheduler.current.process)

    def read(self, url: str) -> Rows:
        """Return all rows of a checkpoint at its newest version."""
        checkpoint = Checkpoint(url, self._options)
        return self._read(checkpoint, checkpoint.newest_version)

    def _read(self, checkpoint: Checkpoint, version: int) -> Rows:
        workplace = Workplace(replace(self._options, remote=""))
        found: Rows = {}
        for operator in list_operators(checkpoint, version):
            for versions in operator.stores.values():
                for each in versions:
                    with workplace.folder() as folder, workplace.restore(each, folder / "copy") as restored:
                        for key, value in restored.database.rows():
                            if key != MARKER_KEY:
                                found[key[STATE_BYTES + HASH_BYTES :].decode()] = value.decode()
        return found


def _draw_runner(draw: random.Random) -> Runner:
    return CopyHere() if draw.random() < 0.5 else RunHere()


def _show(_done: int, _all: int) -> None:
    """Show no progress."""
