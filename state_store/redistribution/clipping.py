"""Redistribution by key groups: a new partition is the old one with most of its rows, clipped, plus rows of others.

A range of key groups is one range of keys of a hashed state. A few range deletions therefore suffice to hide what does
not belong to the new partition. The table files stay as they are, and the target gets copies of them. Hidden rows leave
the files at their next compaction; files that are hidden as a whole are dropped here if that saves much. Rows of states
in key order (timers, expiry indexes) lie in the order of time, not of hashes, and are rewritten.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import msgspec

from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.state_rows import Tally, counts_of, digest_tallies, refuse_stray_rows, rows_of
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.columns.order import join_runs
from pyspark_ckpt.state_store.columns.rows import RowColumns
from pyspark_ckpt.state_store.database import Database, Tuning, keep_only
from pyspark_ckpt.state_store.format.keys import HASH_BYTES, ORDERED_BIT, state_head, state_range
from pyspark_ckpt.state_store.format.meta import State, is_keyed
from pyspark_ckpt.state_store.json_objects import Count
from pyspark_ckpt.state_store.redistribution.assembly import AT_ONCE, Assembled, NewStore, publish
from pyspark_ckpt.state_store.redistribution.rolling_writer import RollingWriter
from pyspark_ckpt.state_store.redistribution.splitting import ROLL_OVER_BYTES
from pyspark_ckpt.state_store.snapshots.writer import Origin
from pyspark_ckpt.state_store.sst.scan import Sums, columns_of, sums_of

MIN_DROPPED_BYTES = 64 << 20
"""From this size on, table files that are hidden as a whole are read and dropped, so that they are not copied."""

MAX_CLIPS = 64
"""The maximum number of clips in one task: an interrupted task starts again, and its result is one small object."""

Hashes = tuple[int, int]
"""The first hash of a range, and the one after its last."""


class Clipped(msgspec.Struct, frozen=True):
    """A new store, and what each part of its clip had, by state name.

    ``before``: for each part, digests of the rows that belong to the new store. ``counts``: for each part that this
    clip counts, how many rows it has for all new stores.
    """

    made: Assembled
    before: list[dict[str, Digest]]
    counts: list[dict[str, Count]]


@dataclass(frozen=True, eq=False)
class Part:
    """An old partition: its store, the range of hashes of its rows, and the new numbers of its states."""

    store: StoreVersion
    hashes: Hashes
    numbers: Mapping[int, int]

    def count_shared(self, hashes: Hashes) -> int:
        """Return how many hashes of a range are its own."""
        return max(0, min(self.hashes[1], hashes[1]) - max(self.hashes[0], hashes[0]))

    def state_of(self, state: State) -> State | None:
        """Return this store's counterpart of a state of the new store, or None."""
        return next((old for old in self.store.meta.states if self.numbers[old.number] == state.number), None)

    @property
    def keeps_numbers(self) -> bool:
        """Whether its rows can stay as they are."""
        return all(old == new for old, new in self.numbers.items())


@dataclass(frozen=True)
class Clip:
    """A new partition, whose rows have these ``hashes``, and the old ones that have any of them.

    ``counted``: the parts whose rows this clip counts.
    """

    new: NewStore
    hashes: Hashes
    parts: tuple[Part, ...]
    counted: tuple[Part, ...]

    @cached_property
    def best(self) -> Part | None:
        """The part with most of its hashes, among the parts whose rows can stay as they are."""
        usable = [part for part in self.parts if part.keeps_numbers]
        return max(usable, key=lambda part: part.count_shared(self.hashes), default=None)

    @cached_property
    def is_whole(self) -> bool:
        """Whether all rows of the best part belong to the new partition."""
        best = self.best
        return best is not None and best.count_shared(self.hashes) == best.hashes[1] - best.hashes[0]


def group_clips(clips: Sequence[Clip], width: int) -> list[tuple[Clip, ...]]:
    """Group clips by their best part if that leaves enough tasks for ``width`` at once; else return each one alone.

    A task downloads a part once for all of its clips, of which there are ``MAX_CLIPS`` at most.
    """
    groups: dict[Part | tuple[Part, ...], list[Clip]] = defaultdict(list)
    for clip in clips:
        groups[clip.best or clip.parts].append(clip)
    if len(groups) < width:
        return [(clip,) for clip in clips]
    return [
        tuple(group[first : first + MAX_CLIPS])
        for group in groups.values()
        for first in range(0, len(group), MAX_CLIPS)
    ]


@dataclass(frozen=True)
class ClipTask:
    """Makes some new partitions."""

    workplace: Workplace
    clips: tuple[Clip, ...]

    @property
    def key(self) -> str:
        """The name of the task, unique in its redistribution."""
        return f"clip-{self.clips[0].new.identity.key}-{len(self.clips)}"

    def __call__(self) -> list[Clipped]:
        """Publish the new stores. Raises StorageError, FormatError, NotFoundError."""
        with self.workplace.folder() as folder, ExitStack() as stack:
            sources: dict[Part, _Source] = {}
            for part in (part for clip in self.clips for part in clip.parts):
                if part not in sources:
                    restored = stack.enter_context(self.workplace.restore(part.store, folder / f"old-{len(sources)}"))
                    refuse_stray_rows(restored.database, restored.meta, str(part.store.identity))
                    place = self.workplace.place(part.store.url)
                    origins = {name: Origin(place, file) for name, file in restored.table_files.items()}
                    sources[part] = _Source(restored.database, origins)
            known: Sums = {}

            def clip_one(clip: Clip) -> Clipped:
                made, before = self._make(clip, sources, folder / f"new-{clip.new.key}", known)
                return Clipped(
                    made, before, [counts_of(sources[part].database, part.store.meta) for part in clip.counted]
                )

            first, *others = self.clips  # the others copy from what the first one has copied
            with ThreadPoolExecutor(AT_ONCE) as pool:
                return [clip_one(first), *pool.map(clip_one, others)]

    def _make(
        self, clip: Clip, sources: Mapping[Part, _Source], folder: Path, known: Sums
    ) -> tuple[Assembled, list[dict[str, Digest]]]:
        """Make a new store; return it, and digests of its rows in each part."""
        (folder / "copy").mkdir(parents=True, mode=0o700)
        tuning, best = self.workplace.tuning(), clip.best
        if best is not None:
            sources[best].database.checkpoint(folder / "copy" / "db")
            keep_only(folder / "copy" / "db", {table.name for table in sources[best].database.table_files()})
        filling = _Filling(clip, {part: sources[part].database for part in clip.parts}, tuning, folder, known)
        database = Database(folder / "copy" / "db", tuning)
        try:
            before = filling.fill(database)
            origins = None if best is None else sources[best].origins
            return publish(self.workplace, clip.new, database, folder, origins, known), before
        finally:
            database.close()
            shutil.rmtree(folder)


@dataclass(frozen=True)
class _Source:
    """The database of an old store, and the objects that its table files were fetched from."""

    database: Database
    origins: dict[str, Origin]


@dataclass(frozen=True)
class _Filling:
    """Fills a copy of the best part, or an empty database, with the rows of a new partition."""

    clip: Clip
    sources: Mapping[Part, Database]
    tuning: Tuning
    folder: Path
    known: Sums

    def fill(self, database: Database) -> list[dict[str, Digest]]:
        """Write the rows and hide all others; return digests of what each part had."""
        best, parts = self.clip.best, self.clip.parts
        written = []
        tallies: list[dict[str, Tally]] = [{} for _ in parts]
        for state in self.clip.new.merged.states:
            if not is_keyed(state):
                written += self._write(state, self._rows_of_spark(state))
                continue
            is_ordered = bool(state.number & ORDERED_BIT)
            wanted = []
            for part, of_part in sorted(zip(parts, tallies, strict=True), key=lambda each: each[0].hashes):
                old = part.state_of(state)
                if old is None:
                    continue
                if part is best and (self.clip.is_whole or not is_ordered):
                    of_part[old.name] = Tally(*sums_of(self.sources[part], *self._range(old), self.known))
                else:
                    of_part[old.name] = Tally()
                    wanted.append(self._rows(state, part, old, of_part[old.name]))
            written += self._write(state, join_runs(wanted) if is_ordered else chain.from_iterable(wanted))
        if best is not None:
            hidden = list(self._hide_rows())
            database.hide(*hidden)
            _drop(database, hidden)
        database.ingest([self.clip.new.marker_file(self.folder, self.tuning), *written])
        return list(map(digest_tallies, tallies))

    def _write(self, state: State, portions: Iterable[RowColumns]) -> list[Path]:
        """Write the rows to table files whose keys rise from file to file. Without rows, there is no file."""
        writer = RollingWriter(self.folder, str(state.number), self.tuning, ROLL_OVER_BYTES)
        for rows in portions:
            writer.write(rows)
        return writer.finish()

    def _rows_of_spark(self, state: State) -> list[RowColumns]:
        values = [
            value
            for part, source in self.sources.items()
            if (old := part.state_of(state)) is not None
            for rows in rows_of(source, old.number)
            for value in rows.values.strings()
        ]
        return [RowColumns.of([self.clip.new.row_of_spark(state, values)])] if values else []

    def _rows(self, state: State, part: Part, old: State, tally: Tally) -> Iterator[RowColumns]:
        """Yield an old partition's rows of a state for the new one, and count them. ``old``: the state there."""
        is_ordered = bool(state.number & ORDERED_BIT)
        readers = len(self.clip.parts) if is_ordered else 1
        found = columns_of(self.sources[part], *self._range(old), readers=readers)
        if is_ordered:
            found = (rows.with_hashes(*self.clip.hashes) for rows in found)
        for rows in found:
            tally.count(rows)
            if len(rows):
                yield rows.renumber(state.number)

    def _range(self, state: State) -> tuple[bytes, bytes]:
        """Return the range of keys of the new partition's rows: of a state in key order, the range of all rows."""
        if state.number & ORDERED_BIT:
            return state_range(state.number)
        begin, end = self.clip.hashes
        return _encode_bound(state.number, begin), _encode_bound(state.number, end)

    def _hide_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the ranges of keys of the clipped store that must be hidden."""
        for state in self.clip.new.merged.states:
            begin, end = state_range(state.number)
            if not is_keyed(state) or (state.number & ORDERED_BIT and not self.clip.is_whole):
                yield begin, end
            elif not state.number & ORDERED_BIT and not self.clip.is_whole:
                inside = [_encode_bound(state.number, at) for at in self.clip.hashes]
                for outside in ((begin, inside[0]), (inside[1], end)):
                    if outside[0] < outside[1]:
                        yield outside


def _drop(database: Database, hidden: Iterable[tuple[bytes, bytes]]) -> None:
    """Drop table files that are hidden as a whole, if that saves much."""
    tables = database.table_files()
    for begin, end in hidden:
        within = [table.size_bytes for table in tables if begin <= table.first_key and table.last_key < end]
        if sum(within) >= MIN_DROPPED_BYTES:
            database.drop(begin, end)


def _encode_bound(number: int, at: int) -> bytes:
    """Return where the rows of a state with a hash of ``at`` or more begin."""
    if at >= 1 << 8 * HASH_BYTES:
        return state_range(number)[1]
    return state_head(number) + at.to_bytes(HASH_BYTES, "big")
