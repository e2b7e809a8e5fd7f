"""A prefix of an S3 bucket as a place for blobs, on any service that speaks S3 and honours ``If-None-Match: *``.

An object appears whole when its request, or that which joins its parts, has been answered. Every object says in its
metadata which write made it: so a write whose answer was lost, or that the client has repeated, finds out whether it
was its own that landed.

Facts of the service: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

import builtins
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from socket import gethostname
from typing import Any, NoReturn

from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.handlers import add_expect_header
from urllib3.exceptions import HTTPError

from pyspark_ckpt.state_store.blobs.clients import Clients, new_session
from pyspark_ckpt.state_store.blobs.place import Blob, Sink, checked_name
from pyspark_ckpt.state_store.blobs.settings import S3Settings
from pyspark_ckpt.state_store.errors import ConflictError, NotFoundError, Outcome, StorageError

PART_BYTES = 8 << 20
CONNECTIONS = 32
TRANSFERS = 8
UPLOADS = 3
"""How many parts of one object go up at once: the network is also there for commits."""
COPY_BYTES = 5 << 30
"""What the service copies in one request."""
ATTEMPTS = 6
CONFLICT_ATTEMPTS = 8
BODY_ATTEMPTS = 4
CONNECT_S, READ_S = 10, 60
SERVER_ERROR = 500
WRITER = "ckpt-writer"
"""The key of the metadata that names the write."""

_under_way: set[str] = set()
"""Uploads in parts of this process: however slow one is, it is not left."""

_NO_ANSWER = (BotoCoreError, HTTPError)
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_EXISTS = frozenset({"PreconditionFailed", "412"})
_RACING = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
_NO_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)
_WHERE = (
    "by boto3's own chain or, for a place of s3a:, in fs.s3a.access.key and fs.s3a.secret.key. Of the classes in "
    "fs.s3a.aws.credentials.provider, only those that take these keys count here."
)
_HINTS: Mapping[str, str] = {
    "NoSuchBucket": "Create the bucket, or correct its name: buckets are never created here.",
    "AccessDenied": "Give the credentials that are used here s3:GetObject, PutObject, DeleteObject, ListBucket, "
    "AbortMultipartUpload, ListBucketMultipartUploads and ListMultipartUploadParts for this prefix.",
    "ExpiredToken": f"Renew the credentials that are found {_WHERE}",
    "InvalidAccessKeyId": f"Correct the credentials that are found {_WHERE}",
    "SignatureDoesNotMatch": f"Correct the credentials that are found {_WHERE}",
    **{each.__name__: f"Give this process, on {gethostname()}, credentials {_WHERE}" for each in _NO_CREDENTIALS},
    "NotImplemented": "The service must support conditional writes (If-None-Match: *).",
}


class S3Place:
    """A prefix of a bucket. Safe to use from many threads."""

    def __init__(self, bucket: str, prefix: str, settings: S3Settings, scheme: str = "s3") -> None:
        """Use the keys that begin with ``prefix`` and a slash; ``scheme`` is that of its URL. Makes no request."""
        self.bucket = bucket
        self._scheme = scheme
        self._root = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.writes = settings.write_arguments()
        self._settings = settings
        self._client: Any = None

    @property
    def url(self) -> str:
        """The bucket and the prefix, as a URI that ``place_at`` takes; its scheme says how to reach them."""
        return f"{self._scheme}://{self.bucket}/{self._root}".rstrip("/")

    @property
    def client(self) -> Any:  # noqa: ANN401 - boto3 has no types
        """The client; it may be used from many threads."""
        if self._client is None:
            self._client = _clients.get(self._settings)
        return self._client

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write a new object piece by piece; see the protocol. Small ones are one request, others go up in parts."""
        upload = _Upload(self, name)
        try:
            yield upload
        except BaseException:
            upload.abort()
            raise
        if not upload.finish():
            raise ConflictError(f"{self._where(name)} exists already.")

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write ``data`` unless ``name`` exists; see the protocol."""
        key, writer = self.key(name), uuid.uuid4().hex

        def write() -> None:
            self.client.put_object(
                Bucket=self.bucket, Key=key, Body=data, IfNoneMatch="*", Metadata={WRITER: writer}, **self.writes
            )

        return self.write_once(name, writer, write)

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what was there; see the protocol."""
        with self.failures("write", name, "unknown"):
            self.client.put_object(Bucket=self.bucket, Key=self.key(name), Body=data, **self.writes)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes ``start`` to ``end`` of the object; see the protocol."""
        if end is not None and end <= start:
            return b""
        with self.failures("read", name):
            data, _ = self._fetched(name, None if start == 0 and end is None else f"bytes={start}-{_last(end)}")
        return data

    def download(self, name: str, path: Path) -> int:
        """Copy the object into the local file ``path``, in parallel ranges; see the protocol."""
        with self.failures("read", name), path.open("wb") as target:
            data, first = self._fetched(name, f"bytes=0-{PART_BYTES - 1}")
            target.write(data)
            size = int(first["ContentRange"].rpartition("/")[2]) if data else 0
            lock = threading.Lock()

            def fetch(begin: int) -> None:
                end = min(begin + PART_BYTES, size)
                part, _ = self._fetched(name, f"bytes={begin}-{_last(end)}", IfMatch=first["ETag"])
                with lock:
                    target.seek(begin)
                    target.write(part)

            if size > len(data):
                list(_transfers().map(fetch, range(len(data), size, PART_BYTES)))
            return size

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Objects directly in ``folder``; see the protocol. One request for each thousand of them."""
        lead = self._root + (f"{checked_name(folder)}/" if folder else "")
        where = {"Bucket": self.bucket, "Prefix": lead + prefix, "Delimiter": "/"}
        if start:  # S3 lists what is behind StartAfter: this is a little before
            where["StartAfter"] = f"{lead}{start[:-1]}{chr(ord(start[-1]) - 1)}~"
        return [blob for blob in self._listed(folder, where) if blob.name[len(lead) - len(self._root) :] >= start]

    def walk(self, folder: str = "") -> builtins.list[Blob]:
        """All objects below ``folder``; see the protocol. One request for each thousand of them."""
        lead = self._root + (f"{checked_name(folder)}/" if folder else "")
        return self._listed(folder, {"Bucket": self.bucket, "Prefix": lead})

    def _listed(self, folder: str, where: Mapping[str, str]) -> builtins.list[Blob]:
        found = []
        with self.failures("list", folder or "."):
            for page in self.client.get_paginator("list_objects_v2").paginate(**where):
                for entry in page.get("Contents", ()):
                    name: str = entry["Key"][len(self._root) :]
                    if name and not name.endswith("/"):  # what consoles and Hadoop put for a folder
                        found.append(Blob(name, int(entry["Size"]), entry["LastModified"].timestamp()))
        return sorted(found, key=lambda blob: blob.name)

    def copy_from(self, source: S3Place, name: str, size_bytes: int, new_name: str) -> bool:
        """Have the service copy an object of ``source``; False if it is another service, or asks for parts.

        An object ``new_name`` is replaced. Raises NotFoundError, StorageError.
        """
        if source._settings != self._settings or size_bytes > COPY_BYTES:
            return False
        origin = {"Bucket": source.bucket, "Key": source.key(name)}
        with source.failures("copy", name, "unknown"):
            self.client.copy_object(Bucket=self.bucket, Key=self.key(new_name), CopySource=origin, **self.writes)
        return True

    def delete(self, name: str) -> None:
        """Remove the object; see the protocol."""
        with self.failures("delete", name):
            self.client.delete_object(Bucket=self.bucket, Key=self.key(name))

    def remove_empty_folders(self) -> None:
        """Nothing: there are no folders; see the protocol."""

    def discard_unfinished(self, older_than_s: float) -> int:
        """Abort uploads in parts that have begun, and got their last part, so long ago; see the protocol."""
        limit, count = time.time() - older_than_s, 0
        with self.failures("clear the unfinished uploads of", "."):
            pages = self.client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self.bucket, Prefix=self._root):
                for upload in page.get("Uploads", ()):
                    if upload["Initiated"].timestamp() <= limit and upload["UploadId"] not in _under_way:
                        count += self._abort_if_left(upload["Key"], upload["UploadId"], limit)
        return count

    def _abort_if_left(self, key: str, upload_id: str, limit: float) -> bool:
        """Abort an upload that got no part since ``limit``; whether it was there."""
        target = {"Bucket": self.bucket, "Key": key, "UploadId": upload_id}
        try:
            for page in self.client.get_paginator("list_parts").paginate(**target):
                if any(part["LastModified"].timestamp() > limit for part in page.get("Parts", ())):
                    return False
            self.client.abort_multipart_upload(**target)
        except ClientError as problem:
            if _code(problem) != "NoSuchUpload":  # finished or aborted meanwhile
                raise
            return False
        return True

    def write_once(self, name: str, writer: str, write: Callable[[], object]) -> bool:
        """Make the conditional write that ``writer`` names: whether it has landed, or there was another object before.

        The client repeats what failed: an object that "exists already" may be of an earlier try of this write.
        """
        for attempt in range(1, CONFLICT_ATTEMPTS + 1):
            try:
                write()
            except ClientError as problem:
                code = _code(problem)
                if code in _RACING and attempt < CONFLICT_ATTEMPTS:
                    time.sleep(0.05 * attempt)  # another conditional write of the name is under way
                    continue
                if code in _EXISTS:
                    return self._is_by(name, writer)
                if code != "NoSuchUpload" and _status(problem) < SERVER_ERROR:
                    self._fail("write", name, problem, "not_applied")
                return self._resolved(name, writer, problem)
            except _NO_CREDENTIALS as problem:
                self._fail("write", name, problem, "not_applied")
            except _NO_ANSWER as problem:
                return self._resolved(name, writer, problem)
            return True
        raise AssertionError("not reached")

    def _resolved(self, name: str, writer: str, problem: Exception) -> bool:
        """Whether a write without an answer has landed. Raises StorageError if not: it may still do so later."""
        try:
            if self._is_by(name, writer):
                return True
        except (NotFoundError, StorageError):
            pass
        return self._fail("write", name, problem, "unknown")

    def _is_by(self, name: str, writer: str) -> bool:
        with self.failures("look at", name):
            found = self.client.head_object(Bucket=self.bucket, Key=self.key(name))
        return bool(found.get("Metadata", {}).get(WRITER) == writer)

    def _fetched(self, name: str, wanted: str | None, **more: str) -> tuple[bytes, Mapping[str, Any]]:
        """A range of an object (None: all of it), and what the service says of it. Nothing if it is behind the end.

        The client repeats a request without an answer; an answer that ends too early is asked for again here.
        """
        ranged = {} if wanted is None else {"Range": wanted}
        for attempt in range(1, BODY_ATTEMPTS + 1):
            try:
                answer = self.client.get_object(Bucket=self.bucket, Key=self.key(name), **ranged, **more)
                with answer["Body"] as stream:
                    return stream.read(), answer  # fewer bytes than were announced raise
            except ClientError as problem:
                if _code(problem) != "InvalidRange":
                    raise
                return b"", {}
            except _NO_ANSWER:
                if attempt == BODY_ATTEMPTS:
                    raise
                time.sleep(0.1 * attempt)
        raise AssertionError("not reached")

    def key(self, name: str) -> str:
        """The key of an object of the place."""
        return self._root + checked_name(name)

    def _where(self, name: str) -> str:
        return f"{self.url}/{name}"

    @contextmanager
    def failures(self, verb: str, name: str, outcome: Outcome = "not_applied") -> Iterator[None]:
        """Turn what boto3 raises into the error tree."""
        try:
            yield
        except (ClientError, *_NO_ANSWER, OSError) as problem:
            self._fail(verb, name, problem, outcome)

    def _fail(self, verb: str, name: str, problem: Exception, outcome: Outcome) -> NoReturn:
        code = _code(problem)
        if code in _MISSING:
            raise NotFoundError(f"{self._where(name)} does not exist.") from problem
        raise StorageError(
            f"Could not {verb} {self._where(name)}: {problem}", outcome=outcome, hint=_HINTS.get(code)
        ) from problem


class _Upload:
    """The sink of a new object: kept in memory while it is small, else sent in parts, several at once."""

    def __init__(self, place: S3Place, name: str) -> None:
        self._place, self._name = place, name
        self._key = place.key(name)
        self._writer = uuid.uuid4().hex
        self._pieces: list[bytes] = []
        self._held = 0
        self._upload_id = ""
        self._parts: list[Future[dict[str, Any]]] = []

    def write(self, data: bytes | memoryview, /) -> int:
        """Append ``data``."""
        view = memoryview(data)
        while self._held + len(view) > PART_BYTES:  # all parts but the last have one size: some services ask for it
            missing = PART_BYTES - self._held
            self._hold(view[:missing])
            view = view[missing:]
            self._send(self._taken())
        self._hold(view)
        return len(data)

    def finish(self) -> bool:
        """Make the object appear; False if there is another one."""
        place = self._place
        if not self._upload_id:
            return place.put_if_absent(self._name, self._taken())
        try:
            if self._held:
                self._send(self._taken())
            with place.failures("write", self._name):
                parts = [part.result() for part in self._parts]
            landed = place.write_once(self._name, self._writer, lambda: self._complete(parts))
        except BaseException:
            self.abort()
            raise
        if landed:
            _under_way.discard(self._upload_id)
        else:
            self.abort()
        return landed

    def abort(self) -> None:
        """Leave nothing."""
        for part in self._parts:
            part.cancel()
        for part in self._parts:
            if not part.cancelled():
                part.exception()
        if self._upload_id:
            with suppress(ClientError, *_NO_ANSWER):  # discard_unfinished finds what is left
                self._place.client.abort_multipart_upload(**self._target())
            _under_way.discard(self._upload_id)

    def _hold(self, view: memoryview) -> None:
        self._pieces.append(bytes(view))
        self._held += len(view)

    def _taken(self) -> bytes:
        """All that is held, which is held no longer."""
        data, self._pieces, self._held = b"".join(self._pieces), [], 0
        return data

    def _send(self, data: bytes) -> None:
        place = self._place
        with place.failures("write", self._name):
            if not self._upload_id:
                begun = place.client.create_multipart_upload(
                    Bucket=place.bucket, Key=self._key, Metadata={WRITER: self._writer}, **place.writes
                )
                self._upload_id = begun["UploadId"]
                _under_way.add(self._upload_id)
            number = len(self._parts) + 1
            if number > UPLOADS:  # so many parts are in memory, no more
                self._parts[number - UPLOADS - 1].result()
        self._parts.append(_transfers().submit(self._send_part, number, data))

    def _send_part(self, number: int, data: bytes) -> dict[str, Any]:
        sent = self._place.client.upload_part(**self._target(), PartNumber=number, Body=data)
        return {"PartNumber": number, "ETag": sent["ETag"]}

    def _complete(self, parts: Sequence[Mapping[str, Any]]) -> None:
        self._place.client.complete_multipart_upload(
            **self._target(), MultipartUpload={"Parts": parts}, IfNoneMatch="*"
        )

    def _target(self) -> dict[str, str]:
        return {"Bucket": self._place.bucket, "Key": self._key, "UploadId": self._upload_id}


def _new_client(settings: S3Settings) -> Any:  # noqa: ANN401 - boto3 has no types
    """A client for these settings; it keeps its connections."""
    config = Config(
        max_pool_connections=CONNECTIONS,
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"mode": "standard", "max_attempts": ATTEMPTS},  # exponential, with jitter
        s3={"addressing_style": settings.addressing},
        # Every object of ours carries its own checksums; older services refuse newer headers.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    keys = settings.credentials
    client = new_session().client(
        "s3",
        endpoint_url=settings.endpoint or None,
        region_name=settings.region or None,
        aws_access_key_id=keys and keys.access_key,
        aws_secret_access_key=keys and keys.secret_key,
        aws_session_token=keys and keys.session_token,
        config=config,
    )
    # Waiting to be told that a body is welcome would make every write two round trips.
    client.meta.events.unregister("before-call.s3", add_expect_header)
    return client


_clients = Clients(_new_client)


@cache
def _transfers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(TRANSFERS, thread_name_prefix="s3")


def _last(end: int | None) -> str:
    """The last byte of a range, as HTTP has it."""
    return "" if end is None else str(end - 1)


def _code(problem: Exception) -> str:
    """What the service calls it, else the class of what the client has raised."""
    if isinstance(problem, ClientError):
        return str(problem.response.get("Error", {}).get("Code", ""))
    return type(problem).__name__


def _status(problem: ClientError) -> int:
    return int(problem.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
