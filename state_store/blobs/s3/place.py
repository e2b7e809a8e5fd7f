"""A prefix of an S3 bucket as a place for blobs, on any service that speaks S3 and honours ``If-None-Match: *``.

An object appears whole when its request, or the request that joins its parts, has been answered. The metadata of an
object names the conditional write that made it. A write that was repeated, or whose answer was lost, reads there
whether it has landed.

Facts of the service: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

import builtins
import math
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from itertools import cycle
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from pyspark_ckpt.state_store.blobs.base.place import Blob, BlobPlace, Sink, check_name
from pyspark_ckpt.state_store.blobs.base.retries import Retries, RetriesExhaustedError
from pyspark_ckpt.state_store.blobs.s3.errors import (
    CutAnswerError,
    find_code,
    read_status,
    require_all,
    require_etag,
)
from pyspark_ckpt.state_store.blobs.s3.requests import COPIED_BYTES_PER_S, S3Requests
from pyspark_ckpt.state_store.blobs.s3.uploads import PART_BYTES, UNDER_WAY, S3Upload, transfers
from pyspark_ckpt.state_store.errors import ConflictError, StorageError

COPY_BYTES = 5 << 30
"""The largest object that the service copies in one request."""
DELETED = 204
"""The status of the answer to a delete. An answer with another status may come from elsewhere."""

_NEXT_PAGE = {
    "list_objects_v2": {"NextContinuationToken": "ContinuationToken"},
    "list_multipart_uploads": {"NextKeyMarker": "KeyMarker", "NextUploadIdMarker": "UploadIdMarker"},
    "list_parts": {"NextPartNumberMarker": "PartNumberMarker"},
}

PROBE = ".probe-"
_looking = threading.Lock()
_exclusive: dict[tuple[str, str], bool] = {}
"""By endpoint and bucket: whether the service honours the condition of a write."""


class S3Place(S3Requests, Retries):
    """A prefix of a bucket. Safe to use from many threads."""

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write a new object piece by piece; see the protocol. A small one is one request, others go in parts."""
        upload = S3Upload(self, name)
        try:
            yield upload
            landed = upload.finish()
        except BaseException as problem:
            upload.abort(is_away=isinstance(problem.__cause__, RetriesExhaustedError))
            raise
        if not landed:
            raise ConflictError(f"{self.describe(name)} already exists.")

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what was there; see the protocol."""
        key, given = self.key(name), {**self.writes, **self.sum_up(data)}

        def write() -> None:
            require_etag(self.client.put_object(Bucket=self.bucket, Key=key, Body=data, **given))

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
                list(transfers().map(fetch, range(len(data), size, PART_BYTES)))
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
        more = dict[str, Any]()

        def ask() -> Mapping[str, Any]:
            page: Mapping[str, Any] = getattr(self.client, operation)(Bucket=self.bucket, **where, **more)
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
            if read_status(answer) != DELETED and not (next(looks) and self._read_writer(name) is None):
                raise CutAnswerError(f"the answer to a delete has the status {read_status(answer)}, not {DELETED}")

        with self.failures("delete", name, "unknown"):
            self.ask(delete)

    def remove_empty_folders(self) -> None:
        """Do nothing: S3 has no folders; see the protocol."""

    def find_unfinished(self, older_than_s: float) -> builtins.list[Blob]:
        """Return the unfinished uploads that began, and got their last part, that long ago; see the protocol."""
        return [blob for blob, _ in self._list_left(older_than_s)]

    def discard_unfinished(self, older_than_s: float) -> int:
        """Abort what ``find_unfinished`` finds; see the protocol."""
        count = 0
        for blob, upload_id in self._list_left(older_than_s):
            with self.failures("clear the unfinished upload of", blob.name):
                count += self._abort(self._root + blob.name, upload_id)
        return count

    def read_shown_s(self) -> float:
        """Return the time of the service; see ``now_s``, which writes nothing."""
        return self.now_s()

    def now_s(self) -> float:
        """Return the time of the service, from its answer to a listing of one object. Raises StorageError."""
        with self.failures("ask for the time of", "."):
            answer = self.ask(lambda: self.client.list_objects_v2(Bucket=self.bucket, Prefix=self._root, MaxKeys=1))
        return self._read_time(answer)

    def _read_time(self, answer: Mapping[str, Any]) -> float:
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
        """Yield the unfinished uploads that nobody continues, and their ids."""
        with self.failures("list the unfinished uploads of", "."):
            for page in self._pages("list_multipart_uploads", Prefix=self._root):
                limit = self._read_time(page) - older_than_s
                for upload in page.get("Uploads", ()):
                    key, upload_id = upload["Key"], upload["UploadId"]
                    if upload["Initiated"].timestamp() <= limit and upload_id not in UNDER_WAY:
                        size_bytes, last_s = self._list_parts(key, upload_id)
                        if last_s <= limit:
                            began_s = max(upload["Initiated"].timestamp(), last_s)
                            yield Blob(key[len(self._root) :], size_bytes, began_s), upload_id

    def _list_parts(self, key: str, upload_id: str) -> tuple[int, float]:
        """Return the bytes of an upload's parts, and when it got the last one. An ended upload has none."""
        size_bytes, last_s = 0, -math.inf
        try:
            for page in self._pages("list_parts", Key=key, UploadId=upload_id):
                for part in page.get("Parts", ()):
                    size_bytes += int(part["Size"])
                    last_s = max(last_s, part["LastModified"].timestamp())
        except ClientError as problem:
            if find_code(problem) != "NoSuchUpload":
                raise
        return size_bytes, last_s

    def _abort(self, key: str, upload_id: str) -> bool:
        """Abort an upload. Return whether it existed."""
        try:
            target = {"Bucket": self.bucket, "Key": key, "UploadId": upload_id}
            self.ask(lambda: self.client.abort_multipart_upload(**target))
        except ClientError as problem:
            if find_code(problem) != "NoSuchUpload":  # finished or aborted meanwhile
                raise
            return False
        return True

    def _fetch(
        self, name: str, wanted: str | None, asked: float | None = None, **more: str
    ) -> tuple[bytes, Mapping[str, Any]]:
        """Return a range of an object (None: all of it) and the service's answer. Both are empty past the end."""
        ranged, key = {} if wanted is None else {"Range": wanted}, self.key(name)

        def fetch() -> tuple[bytes, Mapping[str, Any]]:
            try:
                answer = self.client.get_object(Bucket=self.bucket, Key=key, **ranged, **more)
            except ClientError as problem:
                if find_code(problem) != "InvalidRange":
                    raise
                return b"", {}
            require_etag(answer)
            with answer["Body"] as stream:
                data: bytes = stream.read()  # raises if fewer bytes come than were announced
            require_all(answer, wanted, len(data))
            return data, answer

        return self.ask(fetch, asked=asked)


def _last(end: int | None) -> str:
    """Return the last byte of a range in the form of HTTP."""
    return "" if end is None else str(end - 1)
