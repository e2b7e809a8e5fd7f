"""The log of a session that does not know its last group. The commit turns the log into a table file.

Spark calls a function for one group after another and does not say which is the last. Therefore a session appends the
writes of each group as a *frame*: 4 bytes of size and 8 bytes of xxh64, little-endian, then msgpack::

    {"rows": [[key, value or nil], ...], "files": ["<session>-0.sst"], "seals": {"<session>-0.sst": {...}},
     "changes": {16384: 7}, "counts": {...}, "written": 9, "group": suffix}

``rows`` are the rows of this group, in any order; the last row of a key counts. The other fields describe the whole
session up to this frame: table files with earlier rows, changes of row counts, numbers for the metrics. When a log has
grown large, its rows become a table file and the log starts again. The old frames are kept in another file until the
task ends, because a group may be called a second time.

The file begins with its own size, which is updated after each append. A log that has lost its last frames is therefore
rejected, rather than read as a shorter log. Checksums are seeded with the file's name, so that no log is read as
another session's.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import xxhash

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.json_objects import DAMAGE, Change, Count
from pyspark_ckpt.state_store.plain_files import open_plain
from pyspark_ckpt.state_store.transactions.staged_tables import Seal

LOG = ".log"
EARLIER = ".earlier"
"""Suffix of the file of frames whose rows are already in a table file."""
_HEADER = struct.Struct("<QQ")
"""The size of the file in bytes, and the checksum of the size."""
_SIZE_BYTES = 4
_FRAME_HEADER = struct.Struct("<IQ")
"""The size in bytes of the content that follows, and its checksum."""


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows of one group, and totals of the session up to it."""

    rows: list[tuple[bytes, bytes | None]]
    files: tuple[str, ...]
    changes: dict[int, Change]
    counts: dict[str, Change]
    written: Count
    group: bytes = b""
    seals: dict[str, Seal] = {}


_FRAME = msgspec.msgpack.Decoder(Frame)  # made at import, not by the first of several threads: see json_objects.decoder


class StagedLog:
    """Writes the log of one session."""

    def __init__(self, path: Path) -> None:
        """Create an empty log."""
        self._path = path
        self._file = _FrameFile(path)
        self._earlier: _FrameFile | None = None

    def append(self, frame: Frame) -> None:
        """Append a frame: a commit from now on applies it."""
        self._file.append([frame])

    def keep_apart(self, more: Iterable[Frame]) -> None:
        """Write frames whose rows are in table files to the other file: StagedGroups reads it, commits do not."""
        if self._earlier is None:
            self._earlier = _FrameFile(self._path.with_suffix(EARLIER))
        self._earlier.append(more)

    def begin_anew(self, frame: Frame) -> None:
        """Move all frames to the other file and restart the log with this one."""
        self.keep_apart(read_frames(self._path))
        self._file.begin_anew()
        self.append(frame)

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._earlier is not None:
            self._earlier.close()


class _FrameFile:
    """Writes a file of frames."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._seed = _make_seed(path)
        self._encode = msgspec.msgpack.Encoder().encode
        self.begin_anew()

    def append(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            content = self._encode(frame)
            header = _FRAME_HEADER.pack(len(content), xxhash.xxh64_intdigest(content, self._seed))
            self._write(header + content)
        self._write_header()

    def begin_anew(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._size = _HEADER.size
        self._write_header()
        self._file.seek(self._size)

    def close(self) -> None:
        self._file.close()

    def _write(self, content: bytes) -> None:
        written = self._file.write(content)
        while written < len(content):  # a nearly full disk writes a part; the next write raises
            written += self._file.write(content[written:])
        self._size += len(content)

    def _write_header(self) -> None:
        os.pwrite(self._file.fileno(), _encode_header(self._size, self._seed), 0)


def _encode_header(size_bytes: int, seed: int) -> bytes:
    return _HEADER.pack(size_bytes, xxhash.xxh64_intdigest(size_bytes.to_bytes(8, "little"), seed))


def _make_seed(path: Path) -> int:
    return xxhash.xxh64_intdigest(path.stem.encode())


def read_frames(path: Path) -> list[Frame]:
    """Return all frames of a log. Raises FormatError if the log is damaged or missing."""
    return [frame for _, frame in _read_placed_frames(path)]


class StagedGroups:
    """The rows that the sessions of a task have staged so far, by group. Only their positions are in memory."""

    def __init__(self, staging: Path) -> None:
        """Read all logs in a folder. Raises FormatError."""
        self._places: dict[bytes, list[tuple[Path, int, int]]] = {}
        for path in sorted(staging.glob(f"*{EARLIER}")) + sorted(staging.glob(f"*{LOG}")):
            for (begin, end), frame in _read_placed_frames(path):
                if frame.rows:
                    self._places.setdefault(frame.group, []).append((path, begin, end))

    def of(self, group: bytes) -> StagedRows:
        """Return the staged rows of a group."""
        return StagedRows(self._places.get(group, ()))


class StagedRows:
    """The rows of one group, oldest frame first, read from disk. The value of a deleted row is None."""

    def __init__(self, places: Sequence[tuple[Path, int, int]]) -> None:
        """Read the frames at these ``places``."""
        self._places = places
        self.size_bytes = sum(end - begin for _, begin, end in places)

    def __iter__(self) -> Iterator[list[tuple[bytes, bytes | None]]]:
        """Yield the rows of each frame; a row of a later frame replaces an earlier one. Raises FormatError."""
        for path, begin, end in self._places:
            with io.BufferedReader(open_plain(path)) as source:
                source.seek(begin)
                yield _decode(path, source.read(end - begin)).rows


def _read_placed_frames(path: Path) -> Iterator[tuple[tuple[int, int], Frame]]:
    """Yield every frame with its begin and end. Only one frame is in memory."""
    try:
        with io.BufferedReader(open_plain(path)) as source:
            at, end = _HEADER.size, os.fstat(source.fileno()).st_size
            if source.read(_HEADER.size) != _encode_header(end, _make_seed(path)):
                raise FormatError(f"{path} is damaged: its header does not match its size of {end} bytes.")
            while at < end:
                begin, header = at, source.read(_FRAME_HEADER.size)
                at += _FRAME_HEADER.size + int.from_bytes(header[:_SIZE_BYTES], "little")
                if at > end:
                    raise FormatError(f"{path} is damaged: its last frame is cut off.")
                yield (begin, at), _decode(path, header + source.read(at - begin - len(header)))
    except FileNotFoundError as problem:
        raise FormatError(f"{path} is missing, but a worker has staged it.") from problem


def _decode(path: Path, framed: bytes) -> Frame:
    """Decode a frame with its header. Raises FormatError if it is damaged."""
    content = memoryview(framed)[_FRAME_HEADER.size :]
    size, checksum = _FRAME_HEADER.unpack(framed[: _FRAME_HEADER.size].ljust(_FRAME_HEADER.size, b"\0"))
    if len(content) != size or xxhash.xxh64_intdigest(content, _make_seed(path)) != checksum:
        raise FormatError(f"{path} is damaged: the checksum of a frame is wrong.")
    try:
        return _FRAME.decode(content)
    except DAMAGE as problem:
        raise FormatError(f"{path} is damaged: {problem}.") from problem
