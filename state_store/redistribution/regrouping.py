"""Redistribution by remainders in one step, where few old stores have the rows of few new ones.

A row is in partition ``hash mod n``: so old partition p of n and new partition q of m have rows in common only if both
leave the same remainder when divided by the greatest common divisor of n and m. From 8 partitions to 32, each old store
has the rows of four new ones, and from 32 to 8 each new one those of four old ones. Such a group is moved by one task,
which writes each row once. ``splitting`` does it in two steps, for any numbers, and with more tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from math import gcd
from pathlib import Path

import msgspec

from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.state_rows import (
    counts_of,
    proven,
    refuse_stray_rows,
    require_counts,
    rows_of,
)
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.columns.order import join_runs
from pyspark_ckpt.state_store.columns.rows import RowColumns
from pyspark_ckpt.state_store.database import Database
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.redistribution.assembly import AT_ONCE, Assembled, NewStore, assemble
from pyspark_ckpt.state_store.redistribution.splitting import RunWriters

MAX_SOURCES = 8
"""Old stores that a task reads side by side: of each there is a portion of rows in memory."""


def groups_of(old_partitions: int, partitions: int, width: int) -> int:
    """How many groups there are, or 0 if they are too large, or too few to keep ``width`` tasks at once at work."""
    groups = gcd(old_partitions, partitions)
    return groups if groups >= width and old_partitions // groups <= MAX_SOURCES else 0


class Regrouped(msgspec.Struct, frozen=True):
    """What the old stores of a group had, and the new ones that were made of it, both in the order of the task's."""

    before: list[dict[str, Digest]]
    made: list[Assembled]


@dataclass(frozen=True)
class RegroupTask:
    """Makes the ``new`` stores of a group of old ones. ``numbers``: what the numbers of each one's states become."""

    workplace: Workplace
    sources: tuple[StoreVersion, ...]
    numbers: tuple[Mapping[int, int], ...]
    new: tuple[NewStore, ...]
    partitions: int

    @property
    def key(self) -> str:
        """Names the task among all of its redistribution."""
        return f"regroup-{self.new[0].identity.key}"

    def __call__(self) -> Regrouped:
        """Publish the new stores. Raises StorageError, FormatError, NotFoundError."""
        with self.workplace.folder() as folder:
            files, before = self._split(folder)

            def make(new: NewStore) -> Assembled:
                mine = files.get(new.identity.partition, [])
                return assemble(self.workplace, new, [mine], folder / f"new-{new.key}")

            with ThreadPoolExecutor(AT_ONCE) as pool:
                return Regrouped(before, list(pool.map(make, self.new)))

    def _split(self, folder: Path) -> tuple[Mapping[int, list[Path]], list[dict[str, Digest]]]:
        """The rows of each new store, in files whose keys rise from file to file; and digests of the old ones."""
        before: list[dict[str, Digest]] = [{} for _ in self.sources]
        with ExitStack() as stack:
            databases = []
            for number, source in enumerate(self.sources):
                restored = stack.enter_context(self.workplace.restore(source, folder / f"old-{number}"))
                refuse_stray_rows(restored.database, restored.meta, str(source.identity))
                databases.append(restored.database)
            writers = RunWriters(folder, self.workplace.tuning(), self.partitions)
            for _ in writers.passes():
                for state in sorted(self.new[0].merged.states, key=lambda state: state.number):
                    runs = [
                        self._rows(index, databases[index], state.number, before[index]) for index in range(len(before))
                    ]
                    for rows in join_runs(runs):
                        writers.write(rows)
            for source, database, digests in zip(self.sources, databases, before, strict=True):
                require_counts(counts_of(database, source.meta), digests, str(source.identity))
        strangers = sorted(writers.files.keys() - {new.identity.partition for new in self.new})
        if strangers:
            raise FormatError(
                f"{', '.join(str(source.identity) for source in self.sources)}: there are rows of the partitions "
                f"{strangers} of {self.partitions}, which cannot have any from there.",
                hint="Verify the source (pyspark-ckpt checkpoint verify).",
            )
        return writers.files, before

    def _rows(self, index: int, database: Database, number: int, digests: dict[str, Digest]) -> Iterator[RowColumns]:
        """The rows of an old store for the state that has that number now; when all are read, so is their digest."""
        for state in self.sources[index].meta.states:
            if self.numbers[index][state.number] == number:
                found = rows_of(database, state.number, readers=len(self.sources))
                for rows in proven(found, state.name, digests):
                    yield rows.renumber(number)
