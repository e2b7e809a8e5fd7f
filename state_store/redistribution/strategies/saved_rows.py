"""Move the rows of a canonical savepoint, treating each of its files like the store of an old partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark_ckpt.state_store.blobs.transfers import StoredFile
from pyspark_ckpt.state_store.checkpoints.digests import combine, require_equal
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.redistribution.assembly import Assembled, JoinTask, NewStore, run_files
from pyspark_ckpt.state_store.redistribution.canonical import ImportTask, SavedRows
from pyspark_ckpt.state_store.redistribution.splitting import Split
from pyspark_ckpt.state_store.redistribution.strategies.base import Moved, RunTasks


@dataclass(frozen=True)
class MoveSavedRows:
    """Imports rows. ``url``: where runs lie until they are joined; ``key_groups``: of a keyed operator, else 0.

    ``placed``: see ``MoveByKeyGroups``.
    """

    workplace: Workplace
    source_url: str
    saved: SavedRows
    url: str
    key_groups: int
    placed: Mapping[int, Sequence[StoredFile]]

    def move(self, stores: Sequence[StoreVersion], new: Sequence[NewStore], run: RunTasks) -> Moved:  # noqa: ARG002
        """See Strategy. The old ``stores`` are those of the savepoint, which has their rows in its own files."""
        splits: list[Split] = run(
            [
                ImportTask(self.workplace, self.source_url, self.saved, number, self.url, len(new), self.key_groups)
                for number in range(len(self.saved.files))
            ],
            Split,
        )
        before = combine(split.digests for split in splits)
        what = f"{self.source_url}, operator {self.saved.operator}, store {self.saved.name!r}"
        require_equal(self.saved.digests, before, what)
        runs = [split.runs for split in splits]
        joins = [
            JoinTask(
                self.workplace,
                each,
                self.url,
                run_files(runs, each.identity.partition),
                self.saved.spark_rows,
                tuple(self.placed.get(each.identity.partition, ())),
            )
            for each in new
        ]
        return Moved([before], run(joins, Assembled))
