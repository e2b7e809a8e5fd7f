"""Random lives of one store against a dict: whatever happens, a version reads as it was committed.

The driver of this model keeps a commit log as Spark does: a version counts once its batch is logged; what
was committed and not logged may be done again, by the same run or, after a restart, by a new one, and in
either checkpoint format.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lab import Lab, Rows, Txn

KEEP = 4
KEYS = st.sampled_from([f"k{number}" for number in range(8)])
VALUES = st.text(alphabet="abc", min_size=1, max_size=4)


@dataclass
class Logged:
    """A version in the commit log: its rows, and its id if the log says so."""

    rows: Rows
    commit_id: str
    names_id: bool


@dataclass
class Attempt:
    """An open transaction of the run that began it."""

    txn: Txn
    version: int
    format: int
    run: int


@dataclass
class Model:
    """What must be true."""

    log: list[Logged] = field(default_factory=list)
    first_kept: int = 0
    winner: Logged | None = None  # format 1: the commit of the batch in flight that was first in this run


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="machine-"))
        self.lab = Lab(
            self.folder, retentionGracePeriod="0", localCheckpoints="1", snapshotEveryVersions="2", logLevel="ERROR"
        )
        self.model = Model()
        self.run = 1
        self.format = 2
        self.attempts: list[Attempt] = []

    @initialize(fmt=st.sampled_from([1, 2]))
    def start(self, fmt: int) -> None:
        self.format = fmt
        self.handle = self.open()

    def open(self) -> int:
        return self.lab.open(run=f"run-{self.run}", fmt=self.format, keep=KEEP)

    def rows_at(self, version: int) -> Rows:
        return self.model.log[version - 1].rows if version else {}

    def named(self, version: int) -> str | None:
        """What Spark passes as the id of a base."""
        if version == 0 or self.format == 1 or not self.model.log[version - 1].names_id:
            return None
        return self.model.log[version - 1].commit_id

    def begin(self, version: int) -> Txn:
        txn = self.lab.begin(self.handle, version, self.named(version))
        assert txn.rows == self.rows_at(version)
        return txn

    @rule()
    @precondition(lambda self: len(self.attempts) < 4)
    def begin_the_next_batch(self) -> None:
        version = len(self.model.log)
        self.attempts.append(Attempt(self.begin(version), version, self.format, self.run))

    @rule(data=st.data(), key=KEYS, value=st.none() | VALUES)
    @precondition(lambda self: self.attempts)
    def write(self, data: st.DataObject, key: str, value: str | None) -> None:
        data.draw(st.sampled_from(self.attempts)).txn.changes[key] = value

    @rule(key=KEYS, value=VALUES, siblings=st.integers(0, 2), logged=st.integers(0, 2), log_it=st.booleans())
    def run_a_batch(self, *, key: str, value: str, siblings: int, logged: int, log_it: bool) -> None:
        """One batch as Spark runs it: several attempts may commit, one is logged, or the query dies first."""
        version = len(self.model.log)
        made = []
        for number in range(siblings + 1):
            txn = self.begin(version)
            txn.put(key, f"{value}{number}")
            made.append((txn, txn.commit()["id"]))
        txn, commit_id = made[logged % len(made)]
        if self.format == 1:
            self.model.winner = self.model.winner or Logged(made[0][0].result(), made[0][1], names_id=False)
            assert {commit_id for _, commit_id in made} == {self.model.winner.commit_id}
            chosen = self.model.winner
        else:
            chosen = Logged(txn.result(), commit_id, names_id=True)
        if log_it:
            self.log(chosen)

    def log(self, chosen: Logged) -> None:
        self.lab.log_commit(len(self.model.log), [chosen.commit_id] if chosen.names_id else None)
        self.model.log.append(chosen)
        self.model.winner = None

    @rule(data=st.data())
    @precondition(lambda self: self.attempts)
    def abort(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.attempts))
        self.attempts.remove(attempt)
        attempt.txn.abort()

    @rule(data=st.data(), log_it=st.booleans())
    @precondition(lambda self: self.attempts)
    def commit(self, data: st.DataObject, *, log_it: bool) -> None:
        attempt = data.draw(st.sampled_from(self.attempts))
        self.attempts.remove(attempt)
        done = attempt.txn.commit()
        if attempt.version != len(self.model.log) or attempt.run != self.run:
            return  # a zombie: its batch is logged already, or belongs to a run that is over
        mine = Logged(attempt.txn.result(), done["id"], names_id=self.format == 2)
        if self.format == 1:
            self.model.winner = self.model.winner or mine
            assert done["id"] == self.model.winner.commit_id
            mine = self.model.winner
        if log_it:
            self.log(mine)

    @rule(batches=st.integers(3, 6), every=st.integers(1, 3))
    def run_for_a_while(self, batches: int, every: int) -> None:
        """Batches without trouble, with a snapshot now and then."""
        for number in range(batches):
            version = len(self.model.log)
            if self.model.winner is None:
                txn = self.begin(version)
                txn.put(f"k{version % 8}", f"b{number}")
                self.log(Logged(txn.result(), txn.commit()["id"], names_id=self.format == 2))
            else:
                self.log(self.model.winner)
            if number % every == 0:
                self.begin(version + 1).abort()
                self.snapshot()

    @rule(data=st.data())
    @precondition(lambda self: self.model.log)
    def read_a_retained_version(self, data: st.DataObject) -> None:
        newest = len(self.model.log)
        version = data.draw(st.integers(max(self.model.first_kept, newest - KEEP), newest))
        self.begin(version).abort()

    @rule()
    def snapshot(self) -> None:
        self.lab.server.call("snapshot", handle=self.handle, force=True)

    @rule()
    def clean_up(self) -> None:
        newest = len(self.model.log)
        self.begin(newest).abort()  # what Spark asked for last is what retention counts from
        self.lab.server.call("cleanup", handle=self.handle)
        self.model.first_kept = max(self.model.first_kept, newest - KEEP)

    @rule(back=st.integers(1, 2))
    @precondition(lambda self: len(self.model.log) - self.model.first_kept > 2)
    def rewind_the_query(self, back: int) -> None:
        """The user deletes the last entries of the commit log and starts the query again."""
        for batch in range(len(self.model.log) - back, len(self.model.log)):
            (self.lab.checkpoint / "commits" / str(batch)).unlink()
        del self.model.log[-back:]
        self.restart_the_query(self.format)

    @rule(fmt=st.sampled_from([1, 2]))
    def restart_the_query(self, fmt: int) -> None:
        """A new run in the same executor; attempts of the old one live on as zombies."""
        self.run += 1
        self.format = fmt
        self.model.winner = None
        self.handle = self.open()
        self.begin(len(self.model.log)).abort()

    @rule(lose_local=st.booleans())
    def kill_the_server(self, *, lose_local: bool) -> None:
        self.attempts.clear()
        self.lab.restart(lose_local=lose_local)
        self.handle = self.open()

    @rule()
    def close_and_open(self) -> None:
        for attempt in self.attempts:
            attempt.txn.abort()
        self.attempts.clear()
        for number in list(self.lab.server.stores._handles):
            self.lab.server.call("close", handle=number)
        self.handle = self.open()

    @invariant()
    def staging_is_only_for_open_transactions(self) -> None:
        self.lab.server.settled()
        staged = list((self.lab.local_dir / "staging").iterdir())
        assert len(staged) == len(self.attempts)

    def teardown(self) -> None:
        self.lab.server.stores.shut_down()
        shutil.rmtree(self.folder)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
