"""States with one row for each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark_ckpt.operators.state_rows import UNREAD, RowCount, Written, stored
from pyspark_ckpt.state_store.bulk import Cells, RowColumns
from pyspark_ckpt.state_store.keys import state_head

if TYPE_CHECKING:
    from pyspark_ckpt.operators.suffixes import Suffixes
    from pyspark_ckpt.operators.worker_session import WorkerSession


class KeyRows:
    """A state with one row for each key."""

    def __init__(self, number: int, session: WorkerSession) -> None:
        """Read and write state ``number``."""
        self._head = state_head(number)
        self._session = session
        self._at = session.position
        self._read: tuple[Sequence[bytes], list[bytes | None]] = ((), [])
        self._base: dict[bytes, bytes | None] = {}
        self._base_of: Sequence[bytes] = ()
        self._ahead: dict[bytes, bytes | None] = {}
        self._written: dict[bytes, bytes | None] = {}
        self._columns_read: tuple[Suffixes | None, Cells] = (None, Cells.of([]))
        self._columns: tuple[Suffixes, Cells] | None = None
        """All that was written, as long as that was so, and of the same keys: nothing else is ``_written`` then."""
        self._last_written = b""
        self._in_order = True
        self._count = RowCount(session)

    def get(self, suffix: bytes) -> bytes | None:
        """The row of a key."""
        if self._columns is not None:
            self._unfold()
        value = self._written.get(suffix, UNREAD)
        if value is UNREAD:
            value = self._base.get(suffix, UNREAD)
            if value is UNREAD:
                value = self._look_up(suffix)
        return value  # type: ignore[no-any-return]

    def put(self, suffix: bytes, value: bytes | None) -> None:
        """Write the row of a key; None deletes it."""
        if self._columns is not None:
            self._unfold()
        before = self._written.get(suffix, UNREAD)
        if before is UNREAD:
            before = self._base.get(suffix, self._ahead.get(suffix, UNREAD))
            if before is UNREAD:
                self._count.unread(self._head + suffix)
                before = None
            self._note_order(suffix)
        self._count.add((value is not None) - (before is not None))
        self._written[suffix] = value

    def get_many(self, suffixes: Sequence[bytes]) -> list[bytes | None]:
        """The rows of many keys, which are in stored order."""
        self._unfold()
        return self._over(suffixes, self._read_base(suffixes))

    def get_cells(self, suffixes: Suffixes) -> Cells:
        """``get_many`` as columns."""
        if not self._are_columns(suffixes):
            return Cells.of(self.get_many(suffixes))
        if self._columns is not None:
            return self._columns[1]
        if self._columns_read[0] is not suffixes:
            self._columns_read = suffixes, self._session.get_cells(suffixes.packed.prefixed(self._head))
        return self._columns_read[1]

    def put_cells(self, suffixes: Suffixes, cells: Cells) -> None:
        """``put_many`` as columns."""
        if not len(suffixes):
            return
        if not self._are_columns(suffixes):
            self.put_many(suffixes, cells.strings())
            return
        self._count.add(int(cells.there.sum()) - int(self.get_cells(suffixes).there.sum()))
        self._columns = suffixes, cells

    def get_ahead(self, suffixes: Sequence[bytes]) -> list[bytes | None]:
        """``get_many`` of keys whose rows may be asked for again, not all at once: they are held until the flush."""
        self._unfold()
        base = self._fetch(suffixes)
        self._ahead.update(zip(suffixes, base, strict=True))
        return self._over(suffixes, base)

    def put_many(self, suffixes: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Write the rows of many different keys, which are in stored order."""
        if not suffixes:
            return
        before = self.get_many(suffixes)
        self._count.add(before.count(None) - values.count(None))
        self._note_order(suffixes[0])
        self._last_written = max(self._last_written, suffixes[-1])
        self._written.update(zip(suffixes, values, strict=True))

    def sweep(self, _most: int) -> int:
        """Nothing expires."""
        return 0

    @property
    def change(self) -> int:
        """How many rows more there are than in the base version."""
        return self._count.resolved()

    def flush(self, end: bytes | None) -> Written:
        """What was written for keys below ``end``, or all of it, in stored order; it is forgotten."""
        if self._columns is not None:
            suffixes, cells = self._columns
            if cells.there.all() and (end is None or suffixes.packed[-1] < end):
                self._columns = None
                self.taken(end)
                return RowColumns(suffixes.packed.prefixed(self._head), cells.values)
            self._unfold()
        is_ordered = self._in_order
        taken = self.taken(end)
        if is_ordered:
            return zip(map(self._head.__add__, taken), taken.values(), strict=True)
        return stored(self._head, taken)

    def taken(self, end: bytes | None) -> dict[bytes, bytes | None]:
        """What was written for keys below ``end``, or all of it, in any order; it is forgotten."""
        self._unfold()
        self._count.resolved()
        self._read, self._base, self._base_of, self._ahead = ((), []), {}, (), {}
        self._columns_read = (None, Cells.of([]))
        self._in_order, self._last_written = True, b""
        taken, self._written = self._written, {}
        for suffix in [] if end is None else [each for each in taken if each >= end]:
            self._note_order(suffix)
            self._written[suffix] = taken.pop(suffix)
        return taken

    def _are_columns(self, suffixes: Suffixes) -> bool:
        """Whether what was written, if anything, are columns of the same keys."""
        return not (self._written or self._ahead) and (self._columns is None or self._columns[0] is suffixes)

    def _unfold(self) -> None:
        """Have what was written by keys: whoever reads or writes rows one by one has no columns beside them."""
        if self._columns is not None:
            suffixes, cells = self._columns
            self._columns = None
            self._written.update(zip(suffixes, cells.strings(), strict=True))
            self._last_written = suffixes.packed[-1]

    def _note_order(self, suffix: bytes) -> None:
        if suffix > self._last_written:
            self._last_written = suffix
        else:
            self._in_order = False

    def _look_up(self, suffix: bytes) -> bytes | None:
        upcoming = self._at.upcoming
        if self._base_of is not upcoming:
            self._base = dict(zip(upcoming, self._read_base(upcoming), strict=True))
            self._base_of = upcoming
        value = self._base.get(suffix, UNREAD)
        if value is UNREAD:
            value = self._base[suffix] = self._fetch([suffix])[0]
        return value  # type: ignore[no-any-return]

    def _over(self, suffixes: Sequence[bytes], base: list[bytes | None]) -> list[bytes | None]:
        """What was written, over rows of the base version."""
        written = self._written
        if not written:
            return base
        return [written.get(suffix, value) for suffix, value in zip(suffixes, base, strict=True)]

    def _read_base(self, suffixes: Sequence[bytes]) -> list[bytes | None]:
        if self._read[0] is not suffixes:
            self._read = (suffixes, self._fetch(suffixes))
        return self._read[1]

    def _fetch(self, suffixes: Sequence[bytes]) -> list[bytes | None]:
        head, ahead = self._head, self._ahead
        if not ahead:
            return self._session.get_many([head + suffix for suffix in suffixes])
        rows = [ahead.get(suffix, UNREAD) for suffix in suffixes]
        unread = [position for position, row in enumerate(rows) if row is UNREAD]
        found = self._session.get_many([head + suffixes[position] for position in unread])
        for position, row in zip(unread, found, strict=True):
            rows[position] = row
        return rows
