"""The error tree. Each kind is one that callers handle differently.

::

    CkptError
    ├── ConflictError       another writer was first; its write stands
    ├── NotFoundError       a version, state or object that never existed, or was deleted
    ├── InvalidInputError   (ValueError) the request or an option is wrong; nothing was done
    ├── LifecycleError      the current status does not allow the call (the transaction has ended)
    ├── StorageError        a disk or a place failed; ``outcome`` says whether a write may have been carried out
    ├── ProcessError        a process could not be started or has ended, or its Python lacks a package
    ├── FormatError         stored bytes are damaged or contradictory, or written by a newer release
    │   └── DamagedCopyError  only a local copy is damaged; it is discarded, and a retry restores it
    └── InternalError       a defect of this package: please report it

Every error has a ``kind`` (its class name, which crosses the process boundary), a ``hint`` (what to do now) and
``retryable`` (whether the same call may succeed later without intervention).
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar, Literal

Outcome = Literal["not_applied", "unknown"]


_SHOWS_NOTES = sys.version_info >= (3, 11)
"""Whether Python's tracebacks show the notes of an error. If not, a CkptError includes its notes in its text."""


def add_note(problem: BaseException, note: str) -> None:
    """Add a line to an error's ``__notes__``, as ``BaseException.add_note`` of Python 3.11."""
    noted: Any = problem
    noted.__notes__ = [*getattr(problem, "__notes__", ()), note]


def with_hint(message: str, hint: str) -> str:
    """Return ``message`` and ``hint`` as one text."""
    if not hint:
        return message
    return f"{message} {hint}" if message.endswith((".", "!", "?", ":", "\n")) else f"{message}. {hint}"


class CkptError(Exception):
    """Root of the tree. ``str()`` gives the message and the hint.

    ``message``: what is wrong, with operator, partition, version and file. ``hint``: what to do now. ``retryable``:
    whether the same call may succeed later without intervention.
    """

    default_retryable: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None, retryable: bool | None = None) -> None:
        """Keep ``message``. ``hint`` and ``retryable`` default to those of the kind."""
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint
        self.retryable = self.default_retryable if retryable is None else retryable

    def __str__(self) -> str:
        """Return the message and the hint. For an error in a worker, Spark shows its users only this text."""
        text = with_hint(self.message, self.hint)
        return text if _SHOWS_NOTES else "\n".join([text, *getattr(self, "__notes__", ())])

    def __format__(self, spec: str) -> str:
        """Return the message alone, for the message of another error, which has its own hint."""
        return format(self.message, spec)

    @property
    def kind(self) -> str:
        """The class name, by which a handler in another process decides."""
        return type(self).__name__


class ConflictError(CkptError):
    """Another writer was first, and its write stands."""

    default_hint = "Read the stored state and decide again. The same call would fail in the same way."


class NotFoundError(CkptError):
    """A version, state or object never existed, or retention has deleted it."""


class InvalidInputError(CkptError, ValueError):
    """The request, an option, or a value of the program is wrong. Nothing was done. It is a ValueError as well."""


class LifecycleError(CkptError):
    """The current status does not allow the call, such as a savepoint of a query that has stopped."""


class StorageError(CkptError):
    """A local disk or a place of state failed, or did not answer in time.

    ``outcome``: ``"not_applied"``, or ``"unknown"`` if a write may have been carried out. ``waited_s``: how long the
    request was repeated, in seconds. ``is_denied``: a permission is missing; the error is then not retryable.
    """

    default_retryable = True
    default_hint = "Check the file system or object store. The same call may be repeated."

    def __init__(
        self,
        message: str,
        *,
        outcome: Outcome = "not_applied",
        hint: str | None = None,
        retryable: bool | None = None,
        waited_s: float = 0.0,
        is_denied: bool = False,
    ) -> None:
        """Keep ``outcome``, ``waited_s`` and ``is_denied``, which makes the error not retryable."""
        super().__init__(message, hint=hint, retryable=False if is_denied else retryable)
        self.outcome: Outcome = outcome
        self.is_denied = is_denied
        self.waited_s = waited_s


class ProcessError(CkptError):
    """A process of this package could not be started or ended too early, or its Python lacks a needed package."""

    default_hint = "Check the memory of its machine, and that its Python has this release of pyspark-ckpt."


class FormatError(CkptError):
    """Stored bytes are damaged, contradict each other, or were written by a newer release than this one.

    The message names the object.
    """


class DamagedCopyError(FormatError):
    """A local copy of state is damaged. It is discarded, and the next attempt restores it from the remote place."""

    default_retryable = True
    default_hint = "The next attempt restores the state from the remote place. Check the local disk."


class InternalError(CkptError):
    """A defect of this package: please report it."""

    default_hint = "This is a defect in pyspark-ckpt. Please report it with the message above."
