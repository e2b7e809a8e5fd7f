"""Move rows by remainders between any numbers of partitions: all rows are split into runs, and the runs are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.redistribution.assembly import Assembled, JoinTask, NewStore, run_files
from pyspark_ckpt.state_store.redistribution.splitting import Split, SplitTask
from pyspark_ckpt.state_store.redistribution.strategies.base import Moved, RunTasks


@dataclass(frozen=True)
class MoveByRemainders:
    """Moves rows by splitting and joining. ``url``: where the runs lie until they are joined."""

    workplace: Workplace
    url: str

    def move(self, stores: Sequence[StoreVersion], new: Sequence[NewStore], run: RunTasks) -> Moved:
        """See Strategy."""
        splits: list[Split] = run(
            [
                SplitTask(self.workplace, store, self.url, len(new), numbers)
                for store, numbers in zip(stores, new[0].merged.numbers, strict=True)
            ],
            Split,
        )
        joins = [
            JoinTask(
                self.workplace, each, self.url, run_files([split.runs for split in splits], each.identity.partition)
            )
            for each in new
        ]
        return Moved([split.digests for split in splits], run(joins, Assembled))
