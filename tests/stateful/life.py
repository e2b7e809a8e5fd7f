"""The life of a query under faults, in steps; the details of each are drawn from the randomness it is given."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.faults.faulty_place import LATE_S
from tests.labs.lab import read_rows
from tests.stateful.executor import GRACE_S, Executor
from tests.stateful.query import Query
from tests.stateful.truth import Run
from tests.stateful.turns import Turns

MAX_ATTEMPTS = 4

Step = Callable[[random.Random], None]


class Life:
    """One query, from its start until nothing fails any more and it works without help."""

    def __init__(self, folder: Path, seed: object, draw: random.Random) -> None:
        """Keep local files in ``folder``."""
        self.query = Query(folder, seed, draw)

    def take(self, step: Step, draw: random.Random) -> None:
        """Take a step under faults. Raises AssertionError if anything is not as it must be."""
        self.query.network.tell(f"  {self.query.network.step + 1} {step.__name__}")
        with self.query.trouble(draw, self._anything):
            step(draw)

    # --- what tasks do -----------------------------------------------------------------------------------------------

    def begin(self, draw: random.Random) -> None:
        """A task begins the next batch."""
        if len(self.query.attempts) < MAX_ATTEMPTS:
            attempt = self.query.begin(self._executor(draw), self.query.truth.newest)
            self.query.attempts += [attempt] if attempt is not None else []

    def write(self, draw: random.Random) -> None:
        """A task writes or deletes rows."""
        if self.query.attempts:
            self.query.write(draw, draw.choice(self.query.attempts))

    def commit(self, draw: random.Random) -> None:
        """A task of whatever run commits; perhaps it is the one that its batch needs."""
        if self.query.attempts:
            attempt = self.query.attempts.pop(draw.randrange(len(self.query.attempts)))
            self.query.write(draw, attempt)
            done = self.query.commit(attempt)
            if done is not None and draw.random() < 0.5:
                self.query.log(attempt, done)

    def abort(self, draw: random.Random) -> None:
        """A task gives up."""
        if self.query.attempts:
            attempt = self.query.attempts.pop(draw.randrange(len(self.query.attempts)))
            self.query.attempt(attempt.on, attempt.txn.abort)

    def read_again(self, draw: random.Random) -> None:
        """A task whose base is a copy that nobody moves reads the same as at first."""
        frozen = [attempt for attempt in self.query.attempts if not attempt.txn.answer["live"]]
        if frozen:
            attempt = draw.choice(frozen)
            assert read_rows(attempt.txn.answer) == attempt.base.rows

    def run_a_batch(self, draw: random.Random) -> None:
        """One batch: several attempts may commit, on one executor or both, and one of them is logged, or none."""
        query, done = self.query, []
        siblings = draw.choice((1, 1, 2, 3))
        attempts = [query.begin(self._executor(draw), query.truth.newest) for _ in range(siblings)]
        for attempt in filter(None, attempts):
            query.write(draw, attempt)
            commit = query.commit(attempt)
            done += [(attempt, commit)] if commit is not None else []
        if done and draw.random() < 0.8:
            query.log(*draw.choice(done))

    def run_for_a_while(self, draw: random.Random) -> None:
        """Several batches on one executor, with maintenance in between."""
        executor = self._executor(draw)
        for _ in range(draw.randint(3, 6)):
            self._run(draw, executor)
            self.query.network.advance(draw.uniform(0, GRACE_S))
            for step in draw.choices((self.snapshot, self.clean_up, self.read, self.compact), (3, 3, 1, 1), k=2):
                step(draw)

    def read(self, draw: random.Random) -> None:
        """The query, or a reader outside it, reads a version that is retained."""
        self._read(draw, self._executor(draw))

    def _read(self, draw: random.Random, executor: Executor) -> None:
        truth = self.query.truth
        version = draw.randint(min(truth.oldest, truth.newest), truth.newest)
        attempt = self.query.begin(executor, version, is_reader=draw.random() < 0.3)
        if attempt is not None:
            self.query.attempt(attempt.on, attempt.txn.abort)

    # --- what maintenance does ---------------------------------------------------------------------------------------

    def snapshot(self, draw: random.Random) -> None:
        """A snapshot, forced or if it is due."""
        self._snapshot(draw, self._executor(draw))

    def _snapshot(self, draw: random.Random, executor: Executor) -> None:
        force = draw.random() < 0.6
        handle = self.query.handle(executor)
        if handle is not None:
            done = self.query.attempt(
                executor,
                lambda: executor.server.call("snapshot", handle=handle, force=force),
                also=frozenset({"doubled"}),
            )
            self.query.network.tell(f"    snapshot on {executor.name}: {done and done['version']}")

    def clean_up(self, draw: random.Random) -> None:
        """A clean-up."""
        self._clean_up(draw, self._executor(draw))

    def _clean_up(self, _: random.Random, executor: Executor) -> None:
        truth = self.query.truth
        handle = self.query.handle(executor)
        if handle is not None:
            truth.first_kept = max(truth.first_kept, executor.newest - self.query.keep)
            done = self.query.attempt(executor, lambda: executor.server.call("cleanup", handle=handle))
            self.query.network.tell(f"    clean-up on {executor.name} from {executor.newest}: {done}")

    def compact(self, draw: random.Random) -> None:
        """RocksDB merges the table files of a live database: the next snapshot has others, and the old ones end."""
        self._executor(draw).server.compact()

    def overlap(self, draw: random.Random) -> None:
        """Both executors work at once, each on its own things, and time passes wherever it likes."""
        query, own = self.query, random.Random(draw.getrandbits(32))
        query.network.tell("    both work at once")
        for executor in query.executors:  # a disk is that of the process, and another step is that of one thread
            executor.server.trouble, executor.link.at_pass = None, None
        if own.random() < 0.4:
            query.replace(own.choice(query.executors), keeps_disk=False)  # so that it has to restore
        if own.random() < 0.2:
            own.choice(query.executors).die_at(own.randint(1, 30), in_threads=own.random() < 0.3, keeps_disk=True)
        turns = Turns(own, lambda: query.network.advance(own.choice((0, 0, 0, LATE_S / 4, 3 * GRACE_S))))
        turns.take([partial(self._work, own, executor, turns) for executor in query.executors])

    def _work(self, draw: random.Random, executor: Executor, turns: Turns) -> None:
        link = executor.link
        link.thread, before, link.at_each_pass = threading.get_ident(), link.thread, turns.hand_over
        try:
            for _ in range(draw.randint(3, 7)):
                turns.hand_over()
                works = (self._snapshot, self._clean_up, self._read, self._run)
                (work,) = draw.choices(works, (3, 3, 1, 3))
                work(draw, executor)
        finally:
            link.thread, link.at_each_pass = before, None

    def wait(self, draw: random.Random) -> None:
        """Time passes: a little, or more than the grace period."""
        self.query.network.advance(draw.choice((draw.uniform(0, LATE_S), 2 * GRACE_S)))

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    def restart_the_query(self, draw: random.Random) -> None:
        """A new run, perhaps in the other format; attempts of the old one live on as zombies."""
        query = self.query
        query.former.append((query.run, list(query.truth.log)))
        query.run = Run(query.run.number + 1, draw.choice((1, 2)))
        query.network.tell(f"    {query.run}")

    def rewind_the_query(self, draw: random.Random) -> None:
        """The user deletes the last entries of the commit log and starts the query again."""
        truth = self.query.truth
        if truth.newest > truth.oldest:
            version = draw.randint(truth.oldest, truth.newest - 1)
            self.restart_the_query(draw)
            self.query.forget(version)
            self.query.network.tell(f"    back to version {version}")

    def zombie_begins(self, draw: random.Random) -> None:
        """A task of a run that is over begins where that run was, if that is still there."""
        if self.query.former and len(self.query.attempts) < MAX_ATTEMPTS:
            run, log = draw.choice(self.query.former)
            version = draw.randint(max(0, len(log) - 1), len(log))
            attempt = self.query.begin_late(self._executor(draw), run, log[:version])
            self.query.attempts += [attempt] if attempt is not None else []

    def executor_is_lost(self, draw: random.Random) -> None:
        """A server is killed between two calls; its disk stays or goes."""
        self.query.replace(self._executor(draw), keeps_disk=draw.random() < 0.5)

    def executor_lets_go(self, draw: random.Random) -> None:
        """An executor closes the store: its transactions end."""
        executor = self._executor(draw)
        self.query.attempts = [attempt for attempt in self.query.attempts if attempt.on is not executor]
        executor.close_handles()

    def credentials_expire(self, _: random.Random) -> None:
        """Every request fails until they are renewed."""
        self.query.network.is_expired = True

    def credentials_are_renewed(self, _: random.Random) -> None:
        """Requests are answered again."""
        self.query.network.is_expired = False

    # --- how it ends -------------------------------------------------------------------------------------------------

    def recover(self, draw: random.Random) -> None:
        """Nothing fails any more: executors old and new go on, every version is right, nothing is left over."""
        query, truth = self.query, self.query.truth
        query.network.tell("recovery")
        query.network.step += 1
        query.network.is_expired = False
        query.network.advance(2 * LATE_S)
        for executor in query.executors:
            if draw.random() < 0.5:
                query.replace(executor, keeps_disk=draw.random() < 0.5)
        for attempt in query.attempts:
            attempt.txn.abort()
        query.attempts.clear()
        self.restart_the_query(draw)
        executor = self._executor(draw)
        self._go_on(draw, executor)
        query.check()
        query.require_no_litter()
        for version in {truth.newest, truth.oldest, draw.randint(truth.oldest, truth.newest)}:
            query.replace(executor, keeps_disk=False)
            begun = query.begin(executor, version)
            assert begun is not None
            begun.txn.abort()

    def _go_on(self, draw: random.Random, executor: Executor) -> None:
        query, truth = self.query, self.query.truth
        for number in range(query.keep + 4):
            assert self._run(draw, executor), "the query is stuck"
            if number < 3:
                executor.server.call("snapshot", handle=query.handle(executor), force=True)
                query.network.advance(2 * GRACE_S)
        for _ in range(3):
            begun = query.begin(executor, truth.newest)
            assert begun is not None
            begun.txn.abort()
            truth.first_kept = max(truth.first_kept, executor.newest - query.keep)
            executor.server.call("cleanup", handle=query.handle(executor))
            query.network.advance(2 * GRACE_S)

    def _run(self, draw: random.Random, executor: Executor) -> bool:
        """Run one batch in one attempt; whether that is logged now."""
        attempt = self.query.begin(executor, self.query.truth.newest)
        if attempt is None:
            return False
        self.query.write(draw, attempt)
        done = self.query.commit(attempt)
        if done is not None:
            self.query.log(attempt, done)
        return done is not None

    def _executor(self, draw: random.Random) -> Executor:
        return draw.choice(self.query.executors)

    def _anything(self, draw: random.Random, executor: Executor) -> None:
        """In the middle of a call of one executor something happens on the other."""
        steps = (self.snapshot, self.clean_up, self.run_a_batch, self.run_for_a_while, self.read, self.commit)
        self._meanwhile(draw, executor, draw.choice(steps))

    def _meanwhile(self, draw: random.Random, executor: Executor, step: Step) -> None:
        """In the middle of a call of one executor the other takes a step, and time passes."""
        query, everybody, seconds = self.query, self.query.executors, draw.choice((0, LATE_S / 4, 3 * GRACE_S))

        def happen() -> None:
            others = [each for each in everybody if each is not executor]
            query.network.tell(f"      meanwhile on {others[0].name}, and {seconds} s pass: {step.__name__}")
            query.executors, both = others, query.executors
            busy = [attempt for attempt in query.attempts if attempt.on is executor]
            query.attempts = [attempt for attempt in query.attempts if attempt.on is not executor]
            try:
                step(draw)
            finally:
                query.executors = both
                query.attempts += busy
            query.network.advance(seconds)

        executor.meanwhile(draw.randint(1, 9), happen)
