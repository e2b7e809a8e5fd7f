"""What the driver of a query knows, and what must therefore be so: a dict for every commit that anybody tried."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from tests.labs.lab import Rows, Txn
from tests.stateful.executor import Executor


@dataclass(frozen=True)
class Commit:
    """What one attempt would commit, or has committed."""

    marker: Marker
    parent: Marker
    rows: Rows


NOTHING = Commit(EMPTY, EMPTY, {})


@dataclass(frozen=True)
class Run:
    """One start of the query, in one checkpoint format. A reader outside the query has number 0 and no id."""

    number: int
    format: int

    @property
    def id(self) -> str:
        """What Spark calls it."""
        return f"run-{self.number}" if self.number else ""


@dataclass
class Attempt:
    """An open transaction of the run that began it."""

    txn: Txn
    on: Executor
    base: Commit
    run: Run

    @property
    def version(self) -> int:
        """The version it makes."""
        return self.base.marker.version + 1

    def commit(self) -> Commit:
        """What it would commit now."""
        return Commit(Marker(self.version, self.txn.answer["new_id"]), self.base.marker, self.txn.result())


@dataclass(frozen=True)
class Logged:
    """An entry of the commit log; ``names_id``: written in checkpoint format 2."""

    commit: Commit
    names_id: bool

    def named_to(self, run: Run) -> str | None:
        """What Spark passes as the id of this version."""
        return self.commit.marker.id if run.format == 2 and self.names_id else None


@dataclass
class Truth:
    """The commit log, and the outcome of every commit.

    ``first_logged`` and ``first_kept`` are the oldest versions that the commit log still covers, and that no clean-up
    was allowed to retire. ``asked`` are all ids that were committed for a version in a run, whatever came of it;
    ``winners`` those that format 1 has answered with.
    """

    log: list[Logged] = field(default_factory=list)
    first_logged: int = 0
    first_kept: int = 0
    committed: dict[str, Commit] = field(default_factory=dict)
    asked: dict[tuple[Run, int], set[str]] = field(default_factory=dict)
    winners: dict[tuple[Run, int], str] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """The newest version whose batch is logged."""
        return len(self.log)

    @property
    def oldest(self) -> int:
        """The oldest version that may be asked for."""
        return max(self.first_kept, self.first_logged)

    def at(self, version: int) -> Commit:
        """The commit that stands at a version."""
        return self.log[version - 1].commit if version else NOTHING

    def retained(self) -> list[Marker]:
        """Every commit that may be asked for."""
        return [self.at(version).marker for version in range(max(1, self.oldest), self.newest + 1)]

    def ask(self, attempt: Attempt) -> None:
        """An attempt is told to commit: whatever it answers, its commit may be there afterwards."""
        mine = attempt.commit()
        self.committed[mine.marker.id] = mine
        self.asked.setdefault((attempt.run, attempt.version), set()).add(mine.marker.id)

    def answered(self, attempt: Attempt, version: int, commit_id: str) -> Commit:
        """The commit that an attempt was answered with, if that may be."""
        place = attempt.run, attempt.version
        assert version == attempt.version
        if attempt.run.format == 2:
            assert commit_id == attempt.commit().marker.id
        elif commit_id not in self.asked[place]:  # Spark has committed the batch meanwhile, in another run
            assert version <= self.newest, "nobody has tried that commit"
            assert version < self.first_kept or commit_id == self.at(version).marker.id, "that commit does not stand"
        else:
            is_retired = version < self.first_kept  # its winner may be gone, and nobody can ask for it
            winner = self.winners.setdefault(place, commit_id)
            assert is_retired or commit_id == winner, "two commits have won"
        return self.committed[commit_id]
