"""Redistribution by key groups: a new partition is the old one with most of its rows, clipped, plus rows of others.

A range of key groups is one range of keys of a hashed state. A few range deletions therefore suffice to hide all rows
that do not belong to the new partition. The table files stay as they are, and the target gets copies of them. Hidden
rows leave the files at their next compaction; files that are entirely hidden are dropped here if that saves much. Rows
of states in key order (timers, expiry indexes) lie in the order of time, not of hashes, and are rewritten.
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

from pyspark_ckpt.state_store.arrays.order import join_runs
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.blobs.transfers import StoredFile, fetch
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.state_rows import (
    Tally,
    digest_tallies,
    read_counts,
    refuse_stray_rows,
    scan_state,
)
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.database import Database, Tuning, keep_only
from pyspark_ckpt.state_store.format.keys import HASH_BYTES, ORDERED_BIT, state_head, state_range
from pyspark_ckpt.state_store.format.meta import StateMeta, is_keyed
from pyspark_ckpt.state_store.format.partition_states import find_scope
from pyspark_ckpt.state_store.json_objects import Count, Name
from pyspark_ckpt.state_store.redistribution.assembly import AT_ONCE, Assembled, NewStore, publish
from pyspark_ckpt.state_store.redistribution.rolling_writer import RollingWriter
from pyspark_ckpt.state_store.redistribution.splitting import ROLL_OVER_BYTES
from pyspark_ckpt.state_store.snapshots.writer import Origin
from pyspark_ckpt.state_store.sst.scan import Sums, scan_rows, sum_range

MIN_DROPPED_BYTES = 64 << 20
"""From this size on, table files that are entirely hidden are read and dropped, so that they are not copied."""

MAX_CLIPS = 64
"""The maximum number of clips in one task: an interrupted task starts again, and its result is one small object."""

HashRange = tuple[int, int]
"""The first hash of a range, and the one after its last."""


class Clipped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new store, and the rows of each old partition of its clip, by state name.

    ``before``: for each old partition, digests of the rows that belong to the new store. ``counts``: for each one that
    this clip counts, the number of its rows for all new stores.
    """

    made: Assembled
    before: list[dict[Name, Digest]]
    counts: list[dict[Name, Count]]


@dataclass(frozen=True, eq=False)
class OldPartition:
    """An old partition: its store, the range of hashes of its rows, and the new numbers of its states."""

    store: StoreVersion
    hashes: HashRange
    numbers: Mapping[int, int]

    def count_shared(self, hashes: HashRange) -> int:
        """Return how many hashes of a range it has."""
        return max(0, min(self.hashes[1], hashes[1]) - max(self.hashes[0], hashes[0]))

    def find_counterpart(self, state: StateMeta) -> StateMeta | None:
        """Return this store's counterpart of a state of the new store, or None."""
        return next((old for old in self.store.meta.states if self.numbers[old.number] == state.number), None)

    @property
    def keeps_numbers(self) -> bool:
        """Whether its rows can stay as they are."""
        return all(old == new for old, new in self.numbers.items())


@dataclass(frozen=True)
class Clip:
    """A new partition, whose rows have these ``hashes``, and the old ones that have any of them.

    ``counted``: the old partitions whose rows this clip counts. ``placed``: files with the states of the partition,
    which belong to no key.
    """

    new: NewStore
    hashes: HashRange
    old_partitions: tuple[OldPartition, ...]
    counted: tuple[OldPartition, ...]
    placed: tuple[StoredFile, ...] = ()

    @cached_property
    def best(self) -> OldPartition | None:
        """The old partition with most of its hashes, among those whose rows can stay as they are."""
        usable = [old_partition for old_partition in self.old_partitions if old_partition.keeps_numbers]
        return max(usable, key=lambda old_partition: old_partition.count_shared(self.hashes), default=None)

    @cached_property
    def is_whole(self) -> bool:
        """Whether all rows of the best old partition belong to the new one."""
        best = self.best
        return best is not None and best.count_shared(self.hashes) == best.hashes[1] - best.hashes[0]


def group_clips(clips: Sequence[Clip], width: int) -> list[tuple[Clip, ...]]:
    """Group clips by their best old partition if that leaves tasks for ``width`` at once; else return each one alone.

    A task downloads an old partition once for all of its clips, of which there are ``MAX_CLIPS`` at most.
    """
    groups: dict[OldPartition | tuple[OldPartition, ...], list[Clip]] = defaultdict(list)
    for clip in clips:
        groups[clip.best or clip.old_partitions].append(clip)
    if len(groups) < width:
        return [(clip,) for clip in clips]
    return [
        tuple(group[first : first + MAX_CLIPS])
        for group in groups.values()
        for first in range(0, len(group), MAX_CLIPS)
    ]


@dataclass(frozen=True)
class ClipTask:
    """Makes some new partitions. ``target``: the URL of the new checkpoint."""

    workplace: Workplace
    target: str
    clips: tuple[Clip, ...]

    @property
    def key(self) -> str:
        """The name of the task, unique in its redistribution."""
        return f"clip-{self.clips[0].new.identity.key}-{len(self.clips)}"

    def __call__(self) -> list[Clipped]:
        """Publish the new stores. Raises StorageError, FormatError, NotFoundError."""
        with self.workplace.folder() as folder, ExitStack() as stack:
            sources: dict[OldPartition, _Source] = {}
            for old_partition in (old_partition for clip in self.clips for old_partition in clip.old_partitions):
                if old_partition not in sources:
                    restored = stack.enter_context(
                        self.workplace.restore(old_partition.store, folder / f"old-{len(sources)}")
                    )
                    refuse_stray_rows(restored.database, restored.meta, str(old_partition.store.identity))
                    place = self.workplace.place(old_partition.store.url)
                    origins = {name: Origin(place, file) for name, file in restored.table_files.items()}
                    sources[old_partition] = _Source(restored.database, origins)
            known: Sums = {}

            def clip_one(clip: Clip) -> Clipped:
                made, before = self._make(clip, sources, folder / f"new-{clip.new.key}", known)
                return Clipped(
                    made,
                    before,
                    [
                        read_counts(sources[old_partition].database, old_partition.store.meta)
                        for old_partition in clip.counted
                    ],
                )

            first, *others = self.clips  # the others copy the copies of the first one
            with ThreadPoolExecutor(AT_ONCE) as pool:
                return [clip_one(first), *pool.map(clip_one, others)]

    def _make(
        self, clip: Clip, sources: Mapping[OldPartition, _Source], folder: Path, known: Sums
    ) -> tuple[Assembled, list[dict[str, Digest]]]:
        """Make a new store; return it, and digests of its rows in each old partition."""
        (folder / "copy").mkdir(parents=True, mode=0o700)
        tuning, best = self.workplace.tuning(), clip.best
        if best is not None:
            sources[best].database.checkpoint(folder / "copy" / "db")
            keep_only(folder / "copy" / "db", {table.name for table in sources[best].database.table_files()})
        target = self.workplace.place(self.target)
        placed = [fetch(target, file, folder / f"placed-{number}.sst") for number, file in enumerate(clip.placed)]
        filling = _Filling(
            clip,
            placed,
            {old_partition: sources[old_partition].database for old_partition in clip.old_partitions},
            tuning,
            folder,
            known,
        )
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
    """Fills a copy of the best old partition, or an empty database, with the rows of a new partition."""

    clip: Clip
    placed: Sequence[Path]
    sources: Mapping[OldPartition, Database]
    tuning: Tuning
    folder: Path
    known: Sums

    def fill(self, database: Database) -> list[dict[str, Digest]]:
        """Write the rows and hide all others; return digests of what each old partition had."""
        best, old_partitions = self.clip.best, self.clip.old_partitions
        written = []
        tallies: list[dict[str, Tally]] = [{} for _ in old_partitions]
        for state in self.clip.new.merged.states:
            if not is_keyed(state):
                written += self._write(state, self._make_spark_rows(state))
                continue
            if find_scope(state) is not None:
                continue
            is_ordered = bool(state.number & ORDERED_BIT)
            wanted = []
            for old_partition, of_part in sorted(
                zip(old_partitions, tallies, strict=True), key=lambda each: each[0].hashes
            ):
                old = old_partition.find_counterpart(state)
                if old is None:
                    continue
                if old_partition is best and (self.clip.is_whole or not is_ordered):
                    of_part[old.name] = Tally(*sum_range(self.sources[old_partition], *self._range(old), self.known))
                else:
                    of_part[old.name] = Tally()
                    wanted.append(self._rows(state, old_partition, old, of_part[old.name]))
            written += self._write(state, join_runs(wanted) if is_ordered else chain.from_iterable(wanted))
        if best is not None:
            hidden = list(self._hide_rows())
            database.hide(*hidden)
            _drop(database, hidden)
        database.ingest([self.clip.new.marker_file(self.folder, self.tuning), *written])
        if self.placed:
            database.ingest(self.placed)
        return list(map(digest_tallies, tallies))

    def _write(self, state: StateMeta, portions: Iterable[PackedRows]) -> list[Path]:
        """Write the rows to table files whose keys rise from file to file. Without rows, there is no file."""
        writer = RollingWriter(self.folder, str(state.number), self.tuning, ROLL_OVER_BYTES)
        for rows in portions:
            writer.write(rows)
        return writer.finish()

    def _make_spark_rows(self, state: StateMeta) -> list[PackedRows]:
        values = [
            value
            for old_partition, source in self.sources.items()
            if (old := old_partition.find_counterpart(state)) is not None
            for rows in scan_state(source, old.number)
            for value in rows.values.strings()
        ]
        return [PackedRows.of([self.clip.new.make_spark_row(state, values)])] if values else []

    def _rows(
        self, state: StateMeta, old_partition: OldPartition, old: StateMeta, tally: Tally
    ) -> Iterator[PackedRows]:
        """Yield an old partition's rows of a state for the new one, and count them. ``old``: the state there."""
        is_ordered = bool(state.number & ORDERED_BIT)
        readers = len(self.clip.old_partitions) if is_ordered else 1
        found = scan_rows(self.sources[old_partition], *self._range(old), readers=readers)
        if is_ordered:
            found = (rows.with_hashes(*self.clip.hashes) for rows in found)
        for rows in found:
            tally.count(rows)
            if len(rows):
                yield rows.renumber(state.number)

    def _range(self, state: StateMeta) -> tuple[bytes, bytes]:
        """Return the range of keys of the new partition's rows: of a state in key order, the range of all rows."""
        if state.number & ORDERED_BIT:
            return state_range(state.number)
        begin, end = self.clip.hashes
        return _encode_bound(state.number, begin), _encode_bound(state.number, end)

    def _hide_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the ranges of keys of the clipped store that must be hidden."""
        for state in self.clip.new.merged.states:
            begin, end = state_range(state.number)
            if (
                not is_keyed(state)
                or find_scope(state) is not None
                or (state.number & ORDERED_BIT and not self.clip.is_whole)
            ):
                yield begin, end
            elif not state.number & ORDERED_BIT and not self.clip.is_whole:
                inside = [_encode_bound(state.number, at) for at in self.clip.hashes]
                for outside in ((begin, inside[0]), (inside[1], end)):
                    if outside[0] < outside[1]:
                        yield outside


def _drop(database: Database, hidden: Iterable[tuple[bytes, bytes]]) -> None:
    """Drop table files that are entirely hidden, if that saves much."""
    tables = database.table_files()
    for begin, end in hidden:
        within = [table.size_bytes for table in tables if begin <= table.first_key and table.last_key < end]
        if sum(within) >= MIN_DROPPED_BYTES:
            database.drop(begin, end)


def _encode_bound(number: int, at: int) -> bytes:
    """Return the beginning of the rows of a state with a hash of ``at`` or more."""
    if at >= 1 << 8 * HASH_BYTES:
        return state_range(number)[1]
    return state_head(number) + at.to_bytes(HASH_BYTES, "big")
