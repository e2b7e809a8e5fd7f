"""Requests to a prefix of a bucket: how they are repeated, and how a write finds out whether it has landed."""

from __future__ import annotations

import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import md5
from itertools import cycle
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from pyspark_ckpt.state_store.blobs.base.clients import Client
from pyspark_ckpt.state_store.blobs.base.place import check_name
from pyspark_ckpt.state_store.blobs.base.retries import RetriesExhaustedError, RetryPolicy
from pyspark_ckpt.state_store.blobs.s3.clients import CLIENTS
from pyspark_ckpt.state_store.blobs.s3.errors import (
    CLIENT_ERRORS,
    EXISTS,
    MISSING,
    CutAnswerError,
    fail,
    find_code,
    is_refused,
    may_pass,
    require_etag,
)
from pyspark_ckpt.state_store.errors import Outcome
from pyspark_ckpt.state_store.s3_settings import S3Settings

COPIED_BYTES_PER_S = 20 << 20
"""The slowest rate at which a service may copy an object."""
WRITER = "ckpt-writer"
"""The metadata key that names the write."""

_RETRIES = RetryPolicy()
_answered: set[str] = set()
"""Services that have answered this process, so that the settings for them are right."""

T = TypeVar("T")


class S3Requests:
    """Requests to one prefix of a bucket. Safe to use from many threads."""

    def __init__(
        self, bucket: str, prefix: str, settings: S3Settings, scheme: str = "s3", retries: RetryPolicy = _RETRIES
    ) -> None:
        """Use the keys that begin with ``prefix`` and a slash, and the ``scheme`` for their URLs. Makes no request."""
        self.bucket = bucket
        self.retries = retries
        self._scheme = scheme
        self._root = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.writes = settings.write_arguments()
        self.settings = settings
        self._client: Client[Any] = Client(lambda: CLIENTS.get(settings))

    @property
    def url(self) -> str:
        """The bucket and the prefix, as a URI that ``place_at`` accepts. Its scheme says how to reach them."""
        return f"{self._scheme}://{self.bucket}/{self._root}".rstrip("/")

    @property
    def client(self) -> Any:  # noqa: ANN401 - boto3 has no types
        """The client; usable from many threads."""
        return self._client.get()

    @property
    def service(self) -> str:
        """The endpoint and the bucket."""
        return f"{self.settings.endpoint}/{self.bucket}"

    @property
    def options(self) -> dict[str, str]:
        """The options that reach the place; see ``IsReachedByOptions``."""
        return self.settings.list_options()

    def key(self, name: str) -> str:
        """Return the key of an object of the place."""
        return self._root + check_name(name)

    def sum_up(self, data: bytes) -> dict[str, str]:
        """Return the checksum of ``data`` as an argument of its write."""
        if self.settings.checksums == "none":
            return {}
        return {"ContentMD5": b64encode(md5(data, usedforsecurity=False).digest()).decode()}

    def ask(self, request: Callable[[], T], *, work_s: float = 0.0, asked: float | None = None) -> T:
        """Return the answer to a request, which is repeated while its failures may pass.

        If its credentials are refused and others exist by now, it is repeated once.
        """
        name = f"s3://{self.bucket}"

        def passes(problem: Exception) -> bool:
            return may_pass(problem, has_answered=self.service in _answered)

        def attempt() -> T:
            return self._client.ask(name, request, is_refused)

        answer = self.retries.repeat(name, attempt, passes, work_s=work_s, asked=asked)
        _answered.add(self.service)
        return answer

    @contextmanager
    def failures(self, verb: str, name: str, outcome: Outcome = "not_applied") -> Iterator[None]:
        """Turn errors of boto3 into those of the error tree."""
        try:
            yield
        except CLIENT_ERRORS as problem:
            fail(verb, self.describe(name), problem, outcome)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write ``data`` unless ``name`` exists; see the protocol."""
        key, writer = self.key(name), uuid.uuid4().hex
        given = {"IfNoneMatch": "*", "Metadata": {WRITER: writer}, **self.writes, **self.sum_up(data)}

        def write() -> None:
            require_etag(self.client.put_object(Bucket=self.bucket, Key=key, Body=data, **given))

        return self.write_once(name, writer, write)

    def write_once(self, name: str, writer: str, write: Callable[[], object], *, work_s: float = 0.0) -> bool:
        """Make the conditional write that ``writer`` names. Return whether it landed; if not, another object was first.

        A try without an answer may have landed. So the object is looked for before the write is repeated, and an
        "exists already" may come from the earlier try. Every second repeat skips the look, which can fail too.
        """
        looks = cycle((False, True))

        def write_or_find() -> bool:
            if next(looks) and (found := self._read_writer(name)) is not None:
                return found == writer
            try:
                write()
            except ClientError as problem:
                if find_code(problem) in EXISTS:
                    found = self._read_writer(name)
                    if found is None:
                        raise CutAnswerError("a write found an existing object, but a look did not") from problem
                    return found == writer
                if find_code(problem) != "NoSuchUpload" or self._read_writer(name) != writer:
                    raise
            return True

        try:
            return self.ask(write_or_find, work_s=work_s)
        except CLIENT_ERRORS as problem:
            outcome: Outcome = "unknown" if isinstance(problem, RetriesExhaustedError) else "not_applied"
            fail("write", self.describe(name), problem, outcome)

    def _read_writer(self, name: str) -> str | None:
        """Return which write made an object. Empty if that is not recorded, None if there is no object."""
        try:
            found = self.client.head_object(Bucket=self.bucket, Key=self.key(name))
        except ClientError as problem:
            if find_code(problem) in MISSING:
                return None
            raise
        require_etag(found)
        return str(found.get("Metadata", {}).get(WRITER, ""))

    def describe(self, name: str) -> str:
        """Return the URL of an object, for messages."""
        return f"{self.url}/{name}"
