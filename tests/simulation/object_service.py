"""A service that speaks S3, as the client of boto3 shows it, and all that may befall a request on its way.

What happens to a request and what its caller is told are two things:

============  ================  ======================================================================
fault         told              what happens
============  ================  ======================================================================
busy          503               nothing
expired       400               nothing, as with credentials that are about to be renewed
lost_before   connection lost   nothing
lost_after    connection lost   it happens
late          connection lost   it happens within ``LATE_S``, perhaps after the caller has tried again
twice         the answer        it happens, and once more within ``LATE_S``
cut           part of the body  it happens
flipped       a changed byte    it happens
slow          the answer        it happens, and takes up to ``SLOW_S``
============  ================  ======================================================================

Left out is what no storage could be trusted with: an answer to a write that is lost later, or an incomplete listing.
"""

from __future__ import annotations

import hashlib
import io
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import formatdate
from itertools import islice
from typing import Any, NoReturn

from botocore.exceptions import ClientError, ConnectionClosedError

from tests.labs.memory_place import MemoryPlace, MemoryService, Stored
from tests.simulation.scheduler import START_S, Process, Scheduler
from tests.simulation.weather import CALM, LATE_S, SLOW_S

FLIPPED_BYTES = 600
PAGE = 20
"""Entries of one page of a listing: few, so that there are many pages."""

READ_FAULTS = ("busy", "expired", "lost_before", "slow")
BODY_FAULTS = (*READ_FAULTS, "cut", "flipped")
WRITE_FAULTS = ("busy", "expired", "lost_before", "lost_after", "late", "twice", "slow")
FAULTS = tuple(dict.fromkeys((*WRITE_FAULTS, *BODY_FAULTS)))
STORMS = ("busy", "expired", "lost_before", "lost_after", "late")
"""The faults that may meet most requests for a while."""


@dataclass(frozen=True)
class S3Object(Stored):
    """One object: it is replaced, never changed."""

    metadata: Mapping[str, str]

    @property
    def etag(self) -> str:
        """Return the tag of the content."""
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass
class Upload:
    """An upload in parts."""

    key: str
    initiated_s: float
    metadata: Mapping[str, str]
    parts: dict[int, S3Object] = field(default_factory=dict)


class ObjectService(MemoryService):
    """The buckets, which never fail. ``Client`` is the way to them. Objects are stamped to a second, as in S3."""

    def __init__(self, scheduler: Scheduler, seed: object) -> None:
        """Begin without objects."""
        super().__init__(lambda: float(int(START_S + scheduler.now_s)))
        self.scheduler = scheduler
        self.weather = CALM
        self._network = Process("network")
        self.uploads: dict[str, Upload] = {}
        self.met: Counter[str] = Counter()
        """How many requests each fault has met."""
        self.draw = random.Random(f"service {seed}")
        self.on_change: Callable[[str, str], None] = lambda _verb, _key: None
        """Called after each change of an object, with what was done and its key."""

    def place(self, url: str) -> MemoryPlace:
        """Return the objects below a URL, past any fault."""
        return super().place(url.removeprefix("s3://"))

    def read(self, key: str) -> bytes:
        """Return the content of an object."""
        return self.objects[key].data

    def unfinished(self, _url: str) -> list[str]:
        """Return the uploads, of any checkpoint, that nobody has ended."""
        return list(self.uploads)

    def put(self, key: str, data: bytes, metadata: Mapping[str, str], *, only_if_absent: bool = False) -> S3Object:
        """Write an object. Raises KeyError if it exists and must not."""
        if only_if_absent and key in self.objects:
            raise KeyError(key)
        stored = self.objects[key] = S3Object(data, self.clock(), metadata)
        self.on_change("put", key)
        return stored

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""
        if self.objects.pop(key, None) is not None:
            self.on_change("delete", key)

    def later(self, seconds: float, effect: Callable[[], object]) -> None:
        """Let a request arrive after so long, whoever sent it."""

        def arrive() -> None:
            self.scheduler.sleep(seconds)
            try:
                effect()
            except (KeyError, ClientError):  # refused: nobody is there to be told
                return

        self.scheduler.spawn(arrive, "late request", self._network)


class Client:
    """The methods of boto3's client that the engine uses."""

    def __init__(self, service: ObjectService) -> None:
        """Send requests to ``service``."""
        self._service = service

    def put_object(
        self,
        *,
        Bucket: str,
        Key: str,
        Body: bytes,
        IfNoneMatch: str = "",
        Metadata: Mapping[str, str] | None = None,
        **_: object,
    ) -> dict[str, Any]:
        """Write an object."""
        service, data, metadata = self._service, bytes(Body), dict(Metadata or {})

        def put() -> dict[str, Any]:
            try:
                stored = service.put(f"{Bucket}/{Key}", data, metadata, only_if_absent=IfNoneMatch == "*")
            except KeyError:
                _refuse("PutObject", "PreconditionFailed", 412)
            return {"ETag": stored.etag, **self._answer()}

        return self._write("PutObject", put)

    def get_object(self, *, Bucket: str, Key: str, Range: str = "", IfMatch: str = "", **_: object) -> dict[str, Any]:
        """Read an object, or a range of it."""

        def get() -> dict[str, Any]:
            stored = self._find("GetObject", f"{Bucket}/{Key}", "NoSuchKey")
            if IfMatch and IfMatch != stored.etag:
                _refuse("GetObject", "PreconditionFailed", 412)
            data, more = stored.data, {}
            if Range:
                first, _, last = Range.removeprefix("bytes=").partition("-")
                if int(first) >= len(data):
                    _refuse("GetObject", "InvalidRange", 416)
                end = min(int(last) + 1, len(data)) if last else len(data)
                more = {"ContentRange": f"bytes {first}-{end - 1}/{len(data)}"}
                data = data[int(first) : end]
            return {"ETag": stored.etag, "Body": data, **more, **self._answer({"content-length": str(len(data))})}

        # Nobody could tell that Spark's own files are damaged.
        is_sparks = any(each in Key for each in ("/commits/", "/offsets/", "/_metadata/")) or Key.endswith("/metadata")
        answer = self._request("GetObject", get, READ_FAULTS if is_sparks else BODY_FAULTS)
        answer["Body"] = _Body(answer["Body"], int(answer["ResponseMetadata"]["HTTPHeaders"]["content-length"]))
        return answer

    def head_object(self, *, Bucket: str, Key: str, **_: object) -> dict[str, Any]:
        """Describe an object."""

        def head() -> dict[str, Any]:
            stored = self._find("HeadObject", f"{Bucket}/{Key}", "404")
            return {"ETag": stored.etag, "Metadata": dict(stored.metadata), **self._answer()}

        return self._request("HeadObject", head, READ_FAULTS)

    def delete_object(self, *, Bucket: str, Key: str, **_: object) -> dict[str, Any]:
        """Delete an object."""

        def delete() -> dict[str, Any]:
            self._service.delete(f"{Bucket}/{Key}")
            return self._answer(status=204)

        return self._write("DeleteObject", delete)

    def copy_object(self, *, Bucket: str, Key: str, CopySource: Mapping[str, str], **_: object) -> dict[str, Any]:
        """Copy an object within the service."""

        def copy() -> dict[str, Any]:
            source = self._find("CopyObject", f"{CopySource['Bucket']}/{CopySource['Key']}", "NoSuchKey")
            self._service.put(f"{Bucket}/{Key}", source.data, source.metadata)
            return {"CopyObjectResult": {"ETag": source.etag}, **self._answer()}

        return self._write("CopyObject", copy)

    def list_objects_v2(
        self,
        *,
        Bucket: str,
        Prefix: str = "",
        Delimiter: str = "",
        StartAfter: str = "",
        MaxKeys: int = PAGE,
        ContinuationToken: str = "",
        **_: object,
    ) -> dict[str, Any]:
        """List a page of objects."""

        def list_them() -> dict[str, Any]:
            lead, after, size = f"{Bucket}/", ContinuationToken or StartAfter, min(MaxKeys, PAGE)
            keys = (key.removeprefix(lead) for key in self._service.keys(lead + Prefix, lead + after))
            listed = (key for key in keys if key > after and not (Delimiter and Delimiter in key[len(Prefix) :]))
            found = list(islice(listed, size + 1))
            page = found[:size]
            entries = [
                {"Key": key, "Size": len(stored.data), "LastModified": _utc(stored.modified_s)}
                for key, stored in ((key, self._service.objects[lead + key]) for key in page)
            ]
            more = {"NextContinuationToken": page[-1]} if len(found) > size else {}
            return {"Contents": entries, "IsTruncated": bool(more), **more, **self._answer()}

        return self._request("ListObjectsV2", list_them, READ_FAULTS)

    def create_multipart_upload(
        self, *, Bucket: str, Key: str, Metadata: Mapping[str, str] | None = None, **_: object
    ) -> dict[str, Any]:
        """Begin an upload in parts."""
        service = self._service

        def create() -> dict[str, Any]:
            upload_id = f"upload-{service.draw.getrandbits(64):016x}"
            service.uploads[upload_id] = Upload(f"{Bucket}/{Key}", service.clock(), dict(Metadata or {}))
            return {"UploadId": upload_id, **self._answer()}

        return self._write("CreateMultipartUpload", create)

    def upload_part(self, *, UploadId: str, PartNumber: int, Body: bytes, **_: object) -> dict[str, Any]:
        """Send a part."""
        data = bytes(Body)

        def send() -> dict[str, Any]:
            upload = self._find_upload("UploadPart", UploadId)
            part = upload.parts[PartNumber] = S3Object(data, self._service.clock(), {})
            return {"ETag": part.etag, **self._answer()}

        return self._write("UploadPart", send)

    def complete_multipart_upload(
        self, *, UploadId: str, MultipartUpload: Mapping[str, Any], IfNoneMatch: str = "", **_: object
    ) -> dict[str, Any]:
        """Make an object of the parts."""
        numbers = [part["PartNumber"] for part in MultipartUpload["Parts"]]

        def complete() -> dict[str, Any]:
            upload = self._find_upload("CompleteMultipartUpload", UploadId)
            data = b"".join(upload.parts[number].data for number in numbers)
            try:
                stored = self._service.put(upload.key, data, upload.metadata, only_if_absent=IfNoneMatch == "*")
            except KeyError:
                _refuse("CompleteMultipartUpload", "PreconditionFailed", 412)
            del self._service.uploads[UploadId]
            return {"ETag": stored.etag, **self._answer()}

        return self._write("CompleteMultipartUpload", complete)

    def abort_multipart_upload(self, *, UploadId: str, **_: object) -> dict[str, Any]:
        """Forget an upload."""

        def abort() -> dict[str, Any]:
            self._find_upload("AbortMultipartUpload", UploadId)
            del self._service.uploads[UploadId]
            return self._answer(status=204)

        return self._write("AbortMultipartUpload", abort)

    def list_multipart_uploads(self, *, Bucket: str, Prefix: str = "", **_: object) -> dict[str, Any]:
        """List the uploads that are under way."""

        def list_them() -> dict[str, Any]:
            lead = f"{Bucket}/{Prefix}"
            uploads = [
                {
                    "Key": upload.key.removeprefix(f"{Bucket}/"),
                    "UploadId": number,
                    "Initiated": _utc(upload.initiated_s),
                }
                for number, upload in self._service.uploads.items()
                if upload.key.startswith(lead)
            ]
            return {"Uploads": uploads, "IsTruncated": False, **self._answer()}

        return self._request("ListMultipartUploads", list_them, READ_FAULTS)

    def list_parts(self, *, UploadId: str, **_: object) -> dict[str, Any]:
        """List the parts of an upload."""

        def list_them() -> dict[str, Any]:
            parts = self._find_upload("ListParts", UploadId).parts.values()
            entries = [{"Size": len(part.data), "LastModified": _utc(part.modified_s)} for part in parts]
            return {"Parts": entries, "IsTruncated": False, **self._answer()}

        return self._request("ListParts", list_them, READ_FAULTS)

    # --- the way there and back ---------------------------------------------------------------------------------------

    def _write(self, operation: str, effect: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return self._request(operation, effect, WRITE_FAULTS)

    def _request(
        self, operation: str, effect: Callable[[], dict[str, Any]], possible: tuple[str, ...]
    ) -> dict[str, Any]:
        service = self._service
        draw, scheduler, weather = service.draw, service.scheduler, service.weather
        scheduler.current.process.note_request()
        kinds = [kind for kind in weather.kinds if kind in possible]
        fault = draw.choice(kinds) if kinds and draw.random() < weather.chance else ""
        if fault:
            service.met[f"{fault} {operation}"] += 1
        scheduler.sleep(draw.uniform(0, weather.latency_s))
        if fault == "busy":
            _refuse(operation, "SlowDown", 503)
        if fault == "expired":
            _refuse(operation, "ExpiredToken", 400)
        if fault == "slow":
            scheduler.sleep(draw.uniform(0, SLOW_S))
        if fault in ("late", "twice"):
            service.later(draw.uniform(0, LATE_S), effect)
        if fault in ("lost_before", "late"):
            _lose()
        answer = effect()
        scheduler.sleep(draw.uniform(0, weather.latency_s))
        if fault == "lost_after":
            _lose()
        body = answer.get("Body")
        if fault == "cut" and body:
            answer["Body"] = body[: int(draw.random() * len(body))]
        if fault == "flipped" and body:
            answer["Body"] = flip_bit(body, draw)
        return answer

    def _find(self, operation: str, key: str, code: str) -> S3Object:
        if key not in self._service.objects:
            _refuse(operation, code, 404)
        stored = self._service.objects[key]
        assert isinstance(stored, S3Object)
        return stored

    def _find_upload(self, operation: str, upload_id: str) -> Upload:
        if upload_id not in self._service.uploads:
            _refuse(operation, "NoSuchUpload", 404)
        return self._service.uploads[upload_id]

    def _answer(self, headers: Mapping[str, str] | None = None, status: int = 200) -> dict[str, Any]:
        date = formatdate(self._service.clock(), usegmt=True)
        return {"ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {"date": date, **(headers or {})}}}


def flip_bit(content: bytes, draw: random.Random) -> bytes:
    """Return bytes of which one bit has changed.

    The bit is at one distance from the beginning or the end: the table files of two runs of one seed differ in the
    middle, where RocksDB writes times and ids of its own, by some bytes.
    """
    distance = int(draw.random() * min(len(content), FLIPPED_BYTES))
    at = distance if draw.random() < 0.5 else len(content) - 1 - distance
    return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]


class _Body(io.BytesIO):
    """The body of an answer, of which a part may have been lost."""

    def __init__(self, data: bytes, announced: int) -> None:
        super().__init__(data)
        self._is_cut = len(data) < announced

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the body. Raises ConnectionClosedError if not all of it came."""
        if self._is_cut:
            _lose()
        return super().read(size)


def _refuse(operation: str, code: str, status: int) -> NoReturn:
    raise ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation)


def _lose() -> NoReturn:
    raise ConnectionClosedError(endpoint_url="https://objects.example")


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
