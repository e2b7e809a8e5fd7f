"""A folder of HDFS as a place for blobs, through hdfs-native, a client that needs no JVM.

A write goes to a temporary file in the same folder, which the data nodes sync to their disks and the name node closes,
and gets its final name by a rename, which the name node does as a whole and, when it is told so, not onto another file.
So a name that can be seen has its whole content.

The client does not repeat a request that changes something when the answer was lost. For the rename that is resolved
here: once the temporary file is deleted, its rename can never happen; if it is gone already, the content tells whether
it has the name.

Paths are Hadoop's: what stands in a URI is the name itself, percent signs and all.
"""

from __future__ import annotations

import builtins
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import xxhash
from hdfs_native import Client, FileReader, FileStatus

from pyspark_ckpt.state_store.blobs.hdfs_errors import CLIENT_ERRORS, fail, failures, is_refusal, reading, refuse_uri
from pyspark_ckpt.state_store.blobs.place import Blob, Sink, checked_name
from pyspark_ckpt.state_store.errors import ConflictError

FIRST_LOOK_S, LAST_LOOK_S = 0.02, 0.32
"""Pauses before a look whether a file that is being closed is complete: they double from the first to the last."""

CLOSING = 64
"""How many files this process closes at once."""

TOUCH_S = 20.0
"""A temporary file that is still written gets a new time so often: HDFS itself gives it none."""

CONNECT_ATTEMPTS = 4
"""How often a single name node that refuses is tried again, with pauses that double from a second."""

_TEMPORARY = ".tmp"
_ACTIVE_ANSWERS = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"


class HdfsPlace:
    """A folder of HDFS; it is created by the first write. Safe to use from many threads."""

    def __init__(self, uri: str) -> None:
        """Use ``hdfs://host:port/path``, ``hdfs://nameservice/path``, ``hdfs:///path`` or ``viewfs://table/path``.

        All but the first are looked up in HADOOP_CONF_DIR. Makes no request. Raises InvalidInputError.
        """
        scheme, _, rest = uri.partition(":")
        authority, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
        self._service = f"{scheme.lower()}://{authority}"
        self._root = "".join(f"/{part}" for part in path.split("/") if part)
        try:
            self.client = _client(self._service)
        except CLIENT_ERRORS as problem:
            refuse_uri(uri, problem)

    @property
    def url(self) -> str:
        """URI of the folder."""
        return f"{self._service}{self._root or '/'}"

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write a new object piece by piece; see the protocol."""
        with self._writing(name) as upload:
            yield upload
            if not upload.publish():
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
        """Bytes ``start`` to ``end`` of the object; see the protocol."""
        with self._reading(name) as source:
            stop = len(source) if end is None else min(end, len(source))
            return source.read_range(start, stop - start) if start < stop else b""

    def download(self, name: str, path: Path) -> int:
        """Copy the object into the local file ``path``; see the protocol. One stream: ranges were no faster."""
        size = 0
        with self._reading(name) as source, path.open("wb", buffering=0) as target:
            for piece in source:
                size += target.write(piece)
            if size != len(source):
                raise OSError(f"{size} of {len(source)} bytes came")
        return size

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Objects directly in ``folder``; see the protocol."""
        lead = f"{checked_name(folder)}/" if folder else ""
        found = []
        for entry in self._entries(folder):
            name = _last_part(entry)
            if not entry.isdir and name.startswith(prefix) and name >= start and not name.startswith("."):
                found.append(Blob(lead + name, entry.length, entry.modification_time / 1000))
        return sorted(found, key=lambda blob: blob.name)

    def walk(self, folder: str = "") -> builtins.list[Blob]:
        """All objects below ``folder``; see the protocol. One request for each folder."""
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
        path = self._path(name)
        with failures("delete", self._where(name)):
            self.client.delete(path)

    def remove_empty_folders(self) -> None:
        """Remove the folders in which nothing is; see the protocol."""
        folders = [""]
        for here in folders:  # which grows meanwhile
            inside = (_last_part(entry) for entry in self._entries(here) if entry.isdir)
            folders += [f"{here}/{name}".lstrip("/") for name in inside if not name.startswith(".")]
        for folder in reversed(folders[1:]):
            with failures("delete", self._where(folder)):
                self._remove_if_empty(self._path(folder))

    def unfinished(self, older_than_s: float) -> builtins.list[Blob]:
        """Temporary files of writers that died; see the protocol."""
        found: builtins.list[Blob] = []
        folders = [""]
        for here in folders:  # which grows meanwhile
            for entry in self._entries(here):
                name = _last_part(entry)
                where = f"{here}/{name}".lstrip("/")
                if entry.isdir and not name.startswith("."):
                    folders.append(where)
                elif name.startswith(".") and name.endswith(_TEMPORARY) and not entry.isdir:
                    found.append(Blob(where, entry.length, entry.modification_time / 1000))
        if not found:
            return []
        limit = self.now_s() - older_than_s
        return sorted((blob for blob in found if blob.modified_s <= limit), key=lambda blob: blob.name)

    def discard_unfinished(self, older_than_s: float) -> int:
        """Remove temporary files of writers that died; see the protocol."""
        count = 0
        for blob in self.unfinished(older_than_s):
            with failures("delete", self._where(blob.name)):
                count += self.client.delete(self._path(blob.name))
        return count

    def now_s(self) -> float:
        """The time of the name node, which stamps a new file with it. Raises StorageError."""
        with failures("ask for the time of", self.url):
            return _stamp_ms(self.client, self._root) / 1000

    def _remove_if_empty(self, path: str) -> None:
        try:
            self.client.delete(path)
        except RuntimeError as problem:
            if "PathIsNotEmptyDirectoryException" not in str(problem):
                raise

    def _entries(self, folder: str) -> Sequence[FileStatus]:
        path = self._path(folder) if folder else self._root or "/"
        with failures("list", f"{self.url}/{folder}".rstrip("/")):
            try:
                return list(self.client.list_status(path))
            except FileNotFoundError:
                return []

    @contextmanager
    def _reading(self, name: str) -> Iterator[FileReader]:
        path = self._path(name)
        with reading(self._where(name)):
            yield self.client.read(path)

    @contextmanager
    def _writing(self, name: str) -> Iterator[_Upload]:
        upload = _Upload(self.client, self._path(name), self._where(name))
        try:
            yield upload
        except BaseException:
            upload.abandon()
            raise

    def _path(self, name: str) -> str:
        return f"{self._root}/{checked_name(name)}"

    def _where(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"


class _Upload:
    """The sink of one object: a temporary file beside its final name."""

    def __init__(self, client: Client, path: str, where: str) -> None:
        self._client, self._path, self._where = client, path, where
        folder, _, name = path.rpartition("/")
        self._temporary = f"{folder}/.{name}.{uuid.uuid4().hex}{_TEMPORARY}"
        self._size, self._content = 0, xxhash.xxh3_128()
        self._touched = time.monotonic()
        with failures("write", where):
            self._writer = client.create(self._temporary)

    def write(self, data: bytes | memoryview, /) -> int:
        """Append ``data``."""
        with failures("write", self._where):
            self._writer.write(bytes(data))  # the client takes other buffers byte by byte
            if time.monotonic() - self._touched > TOUCH_S:
                now_ms = _stamp_ms(self._client, self._path.rpartition("/")[0])
                self._client.set_times(self._temporary, now_ms, now_ms)
                self._touched = time.monotonic()
        self._size += len(data)
        self._content.update(data)
        return len(data)

    def publish(self, *, replace: bool = False) -> bool:
        """Make the object durable, then let it appear; False if there is another one that is not to be replaced."""
        with failures("write", self._where):
            self._writer.hsync()
            self._close()
        try:
            self._client.rename(self._temporary, self._path, overwrite=replace)
        except CLIENT_ERRORS as problem:
            if isinstance(problem, FileExistsError) and not replace:
                return False
            if is_refusal(problem):
                fail("write", self._where, problem)
            return self._resolved(problem)
        return True

    def abandon(self) -> None:
        """Leave nothing."""
        with suppress(*CLIENT_ERRORS):  # discard_unfinished finds what is left
            self._client.delete(self._temporary)

    def _close(self) -> None:
        """Close the file: after return all its blocks are complete, and the name node says so also after a restart.

        The client asks for that as soon as the data nodes have the last byte. The name node refuses until one of them
        has told it, which takes some milliseconds, and then the client sleeps for half a second. So another thread
        does the asking, and this one sees from the length when all blocks are complete: closing the file is then
        all that a recovery of its lease does. The other thread finds the file closed, and is content.
        """
        closing = _closers().submit(self._writer.close)
        pause_s = FIRST_LOOK_S
        while not wait([closing], pause_s).done:
            if len(self._client.read(self._temporary)) == self._size and self._client.recover_lease(self._temporary):
                return
            pause_s = min(2 * pause_s, LAST_LOOK_S)
        closing.result()

    def _resolved(self, problem: Exception) -> bool:
        """Whether a rename without an answer was carried out. Raises StorageError if not, or if nobody can say."""
        try:
            was_prevented = self._client.delete(self._temporary)
            has_landed = not was_prevented and self._is_there()
        except CLIENT_ERRORS:
            fail("write", self._where, problem, "unknown")
        if not has_landed:
            fail("write", self._where, problem, "not_applied" if was_prevented else "unknown")
        return True

    def _is_there(self) -> bool:
        """Whether the object has the content that was written here."""
        found = xxhash.xxh3_128()
        for piece in self._client.read(self._path):
            found.update(piece)
        return found.digest() == self._content.digest()


@cache
def _client(service: str) -> Client:
    """The client of this process for a name node or service; it keeps its connections.

    Observer nodes may lag behind what others have written, and a listing must not: the active one answers.
    """
    host, colon, _ = service.partition("://")[2].partition(":")
    if colon:
        return Client(f"{service}/", {"dfs.client.failover.max.attempts": str(CONNECT_ATTEMPTS)})
    return Client(f"{service}/", {f"dfs.client.failover.proxy.provider.{host}": _ACTIVE_ANSWERS})


@cache
def _closers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CLOSING, thread_name_prefix="hdfs-close")


def _stamp_ms(client: Client, folder: str) -> int:
    """The time of the name node in milliseconds: that of a new file in ``folder``, which goes again."""
    path = f"{folder}/.{uuid.uuid4().hex}{_TEMPORARY}"
    client.create(path).close()
    try:
        return int(client.get_file_info(path).modification_time)
    finally:
        client.delete(path)


def _last_part(entry: FileStatus) -> str:
    return str(entry.path).rpartition("/")[2]
