"""The way to a simulated service that speaks S3, as boto3's client shows it, and what befalls requests on the way.

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
doubled       second answer     it happens twice: a conditional write meets its own object
ghost         the answer        an object is deleted, and listed for up to ``LATE_S`` all the same
cut           part of the body  it happens
flipped       a changed byte    it happens
slow          the answer        it happens, and takes up to ``SLOW_S``
============  ================  ======================================================================

A careless service ignores the condition of a write. A process that may only read is refused all else (403).

Left out is what no storage could be trusted with: an answer to a write that is lost later, or an incomplete listing.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from email.utils import formatdate
from itertools import islice
from typing import Any, NoReturn

from botocore.exceptions import ClientError, ConnectionClosedError

from tests.simulation.flipped_bits import flip_bit
from tests.simulation.object_service import ObjectService, S3Object, Upload
from tests.simulation.weather import LATE_S, SLOW_S

PAGE = 20
"""Entries of one page of a listing: few, so that there are many pages."""

REFUSALS = {"busy": ("SlowDown", 503), "expired": ("ExpiredToken", 400)}
READ_FAULTS = ("busy", "expired", "lost_before", "slow")
BODY_FAULTS = (*READ_FAULTS, "cut", "flipped")
WRITE_FAULTS = ("busy", "expired", "lost_before", "lost_after", "late", "twice", "doubled", "slow")
FAULTS = tuple(dict.fromkeys((*WRITE_FAULTS, "ghost", *BODY_FAULTS)))
STORMS = ("busy", "expired", "lost_before", "lost_after", "late")
"""The faults that may meet most requests for a while."""


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
        service, key = self._service, f"{Bucket}/{Key}"

        def delete() -> dict[str, Any]:
            service.delete(key)
            return self._answer(status=204)

        def leave_ghost() -> dict[str, Any]:
            service.leave_ghost(key, service.draw.uniform(0, LATE_S))
            return self._answer(status=204)

        return self._request("DeleteObject", delete, (*WRITE_FAULTS, "ghost"), leave_ghost)

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
            listed = self._service.list_after(lead + Prefix, lead + after)
            keys = ((key.removeprefix(lead), stored) for key, stored in listed)
            here = (
                each for each in keys if each[0] > after and not (Delimiter and Delimiter in each[0][len(Prefix) :])
            )
            found = list(islice(here, size + 1))
            page = found[:size]
            entries = [
                {"Key": key, "Size": len(stored.data), "LastModified": _utc(stored.modified_s)} for key, stored in page
            ]
            more = {"NextContinuationToken": page[-1][0]} if len(found) > size else {}
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
        self,
        operation: str,
        effect: Callable[[], dict[str, Any]],
        possible: tuple[str, ...],
        leave_ghost: Callable[[], dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        service = self._service
        draw, scheduler, weather = service.draw, service.scheduler, service.weather
        scheduler.current.process.note_request()
        fault = self._draw_fault(possible)
        scheduler.sleep(draw.uniform(0, weather.latency_s))
        if scheduler.current.process.only_reads and possible not in (READ_FAULTS, BODY_FAULTS):
            _refuse(operation, "AccessDenied", 403)
        if fault in REFUSALS:
            _refuse(operation, *REFUSALS[fault])
        if fault == "slow":
            scheduler.sleep(draw.uniform(0, SLOW_S))
        if fault in ("late", "twice"):
            service.later(draw.uniform(0, LATE_S), effect)
        if fault in ("lost_before", "late"):
            _lose()
        if fault == "doubled":
            effect()
        answer = leave_ghost() if fault == "ghost" and leave_ghost is not None else effect()
        scheduler.sleep(draw.uniform(0, weather.latency_s))
        if fault == "lost_after":
            _lose()
        self._damage(answer, fault)
        return answer

    def _draw_fault(self, possible: tuple[str, ...]) -> str:
        service = self._service
        kinds = [kind for kind in service.weather.kinds if kind in possible]
        if not kinds or service.draw.random() >= service.weather.chance:
            return ""
        fault = service.draw.choice(kinds)
        service.met[f"fault: {fault}"] += 1
        return fault

    def _damage(self, answer: dict[str, Any], fault: str) -> None:
        draw, body = self._service.draw, answer.get("Body")
        if fault == "cut" and body:
            answer["Body"] = body[: int(draw.random() * len(body))]
        if fault == "flipped" and body:
            answer["Body"] = flip_bit(body, draw)

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
