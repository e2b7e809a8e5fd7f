"""The needs of a place from a service of objects: the requests that Google Cloud Storage and Azure both have.

Each method is one request, or a few that may be repeated as a whole. Each raises RequestError, and no other error of
its client. A request ends with the current try; see ``get_left_of_try_s``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

WAIT_S = 60.0
"""The longest wait for a connection, for a body to be sent, and for the next bytes. The retry policy of the place may
allow less. There is one limit for the first two, because a socket has one time-out for them."""


class RequestError(Exception):
    """A request failed.

    ``status``: of the answer, 0 if there was none. ``code``: the service's name for the failure. ``hint``: what to do
    about it. ``may_pass``: whether the same request may succeed later without intervention. ``is_denied``: the account
    lacks a right. ``is_refused``: other credentials may be accepted.
    """

    def __init__(self, text: str, status: int = 0, code: str = "", hint: str = "", *, may_pass: bool = False) -> None:
        """Keep what is known."""
        super().__init__(text)
        self.status = status
        self.code = code
        self.hint = hint
        self.may_pass = may_pass
        self.is_denied = False
        self.is_refused = False


class MissingError(RequestError):
    """There is no such object."""


class ExistsError(RequestError):
    """The object exists, and the request required that it does not."""


class PastEndError(RequestError):
    """The range begins beyond the end of the object."""


class LostUploadError(RequestError):
    """An upload in parts has ended: it was finished, replaced by another write of the name, or has expired."""


@dataclass(frozen=True)
class Entry:
    """One object of a listing: its key, its size, and when it was written (Unix time)."""

    key: str
    size_bytes: int
    modified_s: float


@dataclass(frozen=True)
class Page:
    """A part of a listing. ``more`` is the token of the next part, empty if there is none."""

    entries: Sequence[Entry]
    more: str


@dataclass(frozen=True)
class Range:
    """Bytes of an object: its whole size, and the tag of their version."""

    data: bytes
    size_bytes: int
    tag: str


class Parts(Protocol):
    """A new object that is sent in parts. Each method may be called again after a failure."""

    def send(self, number: int, start: int, data: bytes) -> None:
        """Send the part ``number`` (from 0), which begins at byte ``start`` and is followed by others."""
        ...

    def use(self, service: ObjectService) -> None:
        """Send the rest through ``service``, the same bucket with the present credentials."""
        ...

    def finish(self, number: int, start: int, data: bytes) -> None:
        """Send the last part and let the object appear. Raises ExistsError, LostUploadError."""
        ...

    def abort(self) -> None:
        """Discard what was sent. The service itself does so after some days."""
        ...


Ask = Callable[[Callable[[], Any]], Any]
"""Returns the answer to a request, which it repeats while its failures may pass."""


class ObjectService(Protocol):
    """One bucket, or container, of a service. Safe to use from many threads."""

    parts_at_once: int
    """How many parts of one object may be sent at once."""

    @property
    def url(self) -> str:
        """The root of the bucket, without a slash at its end."""
        ...

    @property
    def options(self) -> Mapping[str, str]:
        """The options of this package with which another process reaches the bucket."""
        ...

    def check_key(self, key: str) -> None:
        """Raise InvalidInputError if the service cannot store an object under this key."""
        ...

    def put(self, key: str, data: bytes, writer: str = "") -> None:
        """Write an object. With a ``writer``, which is stored in it, only if none exists: raises ExistsError."""
        ...

    def begin(self, key: str, writer: str) -> Parts:
        """Begin a new object in parts."""
        ...

    def read_writer(self, key: str) -> str | None:
        """Return which write made an object. Empty if that is not recorded, None if there is no object."""
        ...

    def read(self, key: str, start: int, end: int, tag: str = "") -> Range:
        """Return a range; with a ``tag``, only of that version of the object. Raises MissingError, PastEndError."""
        ...

    def read_page(self, prefix: str, start: str, more: str, *, is_deep: bool) -> Page:
        """Return objects whose keys begin with ``prefix``; only those of one folder if it is not deep.

        ``start``: keys before it may be left out. No folders are returned. ``more``: the token from the page before.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete an object. Raises MissingError."""
        ...

    def copies_from(self, source: ObjectService) -> bool:
        """Return whether the service copies objects of ``source`` into this bucket."""
        ...

    def copy(self, source: ObjectService, source_key: str, key: str) -> None:
        """Copy an object, replacing what was there. Raises MissingError."""
        ...

    def remove_empty_folders(self, prefix: str, ask: Ask) -> None:
        """Remove the empty folders below ``prefix``, if the service has folders. ``ask`` repeats one request."""
        ...

    def now_s(self) -> float:
        """Return the time of the service, to a second (Unix time)."""
        ...
