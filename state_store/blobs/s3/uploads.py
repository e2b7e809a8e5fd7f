"""The sink of a new object: kept in memory while it is small, else sent in parts, several at once."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

from pyspark_ckpt.state_store.blobs.base.retries import limit
from pyspark_ckpt.state_store.blobs.s3.errors import (
    CLIENT_ERRORS,
    CutAnswerError,
    require_etag,
)
from pyspark_ckpt.state_store.blobs.s3.requests import COPIED_BYTES_PER_S, WRITER, S3Requests

PART_BYTES = 8 << 20
TRANSFERS = 8
UPLOADS = 3
"""How many parts of one object are uploaded at once. Commits need the network too."""
ABORT_S = 5.0

UNDER_WAY: set[str] = set()
"""Uploads in parts of this process. However slow one is, it is not abandoned."""


class S3Upload:
    """The sink of a new object. It is kept in memory while small, else sent in parts, several at once."""

    def __init__(self, place: S3Requests, name: str) -> None:
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
            UNDER_WAY.discard(self._upload_id)
        else:
            self.abort()
        return landed

    def abort(self, *, is_away: bool = False) -> None:
        """Discard all parts. A service that is away is not asked: discard_unfinished removes the rest."""
        for part in self._parts:
            part.cancel()
        for part in self._parts:
            if not part.cancelled():
                part.exception()
        if self._upload_id and not is_away:
            with suppress(*CLIENT_ERRORS), limit(ABORT_S):
                self._place.client.abort_multipart_upload(**self._target())
        UNDER_WAY.discard(self._upload_id)

    def _hold(self, view: memoryview) -> None:
        self._pieces.append(bytes(view))
        self._held += len(view)

    def _take(self) -> bytes:
        """Return the held bytes, and release them."""
        data, self._pieces, self._held = b"".join(self._pieces), [], 0
        return data

    def _send(self, data: bytes) -> None:
        place = self._place
        with place.failures("write", self._name):
            if not self._upload_id:
                self._upload_id = place.ask(self._begin)
                UNDER_WAY.add(self._upload_id)
            number = len(self._parts) + 1
            if number > UPLOADS:  # no more parts than this are in memory
                self._parts[number - UPLOADS - 1].result()
        self._parts.append(transfers().submit(self._send_part, number, data, time.monotonic()))

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
        given = {**self._target(), **self._place.sum_up(data)}

        def send() -> str:
            return require_etag(self._place.client.upload_part(PartNumber=number, Body=data, **given))

        return {"PartNumber": number, "ETag": self._place.ask(send, asked=asked)}

    def _complete(self, parts: Sequence[Mapping[str, Any]]) -> None:
        answer = self._place.client.complete_multipart_upload(
            **self._target(), MultipartUpload={"Parts": parts}, IfNoneMatch="*"
        )
        require_etag(answer)

    def _target(self) -> dict[str, str]:
        return {"Bucket": self._place.bucket, "Key": self._key, "UploadId": self._upload_id}


@cache
def transfers() -> ThreadPoolExecutor:
    """Return the threads of this process that send and fetch parts."""
    return ThreadPoolExecutor(TRANSFERS, thread_name_prefix="s3")


os.register_at_fork(after_in_child=transfers.cache_clear)
