"""Rows that a session stages bit by bit, with no last moment of its own: a log, of which the commit makes a table file.

Spark calls a function for one group after the other and does not say which is the last. So a session
appends what each group has written as a *frame*: its size in 4 bytes, little-endian, then msgpack::

    {"rows": [[key, value or nil], ...], "files": ["<session>-0.sst"],
     "changes": {16384: 7}, "counts": {...}, "written": 9, "group": suffix}

``rows`` are this group's, in any order; a later row of a key counts. The rest is the session's until now: table files
that hold earlier rows, changes of row counts, numbers for the metrics. A log that has grown large becomes one more
table file, and begins anew; its frames are kept apart until the task ends, for a group may be called a second time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.json_objects import DAMAGE, Change, Count

LOG = ".log"
EARLIER = ".earlier"
"""What the file of frames that a table file has ends with."""
_SIZE_BYTES = 4


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one group has written, and the whole session until then."""

    rows: list[tuple[bytes, bytes | None]]
    files: tuple[str, ...]
    changes: dict[int, Change]
    counts: dict[str, Change]
    written: Count
    group: bytes = b""


_FRAME = msgspec.msgpack.Decoder(Frame)  # made here and not by the first of several threads: see json_objects.decoder


class StagedLog:
    """The log of one session, to be written."""

    def __init__(self, path: Path) -> None:
        """Begin an empty log."""
        self._path = path
        self._file = path.open("xb", buffering=0)
        self._encode = msgspec.msgpack.Encoder().encode

    def append(self, frame: Frame) -> None:
        """Add a frame: a commit from now on applies it."""
        self._file.write(self._framed(frame))

    def keep_apart(self, more: Iterable[Frame]) -> None:
        """Put ``more`` frames, which have table files, where StagedGroups finds them, and no commit looks."""
        with self._path.with_suffix(EARLIER).open("ab") as kept:
            kept.writelines(map(self._framed, more))

    def begin_anew(self, frame: Frame) -> None:
        """Keep all frames apart, and begin with this one."""
        self.keep_apart(read_frames(self._path))
        self._file.seek(0)
        self._file.truncate()
        self.append(frame)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _framed(self, frame: Frame) -> bytes:
        content = self._encode(frame)
        return len(content).to_bytes(_SIZE_BYTES, "little") + content


def read_frames(path: Path) -> list[Frame]:
    """All frames of a log. Raises FormatError for a damaged one, or if there is none."""
    return [frame for _, frame in _placed_frames(path)]


class StagedGroups:
    """What the sessions of a task have staged until now, by groups; only where it is, is kept in memory."""

    def __init__(self, staging: Path) -> None:
        """Read all logs of a folder. Raises FormatError."""
        self._places: dict[bytes, list[tuple[Path, int, int]]] = {}
        for path in sorted(staging.glob(f"*{EARLIER}")) + sorted(staging.glob(f"*{LOG}")):
            for (begin, end), frame in _placed_frames(path):
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
                yield _FRAME.decode(source.read(end - begin)).rows


def _placed_frames(path: Path) -> Iterator[tuple[tuple[int, int], Frame]]:
    """Every frame, and where it begins and ends. No more than one is in memory."""
    try:
        with path.open("rb") as source:
            at, end = 0, os.fstat(source.fileno()).st_size
            while at < end:
                begin = at + _SIZE_BYTES
                at = begin + int.from_bytes(source.read(_SIZE_BYTES), "little")
                if at > end:
                    raise FormatError(f"{path} is damaged: its last frame is cut off.")
                yield (begin, at), _FRAME.decode(source.read(at - begin))
    except FileNotFoundError as problem:
        raise FormatError(f"{path} is missing, which a worker has staged.") from problem
    except DAMAGE as problem:
        raise FormatError(f"{path} is damaged: {problem}.") from problem
