"""Redistribution by key groups: a new partition is the old one that has most of its rows, clipped, and rows of others.

A range of key groups is one range of keys of a hashed state. So what does not belong to the new partition is hidden by
marks of a few bytes, and the table files stay as they are: the target gets copies of them. Rows that are hidden leave
the files when these are next compacted; where whole files are hidden, that is done here. Rows of states in key order
(timers, expiry indexes) lie in the order of time, not of hashes, and are written anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from heapq import merge
from itertools import chain
from pathlib import Path

import numpy as np

from pyspark_ckpt.state_store.assembly import Assembled, NewStore, publish
from pyspark_ckpt.state_store.bulk import RowColumns, columns_of
from pyspark_ckpt.state_store.database import Database, TableWriter, write_table_file
from pyspark_ckpt.state_store.digests import Digest
from pyspark_ckpt.state_store.keys import HASH_BYTES, ORDERED_BIT, state_head, state_range
from pyspark_ckpt.state_store.meta import State, is_keyed
from pyspark_ckpt.state_store.rows import Row, digests_of, refuse_stray_rows, require_counts, rows_of
from pyspark_ckpt.state_store.snapshot import Origins
from pyspark_ckpt.state_store.store_version import StoreVersion, Workplace

LEAST_DROPPED_BYTES = 64 << 20
"""So much in table files that are hidden as a whole is worth reading them, so that they are not copied."""

Hashes = tuple[int, int]
"""The first of a range of hashes, and the one behind its last."""


@dataclass(frozen=True)
class DigestTask:
    """Reads a store of a keyed operator before it is taken apart."""

    workplace: Workplace
    source: StoreVersion

    @property
    def key(self) -> str:
        """Names the task among all of its redistribution."""
        return f"digest-{self.source.identity.key}"

    def __call__(self) -> dict[str, Digest]:
        """Digests of its states, but for Spark's own. Raises StorageError, FormatError, NotFoundError."""
        with self.workplace.folder() as folder, self.workplace.restored(self.source, folder / "old") as restored:
            refuse_stray_rows(restored.database, restored.meta, str(self.source.identity))
            kept = [state for state in restored.meta.states if is_keyed(state)]
            digests = digests_of(restored.database, kept)
            require_counts(restored.meta, digests, str(self.source.identity))
            return digests


@dataclass(frozen=True, eq=False)
class Part:
    """An old partition: its store, the hashes of its rows, and what the numbers of its states become."""

    store: StoreVersion
    hashes: Hashes
    numbers: Mapping[int, int]

    def shared(self, hashes: Hashes) -> int:
        """How many hashes of a range are its own."""
        return max(0, min(self.hashes[1], hashes[1]) - max(self.hashes[0], hashes[0]))

    def number_of(self, state: State) -> int | None:
        """What the number of a state of the new store was in this one."""
        return next((old for old, new in self.numbers.items() if new == state.number), None)

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
        """See NewStore."""
        return self.new.key

    def __call__(self) -> Assembled:
        """Publish the new store. Raises StorageError, FormatError, NotFoundError."""
        usable = [part for part in self.parts if part.keeps_numbers]
        best = max(usable, key=lambda part: part.shared(self.hashes), default=None)
        with self.workplace.folder() as folder, ExitStack() as stack:
            others = {
                part: stack.enter_context(self.workplace.restored(part.store, folder / f"old-{number}")).database
                for number, part in enumerate(self.parts)
                if part is not best
            }
            origins = None
            if best is None:
                (folder / "copy").mkdir(mode=0o700)
                database = Database(folder / "copy" / "db", self.workplace.tuning())
            else:
                restored = stack.enter_context(self.workplace.restored(best.store, folder / "copy"))
                database = restored.database
                origins = Origins(self.workplace.place(best.store.url), restored.table_files)
            try:
                self._fill(database, best, others, folder)
                return publish(self.workplace, self.new, database, folder, origins)
            finally:
                database.close()

    def _fill(self, database: Database, best: Part | None, others: Mapping[Part, Database], folder: Path) -> None:
        """Bring into ``database``, which is what ``best`` was, what belongs there, and hide everything else."""
        sources = {**others, **({} if best is None else {best: database})}
        is_whole = best is not None and best.shared(self.hashes) == best.hashes[1] - best.hashes[0]
        written = []
        for state in self.new.merged.states:  # all is read before anything is hidden
            path = folder / f"{state.number}.sst"
            if not is_keyed(state):
                written += self._written(path, iter(self._row_of_spark(state, sources)))
            elif state.number & ORDERED_BIT:
                wanted = others if is_whole else sources
                merged = merge(*(self._of_ordered(state, part, source) for part, source in wanted.items()))
                written += self._written(path, merged)
            else:
                in_order = sorted(others.items(), key=lambda item: item[0].hashes)
                written += self._written_columns(
                    path, chain.from_iterable(self._of_hashed(state, part, source) for part, source in in_order)
                )
        if best is not None:
            hidden = list(self._hidden(is_whole=is_whole))
            for begin, end in hidden:
                database.hide(begin, end)
            _drop(database, hidden)
        if written:
            database.ingest(written)

    def _written(self, path: Path, rows: Iterator[Row]) -> list[Path]:
        first = next(rows, None)
        if first is None:
            return []
        write_table_file(path, chain([first], rows), self.workplace.tuning())
        return [path]

    def _written_columns(self, path: Path, portions: Iterator[RowColumns]) -> list[Path]:
        first = next(portions, None)
        if first is None:
            return []
        writer = TableWriter(path, self.workplace.tuning())
        for portion in chain([first], portions):
            writer.put_all(portion.keys.strings(), portion.values.strings())
        writer.finish()
        return [path]

    def _row_of_spark(self, state: State, sources: Mapping[Part, Database]) -> list[Row]:
        values = [
            value
            for part, source in sources.items()
            if (old := part.number_of(state)) is not None
            for rows in rows_of(source, old)
            for value in rows.values.strings()
        ]
        return [self.new.row_of_spark(state, values)] if values else []

    def _of_hashed(self, state: State, part: Part, source: Database) -> Iterator[RowColumns]:
        old = part.number_of(state)
        if old is None:
            return iter(())
        begin, end = (_bound(old, at) for at in self.hashes)
        found = columns_of(source, begin, end)
        return found if old == state.number else (rows.renumbered(state.number) for rows in found)

    def _of_ordered(self, state: State, part: Part, source: Database) -> Iterator[Row]:
        old = part.number_of(state)
        if old is None:
            return
        first, end = self.hashes
        for rows in rows_of(source, old):
            hashes = rows.hashes(is_ordered=True).astype(np.int64)
            inside = rows.taken((first <= hashes) & (hashes < end))
            yield from (inside if old == state.number else inside.renumbered(state.number)).rows()

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
