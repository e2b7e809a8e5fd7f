"""Moves the rows of Spark's own stores into new stores: each is split into sorted runs, as in a redistribution."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from pyspark_ckpt.adoption.rows import RowConverter
from pyspark_ckpt.adoption.stores import Form, StoreFiles
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.state_rows import Tally, digest_tallies
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.database.scratch import ScratchDatabase
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.meta import StateMeta
from pyspark_ckpt.state_store.format.remote import DEFAULT_STORE
from pyspark_ckpt.state_store.redistribution.assembly import Assembled, JoinTask, NewStore, run_files
from pyspark_ckpt.state_store.redistribution.splitting import (
    PartitionWriters,
    Split,
    assign_partitions,
    send_all,
)
from pyspark_ckpt.state_store.redistribution.strategies.base import Moved, RunTasks

RUN_BYTES = 64 << 20
"""About how many bytes of rows are sorted at once."""
FAMILY_BYTES = 2
"""The number of a state, little-endian, before the keys of a store with several."""


@dataclass(frozen=True)
class AdoptTask:
    """Splits one of Spark's stores for the new ``partitions``. ``old_partitions``: how many have state."""

    workplace: Workplace
    source: StoreVersion
    form: Form
    target: str
    old_partitions: int
    partitions: int

    @property
    def key(self) -> str:
        """The name of the task, unique in its redistribution."""
        return f"adopt-{self.source.identity.key}"

    def __call__(self) -> Split:
        """Write the runs of all new partitions. Raises StorageError, FormatError, NotFoundError, InvalidInputError."""
        identity = self.source.identity
        files = StoreFiles.of(self.workplace, self.source, self.form)
        tallies, written = defaultdict[str, Tally](Tally), defaultdict[int, list[Path]](list)
        with self.workplace.folder() as folder:
            loaded = files.load(folder / "old")
            with closing(loaded.database) as database:
                of_states = self._rows_of_states(loaded.families, database)
                for number, (converter, name, rows) in enumerate(of_states):
                    packed, hashes = converter.convert(rows)
                    self._require_partition(hashes)
                    tallies[name].count(packed)
                    for partition, paths in self._write(packed, folder / f"run-{number}").items():
                        written[partition] += paths
            sent = send_all(self.workplace.place(self.target), identity, written)
        return Split(digest_tallies(tallies), sent)

    def _rows_of_states(
        self, families: Mapping[int, str], database: ScratchDatabase
    ) -> Iterator[tuple[RowConverter, str, list[tuple[bytes, bytes]]]]:
        """Yield portions of rows of one state each: what converts them, the name of the state, and the rows."""
        converters = {state.name: self._make_converter(state) for state in self.source.meta.states}
        if not families:
            (name,) = converters
            for rows in _portions(database):
                yield converters[name], name, rows
            return
        for rows in _portions(database):
            for head, some in groupby(rows, key=lambda row: row[0][:FAMILY_BYTES]):
                name = families.get(int.from_bytes(head, "little"), "")
                if name not in converters:
                    raise FormatError(f"{self.source.identity} has rows of a state {name!r}, which has no schema.")
                yield converters[name], name, [(key[FAMILY_BYTES:], value) for key, value in some]

    def _make_converter(self, state: StateMeta) -> RowConverter:
        identity = self.source.identity
        name = identity.name if state.name == DEFAULT_STORE else state.name
        whose = f"{identity}, state {state.name!r}"
        return RowConverter(state, name, self.form, whose)

    def _write(self, rows: PackedRows, folder: Path) -> dict[int, list[Path]]:
        folder.mkdir(mode=0o700)
        writers = PartitionWriters(folder, self.workplace.tuning(), self.partitions)
        for _ in writers.passes():
            writers.write(rows)
        return writers.files

    def _require_partition(self, hashes: np.ndarray) -> None:
        """Raise FormatError unless the rows belong to the partition in which Spark has them: it proves the hashes."""
        places = assign_partitions(hashes, self.old_partitions)
        if len(wrong := np.flatnonzero(places != self.source.identity.partition)):
            raise FormatError(
                f"{self.source.identity}: {len(wrong)} of {len(places)} rows belong to other partitions by the hash of "
                f"their keys, the first to partition {places[wrong[0]]} of {self.old_partitions}.",
                hint="The checkpoint is of a query that places its keys in another way, or is damaged. Its state is "
                "not moved.",
            )


@dataclass(frozen=True)
class MoveSparkRows:
    """Moves the rows of the stores of one name. See Strategy."""

    workplace: Workplace
    form: Form
    url: str
    old_partitions: int

    def move(self, stores: Sequence[StoreVersion], new: Sequence[NewStore], run: RunTasks) -> Moved:
        """See Strategy."""
        tasks = [
            AdoptTask(self.workplace, store, self.form, self.url, self.old_partitions, len(new)) for store in stores
        ]
        splits: list[Split] = run(tasks, Split)
        runs = [split.runs for split in splits]
        joins = [JoinTask(self.workplace, each, self.url, run_files(runs, each.identity.partition)) for each in new]
        return Moved([split.digests for split in splits], run(joins, Assembled))


@dataclass(frozen=True)
class SparkStores:
    """Chooses how the stores of a query in one of Spark's own providers are moved. See ``OtherStores``."""

    workplace: Workplace
    form: Form

    def strategy(self, operator: OperatorVersion, url: str) -> MoveSparkRows:
        """See ``OtherStores``."""
        partitions = 1 if operator.layout is Layout.SINGLE else operator.operator.partitions
        return MoveSparkRows(self.workplace, self.form, url, partitions)


def _portions(database: ScratchDatabase) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield rows in portions of about RUN_BYTES."""
    some: list[tuple[bytes, bytes]] = []
    size = 0
    for portion in database.portions():
        some += portion
        size += sum(len(key) + len(value) for key, value in portion)
        if size >= RUN_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
