"""The first half of a redistribution by remainders: split an old partition into sorted runs, one for each new one.

A run is a list of table files whose keys rise from file to file. They lie below the target until they are joined::

    <target>/_ckpt/restore/runs/<operator>-<store>/<new partition>/<old partition>-<number>-<8 hex digits>.sst

The digits keep attempts apart: files left by a killed attempt do not disturb another.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.attempts.agreement import select_copies
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.blobs.transfers import StoredFile, send
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.state_rows import (
    Tally,
    read_counts,
    refuse_stray_rows,
    require_counts,
    require_digests,
    scan_state,
)
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.database import Tuning
from pyspark_ckpt.state_store.format.keys import STATE_BYTES
from pyspark_ckpt.state_store.format.meta import is_keyed
from pyspark_ckpt.state_store.format.partition_states import Scope, find_scope
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import Name, Partitions
from pyspark_ckpt.state_store.redistribution.rolling_writer import RollingWriter
from pyspark_ckpt.state_store.restore.store_restorer import RestoredStore

RUNS_FOLDER = "_ckpt/restore/runs"
ROLL_OVER_BYTES = 16 << 20
MAX_WRITERS = 128
"""The maximum number of files that are written at once: RocksDB has a buffer of up to 1 MB for each."""
ROWS_AT_ONCE = 4096
MAX_WAITING_BYTES = 16 << 20
MAX_OPEN_BYTES = 128 << 20
"""The maximum memory of all files that are being written. The allocator keeps about as much again of earlier files."""
_UNSEEN, _NOW, _LATER, _DONE = range(4)


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result for one store: digests of its states, and a run for each new partition that has rows in it."""

    digests: dict[Name, Digest]
    runs: dict[Partitions, list[StoredFile]]
    spark_rows: list[bytes] = []
    """Values of the rows that Spark keeps for each partition of a keyed operator. They belong to no key."""


@dataclass(frozen=True)
class SplitTask:
    """Splits one store for the new ``partitions``. ``numbers``: the new numbers of its states.

    It splits by remainders of the hash or, if ``key_groups`` is not 0, by ranges of that many key groups.
    ``writes_copies``: whether it writes broadcast states, of which one copy is enough. ``left_out``: the names of
    states that are not read.
    """

    workplace: Workplace
    source: StoreVersion
    target: str
    partitions: int
    numbers: Mapping[int, int]
    key_groups: int = 0
    is_keyed: bool = False
    writes_copies: bool = True
    left_out: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """The name of the task, unique in its redistribution."""
        return f"split-{self.source.identity.key}"

    def __call__(self) -> Split:
        """Write the runs of all new partitions. Raises StorageError, FormatError, NotFoundError."""
        identity = self.source.identity
        with self.workplace.folder() as folder, self.workplace.restore(self.source, folder / "old") as restored:
            refuse_stray_rows(restored.database, restored.meta, str(identity))
            writers = PartitionWriters(folder, self.workplace.tuning(), self.partitions, self.key_groups)
            for _ in writers.passes():
                digests, spark_rows = self._write(restored, writers)  # the same in each pass
            require_counts(read_counts(restored.database, restored.meta), digests, str(identity))
            require_digests(restored.meta.states, digests, str(identity))
            copies = () if self.writes_copies else [each.name for each in select_copies(restored.meta)]
            written = {name: each for name, each in digests.items() if name not in copies}
            return Split(written, send_all(self.workplace.place(self.target), identity, writers.files), spark_rows)

    def _write(self, restored: RestoredStore, writers: PartitionWriters) -> tuple[dict[str, Digest], list[bytes]]:
        """Write all rows except Spark's own rows of a keyed operator; return digests, and the values of those."""
        digests: dict[str, Digest] = {}
        spark_rows = []
        states = [state for state in restored.meta.states if state.name not in self.left_out]
        for state in sorted(states, key=lambda state: self.numbers[state.number]):
            rows = scan_state(restored.database, state.number)
            if self.is_keyed and not is_keyed(state):
                spark_rows += [value for portion in rows for value in portion.values.strings()]
                continue
            tally = Tally()
            for portion in rows:
                tally.count(portion)
                if self.writes_copies or find_scope(state) is not Scope.BROADCAST:
                    writers.write(portion.renumber(self.numbers[state.number]))
            digests[state.name] = tally.digest
        return digests, spark_rows


class PartitionWriters:
    """Writes each new partition's rows, if any, to separate files, for ``MAX_WRITERS`` partitions at once.

    All rows must be given again in each of the ``passes``. Usually there is one.
    """

    def __init__(self, folder: Path, tuning: Tuning, partitions: int, key_groups: int = 0) -> None:
        """Write to ``folder``, for partitions by remainders of hashes or, if ``key_groups`` is not 0, by key groups."""
        self._folder, self._tuning, self._partitions = folder, tuning, partitions
        self._key_groups = key_groups
        self._turns = np.full(partitions, _UNSEEN, np.uint8)
        self._waiting: list[PackedRows] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._writers: dict[int, RollingWriter] = {}
        self.files: dict[int, list[Path]] = {}
        """The complete files by partition. Keys rise from file to file."""

    def passes(self) -> Iterator[None]:
        """Begin one pass after the other until the rows of all partitions are written."""
        is_through = False
        while not is_through:
            yield
            self._spread()
            for partition, run in self._writers.items():
                self.files[partition] = run.finish()
            self._writers.clear()
            self._turns[self._turns == _NOW] = _DONE
            is_through = not (self._turns == _LATER).any()
            self._turns[self._turns == _LATER] = _UNSEEN

    def write(self, rows: PackedRows) -> None:
        """Write rows of one state, each to the file of its partition. Keys must rise from call to call.

        Rows wait until there are some for each partition: building a file from a few rows at a time is slow.
        """
        if not len(rows):
            return
        if self._waiting and not _are_alike(self._waiting[0], rows):
            self._spread()
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        self._waiting_bytes += int(rows.keys.size.sum()) + int(rows.values.size.sum())
        writers = len(self._writers) or min(self._partitions, MAX_WRITERS)
        if self._waiting_rows >= ROWS_AT_ONCE * writers or self._waiting_bytes >= MAX_WAITING_BYTES:
            self._spread()

    def _spread(self) -> None:
        """Write the waiting rows."""
        if self._waiting:
            self._write(PackedRows.join(self._waiting))
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def _write(self, rows: PackedRows) -> None:
        places = assign_partitions(rows.hashes(), self._partitions, self._key_groups)
        for partition in np.flatnonzero(np.bincount(places, minlength=self._partitions)).tolist():
            if self._turns[partition] == _UNSEEN:
                self._turns[partition] = _NOW if len(self._writers) < MAX_WRITERS else _LATER
            if self._turns[partition] == _NOW and partition not in self._writers:
                self._writers[partition] = RollingWriter(self._folder, str(partition), self._tuning, ROLL_OVER_BYTES)
        mine = self._turns[places] == _NOW
        if not mine.all():
            places, rows = places[mine], rows.take(mine)
        order = np.argsort(places, kind="stable")
        rows, places = rows.take(order), places[order]
        begins = np.flatnonzero(np.diff(places, prepend=-1))
        for begin, end in pairwise([*begins.tolist(), len(places)]):
            self._writers[int(places[begin])].write(rows.take(slice(begin, end)))
        while sum(run.memory_bytes for run in self._writers.values()) > MAX_OPEN_BYTES:
            max(self._writers.values(), key=lambda run: run.memory_bytes).finish()


def assign_partitions(
    hashes: npt.NDArray[np.uint32], partitions: int, key_groups: int = 0
) -> npt.NDArray[np.integer[Any]]:
    """Return the partitions that the rows of these hashes belong to: see SplitTask."""
    small = np.uint16 if partitions <= 1 << 16 else np.int64  # numbers of 16 bits are sorted fastest
    if key_groups:
        groups = hashes.astype(np.uint64) * np.uint64(key_groups) >> np.uint64(32)
        return (groups * np.uint64(partitions) // np.uint64(key_groups)).astype(small)
    return np.mod(hashes.view(np.int32), partitions).astype(small)  # signed, as in Spark


def _are_alike(some: PackedRows, others: PackedRows) -> bool:
    """Return whether all rows are of one state and of one size: such rows are joined quickly."""
    is_one_state = some.keys[0][:STATE_BYTES] == others.keys[0][:STATE_BYTES]
    sizes = [(rows.keys.size[0], rows.values.size[0]) for rows in (some, others)]
    return is_one_state and sizes[0] == sizes[1] and some.are_of_one_size and others.are_of_one_size


def run_folder(operator: int, store: str, partition: int) -> str:
    """Return the folder of the runs of a new partition, below the target."""
    return f"{RUNS_FOLDER}/{operator}-{store}/{partition}"


def send_all(place: BlobPlace, source: Identity, files: Mapping[int, list[Path]]) -> dict[int, list[StoredFile]]:
    """Store the runs of one store where the tasks that join them find them. Raises StorageError."""
    sent, attempt = {}, uuid.uuid4().hex[:16]
    for partition, paths in files.items():
        begin = f"{run_folder(source.operator, source.name, partition)}/{source.partition}"
        sent[partition] = [send(place, f"{begin}-{n}-{attempt}.sst", path) for n, path in enumerate(paths)]
    return sent
