"""The error tree. A kind exists only where a caller would do something different.

::

    CkptError
    ├── ConflictError       somebody else was first; what they wrote stands
    ├── NotFoundError       a version, state or object that was never there, or was retired
    ├── InvalidInputError   (ValueError) the request or an option is wrong; nothing was done
    ├── LifecycleError      a call that the present status does not allow (a transaction that has ended)
    ├── StorageError        a disk or a remote store failed; ``outcome`` says whether a write may have landed
    ├── FormatError         stored bytes are damaged, or written by a newer release
    │   └── DamagedCopyError  only those of a local copy, which is discarded: a retry restores it
    └── InternalError       a defect of this package: please report it

Every error has a ``kind`` (its class name, which crosses the process boundary), a ``hint`` (what to do
now) and ``retryable`` (whether the same call may succeed later without anybody doing something).
"""

from __future__ import annotations

from typing import ClassVar, Literal

Outcome = Literal["not_applied", "unknown"]


def with_hint(message: str, hint: str) -> str:
    """One text of both."""
    if not hint:
        return message
    return f"{message} {hint}" if message.endswith((".", "!", "?", ":", "\n")) else f"{message}. {hint}"


class CkptError(Exception):
    """Root of the tree; carries ``message``, ``hint`` and ``retryable``."""

    default_retryable: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None, retryable: bool | None = None) -> None:
        """Keep ``message``; ``hint`` and ``retryable`` default to what the kind says."""
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint
        self.retryable = self.default_retryable if retryable is None else retryable

    def __str__(self) -> str:
        """The message and what to do: of an error in a worker, Spark's users see nothing else."""
        return with_hint(self.message, self.hint)

    def __format__(self, spec: str) -> str:
        """The message alone: within the message of another error, which has a hint of its own."""
        return format(self.message, spec)

    @property
    def kind(self) -> str:
        """Class name: what a handler in another process decides by."""
        return type(self).__name__


class ConflictError(CkptError):
    """Somebody else was first, and what they wrote stands."""

    default_hint = "Read what is there now and decide again; a repeat of the same call fails the same way."


class NotFoundError(CkptError):
    """A version, state or object that was never there, or that retention has retired."""


class InvalidInputError(CkptError, ValueError):
    """The request or an option is wrong. Nothing was done."""


class LifecycleError(CkptError):
    """The call is not allowed in the present status, such as a commit of an aborted transaction."""


class StorageError(CkptError):
    """A disk or a remote store failed. ``outcome`` = ``unknown`` means that a write may have landed."""

    default_retryable = True
    default_hint = "Check the file system or object store; the same call may be repeated."

    def __init__(
        self,
        message: str,
        *,
        outcome: Outcome = "not_applied",
        hint: str | None = None,
        retryable: bool | None = None,
        waited_s: float = 0.0,
    ) -> None:
        """Keep ``outcome`` beside what every error has, and how long the request was repeated."""
        super().__init__(message, hint=hint, retryable=retryable)
        self.outcome: Outcome = outcome
        self.waited_s = waited_s


class FormatError(CkptError):
    """Stored bytes are damaged, or were written by a newer release than this one."""


class DamagedCopyError(FormatError):
    """A local copy of state is damaged. It is discarded, and the next attempt restores it from the remote place."""

    default_retryable = True
    default_hint = "The next attempt restores the state from the remote place; check the local disk."


class InternalError(CkptError):
    """A defect of this package."""

    default_hint = "This is a defect of pyspark-ckpt: please report it with the message above."
