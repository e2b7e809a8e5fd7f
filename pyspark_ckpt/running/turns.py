"""Who may rescale a query: one call at a time, while no other driver runs the query.

A call takes the next number on the old checkpoint, as a run of the query does when it starts. From then on a driver
that still runs there can change nothing. If a run has a later number, the query was started again meanwhile, or another
driver is rescaling it: the query is theirs, and this call deletes and starts nothing more.

The record of the number says where the query is to go on. Until that is certain, a driver that starts the query on the
old checkpoint checks whether the query has begun a batch on the new one (``Move.scala``). When the call knows, it takes
one more number, to record that the query has moved for good and is not started here any more, or that it stays here.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from pyspark_ckpt.state_store.attempts.runs import RUN_FORMAT, Epochs, RunObject
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import LifecycleError

_lock = threading.Lock()
_rescaled: set[str] = set()


@contextmanager
def only_call(query_id: str) -> Iterator[None]:
    """Be the only call of this process that rescales a query. Raises LifecycleError if another does."""
    with _lock:
        if query_id in _rescaled:
            raise LifecycleError(
                f"Query {query_id} is being rescaled by another call of this process. Nothing was done.",
                hint="Wait for that call to return.",
            )
        _rescaled.add(query_id)
    try:
        yield
    finally:
        with _lock:
            _rescaled.discard(query_id)


@dataclass(frozen=True)
class Turn:
    """A number, ``epoch``, that was taken on the checkpoint ``old``.

    ``run``: the record there. ``before``: the newest run on the new checkpoint at that time, whose driver may have
    died; empty if there was none.
    """

    old: BlobPlace
    epoch: int
    run: RunObject
    before: str

    @classmethod
    def take(cls, old: BlobPlace, new: BlobPlace, driver: str, moves_to: str) -> Turn:
        """Take the next number on ``old``, and record where the query is to go on. Raises FormatError, StorageError.

        ``moves_to``: the location of ``new``.
        """
        there, last = Epochs(new).find_newest(), Epochs(old).find_newest()
        moved_at_ms = last.moved_at_ms if last is not None and last.moves_to == moves_to else 0
        run = RunObject(RUN_FORMAT, str(uuid.uuid4()), driver, moves_to, moved_at_ms)
        return cls(old, Epochs(old).take(run), run, "" if there is None else there.run_id)

    def point_back(self, new: BlobPlace, old_location: str) -> None:
        """Record on the new checkpoint, if no run has begun there, that the query may still go on on the old one.

        If the query was started on the old one meanwhile, a driver that comes late then does not start it on the new
        one. Raises FormatError, StorageError.
        """
        if Epochs(new).find_newest() is None:
            Epochs(new).take(RunObject(RUN_FORMAT, self.run.run_id, self.run.driver, old_location))

    def finish(self) -> None:
        """Record that the query has moved to the new checkpoint for good: no driver starts it on the old one any more.

        Raises LifecycleError if others have started it meanwhile, or are rescaling it; FormatError, StorageError.
        """
        run = replace(self.run, moved_at_ms=_now_ms())
        if not Epochs(self.old).take_after(self.epoch, run):  # of several that take this number, one succeeds
            self.require()

    def give_up(self) -> None:
        """Record that the query stays on the old checkpoint. A run that has begun there is over.

        Raises FormatError, StorageError.
        """
        Epochs(self.old).take(RunObject(RUN_FORMAT, str(uuid.uuid4()), self.run.driver))

    def overrule(self) -> None:
        """Do as ``finish``, even if others have started the query meanwhile: their run is over.

        Raises FormatError, StorageError.
        """
        Epochs(self.old).take(replace(self.run, run_id=str(uuid.uuid4()), moved_at_ms=_now_ms()))

    def require(self) -> None:
        """Raise LifecycleError if others have started the query meanwhile, or are rescaling it; StorageError."""
        newest = self.find_later()
        if newest is not None:
            raise LifecycleError(f"it was started meanwhile, or is being rescaled by another driver: {newest}.")

    def find_later(self) -> RunObject | None:
        """Return the newest run on the old checkpoint if it is after this turn. Raises FormatError, StorageError."""
        newest = Epochs(self.old).find_newest()
        return None if newest is None or newest.run_id == self.run.run_id else newest

    def find_other(self, checkpoint: BlobPlace, own: Collection[str]) -> RunObject | None:
        """Return the newest run on a checkpoint if it is of another driver. ``own``: runs that this driver has started.

        If it is not known to have started any, the application decides. Raises FormatError, StorageError.
        """
        newest = Epochs(checkpoint).find_newest()
        if newest is None or newest.run_id in {self.run.run_id, self.before, *own}:
            return None
        is_same = _application(newest.driver) == _application(self.run.driver)
        return None if not newest.driver or (is_same and not own) else newest

    def require_no_other(self, checkpoint: BlobPlace, own: Collection[str]) -> None:
        """Raise LifecycleError if another driver has started the query on a checkpoint; FormatError, StorageError."""
        other = self.find_other(checkpoint, own)
        if other is not None:
            raise LifecycleError(f"another driver has started it on {checkpoint.url} meanwhile: {other}.")


def _now_ms() -> int:
    return int(time.time() * 1000)


def _application(driver: str) -> str:
    return driver.partition(" on ")[0]
