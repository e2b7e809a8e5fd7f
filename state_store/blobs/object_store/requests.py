"""Requests to a folder of a bucket: how they are repeated, and how a write finds out whether it has landed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import NoReturn, TypeVar

from pyspark_ckpt.state_store.blobs.base.caller import describe_caller
from pyspark_ckpt.state_store.blobs.base.clients import Client, SharedClient
from pyspark_ckpt.state_store.blobs.base.place import check_name
from pyspark_ckpt.state_store.blobs.base.retries import RetriesExhaustedError, RetryPolicy, fail_exhausted
from pyspark_ckpt.state_store.blobs.object_store.service import (
    ExistsError,
    LostUploadError,
    MissingError,
    ObjectService,
    RequestError,
)
from pyspark_ckpt.state_store.blobs.object_store.sessions import BAD_TLS
from pyspark_ckpt.state_store.errors import NotFoundError, Outcome, StorageError

_RETRIES = RetryPolicy()
_AWAY = (
    "Check that the service runs and that this host can reach it. The option placeTimeout sets how long to wait for it."
)

T = TypeVar("T")


class ObjectRequests:
    """Requests to one folder of a bucket. Safe to use from many threads."""

    def __init__(self, connect: Callable[[], SharedClient[ObjectService]], root_url: str, prefix: str) -> None:
        """Use the keys of the bucket at ``root_url`` that begin with ``prefix`` and a slash. Makes no request.

        ``connect`` is called when the first request is made.
        """
        self.retries = _RETRIES
        self.root = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._root_url = root_url
        self._client = Client(connect)
        self._has_answered = False

    @property
    def url(self) -> str:
        """The bucket and the folder, as a URI that ``place_at`` accepts."""
        return f"{self._root_url}/{self.root}".rstrip("/")

    @property
    def service(self) -> str:
        """The bucket, whose objects have one clock."""
        return self._root_url

    @property
    def bucket(self) -> ObjectService:
        """The service; usable from many threads. Raises StorageError (there are no credentials for it)."""
        if (found := self._client.get_found()) is not None:
            return found
        with self.failures("reach", "."):
            return self.retries.repeat(self._root_url, self._client.get, self._may_pass)

    def key(self, name: str) -> str:
        """Return the key of an object of the place. Raises InvalidInputError (the service cannot have it)."""
        key = self.root + check_name(name)
        self.bucket.check_key(key)
        return key

    def describe(self, name: str) -> str:
        """Return the URL of an object, or of the place itself for ".", for messages."""
        return self.url if name == "." else f"{self.url}/{name}"

    def ask(self, request: Callable[[], T], *, work_s: float = 0.0, asked: float | None = None) -> T:
        """Return the answer to a request, which is repeated while its failures may pass.

        If its credentials are refused and others exist by now, it is repeated once.
        """

        def attempt() -> T:
            return self.ask_present(request)

        answer = self.retries.repeat(self._root_url, attempt, self._may_pass, work_s=work_s, asked=asked)
        self._has_answered = True
        return answer

    def ask_present(self, request: Callable[[], T]) -> T:
        """Return the answer to a request that uses ``bucket``. Repeat it once if ``bucket`` gets other credentials."""
        return self._client.ask(self._root_url, request, _is_refused)

    @contextmanager
    def failures(self, verb: str, name: str, outcome: Outcome = "not_applied") -> Iterator[None]:
        """Turn errors of requests into those of the error tree."""
        try:
            yield
        except (RequestError, RetriesExhaustedError, OSError) as problem:
            self._fail(verb, self.describe(name), problem, outcome)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write ``data`` unless ``name`` exists; see the protocol."""
        key, writer = self.key(name), uuid.uuid4().hex
        return self.write_once(name, writer, lambda: self.bucket.put(key, data, writer))

    def write_once(self, name: str, writer: str, write: Callable[[], object]) -> bool:
        """Make the conditional write that ``writer`` names. Return whether it landed; if not, another object was first.

        A try without an answer may have landed. So the object is looked for before the write is repeated, and an
        "exists already" may come from the earlier try. Every second repeat skips the look, which can fail too.
        """
        looks, key = cycle((False, True)), self.key(name)

        def write_or_find() -> bool:
            if next(looks) and (found := self.bucket.read_writer(key)) is not None:
                return found == writer
            try:
                write()
            except (ExistsError, LostUploadError) as problem:
                found = self.bucket.read_writer(key)
                if found is None and isinstance(problem, ExistsError):
                    text = "a write found an existing object, but a look did not"
                    raise RequestError(text, may_pass=True) from problem
                if found is None:
                    raise
                return found == writer
            return True

        try:
            return self.ask(write_or_find)
        except (RequestError, RetriesExhaustedError, OSError) as problem:
            outcome: Outcome = "unknown" if isinstance(problem, RetriesExhaustedError) else "not_applied"
            self._fail("write", self.describe(name), problem, outcome)

    def _fail(self, verb: str, where: str, problem: Exception, outcome: Outcome) -> NoReturn:
        """Raise the failure of a request as an error of the tree."""
        if isinstance(problem, RetriesExhaustedError):
            hint = getattr(problem.problem, "hint", "") or _AWAY
            fail_exhausted(verb, where, problem, str(problem.problem), outcome, hint)
        if isinstance(problem, MissingError):
            raise NotFoundError(f"{where} does not exist.") from problem
        is_denied = isinstance(problem, RequestError) and problem.is_denied
        hint = getattr(problem, "hint", "") or None
        if is_denied:
            hint = f"{hint} The request was made by {describe_caller()}."
        raise StorageError(
            f"Could not {verb} {where}: {problem}", outcome=outcome, hint=hint, is_denied=is_denied
        ) from problem

    def _may_pass(self, problem: Exception) -> bool:
        """Return whether a failure may pass. One of TLS comes from a proxy in front of a service that has answered."""
        if not isinstance(problem, RequestError):
            return False
        return problem.may_pass or (problem.hint == BAD_TLS and self._has_answered)


def _is_refused(problem: Exception) -> bool:
    return isinstance(problem, RequestError) and problem.is_refused and not problem.may_pass
