"""Rows that a session stages bit by bit, with no last moment of its own: a log, of which the commit makes a table file.

Spark calls a function for one group after the other and does not say which is the last. So a session
appends what each group has written as a *frame*: its size in 4 bytes and its xxh64 in 8, little-endian, then msgpack::

    {"rows": [[key, value or nil], ...], "files": ["<session>-0.sst"], "seals": {"<session>-0.sst": {...}},
     "changes": {16384: 7}, "counts": {...}, "written": 9, "group": suffix}

``rows`` are this group's, in any order; a later row of a key counts. The rest is the session's until now: table files
that hold earlier rows, changes of row counts, numbers for the metrics. A log that has grown large becomes one more
table file, and begins anew; its frames are kept apart until the task ends, for a group may be called a second time.

Before the first frame is how many bytes the file has, which is written behind each frame: a log without its last frames
is not read as a shorter one. The checksums begin with the file's name, so a log is not read as another session's.
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
"""What the file of frames that a table file has ends with."""
_HEADER = struct.Struct("<QQ")
"""How many bytes the file has, and the checksum of that."""
_SIZE_BYTES = 4
_FRAME_HEADER = struct.Struct("<IQ")
"""How many bytes a frame has behind this, and their checksum."""


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one group has written, and the whole session until then."""

    rows: list[tuple[bytes, bytes | None]]
    files: tuple[str, ...]
    changes: dict[int, Change]
    counts: dict[str, Change]
    written: Count
    group: bytes = b""
    seals: dict[str, Seal] = {}


_FRAME = msgspec.msgpack.Decoder(Frame)  # made here and not by the first of several threads: see json_objects.decoder


class StagedLog:
    """The log of one session, to be written."""

    def __init__(self, path: Path) -> None:
        """Begin an empty log."""
        self._path = path
        self._file = _FrameFile(path)
        self._earlier: _FrameFile | None = None

    def append(self, frame: Frame) -> None:
        """Add a frame: a commit from now on applies it."""
        self._file.append([frame])

    def keep_apart(self, more: Iterable[Frame]) -> None:
        """Put ``more`` frames, which have table files, where StagedGroups finds them, and no commit looks."""
        if self._earlier is None:
            self._earlier = _FrameFile(self._path.with_suffix(EARLIER))
        self._earlier.append(more)

    def begin_anew(self, frame: Frame) -> None:
        """Keep all frames apart, and begin with this one."""
        self.keep_apart(read_frames(self._path))
        self._file.begin_anew()
        self.append(frame)

    def close(self) -> None:
        """Let go of the files."""
        self._file.close()
        if self._earlier is not None:
            self._earlier.close()


class _FrameFile:
    """A file of frames, to be written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._seed = _seed_of(path)
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
        while written < len(content):  # a disk that is nearly full takes a part, and then raises
            written += self._file.write(content[written:])
        self._size += len(content)

    def _write_header(self) -> None:
        os.pwrite(self._file.fileno(), _header_of(self._size, self._seed), 0)


def _header_of(size_bytes: int, seed: int) -> bytes:
    return _HEADER.pack(size_bytes, xxhash.xxh64_intdigest(size_bytes.to_bytes(8, "little"), seed))


def _seed_of(path: Path) -> int:
    return xxhash.xxh64_intdigest(path.stem.encode())


def read_frames(path: Path) -> list[Frame]:
    """All frames of a log. Raises FormatError for a damaged one, or if there is none."""
    return [frame for _, frame in _read_placed_frames(path)]


class StagedGroups:
    """What the sessions of a task have staged until now, by groups; only where it is, is kept in memory."""

    def __init__(self, staging: Path) -> None:
        """Read all logs of a folder. Raises FormatError."""
        self._places: dict[bytes, list[tuple[Path, int, int]]] = {}
        for path in sorted(staging.glob(f"*{EARLIER}")) + sorted(staging.glob(f"*{LOG}")):
            for (begin, end), frame in _read_placed_frames(path):
                if frame.rows:
                    self._places.setdefault(frame.group, []).append((path, begin, end))

    def of(self, group: bytes) -> StagedRows:
        """What a group has staged."""
        return StagedRows(self._places.get(group, ()))


class StagedRows:
    """The rows of one group's frames, in the order of time, None for those that are deleted; read from disk."""

    def __init__(self, places: Sequence[tuple[Path, int, int]]) -> None:
        """Those that are at these ``places``."""
        self._places = places
        self.size_bytes = sum(end - begin for _, begin, end in places)

    def __iter__(self) -> Iterator[list[tuple[bytes, bytes | None]]]:
        """Rows frame by frame: those of a later one count. Raises FormatError."""
        for path, begin, end in self._places:
            with path.open("rb") as source:
                source.seek(begin)
                yield _decode(path, source.read(end - begin)).rows


def _read_placed_frames(path: Path) -> Iterator[tuple[tuple[int, int], Frame]]:
    """Every frame, and where it begins and ends. No more than one is in memory."""
    try:
        with io.BufferedReader(open_plain(path)) as source:
            at, end = _HEADER.size, os.fstat(source.fileno()).st_size
            if source.read(_HEADER.size) != _header_of(end, _seed_of(path)):
                raise FormatError(f"{path} is damaged: it does not say that it has {end} bytes.")
            while at < end:
                begin, header = at, source.read(_FRAME_HEADER.size)
                at += _FRAME_HEADER.size + int.from_bytes(header[:_SIZE_BYTES], "little")
                if at > end:
                    raise FormatError(f"{path} is damaged: its last frame is cut off.")
                yield (begin, at), _decode(path, header + source.read(at - begin - len(header)))
    except FileNotFoundError as problem:
        raise FormatError(f"{path} is missing, which a worker has staged.") from problem


def _decode(path: Path, framed: bytes) -> Frame:
    """A frame, with its header. Raises FormatError if it is not what was written."""
    content = memoryview(framed)[_FRAME_HEADER.size :]
    size, checksum = _FRAME_HEADER.unpack(framed[: _FRAME_HEADER.size].ljust(_FRAME_HEADER.size, b"\0"))
    if len(content) != size or xxhash.xxh64_intdigest(content, _seed_of(path)) != checksum:
        raise FormatError(f"{path} is damaged: the checksum of a frame is wrong.")
    try:
        return _FRAME.decode(content)
    except DAMAGE as problem:
        raise FormatError(f"{path} is damaged: {problem}.") from problem
