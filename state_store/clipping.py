"""Redistribution by key groups: a new partition is the old one that has most of its rows, clipped, and rows of others.

A range of key groups is one range of keys of a hashed state. So what does not belong to the new partition is hidden by
marks of a few bytes, and the table files stay as they are: the target gets copies of them. Rows that are hidden leave
the files when these are next compacted; where whole files are hidden, that is done here. Rows of states in key order
(timers, expiry indexes) lie in the order of time, not of hashes, and are written anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec

from pyspark_ckpt.state_store.assembly import Assembled, NewStore, publish
from pyspark_ckpt.state_store.bulk import RowColumns, columns_of, joined
from pyspark_ckpt.state_store.database import Database, TableWriter
from pyspark_ckpt.state_store.digests import Digest
from pyspark_ckpt.state_store.keys import HASH_BYTES, ORDERED_BIT, state_head, state_range
from pyspark_ckpt.state_store.meta import State, is_keyed
from pyspark_ckpt.state_store.rows import proven, refuse_stray_rows, rows_of
from pyspark_ckpt.state_store.snapshot import Origins
from pyspark_ckpt.state_store.store_version import StoreVersion, Workplace

LEAST_DROPPED_BYTES = 64 << 20
"""So much in table files that are hidden as a whole is worth reading them, so that they are not copied."""

Hashes = tuple[int, int]
"""The first of a range of hashes, and the one behind its last."""


class Clipped(msgspec.Struct, frozen=True):
    """A new store, and digests of what was made of it as each of the task's parts had it, by the parts' states."""

    made: Assembled
    before: list[dict[str, Digest]]


@dataclass(frozen=True, eq=False)
class Part:
    """An old partition: its store, the hashes of its rows, and what the numbers of its states become."""

    store: StoreVersion
    hashes: Hashes
    numbers: Mapping[int, int]

    def shared(self, hashes: Hashes) -> int:
        """How many hashes of a range are its own."""
        return max(0, min(self.hashes[1], hashes[1]) - max(self.hashes[0], hashes[0]))

    def state_of(self, state: State) -> State | None:
        """What a state of the new store is in this one."""
        return next((old for old in self.store.meta.states if self.numbers[old.number] == state.number), None)

    @property
    def keeps_numbers(self) -> bool:
        """Whether its rows can stay as they are."""
        return all(old == new for old, new in self.numbers.items())


@dataclass(frozen=True)
class ClipTask:
    """Makes one new partition, whose rows have these ``hashes``, of the old ones that have any of them."""

    workplace: Workplace
    new: NewStore
    hashes: Hashes
    parts: tuple[Part, ...]

    @property
    def key(self) -> str:
        """Names the task among all of its redistribution."""
        return f"clip-{self.new.identity.key}"

    def __call__(self) -> Clipped:
        """Publish the new store. Raises StorageError, FormatError, NotFoundError."""
        usable = [part for part in self.parts if part.keeps_numbers]
        best = max(usable, key=lambda part: part.shared(self.hashes), default=None)
        with self.workplace.folder() as folder, ExitStack() as stack:
            sources: dict[Part, Database] = {}
            origins = None
            for number, part in enumerate(self.parts):
                name = "copy" if part is best else f"old-{number}"
                restored = stack.enter_context(self.workplace.restored(part.store, folder / name))
                refuse_stray_rows(restored.database, restored.meta, str(part.store.identity))
                sources[part] = restored.database
                if part is best:
                    origins = Origins(self.workplace.place(part.store.url), restored.table_files)
            if best is None:
                (folder / "copy").mkdir(mode=0o700)
                database = Database(folder / "copy" / "db", self.workplace.tuning())
            else:
                database = sources[best]
            try:
                before = self._fill(database, best, sources, folder)
                return Clipped(publish(self.workplace, self.new, database, folder, origins), before)
            finally:
                database.close()

    def _fill(
        self, database: Database, best: Part | None, sources: Mapping[Part, Database], folder: Path
    ) -> list[dict[str, Digest]]:
        """Bring into ``database``, which is what ``best`` was, what belongs there, and hide everything else."""
        is_whole = best is not None and best.shared(self.hashes) == best.hashes[1] - best.hashes[0]
        written = []
        before: list[dict[str, Digest]] = [{} for _ in self.parts]
        for state in self.new.merged.states:  # all is read before anything is hidden
            path = folder / f"{state.number}.sst"
            if not is_keyed(state):
                written += self._written(path, [self._rows_of_spark(state, sources)])
                continue
            is_ordered = bool(state.number & ORDERED_BIT)
            wanted: list[Iterator[RowColumns]] = []
            staying: list[Iterator[RowColumns]] = []
            for part, digests in sorted(zip(self.parts, before, strict=True), key=lambda each: each[0].hashes):
                stays = part is best and (is_whole or not is_ordered)
                (staying if stays else wanted).append(self._rows(state, part, sources[part], digests))
            for rows in staying:
                deque(rows, maxlen=0)
            written += self._written(path, joined(wanted) if is_ordered else chain.from_iterable(wanted))
        if best is not None:
            hidden = list(self._hidden(is_whole=is_whole))
            for begin, end in hidden:
                database.hide(begin, end)
            _drop(database, hidden)
        if written:
            database.ingest(written)
        return before

    def _written(self, path: Path, portions: Iterable[RowColumns]) -> list[Path]:
        """A table file of the rows, if there are any."""
        writer = None
        for rows in portions:
            if len(rows):
                writer = writer or TableWriter(path, self.workplace.tuning())
                writer.put_all(rows.keys.strings(), rows.values.strings())
        if writer is None:
            return []
        writer.finish()
        return [path]

    def _rows_of_spark(self, state: State, sources: Mapping[Part, Database]) -> RowColumns:
        values = [
            value
            for part, source in sources.items()
            if (old := part.state_of(state)) is not None
            for rows in rows_of(source, old.number)
            for value in rows.values.strings()
        ]
        return RowColumns.of([self.new.row_of_spark(state, values)] if values else [])

    def _rows(self, state: State, part: Part, source: Database, digests: dict[str, Digest]) -> Iterator[RowColumns]:
        """The rows of a state that an old partition has for the new one; when all are read, so is their digest."""
        old = part.state_of(state)
        if old is None:
            return
        begin, end = self.hashes
        found: Iterator[RowColumns]
        if state.number & ORDERED_BIT:
            found = (rows.with_hashes(begin, end, is_ordered=True) for rows in rows_of(source, old.number))
        else:
            found = columns_of(source, _bound(old.number, begin), _bound(old.number, end))
        for rows in proven(found, old.name, digests):
            yield rows if old.number == state.number else rows.renumbered(state.number)

    def _hidden(self, *, is_whole: bool) -> Iterator[tuple[bytes, bytes]]:
        """What must not be seen of the store that is clipped."""
        for state in self.new.merged.states:
            begin, end = state_range(state.number)
            if not is_keyed(state) or (state.number & ORDERED_BIT and not is_whole):
                yield begin, end
            elif not state.number & ORDERED_BIT and not is_whole:
                inside = [_bound(state.number, at) for at in self.hashes]
                for outside in ((begin, inside[0]), (inside[1], end)):
                    if outside[0] < outside[1]:
                        yield outside


def _drop(database: Database, hidden: Iterable[tuple[bytes, bytes]]) -> None:
    """Take rows out that are hidden with the whole of their files, if that saves much."""
    tables = database.table_files()
    for begin, end in hidden:
        within = [table.size_bytes for table in tables if begin <= table.first_key and table.last_key < end]
        if sum(within) >= LEAST_DROPPED_BYTES:
            database.drop(begin, end)


def _bound(number: int, at: int) -> bytes:
    """Where the rows of a state begin whose hash is ``at`` or more."""
    if at >= 1 << 8 * HASH_BYTES:
        return state_range(number)[1]
    return state_head(number) + at.to_bytes(HASH_BYTES, "big")
