"""The sink of one object: a temporary file next to the final one, which is closed, then renamed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

import xxhash
from hdfs_native import Client, WriteOptions

from pyspark_ckpt.state_store.blobs.base.retries import RetriesExhaustedError, limit
from pyspark_ckpt.state_store.blobs.base.spool import PIECE_BYTES, Spool
from pyspark_ckpt.state_store.blobs.hdfs.errors import (
    CLIENT_ERRORS,
    fail,
    failures,
    is_refusal,
    may_pass,
)
from pyspark_ckpt.state_store.blobs.hdfs.requests import TEMPORARY, HdfsRequests
from pyspark_ckpt.state_store.blobs.hdfs.silent_calls import DaemonThreads
from pyspark_ckpt.state_store.chunks import pour

if TYPE_CHECKING:
    from hdfs_native._internal import RawFileWriter

FIRST_LOOK_S, LAST_LOOK_S = 0.02, 0.32
"""Pauses between checks whether a file that is being closed is complete. They double from the first to the last."""

TOUCH_S = 20.0
"""How often a temporary file that is still being written gets a new modification time. HDFS itself gives it none."""

TIDY_S = 2.0
"""The most time for the last check of an abandoned write."""

T = TypeVar("T")


class HdfsUpload:
    """The sink of one object: a temporary file next to the final one."""

    def __init__(self, place: HdfsRequests, path: str, where: str) -> None:
        self._place, self._path, self._where = place, path, where
        self._spool, self._content = Spool(), xxhash.xxh3_128()
        self._temporary = ""
        self._writer: RawFileWriter | None = None
        self._sent = 0
        self._is_closed = self._is_left = False
        self._touched = time.monotonic()

    def begin(self) -> None:
        """Begin a temporary file, so that a lasting failure shows before anything is written."""
        with failures("write", self._where), self._leaving_what_passes():
            self._begin()

    def write(self, data: bytes | memoryview, /) -> int:
        """Append ``data``."""
        with failures("write", self._where):
            self._spool.append(data)
            if not self._is_left and self._spool.size - self._sent >= PIECE_BYTES:
                with self._leaving_what_passes():
                    self._send()
            if not self._is_left and time.monotonic() - self._touched > TOUCH_S:
                with self._leaving_what_passes():
                    self._touch()
        self._content.update(data)
        return len(data)

    def publish(self, *, replace: bool) -> bool:
        """Make the object durable, then let it appear. Return False if another exists and ``replace`` is False."""
        try:
            return self._place.ask(lambda: self._publish(replace=replace))
        except CLIENT_ERRORS as problem:
            if is_refusal(problem):
                fail("write", self._where, problem)
            return self._resolve(problem)
        finally:
            self._spool.close()

    def abandon(self) -> None:
        """Discard everything written."""
        self._spool.close()
        if not self._temporary:
            return
        with suppress(*CLIENT_ERRORS), limit(TIDY_S):  # discard_unfinished removes what is left
            self._call(lambda client: client.delete(self._temporary))

    def _begin(self) -> RawFileWriter:
        """Begin an empty file. discard_unfinished removes the file of an earlier try."""
        folder, _, name = self._path.rpartition("/")
        self._temporary = temporary = f"{folder}/.{name}.{uuid.uuid4().hex}{TEMPORARY}"
        self._sent = 0
        # Not with the client's class of Python files: Python closes one when it frees it, which may take a minute.
        self._writer = writer = self._call(lambda client: client.inner.create(temporary, WriteOptions()))
        return writer

    def _send(self) -> RawFileWriter:
        """Write the rest of the file. Return its writer."""
        writer = self._writer or self._begin()
        for piece in self._spool.pieces(self._sent):
            self._place.call_data_node(partial(writer.write, piece))
            self._sent += len(piece)
        return writer

    def _touch(self) -> None:
        now_ms = self._place.stamp_ms(self._path.rpartition("/")[0])
        self._call(lambda client: client.set_times(self._temporary, now_ms, now_ms))
        self._touched = time.monotonic()

    @contextmanager
    def _leaving_what_passes(self) -> Iterator[None]:
        """Tolerate failures that may pass: ``publish`` then writes the whole file."""
        try:
            with limit(self._place.retries.first_try_s):
                yield
        except CLIENT_ERRORS as problem:
            self._writer, self._is_left = None, True
            if not may_pass(problem):
                raise

    def _publish(self, *, replace: bool) -> bool:
        if not self._is_closed:
            try:
                writer = self._send()
                self._place.call_data_node(lambda: self._sync(writer))
            except CLIENT_ERRORS:
                self._writer = None
                raise
            self._is_closed = True
        try:
            self._call(lambda client: client.rename(self._temporary, self._path, overwrite=replace))
        except FileExistsError:
            if not replace and self._has_temporary():
                return False
            return self._require_landed()
        except FileNotFoundError:
            return self._require_landed()
        return True

    def _sync(self, writer: RawFileWriter) -> None:
        """Close the file. On return all its blocks are complete, and the name node knows that even after a restart.

        The client asks to close the file as soon as the data nodes have the last byte. The name node refuses until one
        of them has reported it, some milliseconds later. The client then sleeps for half a second. To avoid that wait,
        another thread does the asking, and this one sees from the length when all blocks are complete. A recovery of
        the lease then only closes the file. The other thread finds the file closed and ends.
        """
        client = self._place.client
        writer.hsync()
        closing = _closers().submit(writer.close)
        pause_s = FIRST_LOOK_S
        while not wait([closing], pause_s).done:
            is_whole = len(client.read(self._temporary)) == self._spool.size
            if is_whole and client.recover_lease(self._temporary):
                return
            pause_s = min(2 * pause_s, LAST_LOOK_S)
        closing.result()

    def _has_temporary(self) -> bool:
        try:
            self._call(lambda client: client.get_file_info(self._temporary))
        except FileNotFoundError:
            return False
        return True

    def _require_landed(self) -> bool:
        """Return True if an earlier try has renamed the temporary file, which is gone. Raises StorageError if not."""
        try:
            is_landed = self._place.call_data_node(self._is_there)
        except FileNotFoundError:
            is_landed = False
        if not is_landed:
            fail("write", self._where, OSError("its temporary file is gone, but has not become the object"), "unknown")
        return True

    def _resolve(self, problem: Exception) -> bool:
        """Return True if an abandoned write has landed. Raises StorageError if not, or if that is unknown."""
        is_waited_for = isinstance(problem, RetriesExhaustedError) and problem.after_s > TIDY_S
        try:
            with limit(TIDY_S):
                was_prevented = self._call(lambda client: client.delete(self._temporary))
                is_landed = not was_prevented and not is_waited_for and self._place.call(self._is_there)
        except CLIENT_ERRORS:
            fail("write", self._where, problem, "unknown" if self._is_closed else "not_applied")
        if not is_landed:
            fail("write", self._where, problem, "not_applied" if was_prevented else "unknown")
        return True

    def _is_there(self) -> bool:
        """Return whether the object has the content written here."""
        found = xxhash.xxh3_128()
        pour(self._place.client.read(self._path), found.update)
        return found.digest() == self._content.digest()

    def _call(self, request: Callable[[Client], T]) -> T:
        client = self._place.client
        return self._place.call(lambda: request(client))


@cache
def _closers() -> DaemonThreads:
    return DaemonThreads("hdfs-close")
