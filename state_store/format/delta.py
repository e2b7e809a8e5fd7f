"""A delta: one commit as one object, a zip of its stored table files and, last, the deflated ``meta.json``.

It has ``0000.sst``, ``0001.sst``, ..., which are ingested in this order, and ``meta.json``::

    {"format": 1, "store": {...StoreMeta...}, "rows": 12, "files": [{"name", "bytes", "sha256", "xxh3"}],
     "chain": ["<id of the version before>", "<of the one before that>", ...]}

The version marker row is in the first file. A reader checks the name against ``meta.json``, every size, and every xxh3
(128 bits) before it uses a single byte. The sha256 is for readers who do not trust the store.

Format 2 has a ``chain``, because commits are in packs that no listing of the store's folder shows: the ids of the
commits before this one, newest first, as ``packs.slots`` writes them. It may end early: the delta of its last commit
goes on.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol, cast

import msgspec
import xxhash

from pyspark_ckpt.state_store.blobs import BlobPlace, Sink
from pyspark_ckpt.state_store.blobs.base.capabilities import where_is
from pyspark_ckpt.state_store.chunks import Taker, pour, read_chunks
from pyspark_ckpt.state_store.errors import CkptError, ConflictError, FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.meta import FORMAT_VERSION, StoreMeta
from pyspark_ckpt.state_store.format.names import META_NAME, DeltaName, is_delta_file
from pyspark_ckpt.state_store.json_objects import Count, DeltaFileName, FormatOnly, Sha256, SparkId, Xxh3, decoder

CHAINED_FORMAT = 2
UNKNOWN_ID = "."
"""Stands for the id of a parent that only the delta itself says."""
IN_MEMORY_BYTES = 16 << 20
MAX_META_BYTES = 16 << 20
MAX_FILES = 9_999
MAX_DEFLATED = 1032
"""The highest compression ratio of deflate: https://zlib.net/zlib_tech.html."""
RANGE_BYTES = 64 << 10
END_BYTES = 16 << 10
LEAST_BYTES = 22
"""The size of an archive without any file."""
"""The size of the end of a delta that contains the metadata of most deltas."""


class DeltaFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"size_bytes": "bytes"}):
    """One table file inside a delta."""

    name: DeltaFileName
    size_bytes: Count
    sha256: Sha256
    xxh3: Xxh3


class DeltaMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Content of ``meta.json``."""

    format: int
    store: StoreMeta
    rows: Count
    files: tuple[DeltaFile, ...]
    chain: tuple[SparkId, ...] = ()


@dataclass(frozen=True)
class Delta:
    """A fetched and verified delta: the store after the commit, and its table files in order."""

    store: StoreMeta
    files: list[Path]
    size_bytes: int


class Readable(Protocol):
    """Objects that can be read in part, as a place has them."""

    @property
    def url(self) -> str:
        """Where they are, for messages."""
        ...

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes ``start`` to ``end`` of an object."""
        ...


class TableContent(Protocol):
    """A table file that is checked while it is read."""

    def chunks(self, commit: Marker, *, is_first: bool) -> Iterator[bytes]:
        """Yield all bytes of the file. They are valid only if this ends without an error. Raises StorageError."""


def write_delta(
    place: BlobPlace,
    name: DeltaName,
    store: StoreMeta,
    files: Sequence[Path | TableContent],
    chain: Sequence[str] = (),
) -> int:
    """Make the commit durable as one object, and return its size in bytes.

    On return, the commit survives the loss of this machine. Before that, nothing is visible. An existing object of this
    name is accepted if it holds the same commit: an earlier answer was then lost. Raises StorageError, ConflictError
    (another commit has this name), and as ``pour_delta``.
    """
    counter = _Counter()
    written: DeltaMeta | None = None
    try:
        with place.create(str(name)) as sink:
            counter.target = sink
            written = pour_delta(counter, store, files, chain)
    except ConflictError:
        found = place.get(str(name))
        if _read_meta(place, name, io.BytesIO(found), len(found)) != written:
            raise
    return counter.count


def put_delta(place: BlobPlace, name: DeltaName, content: bytes) -> None:
    """Make the bytes of a delta durable as one object, as ``write_delta`` does. Raises StorageError, ConflictError."""
    try:
        with place.create(str(name)) as sink:
            sink.write(content)
    except ConflictError:
        if place.get(str(name)) != content:
            raise


def pour_delta(
    sink: Sink, store: StoreMeta, files: Sequence[Path | TableContent], chain: Sequence[str] = ()
) -> DeltaMeta:
    """Write all bytes of a delta to ``sink``; return its metadata.

    Raises InvalidInputError (more files or metadata than a delta holds), FormatError (a staged table, which is checked
    while it is read, is not as written).
    """
    if len(files) > MAX_FILES:
        raise InvalidInputError(f"A commit can have at most {MAX_FILES} files, got {len(files)}.")
    with zipfile.ZipFile(cast("IO[bytes]", sink), "w", zipfile.ZIP_STORED) as archive:
        described = [
            _add(archive, f"{index:04d}.sst", _chunks(file, store, is_first=index == 0))
            for index, file in enumerate(files)
        ]
        version = CHAINED_FORMAT if chain else FORMAT_VERSION
        meta = DeltaMeta(version, store, store.rows, tuple(described), tuple(chain))
        content = msgspec.json.encode(meta)
        if len(content) > MAX_META_BYTES:
            raise InvalidInputError(
                f"The metadata of {len(store.states)} states takes {len(content)} bytes, "
                f"but a delta has room for {MAX_META_BYTES}."
            )
        archive.writestr(zipfile.ZipInfo(META_NAME), content, zipfile.ZIP_DEFLATED)
    return meta


def read_delta(place: BlobPlace, name: DeltaName, size_bytes: int, folder: Path) -> Delta:
    """Fetch a delta into the new local ``folder`` and verify all of it.

    Raises NotFoundError if the object is gone, FormatError that names it if it is damaged, StorageError.
    """
    folder.mkdir(mode=0o700, parents=True)
    if size_bytes <= IN_MEMORY_BYTES:
        source: BinaryIO = io.BytesIO(place.get(str(name)))
    else:
        path = folder / "object"
        place.download(str(name), path)
        source = path.open("rb")
    with source, _naming(place, name), _open(source) as archive:
        meta = _check_meta(archive, name, size_bytes)
        files = [_extract(archive, file, folder) for file in meta.files]
    (folder / "object").unlink(missing_ok=True)
    return Delta(meta.store, files, size_bytes)


def download_delta(place: BlobPlace, name: DeltaName, size_bytes: int, path: Path) -> None:
    """Fetch a delta as the file ``path`` and verify all of it. Raises what ``read_delta`` raises."""
    path.unlink(missing_ok=True)
    place.download(str(name), path)
    with path.open("rb") as source, _naming(place, name), _open(source) as archive:
        for file in _check_meta(archive, name, size_bytes).files:
            _read_entry(archive, file)


def read_meta(place: Readable, name: DeltaName, size_bytes: int) -> DeltaMeta:
    """Read a delta's metadata from its end. Raises NotFoundError, FormatError, StorageError."""
    source = io.BufferedReader(_Ranges(place, str(name), size_bytes), RANGE_BYTES)
    return _read_meta(place, name, source, size_bytes)


def _chunks(file: Path | TableContent, store: StoreMeta, *, is_first: bool) -> Iterator[bytes]:
    if not isinstance(file, Path):
        yield from file.chunks(store.marker, is_first=is_first)
        return
    with file.open("rb", buffering=0) as source:
        yield from read_chunks(source)


def _add(archive: zipfile.ZipFile, name: str, chunks: Iterator[bytes]) -> DeltaFile:
    sha256, xxh3 = hashlib.sha256(), xxhash.xxh3_128()
    with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as target:
        size = pour(chunks, sha256.update, xxh3.update, target.write)
    return DeltaFile(name, size, sha256.hexdigest(), xxh3.hexdigest())


def _extract(archive: zipfile.ZipFile, file: DeltaFile, folder: Path) -> Path:
    path = folder / file.name
    with path.open("xb") as target:  # buffered: a write is never cut short
        _read_entry(archive, file, target.write)
    return path


def _read_entry(archive: zipfile.ZipFile, file: DeltaFile, *takers: Taker) -> None:
    """Hand a file inside a delta to ``takers``. Raises _Damage at the end if its checksum is wrong."""
    xxh3 = xxhash.xxh3_128()
    with archive.open(file.name) as source:
        pour(read_chunks(source), xxh3.update, *takers)
    if xxh3.hexdigest() != file.xxh3:
        raise _Damage(f"the checksum of {file.name} is wrong")


def _read_meta(place: Readable, name: DeltaName, source: BinaryIO, size_bytes: int) -> DeltaMeta:
    with source, _naming(place, name), _open(source) as archive:
        return _check_meta(archive, name, size_bytes)


def _open(source: BinaryIO) -> zipfile.ZipFile:
    """Open a delta. Raises _Damage if it is shorter than any archive, BadZipFile if it is no archive."""
    size = source.seek(0, io.SEEK_END)
    if size < LEAST_BYTES:
        raise _Damage(f"it is too short, with {size} bytes" if size else "it is empty")
    return zipfile.ZipFile(source)


def _check_meta(archive: zipfile.ZipFile, name: DeltaName, size_bytes: int) -> DeltaMeta:
    entries = archive.infolist()
    sizes = {entry.filename: entry.file_size for entry in entries}
    if META_NAME not in sizes or len(sizes) != len(entries) or len(sizes) > MAX_FILES + 1:
        raise _Damage(f"it has no usable {META_NAME}")
    for entry in entries:
        _check_size(entry, size_bytes)
    with archive.open(META_NAME) as source:
        content = source.read(sizes[META_NAME])  # inflates no more than this, whatever is stored
        if len(content) != sizes[META_NAME] or source.read(1):
            raise _Damage(f"{META_NAME} does not have the size that it declares")
    written_as = decoder(FormatOnly).decode(content).format
    if written_as not in {FORMAT_VERSION, CHAINED_FORMAT}:
        raise _Damage(f"its format is {written_as}, but this release reads formats up to {CHAINED_FORMAT} only")
    meta = decoder(DeltaMeta).decode(content)
    if meta.store.marker != name.commit or name.parent.id not in {meta.store.parent, UNKNOWN_ID}:
        raise _Damage(f"it holds {meta.store.marker} with the parent {meta.store.parent}, but its name says otherwise")
    if meta.chain and meta.chain[0].partition("-")[0] != meta.store.parent:  # else readers look for the parent for ever
        raise _Damage(f"its chain begins with {meta.chain[0]}, but its parent is {meta.store.parent}")
    if not all(is_delta_file(file.name) for file in meta.files):
        raise _Damage("it lists a file under a name that is not allowed")
    listed = {file.name: file.size_bytes for file in meta.files}
    if len(listed) != len(meta.files) or {META_NAME: sizes[META_NAME], **listed} != sizes:
        raise _Damage(f"its files are not those that {META_NAME} lists")
    return meta


def _check_size(entry: zipfile.ZipInfo, size_bytes: int) -> None:
    """Check the declared size of an entry before any of its bytes are read. Raises _Damage.

    The entry must be stored uncompressed, or be ``meta.json`` with no more bytes than deflate can produce from it.
    """
    is_meta = entry.filename == META_NAME
    is_deflated = is_meta and entry.compress_type == zipfile.ZIP_DEFLATED
    most = min(MAX_META_BYTES, MAX_DEFLATED * entry.compress_size) if is_deflated else entry.compress_size
    known = is_deflated or (entry.compress_type == zipfile.ZIP_STORED and entry.file_size == entry.compress_size)
    if not known or entry.compress_size > size_bytes or entry.file_size > most or (is_meta and not entry.file_size):
        raise _Damage(
            f"{entry.filename[:64]!r} declares {entry.file_size} bytes, which cannot be stored in {entry.compress_size}"
        )


class _Damage(Exception):  # noqa: N818 - a fact on its way to a FormatError
    pass


class _Ranges(io.RawIOBase):
    """An object as a file with random access. Its end, where most reads are, is fetched once."""

    def __init__(self, place: Readable, name: str, size_bytes: int) -> None:
        self._place, self._name, self._size = place, name, size_bytes
        self._at, self._end_at = 0, max(0, size_bytes - END_BYTES)

    @cached_property
    def _last(self) -> bytes:
        return self._place.get(self._name, self._end_at, self._size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if at < 0:
            raise ValueError(f"the position {at} is before the beginning of the object")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - a buffer, which has no type before Python 3.12
        end = min(self._at + len(buffer), self._size)
        if self._at >= self._end_at:
            data = self._last[self._at - self._end_at : end - self._end_at]
        else:
            data = self._place.get(self._name, self._at, end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _Counter:
    """Counts the bytes that it passes on. It deliberately cannot seek, like a remote store."""

    target: Sink

    def __init__(self) -> None:
        self.count = 0

    def write(self, data: bytes | memoryview, /) -> int:
        self.count += len(data)
        return self.target.write(data)

    def flush(self) -> None:
        """Do nothing: no bytes are buffered here."""


class _naming:  # noqa: N801 - used as a function
    """Turn damage found in an object into a FormatError that names the object."""

    def __init__(self, place: Readable, name: DeltaName) -> None:
        self._object = where_is(place, str(name))

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        # The errors of zipfile, zlib and msgspec for invalid bytes. Places raise nothing of these kinds.
        damage = (
            _Damage,
            zipfile.BadZipFile,
            zipfile.LargeZipFile,
            zlib.error,
            struct.error,
            msgspec.MsgspecError,
            EOFError,
            NotImplementedError,
            OverflowError,
            RuntimeError,
            ValueError,
        )
        if isinstance(problem, damage) and not isinstance(problem, CkptError):
            raise FormatError(
                f"{self._object} is damaged: {problem}.",
                hint="Restore this file from a backup of the checkpoint, "
                "or go back to a version that does not need it.",
            ) from problem
