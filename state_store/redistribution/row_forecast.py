"""Forecast the number of rows in each new partition of an operator, by the hashes in the keys of all rows.

A key with many rows stays in one partition, whatever the number of partitions. Only the rows themselves therefore show
how even the new partitions will be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout, overlaps
from pyspark_ckpt.state_store.checkpoints.state_rows import scan_state
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.format.key_groups import find_owned_hashes
from pyspark_ckpt.state_store.format.meta import is_keyed
from pyspark_ckpt.state_store.format.partition_states import find_scope
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.redistribution.canonical import SavedRows, fetch_rows, hashes_in
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.redistribution.splitting import assign_partitions


@dataclass(frozen=True)
class CountTask:
    """Counts the rows of one store for each new partition, by remainders or, if ``key_groups`` is not 0, by key groups.

    Rows that belong to no key are not counted: the one that Spark keeps for each partition of an operator with key
    groups, and those of operator lists and broadcast states.
    """

    workplace: Workplace
    store: StoreVersion
    partitions: int
    key_groups: int

    @property
    def key(self) -> str:
        """The name of the task, unique in its job."""
        return f"count-{self.store.identity.key}"

    def __call__(self) -> list[int]:
        """Read the store. Raises StorageError, FormatError, NotFoundError."""
        counts = np.zeros(self.partitions, np.int64)
        with self.workplace.folder() as folder, self.workplace.restore(self.store, folder / "copy") as restored:
            for state in restored.meta.states:
                if self.key_groups and (not is_keyed(state) or find_scope(state) is not None):
                    continue
                for rows in scan_state(restored.database, state.number):
                    places = assign_partitions(rows.hashes(), self.partitions, self.key_groups)
                    counts += np.bincount(places, minlength=self.partitions)
        found: list[int] = counts.tolist()
        return found


@dataclass(frozen=True)
class CountFileTask:
    """Counts the rows of one file of a canonical savepoint in the same way. It reads only the hashes."""

    workplace: Workplace
    source: str
    saved: SavedRows
    number: int
    partitions: int
    key_groups: int

    @property
    def key(self) -> str:
        """The name of the task, unique in its job."""
        return f"count-{Identity(self.saved.operator, self.number, self.saved.name).key}"

    def __call__(self) -> list[int]:
        """Read the file. Raises StorageError, FormatError, NotFoundError."""
        counts = np.zeros(self.partitions, np.int64)
        with self.workplace.folder() as folder:
            path = fetch_rows(self.workplace, self.source, self.saved, self.number, folder)
            for hashes in hashes_in(path, self.source, self.saved, self.number):
                places = assign_partitions(hashes, self.partitions, self.key_groups)
                counts += np.bincount(places, minlength=self.partitions)
        found: list[int] = counts.tolist()
        return found


def count_rows(
    workplace: Workplace, operator: OperatorVersion, partitions: int, runner: Runner, progress: Progress
) -> list[int]:
    """Count the rows of each new partition of an operator. Raises StorageError, FormatError, NotFoundError."""
    groups = _groups(operator)
    stores = [store for each in operator.stores.values() for store in each]
    return sum_counts(
        runner([CountTask(workplace, store, partitions, groups) for store in stores], progress), partitions
    )


def count_rows_of_files(
    workplace: Workplace,
    operator: OperatorVersion,
    source: tuple[str, Sequence[SavedRows]],
    partitions: int,
    runner: Runner,
    progress: Progress,
) -> list[int]:
    """Do the same for rows in the canonical savepoint at the URL in ``source``. Raises as ``count_rows``."""
    groups, (url, saved) = _groups(operator), source
    tasks = [
        CountFileTask(workplace, url, rows, number, partitions, groups)
        for rows in saved
        for number in range(len(rows.files))
    ]
    return sum_counts(runner(tasks, progress), partitions)


def estimate_rows(operator: OperatorVersion, partitions: int) -> list[int]:
    """Estimate the same for a keyed operator, assuming that an old partition's rows are even over its key groups."""
    most, old = operator.key_groups, operator.partitions
    rows = Counter[int]()
    for stores in operator.stores.values():
        rows.update({store.identity.partition: store.meta.rows for store in stores})
    shares = []
    for partition in range(partitions):
        first, end = find_owned_hashes(partition, partitions, most)
        share = 0.0
        for index in overlaps(partition, partitions, old, most):
            begin, stop = find_owned_hashes(index, old, most)
            share += rows[index] * (min(end, stop) - max(first, begin)) / (stop - begin)
        shares.append(round(share))
    return shares


def _groups(operator: OperatorVersion) -> int:
    return operator.key_groups if operator.layout is Layout.KEY_GROUPS else 0


def sum_counts(counts: Sequence[Sequence[int]], partitions: int) -> list[int]:
    """Return the rows of each new partition, from the counts of the tasks."""
    return [sum(each[partition] for each in counts) for partition in range(partitions)]
