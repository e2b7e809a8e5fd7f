"""Who owns a folder: the savepoint or the restore whose mark is there.

The mark of a savepoint is ``savepoint.unfinished``, until a deletion replaces it; that of a restore is ``metadata``.
The mark is read before each write or deletion under a name that others may use too: while this process stood still,
somebody may have deleted the folder and made something else there.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pyspark_ckpt.state_store.blobs import BlobPlace, RetryPolicy, find_options, with_retries
from pyspark_ckpt.state_store.blobs.exclusive import require_exclusive
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.folder_kind import read_mark, write_delete
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY
from pyspark_ckpt.state_store.errors import (
    CkptError,
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    add_note,
    with_hint,
)
from pyspark_ckpt.state_store.savepoints.savepoint import NAME, UNFINISHED, Savepoint, refuse_unless_empty

LOOK_S = 2.0
"""How long a place is asked what is left in it. It may be the place that has just failed."""


@contextmanager
def explaining_what_is_left(describe: Callable[[], str]) -> Iterator[None]:
    """If the block fails or is interrupted, add the text from ``describe`` to the error, unless it is empty."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as problem:
        left = describe()
        if left and isinstance(problem, CkptError):
            problem.hint = with_hint(problem.hint, left) if problem.hint else left
        elif left:
            add_note(problem, left)
        raise


@contextmanager
def advising_to_verify(source: Checkpoint) -> Iterator[None]:
    """If the block fails for damage and has no hint, name the command that finds all damage of ``source``.

    The damage may be elsewhere; then the command says that the source is whole.
    """
    try:
        yield
    except FormatError as problem:
        kind = "savepoint" if isinstance(source, Savepoint) else "checkpoint"
        problem.hint = problem.hint or f"Verify the source: {source.write_command(kind, 'verify')}."
        raise


@dataclass(frozen=True)
class OwnFolder:
    """A folder in which only its owner writes and deletes. ``require`` raises ConflictError if another owns it now.

    A process may stand still between that check and its write. So it checks again before it replaces another's object.
    """

    place: BlobPlace
    require: Callable[[], object]

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what the owner has there. Raises ConflictError, StorageError."""
        self.require()
        if not self.place.put_if_absent(name, data) and self._read(name) != data:
            self.require()
            self.place.put(name, data)

    def delete(self, name: str) -> None:
        """Remove the object; no error if it is not there. Raises ConflictError, StorageError."""
        self.require()
        self.place.delete(name)

    def _read(self, name: str) -> bytes | None:
        try:
            return self.place.get(name)
        except NotFoundError:  # deleted since
            return None


class Possession:
    """The right to write a savepoint into one place."""

    def __init__(self, place: BlobPlace, checkpoint: BlobPlace | None) -> None:
        """``place`` is the target of a savepoint, taken of ``checkpoint`` if there is one. Nothing is written."""
        self._place, self._checkpoint = place, checkpoint
        self._mark = b""
        self.folder = OwnFolder(place, self.require)
        """The place, while it is the writer's."""

    def take(self, version: int) -> None:
        """Take possession of a place found empty, for a savepoint of ``version``. Only one writer can.

        Raises InvalidInputError (it is not empty), ConflictError (another writer was first), StorageError.
        """
        require_exclusive(self._place, "savepoints", "Take the savepoint to another place.")
        mark = b"%s %d" % (uuid.uuid4().hex.encode(), version)
        if not self._place.put_if_absent(UNFINISHED, mark):
            raise ConflictError(
                f"Another savepoint is being taken at {self._place.url}.",
                hint="Wait until it is finished, or name a new folder.",
            )
        self._mark = mark
        try:
            refuse_unless_empty(self._place, "a savepoint", but_for=UNFINISHED)  # perhaps taken since the first check
            self._refuse_if_seen()
        except InvalidInputError:
            self.release()
            raise

    def require(self) -> None:
        """Raise ConflictError if the savepoint was deleted after it was begun; StorageError."""
        if read_mark(self._place) != self._mark:
            raise ConflictError(
                f"The savepoint at {self._place.url} was deleted while it was being taken.",
                hint="Take a savepoint into a new folder.",
            )

    def release(self) -> None:
        """Remove the mark, unless another owns it now. Raises StorageError."""
        if read_mark(self._place) == self._mark:
            self._place.delete(UNFINISHED)
        self._mark = b""

    def describe_what_is_left(self) -> str:
        """Return what a failed savepoint has left, and what to do; empty if nothing is left.

        ``savepoint delete`` recognises the rest by the mark, so the mark is put back, unless a savepoint or a query is
        there now. If the place cannot be asked, assume that an unfinished savepoint is left.
        """
        if not self._mark:
            return ""
        place = with_retries(self._place, RetryPolicy(LOOK_S))
        with suppress(CkptError):
            if not read_mark(place):
                left = {blob.name for blob in place.walk()}
                if not left:
                    return ""
                if left.isdisjoint((NAME, QUERY)):
                    place.put_if_absent(UNFINISHED, self._mark)  # a deletion removed the mark before our last object
            if read_mark(place) != self._mark:
                return f"{place.url} now belongs to another: a call that deletes it, a savepoint or a query."
        remove = write_delete(place.url, **find_options(place))
        return f"An unfinished savepoint is left. Remove it with {remove}, then repeat the call."

    def _refuse_if_seen(self) -> None:
        """Raise InvalidInputError if the mark appears inside the checkpoint: two names may lead to one folder."""
        if self._checkpoint is None:
            return
        for blob in self._checkpoint.walk():
            if blob.name.rpartition("/")[2] == UNFINISHED and blob.size_bytes == len(self._mark):
                with suppress(NotFoundError):  # the mark of another savepoint that has finished meanwhile
                    if self._checkpoint.get(blob.name) == self._mark:
                        raise InvalidInputError(
                            f"{self._place.url} is inside {self._checkpoint.url}: it is {blob.name} there.",
                            hint="Name a new folder elsewhere, such as one next to the checkpoint.",
                        )
