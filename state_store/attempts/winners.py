"""Checkpoint format 1: which of several commits of one version stands, as Spark does not say.

Runs of a query are numbered by *epochs*: ``<checkpoint>/_ckpt/runs/<epoch:010d>.run`` holds the run's id and
is created only if absent, one number after the other, when a run first begins a transaction anywhere. A
newer run has a higher epoch. A commit of version v in epoch e is made final by creating
``<v:020d>-<e:010d>.winner``, only if absent, which holds the commit's id:

Only the newest ``RUNS_KEPT`` numbers are ever looked at, and who takes a number deletes what is below these, a few at
a time. So a number that was taken is not free again: whoever finds that his is below them takes another.

- within a run the first to create it wins; the loser's task succeeds and its commit is dropped;
- of several runs the highest epoch wins: a fixed program that re-runs an uncommitted batch is right;
- a run whose first commit in a process is of a batch that Spark has committed is over, and drops it.

Who asks for a version without an id gets, in this order: the commit that Spark's commit log names (format
2 wrote it), the winner of the highest epoch, the only commit there is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

import msgspec

from pyspark_ckpt.state_store.attempts.commit_log import is_committed, read_committed_ids
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import CkptError, ConflictError, FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.keys import CommitId, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.names import LAST_EPOCH, RUNS_FOLDER, WinnerName, epoch_of, run_name
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.json_objects import check_format, seal
from pyspark_ckpt.state_store.log import LOGGER

WINNER_FORMAT = 1
RUN_FORMAT = 1
RUNS_KEPT = 64
"""A run has begun everywhere long before so many others have."""
RUNS_DELETED_AT_ONCE = 16
"""A checkpoint of an earlier release may have thousands, and a query waits for it."""
NO_RUN_EPOCH = 0

_log = logging.getLogger(f"{LOGGER}.winners")


class Winner(msgspec.Struct, frozen=True):
    """Content of a winner object."""

    format: int
    version: int
    id: CommitId
    run_id: str


class Run(msgspec.Struct, frozen=True):
    """Content of a run object."""

    format: int
    run_id: str


class KnownRuns:
    """What a process knows of the runs of one query, for all of its stores."""

    def __init__(self) -> None:
        """Know none."""
        self.lock = threading.Lock()
        self.epochs: dict[str, int] = {"": NO_RUN_EPOCH}
        self.committing: set[str] = set()


class Epochs:
    """Epochs of the runs this process has seen of one query."""

    def __init__(self, checkpoint: BlobPlace, known: KnownRuns | None = None) -> None:
        """Use the ``_ckpt/runs`` folder of the query's checkpoint; others may share what is ``known``."""
        self._place = checkpoint
        self._known = known or KnownRuns()

    def of(self, run_id: str) -> int:
        """Epoch of a run; the first call of a run anywhere gives it the next number. Raises StorageError.

        A run without an id (a batch reader) has epoch 0, below every run of a query.
        """
        known = self._known
        with known.lock:
            if run_id not in known.epochs:
                known.epochs[run_id] = self._find(run_id)
            return known.epochs[run_id]

    def is_over(self, run_id: str, version: int) -> bool:
        """Whether the first commit of a run that this process sees is of a ``version`` that Spark has committed.

        A run that is over, and does its first work of all only now, has a higher epoch than the run that came after
        it: what it makes must not count. One request for a run. Raises StorageError.
        """
        with self._known.lock:
            if run_id in self._known.committing:
                return False
        if is_committed(self._place, version):
            return True
        with self._known.lock:
            self._known.committing.add(run_id)
        return False

    def _find(self, run_id: str) -> int:
        """The number of a run, which it is given if it has none."""
        while True:
            epochs = self._list()
            last = epochs[-1] if epochs else 0
            for epoch in reversed(epochs):
                if epoch > last - RUNS_KEPT and self._is_of(epoch, run_id):
                    return epoch
            if last + 1 > LAST_EPOCH:
                raise FormatError(f"{self._place.url}/{run_name(last)} leaves no number for another run.")
            if self._place.put_if_absent(run_name(last + 1), seal(Run(RUN_FORMAT, run_id))):
                known = self._list()
                self._retire(known)
                if not known or last + 1 > known[-1] - RUNS_KEPT:
                    return last + 1

    def _list(self) -> list[int]:
        found = (epoch_of(blob.name) for blob in self._place.list(RUNS_FOLDER))
        return sorted(epoch for epoch in found if epoch is not None)

    def _retire(self, epochs: list[int]) -> None:
        """Delete a few of the numbers that nobody looks at any more. A failure leaves them to the next run."""
        old = [epoch for epoch in epochs if epoch <= epochs[-1] - RUNS_KEPT]
        try:
            for epoch in old[:RUNS_DELETED_AT_ONCE]:
                self._place.delete(run_name(epoch))
        except CkptError as problem:
            _log.warning("old runs of %s could not be deleted: %s", self._place.url, problem)

    def _is_of(self, epoch: int, run_id: str) -> bool:
        try:
            return self._read(epoch).run_id == run_id
        except NotFoundError:  # so many runs have begun since it was listed: it was not of one that begins now
            return False

    def _read(self, epoch: int) -> Run:
        run = read_sealed(self._place, run_name(epoch), Run)
        check_format(run.format, RUN_FORMAT, f"{self._place.url}/{run_name(epoch)}")
        return run


def declare_winner(place: BlobPlace, commit: Marker, epoch: int, run_id: str) -> Marker:
    """Make ``commit`` the one of its version in this epoch, unless another was first; returns the one that stands.

    Durable after return. Safe to repeat after a lost answer. Raises StorageError.
    """
    name = WinnerName(commit.version, epoch)
    content = seal(Winner(WINNER_FORMAT, commit.version, commit.id, run_id))
    return commit if place.put_if_absent(str(name), content) else _read_winner(place, name)


def resolve(
    place: BlobPlace,
    checkpoint: BlobPlace,
    version: int,
    operator: int,
    partition: int,
    store: str,
    named: Collection[str] | None = None,
    lineage: Lineage | None = None,
) -> Marker:
    """Find the commit of ``version`` that stands, when nobody names its id; see the module for the rules.

    ``named``: the ids of the commit log, and ``lineage``: that of ``place``, if they are known already.

    Raises NotFoundError (never committed, or retired), InvalidInputError (the commit log names an id that
    is not there), ConflictError (several commits and nothing that decides), FormatError, StorageError.
    """
    lineage = Lineage.read(place) if lineage is None else lineage
    candidates = lineage.commits_of(version)
    if not candidates:
        lineage.require(Marker(version, "?"), store)
    named = read_committed_ids(checkpoint, version, operator, partition) if named is None else named
    if named:
        found = [candidate for candidate in candidates if candidate.id in named]
        if len(found) == 1:
            return found[0]
        raise InvalidInputError(
            f"{store}: the commit log names the ids {sorted(named)} for version {version}, "
            f"the state folder has {[candidate.id for candidate in candidates]}.",
            hint="Are state and commit log from one checkpoint?",
        )
    winners = sorted(winner for winner in lineage.winners if winner.version == version)
    if winners:
        decided = _read_winner(place, winners[-1])
        if decided in candidates:
            return decided
        raise NotFoundError(f"{store}: {winners[-1]} names {decided}, whose delta is missing.")
    if len(candidates) == 1:
        return candidates[0]
    raise ConflictError(
        f"{store}: version {version} was committed as {[candidate.id for candidate in candidates]}, and neither the "
        "commit log nor a winner object says which one stands.",
        hint="Read a version that the commit log still covers.",
    )


def _read_winner(place: BlobPlace, name: WinnerName) -> Marker:
    """The commit that a winner object names. Raises FormatError, StorageError."""
    winner, where = read_sealed(place, str(name), Winner), f"{place.url}/{name}"
    check_format(winner.format, WINNER_FORMAT, where)
    if winner.version != name.version:
        raise FormatError(f"{where} is damaged: it holds version {winner.version}.")
    return Marker(winner.version, winner.id)
