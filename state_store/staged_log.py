"""Rows that a session stages bit by bit, with no last moment of its own: a log, of which the commit makes a table file.

Spark calls a function for one group after the other and does not say which is the last. So a session
appends what each group has written as a *frame*: its size in 4 bytes, little-endian, then msgpack::

    {"rows": [[key, value or nil], ...], "files": ["<session>-0.sst"],
     "changes": {16384: 7}, "counts": {...}, "written": 9}

``rows`` are this group's, in any order; a later row of a key counts. The rest is the session's until now: table files
that hold earlier rows, changes of row counts, numbers for the metrics. A log that has grown large becomes one more
table file, and begins anew.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.json_objects import DAMAGE, Change, Count

_SIZE_BYTES = 4


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one group has written, and the whole session until then."""

    rows: list[tuple[bytes, bytes | None]]
    files: tuple[str, ...]
    changes: dict[int, Change]
    counts: dict[str, Change]
    written: Count


_FRAME = msgspec.msgpack.Decoder(Frame)  # made here and not by the first of several threads: see json_objects.decoder


class StagedLog:
    """The log of one session, to be written."""

    def __init__(self, path: Path) -> None:
        """Begin an empty log."""
        self._file = path.open("xb", buffering=0)
        self._encode = msgspec.msgpack.Encoder().encode

    def append(self, frame: Frame) -> None:
        """Add a frame: a commit from now on applies it."""
        content = self._encode(frame)
        self._file.write(len(content).to_bytes(_SIZE_BYTES, "little") + content)

    def begin_anew(self, frame: Frame) -> None:
        """Forget all frames but this one."""
        self._file.seek(0)
        self._file.truncate()
        self.append(frame)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def read_frames(path: Path) -> list[Frame]:
    """All frames of a log. Raises FormatError for a damaged one, or if there is none."""
    try:
        content, at, frames = path.read_bytes(), 0, []
    except FileNotFoundError as problem:
        raise FormatError(f"{path} is missing, which a worker has staged.") from problem
    try:
        while at < len(content):
            begin = at + _SIZE_BYTES
            at = begin + int.from_bytes(content[at:begin], "little")
            if at > len(content):
                raise FormatError(f"{path} is damaged: its last frame is cut off.")
            frames.append(_FRAME.decode(content[begin:at]))
    except DAMAGE as problem:
        raise FormatError(f"{path} is damaged: {problem}.") from problem
    return frames
