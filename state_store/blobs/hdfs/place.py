"""A folder of HDFS as a place for blobs, through hdfs-native, a client that needs no JVM.

A write goes to a temporary file in the same folder. The data nodes sync it to their disks, and the name node closes it.
A rename then gives it its final name. The name node renames atomically and, if told so, refuses to replace another
file. A visible name therefore has its whole content.

The bytes of an object are kept until its file is closed. If a data node or the lease is lost, they are written again,
to another file. A rename without an answer is requested again, because it can happen only once: if the temporary file
is gone, the content under the final name shows whether the rename happened. When a write is given up, its temporary
file is deleted, so that the rename can never happen later.

The client has no timeouts of its own. A call without an answer is abandoned, and its client with it.

Paths are Hadoop's: percent signs in a URI are part of the name, not escapes.
"""

from __future__ import annotations

import builtins
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from copy import copy
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import xxhash
from hdfs_native import Client, FileReader, FileStatus, WriteOptions

from pyspark_ckpt.state_store.blobs.base.patience import OutlastedError, Patience, limit
from pyspark_ckpt.state_store.blobs.base.place import Blob, Sink, check_name
from pyspark_ckpt.state_store.blobs.base.place_clock import read_shown_time
from pyspark_ckpt.state_store.blobs.base.spool import PIECE_BYTES, Spool
from pyspark_ckpt.state_store.blobs.hdfs.errors import (
    CLIENT_ERRORS,
    DataNodeError,
    fail,
    failures,
    is_refusal,
    may_pass,
    reading,
    refuse_uri,
)
from pyspark_ckpt.state_store.blobs.hdfs.silent_calls import DaemonThreads, within_try
from pyspark_ckpt.state_store.errors import ConflictError

if TYPE_CHECKING:
    from hdfs_native._internal import RawFileWriter

FIRST_LOOK_S, LAST_LOOK_S = 0.02, 0.32
"""Pauses between checks whether a file that is being closed is complete. They double from the first to the last."""

TOUCH_S = 20.0
"""How often a temporary file that is still written gets a new modification time. HDFS itself gives it none."""

CONNECT_ATTEMPTS = 0
"""How often the client itself retries a single name node that refuses. The patience of the place does that instead."""

FAILOVERS = 3
"""How often the client moves from one name node of a service to the next within a try."""

READ_BYTES = 8 << 20
"""The most that one request reads of an object."""

TIDY_S = 2.0
"""The most time for the last check of a write that was given up."""

_PATIENCE = Patience()
T = TypeVar("T")

_TEMPORARY = ".tmp"
_ACTIVE_ANSWERS = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"


class HdfsPlace:
    """A folder of HDFS. The first write creates it. Safe to use from many threads."""

    def __init__(self, uri: str, patience: Patience = _PATIENCE) -> None:
        """Use ``hdfs://host:port/path``, ``hdfs://nameservice/path``, ``hdfs:///path`` or ``viewfs://table/path``.

        All but the first are looked up in HADOOP_CONF_DIR. Makes no request. Raises InvalidInputError.
        """
        scheme, _, rest = uri.partition(":")
        authority, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
        self._service = f"{scheme.lower()}://{authority}"
        self._root = "".join(f"/{part}" for part in path.split("/") if part)
        self.patience = patience
        try:
            _client(self._service)
        except CLIENT_ERRORS as problem:
            refuse_uri(uri, problem)

    @property
    def client(self) -> Client:
        """The client. One that did not answer is replaced by another."""
        return _client(self._service)

    def waiting(self, patience: Patience) -> HdfsPlace:
        """Return the same place, which repeats its requests as ``patience`` says."""
        place = copy(self)
        place.patience = patience
        return place

    def ask(self, request: Callable[[], T]) -> T:
        """Return the answer to a request, which is repeated while its failures may pass."""
        return self.patience.repeat(self._service, request, may_pass)

    def call(self, request: Callable[[], T]) -> T:
        """Return the answer of the client within the current try. If there is none, the next try has another client."""
        try:
            return within_try(request)
        except TimeoutError:
            _client.cache_clear()
            raise

    def call_data_node(self, request: Callable[[], T]) -> T:
        """Do as ``call``, for a request to data nodes. Raises DataNodeError (they fail and the name node answers)."""
        try:
            return self.call(request)
        except OSError as problem:
            if not may_pass(problem):
                raise
            client = self.client
            try:
                self.call(lambda: client.get_file_info("/"))
            except CLIENT_ERRORS:
                raise problem from None
            raise DataNodeError(f"a data node does not answer ({problem}), while {self._service} does") from problem

    @property
    def url(self) -> str:
        """URI of the folder."""
        return f"{self._service}{self._root or '/'}"

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write a new object piece by piece; see the protocol."""
        with self._writing(name) as upload:
            yield upload
            if not upload.publish(replace=False):
                raise ConflictError(f"{self._where(name)} exists already.")

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write ``data`` unless ``name`` exists; see the protocol."""
        try:
            with self.create(name) as sink:
                sink.write(data)
        except ConflictError:
            return False
        return True

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what was there; see the protocol."""
        with self._writing(name) as upload:
            upload.write(data)
            upload.publish(replace=True)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes ``start`` to ``end`` of the object; see the protocol."""
        path = self._path(name)

        def read() -> bytes:
            source = self._open(path)
            stop = len(source) if end is None else min(end, len(source))
            return b"".join(self._read(source, at, stop) for at in range(start, stop, READ_BYTES))

        with reading(self._where(name)):
            return self.ask(read)

    def download(self, name: str, path: Path) -> int:
        """Copy the object into the new local file ``path``; see the protocol. Resumes where a data node was lost."""
        where, size = self._path(name), 0
        with reading(self._where(name)), path.open("wb", buffering=0) as target:
            source = self.ask(lambda: self._open(where))
            while size < len(source):
                piece = self.ask(partial(self._read_again, where, source, size))
                _write_all(target, piece)
                size += len(piece)
        return size

    def _open(self, path: str) -> FileReader:
        client = self.client
        return self.call(lambda: client.read(path))

    def _read(self, source: FileReader, start: int, stop: int) -> bytes:
        size = min(READ_BYTES, stop - start)
        piece = self.call_data_node(lambda: source.read_range(start, size))
        if len(piece) != size:
            raise DataNodeError(f"a data node returned {len(piece)} of {size} bytes")
        return piece

    def _read_again(self, path: str, source: FileReader, start: int) -> bytes:
        """Return a piece, read by ``source`` or, if that has lost its data nodes, by a new reader."""
        try:
            return self._read(source, start, len(source))
        except CLIENT_ERRORS as problem:
            if not may_pass(problem):
                raise
        return self._read(self._open(path), start, len(source))

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Return the objects directly in ``folder``; see the protocol."""
        lead = f"{check_name(folder)}/" if folder else ""
        found = []
        for entry in self._entries(folder):
            name = _last_part(entry)
            if not entry.isdir and name.startswith(prefix) and name >= start and not name.startswith("."):
                found.append(Blob(lead + name, entry.length, entry.modification_time / 1000))
        return sorted(found, key=lambda blob: blob.name)

    def walk(self, folder: str = "") -> builtins.list[Blob]:
        """Return all objects below ``folder``; see the protocol. Makes one request for each folder."""
        found: builtins.list[Blob] = []
        folders = [folder]
        while folders:
            here = folders.pop()
            for entry in self._entries(here):
                name = _last_part(entry)
                where = f"{here}/{name}".lstrip("/")
                if entry.isdir and not name.startswith("."):
                    folders.append(where)
                elif not name.startswith("."):
                    found.append(Blob(where, entry.length, entry.modification_time / 1000))
        return sorted(found, key=lambda blob: blob.name)

    def delete(self, name: str) -> None:
        """Remove the object; see the protocol."""
        with failures("delete", self._where(name)):
            self._delete(self._path(name))

    def remove_empty_folders(self) -> None:
        """Remove empty folders; see the protocol."""
        folders = [""]
        for here in folders:  # grows during the loop
            inside = (_last_part(entry) for entry in self._entries(here) if entry.isdir)
            folders += [f"{here}/{name}".lstrip("/") for name in inside if not name.startswith(".")]
        for folder in reversed(folders[1:]):
            with failures("delete", self._where(folder)):
                self._remove_if_empty(self._path(folder))

    def find_unfinished(self, older_than_s: float) -> builtins.list[Blob]:
        """Return temporary files of dead writers; see the protocol."""
        return self._find_unfinished(older_than_s, lambda: read_shown_time(self))

    def _find_unfinished(self, older_than_s: float, now_s: Callable[[], float]) -> builtins.list[Blob]:
        found: builtins.list[Blob] = []
        folders = [""]
        for here in folders:  # grows during the loop
            for entry in self._entries(here):
                name = _last_part(entry)
                where = f"{here}/{name}".lstrip("/")
                if entry.isdir and not name.startswith("."):
                    folders.append(where)
                elif name.startswith(".") and name.endswith(_TEMPORARY) and not entry.isdir:
                    found.append(Blob(where, entry.length, entry.modification_time / 1000))
        if not found:
            return []
        limit = now_s() - older_than_s
        return sorted((blob for blob in found if blob.modified_s <= limit), key=lambda blob: blob.name)

    def discard_unfinished(self, older_than_s: float) -> int:
        """Remove temporary files of dead writers; see the protocol."""
        count = 0
        for blob in self._find_unfinished(older_than_s, self.now_s):
            with failures("delete", self._where(blob.name)):
                count += self._delete(self._path(blob.name))
        return count

    @property
    def service(self) -> str:
        """The name node, or the name service."""
        return self._service

    def now_s(self) -> float:
        """Return the time that the name node stamps on a new file. Raises StorageError."""
        with failures("ask for the time of", self.url):
            return self.ask(lambda: self.stamp_ms(self._root)) / 1000

    def stamp_ms(self, folder: str) -> int:
        """Return the time of the name node in milliseconds, from a new file in ``folder`` that is deleted again."""
        client, path = self.client, f"{folder}/.{uuid.uuid4().hex}{_TEMPORARY}"

        def stamp() -> int:
            client.create(path).close()
            try:
                return int(client.get_file_info(path).modification_time)
            finally:
                client.delete(path)

        return self.call(stamp)

    def _remove_if_empty(self, path: str) -> None:
        try:
            self._delete(path)
        except RuntimeError as problem:
            if "PathIsNotEmptyDirectoryException" not in str(problem):
                raise

    def _delete(self, path: str) -> bool:
        def delete() -> bool:
            client = self.client
            return self.call(lambda: client.delete(path))

        return self.ask(delete)

    def _entries(self, folder: str) -> Sequence[FileStatus]:
        path = self._path(folder) if folder else self._root or "/"

        def entries() -> Sequence[FileStatus]:
            client = self.client
            return self.call(lambda: list(client.list_status(path)))

        with failures("list", f"{self.url}/{folder}".rstrip("/")):
            try:
                return self.ask(entries)
            except FileNotFoundError:
                return []

    @contextmanager
    def _writing(self, name: str) -> Iterator[_Upload]:
        upload = _Upload(self, self._path(name), self._where(name))
        try:
            upload.begin()
            yield upload
        except BaseException:
            upload.abandon()
            raise

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}"

    def _where(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"


class _Upload:
    """The sink of one object: a temporary file next to the final one."""

    def __init__(self, place: HdfsPlace, path: str, where: str) -> None:
        self._place, self._path, self._where = place, path, where
        self._spool, self._content = Spool(), xxhash.xxh3_128()
        self._temporary = ""
        self._writer: RawFileWriter | None = None
        self._sent = 0
        self._is_closed = self._is_left = False
        self._touched = time.monotonic()

    def begin(self) -> None:
        """Begin a temporary file, so that a failure that does not pass shows before anything is written."""
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
        """Discard all that was written."""
        self._spool.close()
        if not self._temporary:
            return
        with suppress(*CLIENT_ERRORS), limit(TIDY_S):  # discard_unfinished removes what is left
            self._call(lambda client: client.delete(self._temporary))

    def _begin(self) -> RawFileWriter:
        """Begin an empty file. One that an earlier try left is removed by discard_unfinished."""
        folder, _, name = self._path.rpartition("/")
        self._temporary = temporary = f"{folder}/.{name}.{uuid.uuid4().hex}{_TEMPORARY}"
        self._sent = 0
        # Not with the client's class of Python files: Python closes one when it frees it, which may take a minute.
        self._writer = writer = self._call(lambda client: client.inner.create(temporary, WriteOptions()))
        return writer

    def _send(self) -> RawFileWriter:
        """Write what the file does not have yet. Return its writer."""
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
        """Let ``publish`` write all of a file that cannot be written now."""
        try:
            with limit(self._place.patience.first_try_s):
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
        """Close the file. After return all its blocks are complete, and the name node knows that even after a restart.

        The client asks to close the file as soon as the data nodes have the last byte. The name node refuses until one
        of them has told it, which takes some milliseconds. The client then sleeps for half a second. To avoid that
        wait, another thread does the asking, and this one sees from the length when all blocks are complete. A recovery
        of the lease then only closes the file. The other thread finds the file closed and ends.
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
            fail("write", self._where, OSError("its temporary file is gone, and has not become the object"), "unknown")
        return True

    def _resolve(self, problem: Exception) -> bool:
        """Return True if a write that was given up has landed. Raises StorageError if not, or if that is unknown."""
        is_waited_for = isinstance(problem, OutlastedError) and problem.after_s > TIDY_S
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
        """Return whether the object has the content that was written here."""
        found = xxhash.xxh3_128()
        for piece in self._place.client.read(self._path):
            found.update(piece)
        return found.digest() == self._content.digest()

    def _call(self, request: Callable[[Client], T]) -> T:
        client = self._place.client
        return self._place.call(lambda: request(client))


@cache
def _client(service: str) -> Client:
    """Return the client of this process for a name node or service. It keeps its connections.

    Observer nodes may lag behind the writes of others, and a listing must not. Only the active name node is asked.
    """
    host, colon, _ = service.partition("://")[2].partition(":")
    if colon:
        return Client(f"{service}/", {"dfs.client.failover.max.attempts": str(CONNECT_ATTEMPTS)})
    settings = {
        f"dfs.client.failover.proxy.provider.{host}": _ACTIVE_ANSWERS,
        "dfs.client.failover.max.attempts": str(FAILOVERS),
    }
    return Client(f"{service}/", settings)


@cache
def _closers() -> DaemonThreads:
    return DaemonThreads("hdfs-close")


def _write_all(target: BinaryIO, data: bytes) -> None:
    view, done = memoryview(data), 0
    while done < len(view):
        done += target.write(view[done:])


def _last_part(entry: FileStatus) -> str:
    return str(entry.path).rpartition("/")[2]
