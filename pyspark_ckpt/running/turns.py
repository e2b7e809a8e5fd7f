"""Who may rescale a query: one call at a time, while no other driver runs the query.

A call takes the next number on the old checkpoint, as a run of the query does when it starts. From then on a driver
that still runs there can change nothing. If a run has a later number, the query was started again meanwhile, or another
driver rescales it: it is theirs, and this call deletes nothing and starts nothing any more.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark_ckpt.state_store.attempts.winners import RUN_FORMAT, Epochs, RunObject
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
    """A number that was taken on the checkpoint ``old``. ``driver``: the application, and the host of its driver.

    ``before``: the newest run on the new checkpoint then, of a driver that may have died; empty if there was none.
    """

    old: BlobPlace
    run_id: str
    driver: str
    before: str

    @classmethod
    def take(cls, old: BlobPlace, new: BlobPlace, driver: str, moves_to: str) -> Turn:
        """Take the next number on ``old``, and record where the query is to go on. Raises FormatError, StorageError.

        ``moves_to``: the location of ``new``.
        """
        there, run_id = Epochs(new).find_newest(), str(uuid.uuid4())
        Epochs(old).take(RunObject(RUN_FORMAT, run_id, driver, moves_to))
        return cls(old, run_id, driver, "" if there is None else there.run_id)

    def require(self) -> None:
        """Raise LifecycleError if the query was started, or is being rescaled, by others meanwhile; StorageError."""
        newest = self.find_later()
        if newest is not None:
            raise LifecycleError(f"it was started meanwhile, or is being rescaled by another driver: {newest}.")

    def find_later(self) -> RunObject | None:
        """Return the newest run on the old checkpoint if it is a later one. Raises FormatError, StorageError."""
        newest = Epochs(self.old).find_newest()
        return None if newest is None or newest.run_id == self.run_id else newest

    def find_other(self, checkpoint: BlobPlace, own: Collection[str]) -> RunObject | None:
        """Return the newest run on a checkpoint if it is of another driver. ``own``: runs that this one has started.

        If it has started none that is known, its application tells. Raises FormatError, StorageError.
        """
        newest = Epochs(checkpoint).find_newest()
        if newest is None or newest.run_id in {self.run_id, self.before, *own}:
            return None
        is_same = _application(newest.driver) == _application(self.driver)
        return None if not newest.driver or (is_same and not own) else newest

    def require_no_other(self, checkpoint: BlobPlace, own: Collection[str]) -> None:
        """Raise LifecycleError if another driver has started the query on a checkpoint; FormatError, StorageError."""
        other = self.find_other(checkpoint, own)
        if other is not None:
            raise LifecycleError(f"another driver has started it on {checkpoint.url} meanwhile: {other}.")


def _application(driver: str) -> str:
    return driver.partition(" on ")[0]
