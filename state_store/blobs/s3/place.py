"""A prefix of an S3 bucket as a place for blobs, on any service that speaks S3 and honours ``If-None-Match: *``.

An object appears whole when its request, or the one that joins its parts, has been answered. The metadata of an object
names the conditional write that made it. A write whose answer was lost, or that was repeated, reads there whether it
has landed.

Facts of the service: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

import builtins
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import copy
from email.utils import parsedate_to_datetime
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.handlers import add_expect_header
from urllib3.util import Timeout

from pyspark_ckpt.state_store.blobs.base.patience import OutlastedError, Patience, get_left_of_try_s, limit
from pyspark_ckpt.state_store.blobs.base.place import Blob, BlobPlace, Sink, check_name
from pyspark_ckpt.state_store.blobs.s3.clients import Clients, new_session
from pyspark_ckpt.state_store.blobs.s3.errors import (
    CLIENT_ERRORS,
    EXISTS,
    MISSING,
    CutAnswerError,
    code_of,
    fail,
    may_pass,
    require_all,
    require_etag,
    status_of,
)
from pyspark_ckpt.state_store.errors import ConflictError, Outcome, StorageError
from pyspark_ckpt.state_store.s3_settings import S3Settings

PART_BYTES = 8 << 20
CONNECTIONS = 32
TRANSFERS = 8
UPLOADS = 3
"""How many parts of one object are uploaded at once. Commits need the network too."""
COPY_BYTES = 5 << 30
"""The largest object that the service copies in one request."""
COPIED_BYTES_PER_S = 20 << 20
"""The slowest rate at which a service may copy an object."""
CONNECT_S, READ_S = 10, 60
"""The longest waits for a connection and for the next bytes. The patience of the place may allow less."""
ABORT_S = 5.0
DELETED = 204
"""The status of the answer to a delete. An answer with another status may come from something else."""
WRITER = "ckpt-writer"
"""The metadata key that names the write."""

_under_way: set[str] = set()
"""Uploads in parts of this process. However slow one is, it is not abandoned."""

_NEXT_PAGE = {
    "list_objects_v2": {"NextContinuationToken": "ContinuationToken"},
    "list_multipart_uploads": {"NextKeyMarker": "KeyMarker", "NextUploadIdMarker": "UploadIdMarker"},
    "list_parts": {"NextPartNumberMarker": "PartNumberMarker"},
}
_PATIENCE = Patience()

PROBE = ".probe-"
_looking = threading.Lock()
_exclusive: dict[tuple[str, str], bool] = {}
"""By endpoint and bucket: whether the service honours the condition of a write."""

_answered: set[str] = set()
"""Services that have answered this process, so that the settings for them are right."""

T = TypeVar("T")


class S3Place:
    """A prefix of a bucket. Safe to use from many threads."""

    def __init__(
        self, bucket: str, prefix: str, settings: S3Settings, scheme: str = "s3", patience: Patience = _PATIENCE
    ) -> None:
        """Use the keys that begin with ``prefix`` and a slash; ``scheme`` is that of its URL. Makes no request."""
        self.bucket = bucket
        self.patience = patience
        self._scheme = scheme
        self._root = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.writes = settings.write_arguments()
        self.settings = settings
        self._client: Any = None

    @property
    def url(self) -> str:
        """The bucket and the prefix, as a URI that ``place_at`` accepts. Its scheme says how to reach them."""
        return f"{self._scheme}://{self.bucket}/{self._root}".rstrip("/")

    def waiting(self, patience: Patience) -> S3Place:
        """Return the same place, which repeats its requests as ``patience`` says."""
        place = copy(self)
        place.patience = patience
        return place

    @property
    def client(self) -> Any:  # noqa: ANN401 - boto3 has no types
        """The client; it may be used from many threads."""
        if self._client is None:
            self._client = _clients.get(self.settings)
        return self._client

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write a new object piece by piece; see the protocol. A small one is one request, others go in parts."""
        upload = _Upload(self, name)
        try:
            yield upload
            landed = upload.finish()
        except BaseException as problem:
            upload.abort(is_away=isinstance(problem.__cause__, OutlastedError))
            raise
        if not landed:
            raise ConflictError(f"{self._where(name)} exists already.")

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write ``data`` unless ``name`` exists; see the protocol."""
        key, writer = self.key(name), uuid.uuid4().hex

        def write() -> None:
            require_etag(
                self.client.put_object(
                    Bucket=self.bucket, Key=key, Body=data, IfNoneMatch="*", Metadata={WRITER: writer}, **self.writes
                )
            )

        return self.write_once(name, writer, write)

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what was there; see the protocol."""
        key = self.key(name)

        def write() -> None:
            require_etag(self.client.put_object(Bucket=self.bucket, Key=key, Body=data, **self.writes))

        with self.failures("write", name, "unknown"):
            self.ask(write)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes ``start`` to ``end`` of the object; see the protocol."""
        if end is not None and end <= start:
            return b""
        with self.failures("read", name):
            data, _ = self._fetch(name, None if start == 0 and end is None else f"bytes={start}-{_last(end)}")
        return data

    def download(self, name: str, path: Path) -> int:
        """Copy the object into the local file ``path``, in parallel ranges; see the protocol."""
        with self.failures("read", name), path.open("wb") as target:
            data, first = self._fetch(name, f"bytes=0-{PART_BYTES - 1}")
            target.write(data)
            size = int(first["ContentRange"].rpartition("/")[2]) if data else 0
            lock, asked = threading.Lock(), time.monotonic()

            def fetch(begin: int) -> None:
                end = min(begin + PART_BYTES, size)
                part, _ = self._fetch(name, f"bytes={begin}-{_last(end)}", asked, IfMatch=first["ETag"])
                with lock:
                    target.seek(begin)
                    target.write(part)

            if size > len(data):
                list(_transfers().map(fetch, range(len(data), size, PART_BYTES)))
            return size

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Return the objects directly in ``folder``; see the protocol. Makes one request for each thousand."""
        lead = self._root + (f"{check_name(folder)}/" if folder else "")
        where = {"Prefix": lead + prefix, "Delimiter": "/"}
        if start:  # S3 lists what follows StartAfter: use a key just before
            where["StartAfter"] = f"{lead}{start[:-1]}{chr(ord(start[-1]) - 1)}~"
        return [blob for blob in self._list(folder, where) if blob.name[len(lead) - len(self._root) :] >= start]

    def walk(self, folder: str = "") -> builtins.list[Blob]:
        """Return all objects below ``folder``; see the protocol. Makes one request for each thousand."""
        lead = self._root + (f"{check_name(folder)}/" if folder else "")
        return self._list(folder, {"Prefix": lead})

    def _list(self, folder: str, where: Mapping[str, str]) -> builtins.list[Blob]:
        found = []
        with self.failures("list", folder or "."):
            for page in self._pages("list_objects_v2", **where):
                for entry in page.get("Contents", ()):
                    name: str = entry["Key"][len(self._root) :]
                    if name and not name.endswith("/"):  # else the marker of a folder, from a console or Hadoop
                        found.append(Blob(name, int(entry["Size"]), entry["LastModified"].timestamp()))
        return sorted(found, key=lambda blob: blob.name)

    def _pages(self, operation: str, **where: str) -> Iterator[Mapping[str, Any]]:
        """Yield all pages of a listing. Each is a request of its own, so a failure does not lose earlier pages."""
        request, more = getattr(self.client, operation), dict[str, Any]()

        def ask() -> Mapping[str, Any]:
            page: Mapping[str, Any] = request(Bucket=self.bucket, **where, **more)
            if "IsTruncated" not in page:  # an answer without its body looks like an empty folder
                raise CutAnswerError("the end of a listing was lost")
            return page

        while True:
            page = self.ask(ask)
            yield page
            more = {name: page[given] for given, name in _NEXT_PAGE[operation].items() if page.get(given)}
            if not page["IsTruncated"] or not more:
                return

    def copies_from(self, source: BlobPlace) -> bool:
        """Return whether ``source`` is also a place in S3."""
        return isinstance(source, S3Place)

    def copy_from(self, source: BlobPlace, name: str, size_bytes: int, new_name: str) -> bool:
        """Have the service copy an object of ``source``. Return False if the settings differ or it is too large.

        Replaces an object ``new_name``. Raises NotFoundError, StorageError.
        """
        if not isinstance(source, S3Place) or source.settings != self.settings or size_bytes > COPY_BYTES:
            return False
        origin, key = {"Bucket": source.bucket, "Key": source.key(name)}, self.key(new_name)

        def copy_object() -> None:
            answer = self.client.copy_object(Bucket=self.bucket, Key=key, CopySource=origin, **self.writes)
            if "CopyObjectResult" not in answer:
                raise CutAnswerError("the end of the answer to a copy was lost")

        with source.failures("copy", name, "unknown"):
            self.ask(copy_object, work_s=size_bytes / COPIED_BYTES_PER_S)
        return True

    def is_exclusive(self) -> bool:
        """Return whether the service refuses a second conditional write of one name. Tried once per bucket and process.

        Raises StorageError.
        """
        known = (self.settings.endpoint, self.bucket)
        with _looking:
            if known not in _exclusive:
                _exclusive[known] = self._looks_exclusive()
            return _exclusive[known]

    def _looks_exclusive(self) -> bool:
        """Write one name twice, each time only if absent. Return whether the second write was refused."""
        name = f"{PROBE}{uuid.uuid4().hex}"
        try:
            self.put_if_absent(name, b"first")
            return not self.put_if_absent(name, b"second")
        finally:
            self.delete(name)

    def delete(self, name: str) -> None:
        """Remove the object; see the protocol."""
        key = self.key(name)

        looks = cycle((False, True))

        def delete() -> None:
            answer = self.client.delete_object(Bucket=self.bucket, Key=key)
            if status_of(answer) != DELETED and not (next(looks) and self._writer_of(name) is None):
                raise CutAnswerError(f"the answer to a delete has the status {status_of(answer)}, not {DELETED}")

        with self.failures("delete", name, "unknown"):
            self.ask(delete)

    def remove_empty_folders(self) -> None:
        """Do nothing: S3 has no folders; see the protocol."""

    def find_unfinished(self, older_than_s: float) -> builtins.list[Blob]:
        """Return uploads in parts that began, and got their last part, that long ago; see the protocol."""
        return [blob for blob, _ in self._list_left(older_than_s)]

    def discard_unfinished(self, older_than_s: float) -> int:
        """Abort what ``find_unfinished`` finds; see the protocol."""
        count = 0
        for blob, upload_id in self._list_left(older_than_s):
            with self.failures("clear the unfinished upload of", blob.name):
                count += self._abort(self._root + blob.name, upload_id)
        return count

    @property
    def service(self) -> str:
        """The endpoint and the bucket."""
        return f"{self.settings.endpoint}/{self.bucket}"

    def read_shown_s(self) -> float:
        """Return the time of the service; see ``now_s``, which writes nothing."""
        return self.now_s()

    def now_s(self) -> float:
        """Return the time of the service, from its answer to a listing of one object. Raises StorageError."""
        with self.failures("ask for the time of", "."):
            answer = self.ask(lambda: self.client.list_objects_v2(Bucket=self.bucket, Prefix=self._root, MaxKeys=1))
        return self._time_of(answer)

    def _time_of(self, answer: Mapping[str, Any]) -> float:
        """Return when the service answered: the end of the second that its answer names."""
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        try:
            return parsedate_to_datetime(date).timestamp() + 1
        except (TypeError, ValueError) as problem:
            raise StorageError(
                f"The time of {self.url} is not known: the Date header of its answer is {date!r}.",
                hint="Every HTTP service sends Date. Check what is between the executors and the service.",
            ) from problem

    def _list_left(self, older_than_s: float) -> Iterator[tuple[Blob, str]]:
        """Yield unfinished uploads that nobody continues, and their ids."""
        with self.failures("list the unfinished uploads of", "."):
            for page in self._pages("list_multipart_uploads", Prefix=self._root):
                limit = self._time_of(page) - older_than_s
                for upload in page.get("Uploads", ()):
                    key, upload_id = upload["Key"], upload["UploadId"]
                    if upload["Initiated"].timestamp() <= limit and upload_id not in _under_way:
                        size_bytes, last_s = self._parts_of(key, upload_id)
                        if last_s <= limit:
                            began_s = max(upload["Initiated"].timestamp(), last_s)
                            yield Blob(key[len(self._root) :], size_bytes, began_s), upload_id

    def _parts_of(self, key: str, upload_id: str) -> tuple[int, float]:
        """Return the bytes of the parts of an upload and when it got the last one. An upload that ended has none."""
        size_bytes, last_s = 0, -math.inf
        try:
            for page in self._pages("list_parts", Key=key, UploadId=upload_id):
                for part in page.get("Parts", ()):
                    size_bytes += int(part["Size"])
                    last_s = max(last_s, part["LastModified"].timestamp())
        except ClientError as problem:
            if code_of(problem) != "NoSuchUpload":
                raise
        return size_bytes, last_s

    def _abort(self, key: str, upload_id: str) -> bool:
        """Abort an upload. Return whether it existed."""
        try:
            target = {"Bucket": self.bucket, "Key": key, "UploadId": upload_id}
            self.ask(lambda: self.client.abort_multipart_upload(**target))
        except ClientError as problem:
            if code_of(problem) != "NoSuchUpload":  # finished or aborted meanwhile
                raise
            return False
        return True

    def write_once(self, name: str, writer: str, write: Callable[[], object], *, work_s: float = 0.0) -> bool:
        """Make the conditional write that ``writer`` names. Return whether it landed; if not, another object was first.

        A try without an answer may have landed. The object is looked for before the write is repeated, and one that
        "exists already" may come from such a try. Every second repeat skips the look, which can fail too.
        """
        looks = cycle((False, True))

        def write_or_find() -> bool:
            if next(looks) and (found := self._writer_of(name)) is not None:
                return found == writer
            try:
                write()
            except ClientError as problem:
                if code_of(problem) in EXISTS:
                    found = self._writer_of(name)
                    if found is None:
                        raise CutAnswerError("a write found an existing object, but a look did not") from problem
                    return found == writer
                if code_of(problem) != "NoSuchUpload" or self._writer_of(name) != writer:
                    raise
            return True

        try:
            return self.ask(write_or_find, work_s=work_s)
        except CLIENT_ERRORS as problem:
            outcome: Outcome = "unknown" if isinstance(problem, OutlastedError) else "not_applied"
            fail("write", self._where(name), problem, outcome)

    def _writer_of(self, name: str) -> str | None:
        """Return which write made an object. Empty if it does not say, None if there is no object."""
        try:
            found = self.client.head_object(Bucket=self.bucket, Key=self.key(name))
        except ClientError as problem:
            if code_of(problem) in MISSING:
                return None
            raise
        require_etag(found)
        return str(found.get("Metadata", {}).get(WRITER, ""))

    def _fetch(
        self, name: str, wanted: str | None, asked: float | None = None, **more: str
    ) -> tuple[bytes, Mapping[str, Any]]:
        """Return a range of an object (None: all of it) and the service's answer. Both are empty past the end."""
        ranged, key = {} if wanted is None else {"Range": wanted}, self.key(name)

        def fetch() -> tuple[bytes, Mapping[str, Any]]:
            try:
                answer = self.client.get_object(Bucket=self.bucket, Key=key, **ranged, **more)
            except ClientError as problem:
                if code_of(problem) != "InvalidRange":
                    raise
                return b"", {}
            require_etag(answer)
            with answer["Body"] as stream:
                data: bytes = stream.read()  # raises if fewer bytes come than were announced
            require_all(answer, wanted, len(data))
            return data, answer

        return self.ask(fetch, asked=asked)

    def ask(self, request: Callable[[], T], *, work_s: float = 0.0, asked: float | None = None) -> T:
        """Return the answer to a request, which is repeated while its failures may pass."""

        def passes(problem: Exception) -> bool:
            return may_pass(problem, has_answered=self.service in _answered)

        answer = self.patience.repeat(f"s3://{self.bucket}", request, passes, work_s=work_s, asked=asked)
        _answered.add(self.service)
        return answer

    def key(self, name: str) -> str:
        """Return the key of an object of the place."""
        return self._root + check_name(name)

    def _where(self, name: str) -> str:
        return f"{self.url}/{name}"

    @contextmanager
    def failures(self, verb: str, name: str, outcome: Outcome = "not_applied") -> Iterator[None]:
        """Turn errors of boto3 into those of the error tree."""
        try:
            yield
        except CLIENT_ERRORS as problem:
            fail(verb, self._where(name), problem, outcome)


class _Upload:
    """The sink of a new object. It is kept in memory while small, else sent in parts, several at once."""

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
        while self._held + len(view) > PART_BYTES:  # all parts but the last have one size: some services require it
            missing = PART_BYTES - self._held
            self._hold(view[:missing])
            view = view[missing:]
            self._send(self._take())
        self._hold(view)
        return len(data)

    def finish(self) -> bool:
        """Make the object appear. Return False if another one exists."""
        place = self._place
        if not self._upload_id:
            return place.put_if_absent(self._name, self._take())
        if self._held:
            self._send(self._take())
        with place.failures("write", self._name):
            parts = [part.result() for part in self._parts]
        work_s = len(parts) * PART_BYTES / COPIED_BYTES_PER_S  # some services copy the parts
        landed = place.write_once(self._name, self._writer, lambda: self._complete(parts), work_s=work_s)
        if landed:
            _under_way.discard(self._upload_id)
        else:
            self.abort()
        return landed

    def abort(self, *, is_away: bool = False) -> None:
        """Discard all parts. A service that is away is not asked: discard_unfinished removes what is left."""
        for part in self._parts:
            part.cancel()
        for part in self._parts:
            if not part.cancelled():
                part.exception()
        if self._upload_id and not is_away:
            with suppress(*CLIENT_ERRORS), limit(ABORT_S):
                self._place.client.abort_multipart_upload(**self._target())
        _under_way.discard(self._upload_id)

    def _hold(self, view: memoryview) -> None:
        self._pieces.append(bytes(view))
        self._held += len(view)

    def _take(self) -> bytes:
        """Return all that is held, and hold it no longer."""
        data, self._pieces, self._held = b"".join(self._pieces), [], 0
        return data

    def _send(self, data: bytes) -> None:
        place = self._place
        with place.failures("write", self._name):
            if not self._upload_id:
                self._upload_id = place.ask(self._begin)
                _under_way.add(self._upload_id)
            number = len(self._parts) + 1
            if number > UPLOADS:  # no more parts than this are in memory
                self._parts[number - UPLOADS - 1].result()
        self._parts.append(_transfers().submit(self._send_part, number, data, time.monotonic()))

    def _begin(self) -> str:
        """Begin an upload. One whose answer was lost is left to discard_unfinished."""
        place = self._place
        begun = place.client.create_multipart_upload(
            Bucket=place.bucket, Key=self._key, Metadata={WRITER: self._writer}, **place.writes
        )
        if "UploadId" not in begun:
            raise CutAnswerError("the answer to a new upload does not name it")
        return str(begun["UploadId"])

    def _send_part(self, number: int, data: bytes, asked: float) -> dict[str, Any]:
        def send() -> str:
            return require_etag(self._place.client.upload_part(**self._target(), PartNumber=number, Body=data))

        return {"PartNumber": number, "ETag": self._place.ask(send, asked=asked)}

    def _complete(self, parts: Sequence[Mapping[str, Any]]) -> None:
        answer = self._place.client.complete_multipart_upload(
            **self._target(), MultipartUpload={"Parts": parts}, IfNoneMatch="*"
        )
        require_etag(answer)

    def _target(self) -> dict[str, str]:
        return {"Bucket": self._place.bucket, "Key": self._key, "UploadId": self._upload_id}


def _new_client(settings: S3Settings) -> Any:  # noqa: ANN401 - boto3 has no types
    """Return a client for these settings. It keeps its connections."""
    config = Config(
        max_pool_connections=CONNECTIONS,
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"mode": "legacy", "total_max_attempts": 1},  # the patience of the place repeats
        s3={"addressing_style": settings.addressing},
        # Every object of ours carries its own checksums, and older services refuse newer headers.
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
    _limit_each_try(client)
    # Waiting for the service to ask for the body would make every write two round trips.
    client.meta.events.unregister("before-call.s3", add_expect_header)
    return client


_clients = Clients(_new_client)


class _TimeoutOfTry(Timeout):
    """The timeout of one request. urllib3 asks for a clone when each request begins."""

    def clone(self) -> Timeout:
        """Return what is left of the current try."""
        return Timeout(connect=get_left_of_try_s(CONNECT_S), read=get_left_of_try_s(READ_S))


def _limit_each_try(client: Any) -> None:  # noqa: ANN401 - boto3 has no types
    """Let no request outlast its try. botocore itself has timeouts for clients, not for requests."""
    session, timeout = client._endpoint.http_session, _TimeoutOfTry(connect=CONNECT_S, read=READ_S)  # noqa: SLF001
    session._timeout = session._manager.connection_pool_kw["timeout"] = timeout  # noqa: SLF001


@cache
def _transfers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(TRANSFERS, thread_name_prefix="s3")


def _last(end: int | None) -> str:
    """Return the last byte of a range in the form of HTTP."""
    return "" if end is None else str(end - 1)
