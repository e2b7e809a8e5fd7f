"""A task's session that groups use one after another, as Spark calls the function for each. No call is marked as last.

What a group writes is staged in a log before its call ends. A task may have two such sessions, perhaps in two
processes: Spark calls groups that have timed out after all others, and does not say whether there are any. The first
session frees expired rows and starts times to live; both sessions see the result. A group that had rows may also have
timed out: it is then called again, and finds what it staged.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path

import msgspec
import xxhash

from pyspark_ckpt.operators.declarations.ttl import Clock
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.rows.base import Row, merge_rows
from pyspark_ckpt.operators.session.worker import WorkerSession
from pyspark_ckpt.state_store.arrays.cells import Cells
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.meta import Descriptor
from pyspark_ckpt.state_store.json_objects import DAMAGE
from pyspark_ckpt.state_store.plain_files import read_plain
from pyspark_ckpt.state_store.transactions.parts import SUFFIX, Part, write_part
from pyspark_ckpt.state_store.transactions.staged_log import LOG, Frame, StagedGroups, StagedLog, StagedRows
from pyspark_ckpt.state_store.transactions.ticket import Ticket

LOG_BYTES = 8 << 20
"""Rows of the log that are larger than this in total become a table file."""
_LIVES_BITS = 48
"""No version needs more bits."""
PORTION = 1024
"""Rows in a frame that is kept apart."""
_CHECKSUM_BYTES = 8


class GroupSession(WorkerSession):
    """See the module."""

    def __init__(
        self,
        ticket: Ticket,
        states: Sequence[tuple[str, Descriptor]],
        keys: KeyCodec,
        now_ms: Mapping[Clock, int],
        log_bytes: int = LOG_BYTES,
    ) -> None:
        """Find or create ``states``. Raises as WorkerSession does."""
        super().__init__(ticket, states, keys, now_ms)
        self._staging = staging = Path(ticket.staging)
        earlier = len(list(staging.glob(f"groups-*{SUFFIX}")))
        self.is_first = earlier == 0
        self.new_life += earlier << _LIVES_BITS  # a group may clear and fill a list that it began in an earlier session
        self.name = f"groups-{earlier:04d}-{uuid.uuid4().hex[:12]}"
        self._swept_path = staging / "groups-swept"
        self._swept: Mapping[bytes, bytes | None] = {} if self.is_first else dict(_read_swept(self._swept_path))
        self._log_bytes = log_bytes
        self._recent: dict[bytes, bytes | None] = {}
        self._recent_bytes = 0
        log = f"{self.name}{LOG}"
        self._log = StagedLog(staging / log)
        self._staged: StagedGroups | None = None
        self._overlay: Mapping[bytes, bytes | None] = {}
        self._group = b""
        self._changes: Mapping[int, int] = {}
        write_part(staging, self.name, Part(self._declared, (), {}, 0, {}, ticket.new_id, log))

    def at(self, suffix: bytes, *, is_again: bool) -> None:
        """Begin the call of a group. ``is_again``: it may have been called before in this task."""
        self.position.suffix = self._group = suffix
        self._overlay = {}
        if is_again:
            if self._staged is None:  # all calls for rows have ended by now
                self._staged = StagedGroups(self._staging)
            self._find_again(self._staged.of(suffix))

    def _find_again(self, staged: StagedRows) -> None:
        """Load what the group has staged: into memory, or if it is large, into a database of spilled rows."""
        if staged.size_bytes <= self._log_bytes:
            self._overlay = {key: value for rows in staged for key, value in rows}
            return
        for rows in staged:
            deque(self._make_spilled_rows().keep(rows), maxlen=0)

    def _read_base(self, keys: list[bytes]) -> list[bytes | None]:
        """See WorkerSession. What this task has swept and the group has staged is included."""
        values = super()._read_base(keys)
        if self._swept:
            values = [self._swept.get(key, value) for key, value in zip(keys, values, strict=True)]
        if self._overlay:
            values = [self._overlay.get(key, value) for key, value in zip(keys, values, strict=True)]
        return values

    def get_cells(self, keys: Packed) -> Cells:
        """See WorkerSession. What this task has swept and the group has staged is included."""
        return Cells.of(self.get_many(keys.strings()))

    def _base_rows(self, prefix: bytes, begin: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """See WorkerSession. What this task has swept and the group has staged is included."""
        rows = super()._base_rows(prefix, begin, end)
        if self._swept:
            rows = _not_none((entry, self._swept.get(prefix + entry, value)) for entry, value in rows)
        if self._overlay:
            entries = ((key[len(prefix) :], value) for key, value in self._overlay.items() if key.startswith(prefix))
            inside = (row for row in entries if row[0] >= begin and (end is None or row[0] < end))
            rows = merge_rows(rows, sorted(inside, key=itemgetter(0)))
        return rows

    def stage_swept(self, rows: Iterable[Row], changes: Mapping[int, int]) -> None:
        """Stage the rows that a sweep changed, before those of any group. The first session calls this once."""
        swept = list(rows)
        self.stage(swept)
        self._swept = dict(swept)
        content = msgspec.msgpack.encode(swept)
        self._swept_path.write_bytes(xxhash.xxh64_digest(content) + content)
        self._changes = changes
        self._log.append(self._frame([], changes))

    def stage_group(self, rows: Iterable[Row], changes: Callable[[], Mapping[int, int]]) -> None:
        """Stage what one group has written, sorted by key: in the log, or in a table file if the log is full.

        ``changes`` returns the changes of row counts. It is called after all rows have been taken.
        """
        remaining = iter(rows)
        self.end_turn()
        taken: list[Row] = []
        for row in remaining:
            taken.append(row)
            self._recent_bytes += len(row[0]) + len(row[1] or b"")
            if self._recent_bytes > self._log_bytes:
                self.stage(sorted(self._recent.items()))
                self.stage(self._set_apart(chain(taken, remaining)))
                self._end_group(changes())
                self._begin_log_anew()
                return
        self._recent.update(taken)
        self._end_group(changes())
        self._log.append(self._frame(taken, self._changes))

    def spill(self, rows: Iterable[Row]) -> None:
        """See WorkerSession. A later call of the group finds the rows, too."""
        if self._recent:
            self.stage(sorted(self._recent.items()))
            self._begin_log_anew()
        super().spill(self._set_apart(iter(rows)))

    def close(self) -> None:
        """Close the log, which the commit reads, and discard what was spilled."""
        super().close()
        self._log.close()

    def _end_group(self, changes: Mapping[int, int]) -> None:
        """Keep the changes of row counts, and discard what the group has spilled."""
        self._changes = changes
        self._forget_spilled()

    def _begin_log_anew(self) -> None:
        """Restart the log: all of its rows are in table files now."""
        self._recent, self._recent_bytes, self._staged = {}, 0, None
        self._log.begin_anew(self._frame([], self._changes))

    def _set_apart(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Yield the rows, and log them so that a later call of the group finds them."""
        while portion := list(islice(rows, PORTION)):
            self._log.keep_apart([self._frame(portion, {})])
            yield from portion

    def _frame(self, rows: list[Row], changes: Mapping[int, int]) -> Frame:
        written = self._written + len(self._recent)
        return Frame(
            rows, tuple(self._files), dict(changes), dict(self.counts), written, self._group, dict(self._seals)
        )


def _not_none(rows: Iterable[Row]) -> Iterator[tuple[bytes, bytes]]:
    return ((entry, value) for entry, value in rows if value is not None)


def _read_swept(path: Path) -> list[Row]:
    """Read the rows that the task's first session has swept. Raises FormatError if their checksum is wrong."""
    try:
        content = read_plain(path)
        checksum, rows = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
        if xxhash.xxh64_digest(rows) != checksum:
            raise FormatError(f"{path} is damaged: its checksum is wrong.")
        return msgspec.msgpack.decode(rows, type=list[tuple[bytes, bytes | None]])
    except (OSError, *DAMAGE) as problem:
        raise FormatError(f"{path} has no readable rows of the task's first session: {problem}.") from problem
