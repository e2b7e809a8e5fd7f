"""Moves the rows of Spark's own stores into new stores: each is split into sorted runs, as in a redistribution."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyspark_ckpt.offline.adopting.recognition import describe
from pyspark_ckpt.offline.adopting.row_sums import strip_sums
from pyspark_ckpt.offline.adopting.rows import RowConverter
from pyspark_ckpt.offline.adopting.stored_rows import read_portions
from pyspark_ckpt.offline.adopting.stores import FAMILY_BYTES, Form, StoreFiles
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.checkpoints.state_rows import Tally, digest_tallies
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.database.scratch import ScratchDatabase
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.meta import StateMeta
from pyspark_ckpt.state_store.format.remote import DEFAULT_STORE
from pyspark_ckpt.state_store.redistribution.assembly import Assembled, JoinTask, NewStore, run_files
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.redistribution.row_forecast import sum_counts
from pyspark_ckpt.state_store.redistribution.splitting import (
    PartitionWriters,
    Split,
    assign_partitions,
    send_all,
)
from pyspark_ckpt.state_store.redistribution.strategies.base import Moved, RunTasks

if TYPE_CHECKING:
    import numpy.typing as npt


class SparkRows(NamedTuple):
    """Rows of one state under their stored keys, in key order, and their unsigned hashes in any order."""

    state: str
    rows: PackedRows
    hashes: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class SparkStore:
    """One of Spark's stores. ``partitions``: how many of its operator have state. ``dropped``: states to leave out."""

    workplace: Workplace
    source: StoreVersion
    form: Form
    partitions: int
    dropped: frozenset[str] = frozenset()

    def read(self, folder: Path) -> Iterator[SparkRows]:
        """Yield all rows in portions. ``folder``, a new one, is for files meanwhile.

        Raises StorageError, FormatError, NotFoundError, InvalidInputError.
        """
        loaded = StoreFiles.of(self.workplace, self.source, self.form).load(folder)
        with closing(loaded.database) as database:
            for converter, name, rows in self._rows_of_states(loaded.families, database):
                packed, hashes = converter.convert(rows)
                self._require_partition(hashes)
                yield SparkRows(name, packed, hashes)

    def _rows_of_states(
        self, families: Mapping[int, str], database: ScratchDatabase
    ) -> Iterator[tuple[RowConverter, str, PackedRows]]:
        """Yield portions of rows of one state each: their converter, the name of the state, and the rows."""
        converters = {state.name: self._make_converter(state) for state in self.source.meta.states}
        if not families:
            if not converters and not any(self._portions(database)):  # a store gets its states with its first rows
                return
            if len(converters) != 1:
                raise FormatError(
                    f"{self.source.identity} has the states {sorted(converters)}, but its files do not number them."
                )
            (name,) = converters
            for rows in self._portions(database):
                yield converters[name], name, rows
            return
        for rows in self._portions(database):
            for number, some in _split_by_number(rows, str(self.source.identity)):
                name = families.get(number, "")
                if name in self.dropped:
                    continue
                if name not in converters:
                    raise FormatError(f"{self.source.identity} has rows of a state {name!r}, which has no schema.")
                yield converters[name], name, some

    def _portions(self, database: ScratchDatabase) -> Iterator[PackedRows]:
        """Yield rows in portions, as they are stored without checksums."""
        where, are_sized = str(self.source.identity), self.form.provider == "rocksdb"
        for rows in read_portions(database):
            if self.form.has_sums:
                stripped = strip_sums([*rows.rows()], where, are_sized=are_sized, delimiter=self.form.delimiter)
                yield PackedRows.of(stripped)
            else:
                yield rows

    def _make_converter(self, state: StateMeta) -> RowConverter:
        identity = self.source.identity
        name = identity.name if state.name == DEFAULT_STORE else state.name
        whose = f"{identity}, state {state.name!r}"
        return RowConverter(state, name, self.form, whose)

    def _require_partition(self, hashes: npt.NDArray[np.uint32]) -> None:
        """Raise FormatError unless the rows belong to the partition in which Spark has them: it proves the hashes."""
        places = assign_partitions(hashes, self.partitions)
        if len(wrong := np.flatnonzero(places != self.source.identity.partition)):
            raise FormatError(
                f"{self.source.identity}: {len(wrong)} of {len(places)} rows belong to other partitions by the hash of "
                f"their keys, the first to partition {places[wrong[0]]} of {self.partitions}.",
                hint="The query places its keys in another way, or the checkpoint is damaged. Its state is not moved.",
            )


@dataclass(frozen=True)
class AdoptTask:
    """Splits one of Spark's stores for the new ``partitions``. ``target``: the URL of the new checkpoint."""

    store: SparkStore
    target: str
    partitions: int

    @property
    def key(self) -> str:
        """The name of the task, unique in its redistribution."""
        return f"adopt-{self.store.source.identity.key}"

    def __call__(self) -> Split:
        """Write the runs of all new partitions. Raises StorageError, FormatError, NotFoundError, InvalidInputError."""
        workplace = self.store.workplace
        tallies, written = defaultdict[str, Tally](Tally), defaultdict[int, list[Path]](list)
        with workplace.folder() as folder:
            for number, (state, rows, _) in enumerate(self.store.read(folder / "old")):
                tallies[state].count(rows)
                for partition, paths in self._write(rows, folder / f"run-{number}").items():
                    written[partition] += paths
            sent = send_all(workplace.place(self.target), self.store.source.identity, written)
        return Split(digest_tallies(tallies), sent)

    def _write(self, rows: PackedRows, folder: Path) -> dict[int, list[Path]]:
        folder.mkdir(mode=0o700)
        writers = PartitionWriters(folder, self.store.workplace.tuning(), self.partitions)
        for _ in writers.passes():
            writers.write(rows)
        return writers.files


@dataclass(frozen=True)
class CountSparkRows:
    """Counts the rows of one of Spark's stores for each of the new ``partitions``."""

    store: SparkStore
    partitions: int

    @property
    def key(self) -> str:
        """The name of the task, unique in its job."""
        return f"count-{self.store.source.identity.key}"

    def __call__(self) -> list[int]:
        """Read the store. Raises StorageError, FormatError, NotFoundError, InvalidInputError."""
        counts = np.zeros(self.partitions, np.int64)
        with self.store.workplace.folder() as folder:
            for _, _, hashes in self.store.read(folder / "old"):
                counts += np.bincount(assign_partitions(hashes, self.partitions), minlength=self.partitions)
        found: list[int] = counts.tolist()
        return found


@dataclass(frozen=True)
class MoveSparkRows:
    """Moves the rows of the stores of one name. See Strategy."""

    stores: SparkStores
    url: str
    old_partitions: int

    def move(self, stores: Sequence[StoreVersion], new: Sequence[NewStore], run: RunTasks) -> Moved:
        """See Strategy."""
        old = [self.stores.get(store, self.old_partitions) for store in stores]
        splits: list[Split] = run([AdoptTask(store, self.url, len(new)) for store in old], Split)
        runs, workplace = [split.runs for split in splits], self.stores.workplace
        joins = [JoinTask(workplace, each, self.url, run_files(runs, each.identity.partition)) for each in new]
        return Moved([split.digests for split in splits], run(joins, Assembled))


@dataclass(frozen=True)
class SparkStores:
    """The stores of a query in one of Spark's own providers, and how they are moved. See ``OtherStores``.

    ``unnamed``: operators whose kind Spark has not recorded. ``dropped``: by operator and store, the
    states whose rows are left behind.
    """

    workplace: Workplace
    form: Form
    unnamed: tuple[Operator, ...] = ()
    dropped: Mapping[tuple[int, str], frozenset[str]] = field(default_factory=dict)

    def strategy(self, operator: OperatorVersion, url: str) -> MoveSparkRows:
        """See ``OtherStores``."""
        return MoveSparkRows(self, url, count_partitions(operator))

    def count_rows(
        self, operator: OperatorVersion, partitions: int, runner: Runner, progress: Progress
    ) -> Sequence[int]:
        """See ``OtherStores``."""
        stores = [self.get(store, count_partitions(operator)) for each in operator.stores.values() for store in each]
        return sum_counts(runner([CountSparkRows(store, partitions) for store in stores], progress), partitions)

    def describe_operators(self, partitions: int) -> dict[str, bytes]:
        """See ``OtherStores``."""
        return {
            f"state/{each.number}/_metadata/metadata": describe(replace(each, partitions=partitions))
            for each in self.unnamed
        }

    def get(self, store: StoreVersion, partitions: int) -> SparkStore:
        """Return a store of an operator that has state in ``partitions`` partitions."""
        dropped = self.dropped.get((store.identity.operator, store.identity.name), frozenset())
        return SparkStore(self.workplace, store, self.form, partitions, dropped)


def count_partitions(operator: OperatorVersion) -> int:
    """Return in how many partitions Spark has the state of an operator."""
    return 1 if operator.layout is Layout.SINGLE else operator.operator.partitions


def _split_by_number(rows: PackedRows, whose: str) -> Iterator[tuple[int, PackedRows]]:
    """Yield the rows of each state of a store: the state's number, and the rows without it in their keys.

    Raises FormatError.
    """
    if int(rows.keys.size.min()) < FAMILY_BYTES:
        raise FormatError(f"{whose} has a key of {int(rows.keys.size.min())} bytes, without the number of a state.")
    numbers = rows.keys.matrix(FAMILY_BYTES).view("<u2")[:, 0]
    begins = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(rows)]
    for begin, end in pairwise(begins):
        some = rows.take(slice(begin, end))
        yield int(numbers[begin]), PackedRows(some.keys.behind(FAMILY_BYTES), some.values)
