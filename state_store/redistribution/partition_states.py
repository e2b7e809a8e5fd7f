"""Redistribute the states that belong to partitions rather than to keys: operator lists and broadcast states.

One task reads them from all old partitions, and writes a table file for each new one. They must fit into its memory. A
Strategy moves the rows of keys, and ingests these files as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.blobs.transfers import StoredFile
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.state_rows import Row, Tally, require_counts, require_digests, scan_state
from pyspark_ckpt.state_store.checkpoints.workplace import THREADS, StoreVersion, Workplace
from pyspark_ckpt.state_store.database import write_table_file
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import HASH_BYTES, STATE_BYTES, state_range
from pyspark_ckpt.state_store.format.meta import StateMeta
from pyspark_ckpt.state_store.format.partition_states import (
    Scope,
    encode_broadcast_head,
    encode_element,
    encode_list_head,
    find_scope,
)
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import Name, Partitions
from pyspark_ckpt.state_store.redistribution.canonical import SavedRows, fetch_rows, rows_in
from pyspark_ckpt.state_store.redistribution.splitting import send_all
from pyspark_ckpt.state_store.restore.range_restorer import RangeReader

STORES_AT_ONCE = 4


def select_partition_states(states: Iterable[StateMeta]) -> tuple[StateMeta, ...]:
    """Return the states that belong to partitions. Raises FormatError."""
    return tuple(state for state in states if find_scope(state) is not None)


class Gathered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content that was read from the old partitions, and the expected content of the new ones.

    ``before``: the digests of each old partition. ``placed``: of each new one. ``files``: the file of each new
    partition that has rows.
    """

    before: list[dict[Name, Digest]]
    placed: list[dict[Name, Digest]]
    files: dict[Partitions, list[StoredFile]]


class OldRows(Protocol):
    """The source of the rows of old partitions."""

    def read(
        self, workplace: Workplace, states: Sequence[StateMeta], folder: Path
    ) -> list[tuple[int, dict[str, list[Row]]]]:
        """Return the rows of some states for each old partition, with its number, by name.

        Raises NotFoundError, FormatError, StorageError.
        """


@dataclass(frozen=True)
class RowsOfStores:
    """Rows in the stores of the old partitions."""

    stores: tuple[StoreVersion, ...]

    def read(
        self, workplace: Workplace, states: Sequence[StateMeta], folder: Path
    ) -> list[tuple[int, dict[str, list[Row]]]]:
        """See OldRows. It fetches little more than the files that have the rows."""

        def read_store(store: StoreVersion) -> tuple[int, dict[str, list[Row]]]:
            place, commit = workplace.store_place(store), store.meta.marker
            below = folder / f"old-{store.identity.partition}"
            below.mkdir(mode=0o700)
            with ThreadPoolExecutor(THREADS) as pool:
                reader = RangeReader(place, commit, workplace.tuning(), pool, str(store.identity), below)
                with closing(reader):
                    return store.identity.partition, dict(_read_states(reader, store, states))

        with ThreadPoolExecutor(STORES_AT_ONCE) as pool:
            return list(pool.map(read_store, self.stores))


@dataclass(frozen=True)
class RowsOfFiles:
    """Rows in the files of a canonical savepoint. Its lists are by partition; of broadcast states it has one copy."""

    source: str
    saved: SavedRows

    def read(
        self, workplace: Workplace, states: Sequence[StateMeta], folder: Path
    ) -> list[tuple[int, dict[str, list[Row]]]]:
        """See OldRows."""
        found: dict[int, dict[str, list[Row]]] = {}
        names = {state.name for state in states}
        # Numbers of partitions are small: they are in the range of the first file.
        path = fetch_rows(workplace, self.source, self.saved, 0, folder)
        for state, portion in rows_in(path, self.source, self.saved, 0):
            if state.name in names:
                for key, value in portion.rows():
                    partition = int.from_bytes(key[STATE_BYTES : STATE_BYTES + HASH_BYTES], "big")
                    found.setdefault(partition, {}).setdefault(state.name, []).append((key, value))
        return sorted(found.items())


@dataclass(frozen=True)
class GatherTask:
    """Redistributes some ``states`` from ``old_partitions`` to new ``partitions``.

    The states have their new numbers and names; ``names`` maps old names to the new ones that differ. ``identity``: of
    the first new store.
    """

    workplace: Workplace
    identity: Identity
    rows: OldRows
    states: tuple[StateMeta, ...]
    names: Mapping[str, str]
    target: str
    old_partitions: int
    partitions: int

    @property
    def key(self) -> str:
        """The name of the task, unique in its job."""
        return f"gather-{self.identity.key}"

    def __call__(self) -> Gathered:
        """Write the files. Raises NotFoundError, FormatError, StorageError."""
        old_names = {new: old for old, new in self.names.items()}
        before_names = [old_names.get(state.name, state.name) for state in self.states]
        renamed = [
            msgspec.structs.replace(state, name=name) for state, name in zip(self.states, before_names, strict=True)
        ]
        with self.workplace.folder() as folder:
            read = self.rows.read(self.workplace, renamed, folder)
            placed: list[list[Row]] = [[] for _ in range(self.partitions)]
            digests: list[dict[str, Digest]] = [{} for _ in range(self.partitions)]
            for state, name in sorted(zip(self.states, before_names, strict=True), key=lambda each: each[0].number):
                old = [(partition, rows[name]) for partition, rows in read if name in rows]
                of_new = _place(state, old, self.old_partitions, self.partitions)
                are_copies = find_scope(state) is Scope.BROADCAST
                known = [_digest(of_new[0])] * self.partitions if are_copies else list(map(_digest, of_new))
                for partition, (rows, digest) in enumerate(zip(of_new, known, strict=True)):
                    placed[partition] += rows
                    digests[partition][state.name] = digest
            files = {n: [_write(self.workplace, folder, n, rows)] for n, rows in enumerate(placed) if rows}
            sent = send_all(self.workplace.place(self.target), self.identity, files)
            before = [{name: _digest(each) for name, each in rows.items()} for _, rows in read]
            return Gathered(before, digests, sent)


def _read_states(
    reader: RangeReader, store: StoreVersion, states: Sequence[StateMeta]
) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows of each state of a store. Raises FormatError (the number of rows differs from the commit)."""
    for state in states:
        own, rows = store.meta.state(state.name), list[Row]()
        if own is not None:
            database = reader.open(state_range(own.number))
            rows = [row for portion in scan_state(database, own.number) for row in portion.rows()]
            digests = {own.name: _digest(rows)}
            require_counts({own.name: own.rows}, digests, str(store.identity))
            require_digests([own], digests, str(store.identity))
        yield state.name, rows


def _place(
    state: StateMeta, old: Sequence[tuple[int, Sequence[Row]]], old_partitions: int, partitions: int
) -> list[list[Row]]:
    """Return the rows of each new partition, made from the rows of the old ones, which are in order."""
    scope = find_scope(state)
    if scope is Scope.BROADCAST:
        return [_copy(state, old)] * partitions
    values = [value for _, rows in old for _, value in rows]
    if scope is Scope.UNION:
        return [_number(state, partition, values) for partition in range(partitions)]
    of = dict(old)
    if partitions == old_partitions and all(partition < partitions for partition in of):
        return [_number(state, n, [value for _, value in of.get(n, [])]) for n in range(partitions)]
    size, rest = divmod(len(values), partitions)
    ends = [size * (n + 1) + min(n + 1, rest) for n in range(partitions)]
    return [
        _number(state, partition, values[begin:end])
        for partition, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    ]


def _number(state: StateMeta, partition: int, values: Sequence[bytes]) -> list[Row]:
    head = encode_list_head(state.number, partition)
    return [(head + encode_element(0, number), value) for number, value in enumerate(values)]


def _copy(state: StateMeta, old: Sequence[tuple[int, Sequence[Row]]]) -> list[Row]:
    """Return the rows of a broadcast state: all old partitions that have it have the same ones."""
    head = encode_broadcast_head(state.number)
    return [(head + key[len(head) :], value) for key, value in (old[0][1] if old else ())]


def _digest(rows: Sequence[Row]) -> Digest:
    tally = Tally()
    tally.count(PackedRows.of(rows))
    return tally.digest


def _write(workplace: Workplace, folder: Path, partition: int, rows: Sequence[Row]) -> Path:
    path = folder / f"new-{partition}.sst"
    write_table_file(path, rows, workplace.tuning())
    return path


def require_placed(gathered: Gathered, made: Sequence[Mapping[str, Digest]], what: str) -> None:
    """Raise FormatError unless each new partition has the rows that were placed in it.

    ``made``: the digests of the new partitions.
    """
    for partition, (placed, found) in enumerate(zip(gathered.placed, made, strict=True)):
        for name, expected in placed.items():
            if found.get(name, Digest()) != expected:
                held = found.get(name, Digest())
                raise FormatError(
                    f"{what}: state {name!r} was to have {expected.rows} rows with the digest {expected.sum} in the "
                    f"new partition {partition}, but has {held.rows} rows with the digest {held.sum}.",
                    hint="The target is not usable: delete it, verify the source, and run the operation again.",
                )
