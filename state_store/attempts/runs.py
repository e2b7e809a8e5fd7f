"""Runs of a query are numbered by *epochs*, in both checkpoint formats: a run then knows that it was replaced.

``<checkpoint>/_ckpt/runs/<epoch:010d>.run`` holds the run's id. It is created only if absent, one number after the
other. A newer run has a higher epoch. The driver takes the number, in both checkpoint formats, before it reads Spark's
logs (``Fence.scala``), and ``open`` tells it to each state server. Such a run must not commit once a later run has its
number, or once its own number is gone or another run's: then somebody has deleted the checkpoint, and another one is
there now. Where no driver has taken a number (an earlier release, a harness), a run of format 1 takes it when it first
begins a transaction anywhere.

Only the newest ``RUNS_KEPT`` numbers are read. A run that takes a number deletes a few of the older ones. A deleted
number is never used again: a run whose new number is below the newest ``RUNS_KEPT`` takes another.
"""

from __future__ import annotations

import logging
import threading

import msgspec

from pyspark_ckpt.state_store.attempts.commit_log import is_committed
from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.errors import CkptError, ConflictError, FormatError, NotFoundError
from pyspark_ckpt.state_store.format.names import LAST_EPOCH, RUNS_FOLDER, parse_epoch, run_name
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import Location, RunId, UnixMs, Words, check_format, seal
from pyspark_ckpt.state_store.log import LOGGER
from pyspark_ckpt.state_store.options import runs

RUN_FORMAT = 1
RUNS_KEPT = runs().kept
"""When this many later runs have begun, no process is still beginning an earlier one."""
RUNS_DELETED_AT_ONCE = runs().deleted_at_once
"""The checkpoint of an earlier release may have thousands, and a query waits while they are deleted."""
NO_RUN_EPOCH = 0

_log = logging.getLogger(f"{LOGGER}.runs")


class RunObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of a run object. ``driver``: the application and the host of the driver that took the number.

    ``moves_to``: the new checkpoint of a query that is being rescaled, or was; then no query runs under this number.
    ``moved_at_ms``: when the query had moved there for good, as Unix time; 0 if that is not known. Other members are
    ignored: a query can go back to a release that does not know them.
    """

    format: int
    run_id: RunId
    driver: Words = ""
    moves_to: Location = ""
    moved_at_ms: UnixMs = 0

    def __str__(self) -> str:
        """Return the form used in messages."""
        return f"run id {self.run_id}, driver {self.driver or 'unknown'}"


class KnownRuns:
    """The runs of one query that a process knows, shared by all its stores."""

    def __init__(self) -> None:
        """Know no runs yet."""
        self.lock = threading.Lock()
        self.epochs: dict[str, int] = {"": NO_RUN_EPOCH}
        self.committing: set[str] = set()
        self.newest_until: dict[str, int] = {}
        """For each run whose driver has its number: the last version for which no later run was found."""
        self.own: dict[str, Blob] = {}
        """For each such run: the object with its number, as last read."""


class Epochs:
    """Epochs of the runs of one query that this process has seen."""

    def __init__(self, checkpoint: BlobPlace, known: KnownRuns | None = None) -> None:
        """Use the ``_ckpt/runs`` folder of the query's checkpoint. Other objects may share ``known``."""
        self._place = checkpoint
        self._known = known or KnownRuns()

    def of(self, run_id: str) -> int:
        """Return the epoch of a run. The first call for a run anywhere gives it the next number.

        A run without an id (a batch reader) has epoch 0, below every run of a query. Raises ConflictError (the query
        has moved to another checkpoint for good), FormatError, StorageError.
        """
        known = self._known
        with known.lock:
            if run_id not in known.epochs:
                newest = self.find_newest()
                if newest is not None and newest.moved_at_ms:
                    raise self._refuse_moved(newest, f"Run {run_id} is refused")
                known.epochs[run_id] = self._find(RunObject(RUN_FORMAT, run_id))
            return known.epochs[run_id]

    def take(self, run: RunObject) -> int:
        """Give a run the next number, which ends all earlier runs. Raises FormatError, StorageError."""
        with self._known.lock:
            self._known.epochs[run.run_id] = epoch = self._find(run)
        return epoch

    def take_after(self, epoch: int, run: RunObject) -> bool:
        """Give a run the number after ``epoch``, and return True, unless that is taken. Raises StorageError."""
        return self._place.put_if_absent(run_name(epoch + 1), seal(run))

    def find_newest(self) -> RunObject | None:
        """Return the newest run; None if no run has a number yet. Raises FormatError, StorageError."""
        while epochs := self._list():
            try:
                return self._read(epochs[-1])
            except NotFoundError:  # deleted meanwhile, with the checkpoint
                continue
        return None

    def note(self, run_id: str, epoch: int) -> None:
        """Note the epoch that the driver of a run has taken."""
        with self._known.lock:
            self._known.epochs[run_id] = epoch
            self._known.newest_until.setdefault(run_id, 0)

    def require_newest(self, run_id: str, version: int, store: Identity) -> None:
        """Refuse to commit ``version`` if a later run has begun, or if the number of the run is gone or is another's.

        One listing for each version in a process. A run whose driver has no number is not refused.
        Raises ConflictError, which names the later run; FormatError, StorageError.
        """
        known = self._known
        with known.lock:
            if known.newest_until.get(run_id, version) >= version:
                return
            epoch = known.epochs[run_id]
            last = self._find_end(run_id, epoch)
            if last is None:
                known.newest_until[run_id] = version
                return
        if last == epoch:
            newest = self.find_newest()
            if newest is not None and newest.moves_to:
                raise self._refuse_moved(newest, f"{store}: version {version} is not committed")
        refused = f"{store}: version {version} is not committed, because run {epoch} of the query in {self._place.url}"
        if last == epoch:
            raise ConflictError(
                f"{refused} is over: its {run_name(epoch)} is gone, or is that of another run. The checkpoint was "
                "deleted, and perhaps recreated.",
                hint="End this driver. To continue with the present checkpoint, start the query again.",
            )
        raise ConflictError(
            f"{refused} is over: run {last} ({self._read(last)}) has taken its place.",
            hint="The query continues there: end this driver. Of its work, only its earlier commits count.",
        )

    def _refuse_moved(self, run: RunObject, refused: str) -> ConflictError:
        return ConflictError(
            f"{refused}, because the query in {self._place.url} was rescaled to {run.moves_to}.",
            hint=f"Start the program with the checkpointLocation {run.moves_to}.",
        )

    def has_ended(self, run_id: str) -> bool:
        """Return whether a run is over. False for a run whose driver has no number. Raises StorageError."""
        with self._known.lock:
            epoch = self._known.epochs[run_id] if run_id in self._known.newest_until else None
        return epoch is not None and self._find_end(run_id, epoch) is not None

    def _find_end(self, run_id: str, epoch: int) -> int | None:
        """Return the number that ends a run: the newest one, or its own if that is gone or another run's, else None.

        One listing. The object is read as well the first time, and whenever it has been written since.
        """
        first = run_name(epoch).removeprefix(f"{RUNS_FOLDER}/")
        found = {parse_epoch(blob.name): blob for blob in self._place.list(RUNS_FOLDER, start=first)}
        newest = max((each for each in found if each is not None), default=epoch)
        if newest > epoch:
            return newest
        own = found.get(epoch)
        if own is None or (own != self._known.own.get(run_id) and not self._belongs_to(epoch, run_id)):
            return epoch
        self._known.own[run_id] = own
        return None

    def is_over(self, run_id: str, version: int) -> bool:
        """Return whether the first commit of a run in this process is of a ``version`` that Spark has committed.

        A run that is over, but does its very first work only now, has a higher epoch than the run that followed it. Its
        commits must not count. Makes one request, or none once the run has proved to be live. Raises StorageError.
        """
        with self._known.lock:
            if run_id in self._known.committing:
                return False
        if is_committed(self._place, version):
            return True
        with self._known.lock:
            self._known.committing.add(run_id)
        return False

    def _find(self, run: RunObject) -> int:
        """Return the number of a run, which takes the next one if it has none."""
        while True:
            epochs = self._list()
            last = epochs[-1] if epochs else 0
            for epoch in reversed(epochs):
                if epoch > last - RUNS_KEPT and self._belongs_to(epoch, run.run_id):
                    return epoch
            if last + 1 > LAST_EPOCH:
                raise FormatError(f"{self._place.url}/{run_name(last)} has the last run number, so no run can follow.")
            if self._place.put_if_absent(run_name(last + 1), seal(run)):
                known = self._list()
                self._retire(known)
                if not known or last + 1 > known[-1] - RUNS_KEPT:
                    return last + 1

    def _list(self) -> list[int]:
        found = (parse_epoch(blob.name) for blob in self._place.list(RUNS_FOLDER))
        return sorted(epoch for epoch in found if epoch is not None)

    def _retire(self, epochs: list[int]) -> None:
        """Delete a few of the numbers that are no longer read. A failure leaves them to the next run."""
        old = [epoch for epoch in epochs if epoch <= epochs[-1] - RUNS_KEPT]
        try:
            for epoch in old[:RUNS_DELETED_AT_ONCE]:
                self._place.delete(run_name(epoch))
        except CkptError as problem:
            _log.warning("old runs of %s could not be deleted: %s", self._place.url, problem)

    def _belongs_to(self, epoch: int, run_id: str) -> bool:
        try:
            return self._read(epoch).run_id == run_id
        except NotFoundError:  # deleted after the listing, so it is not the number of a run that begins now
            return False

    def _read(self, epoch: int) -> RunObject:
        run = read_sealed(self._place, run_name(epoch), RunObject)
        check_format(run.format, RUN_FORMAT, f"{self._place.url}/{run_name(epoch)}")
        return run
