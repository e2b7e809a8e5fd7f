"""The sink of a new object: kept in memory while it is small, else sent in parts."""

from __future__ import annotations

import os
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from pyspark_ckpt.state_store.blobs.base.retries import RetriesExhaustedError, limit
from pyspark_ckpt.state_store.blobs.object_store.service import Parts, RequestError

if TYPE_CHECKING:
    from pyspark_ckpt.state_store.blobs.object_store.requests import ObjectRequests

PART_BYTES = 8 << 20
"""A multiple of 256 KiB, as Google Cloud Storage wants it."""
TRANSFERS = 8
ABORT_S = 5.0


class ObjectUpload:
    """The sink of a new object. It is kept in memory while small, else sent in parts: a few are in memory."""

    def __init__(self, place: ObjectRequests, name: str) -> None:
        self._place, self._name = place, name
        self._writer = uuid.uuid4().hex
        self._pieces: list[bytes] = []
        self._held = 0
        self._start = 0
        self._parts: Parts | None = None
        self._sent: list[Future[None]] = []

    def write(self, data: bytes | memoryview, /) -> int:
        """Append ``data``."""
        view = memoryview(data)
        while self._held + len(view) > PART_BYTES:  # the last part is sent by finish, so it is never empty
            missing = PART_BYTES - self._held
            self._hold(view[:missing])
            view = view[missing:]
            self._send()
        self._hold(view)
        return len(data)

    def finish(self) -> bool:
        """Make the object appear. Return False if another one exists."""
        place, parts = self._place, self._parts
        if parts is None:
            return place.put_if_absent(self._name, self._take())
        with place.failures("write", self._name):
            for sent in self._sent:
                sent.result()
        number, start, data = len(self._sent), self._start, self._take()

        def finish() -> None:
            parts.use(place.bucket)
            parts.finish(number, start, data)

        landed = place.write_once(self._name, self._writer, finish)
        if not landed:
            self.abort()
        return landed

    def abort(self, *, is_away: bool = False) -> None:
        """Discard what was sent. A service that is away is not asked: it discards uploads after some days."""
        for sent in self._sent:
            sent.cancel()
        for sent in self._sent:
            if not sent.cancelled():
                sent.exception()
        if self._parts is not None and not is_away:
            with suppress(RequestError), limit(ABORT_S):
                self._parts.abort()

    def _hold(self, view: memoryview) -> None:
        self._pieces.append(bytes(view))
        self._held += len(view)

    def _take(self) -> bytes:
        """Return the held bytes, and release them."""
        data, self._pieces, self._held = b"".join(self._pieces), [], 0
        self._start += len(data)
        return data

    def _send(self) -> None:
        place, start = self._place, self._start
        data, number = self._take(), len(self._sent)
        with place.failures("write", self._name):
            if self._parts is None:
                self._parts = place.ask(lambda: place.bucket.begin(place.key(self._name), self._writer))
            if number >= place.bucket.parts_at_once:
                self._sent[number - place.bucket.parts_at_once].result()
        parts, asked = self._parts, time.monotonic()

        def send() -> None:
            parts.use(place.bucket)
            parts.send(number, start, data)

        self._sent.append(transfers().submit(lambda: place.ask(send, asked=asked)))


def is_away(problem: BaseException) -> bool:
    """Return whether an upload has failed because its service does not answer."""
    return isinstance(problem.__cause__, RetriesExhaustedError)


@cache
def transfers() -> ThreadPoolExecutor:
    """Return the threads of this process that send and fetch parts."""
    return ThreadPoolExecutor(TRANSFERS, thread_name_prefix="objects")


os.register_at_fork(after_in_child=transfers.cache_clear)
