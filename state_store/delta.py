"""One commit as one object: a zip of its table files, as they are, and, last, ``meta.json``, deflated.

Inside are ``0000.sst``, ``0001.sst``, ... to be ingested in this order, and ``meta.json``::

    {"format": 1, "store": {...StoreMeta...}, "rows": 12, "files": [{"name", "bytes", "sha256", "xxh3"}]}

The version marker row is in the first file. A reader checks the name against ``meta.json``, every size,
and every xxh3 (128 bits) before it uses one byte; sha256 is for whoever does not trust the store.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import msgspec
import xxhash

from pyspark_ckpt.state_store.blobs import BlobPlace, Sink
from pyspark_ckpt.state_store.errors import ConflictError, FormatError
from pyspark_ckpt.state_store.meta import FORMAT_VERSION, StoreMeta
from pyspark_ckpt.state_store.names import META_NAME, DeltaName, is_delta_file

CHUNK_BYTES = 1 << 20
IN_MEMORY_BYTES = 16 << 20
MAX_META_BYTES = 64 << 20
MAX_FILES = 10_000
RANGE_BYTES = 64 << 10


class DeltaFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"size_bytes": "bytes"}):
    """One table file inside a delta."""

    name: str
    size_bytes: int
    sha256: str
    xxh3: str


class DeltaMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``meta.json``."""

    format: int
    store: StoreMeta
    rows: int
    files: tuple[DeltaFile, ...]


@dataclass(frozen=True)
class Delta:
    """A delta that was fetched and verified: the store after it, and its table files in order."""

    store: StoreMeta
    files: list[Path]
    size_bytes: int


def write_delta(place: BlobPlace, name: DeltaName, store: StoreMeta, files: Sequence[Path]) -> int:
    """Make the commit durable as one object; returns its size in bytes.

    After return it survives the loss of this machine. Nothing is visible before. An object of this
    name is accepted if it holds the same commit: then an earlier answer was lost. Raises StorageError,
    ConflictError (another commit has this name).
    """
    counter = _Counter()
    described: list[DeltaFile] = []
    try:
        with place.create(str(name)) as sink:
            counter.target = sink
            with zipfile.ZipFile(cast("IO[bytes]", counter), "w", zipfile.ZIP_STORED) as archive:
                described.extend(_add(archive, f"{index:04d}.sst", file) for index, file in enumerate(files))
                meta = DeltaMeta(FORMAT_VERSION, store, store.rows, tuple(described))
                archive.writestr(zipfile.ZipInfo(META_NAME), msgspec.json.encode(meta), zipfile.ZIP_DEFLATED)
    except ConflictError:
        landed = _read_meta(place, name, io.BytesIO(place.get(str(name))))
        if landed.store != store or landed.files != tuple(described):
            raise
    return counter.count


def read_delta(place: BlobPlace, name: DeltaName, size_bytes: int, folder: Path) -> Delta:
    """Fetch a delta into the new local ``folder`` and verify it whole.

    Raises NotFoundError if the object is gone, FormatError that names it if it is damaged, StorageError.
    """
    folder.mkdir(parents=True)
    if size_bytes <= IN_MEMORY_BYTES:
        source: BinaryIO = io.BytesIO(place.get(str(name)))
    else:
        path = folder / "object"
        place.download(str(name), path)
        source = path.open("rb")
    with source, _naming(place, name), zipfile.ZipFile(source) as archive:
        meta = _checked_meta(archive, name)
        files = [_extract(archive, file, folder) for file in meta.files]
    return Delta(meta.store, files, size_bytes)


def read_meta(place: BlobPlace, name: DeltaName, size_bytes: int) -> StoreMeta:
    """What a delta says of its store, by a few ranges of it. Raises NotFoundError, FormatError, StorageError."""
    return _read_meta(place, name, io.BufferedReader(_Ranges(place, str(name), size_bytes), RANGE_BYTES)).store


def _add(archive: zipfile.ZipFile, name: str, file: Path) -> DeltaFile:
    sha256, xxh3, size = hashlib.sha256(), xxhash.xxh3_128(), 0
    with file.open("rb", buffering=0) as source, archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as target:
        while chunk := source.read(CHUNK_BYTES):
            sha256.update(chunk)
            xxh3.update(chunk)
            size += target.write(chunk)
    return DeltaFile(name, size, sha256.hexdigest(), xxh3.hexdigest())


def _extract(archive: zipfile.ZipFile, file: DeltaFile, folder: Path) -> Path:
    path, xxh3 = folder / file.name, xxhash.xxh3_128()
    with archive.open(file.name) as source, path.open("xb") as target:  # buffered: a write is never cut short
        while chunk := source.read(CHUNK_BYTES):
            xxh3.update(chunk)
            target.write(chunk)
    if xxh3.hexdigest() != file.xxh3:
        raise _Damage(f"the checksum of {file.name} is wrong")
    return path


def _read_meta(place: BlobPlace, name: DeltaName, source: BinaryIO) -> DeltaMeta:
    with source, _naming(place, name), zipfile.ZipFile(source) as archive:
        return _checked_meta(archive, name)


def _checked_meta(archive: zipfile.ZipFile, name: DeltaName) -> DeltaMeta:
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in archive.infolist()):
        raise _Damage("it is compressed in a way that is not allowed")
    sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    if not 0 < sizes.get(META_NAME, 0) <= MAX_META_BYTES or len(sizes) > MAX_FILES:
        raise _Damage(f"it has no usable {META_NAME}")
    content = archive.read(META_NAME)
    written_as = msgspec.json.decode(content, type=_FormatOnly).format
    if written_as != FORMAT_VERSION:
        raise _Damage(f"its format is {written_as}, this release reads {FORMAT_VERSION}")
    meta = msgspec.json.decode(content, type=DeltaMeta)
    if (meta.store.marker, meta.store.parent) != (name.commit, name.parent.id):
        raise _Damage(f"it holds {meta.store.marker} on {meta.store.parent}, not what its name says")
    if not all(is_delta_file(file.name) for file in meta.files):
        raise _Damage("it lists a file under a name that is not allowed")
    if {META_NAME: sizes[META_NAME], **{file.name: file.size_bytes for file in meta.files}} != sizes:
        raise _Damage(f"its files are not those that {META_NAME} lists")
    return meta


class _FormatOnly(msgspec.Struct):
    format: int


class _Damage(Exception):  # noqa: N818 - a fact on its way to a FormatError
    pass


class _Ranges(io.RawIOBase):
    """An object as a file to read here and there."""

    def __init__(self, place: BlobPlace, name: str, size_bytes: int) -> None:
        self._place, self._name, self._size = place, name, size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - a buffer, which has no type before Python 3.12
        data = self._place.get(self._name, self._at, min(self._at + len(buffer), self._size))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _Counter:
    """Passes bytes on and counts them; deliberately cannot seek, as a remote store cannot."""

    target: Sink

    def __init__(self) -> None:
        self.count = 0

    def write(self, data: bytes) -> int:
        self.count += len(data)
        return self.target.write(data)

    def flush(self) -> None:
        """Nothing is held back here."""


class _naming:  # noqa: N801 - used as a function
    """Turn damage found in an object into a FormatError that names the object."""

    def __init__(self, place: BlobPlace, name: DeltaName) -> None:
        self._object = f"{place.url}/{name}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        # What zipfile and zlib say of bytes that are none of theirs; places raise nothing of these kinds.
        damage = (
            _Damage,
            zipfile.BadZipFile,
            zipfile.LargeZipFile,
            zlib.error,
            msgspec.MsgspecError,
            EOFError,
            NotImplementedError,
            RuntimeError,
            ValueError,
        )
        if isinstance(problem, damage):
            raise FormatError(
                f"{self._object} is damaged: {problem}.",
                hint="Restore this file from a backup of the checkpoint, "
                "or go back to a version that does not need it.",
            ) from problem
