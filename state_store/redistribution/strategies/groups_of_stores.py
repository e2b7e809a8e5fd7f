"""Move rows by remainders where few old stores have all rows of few new ones: each such group moves in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.redistribution.assembly import NewStore
from pyspark_ckpt.state_store.redistribution.regrouping import Regrouped, RegroupTask
from pyspark_ckpt.state_store.redistribution.strategies.base import Moved, RunTasks


@dataclass(frozen=True)
class MoveByGroupsOfStores:
    """Moves rows by regrouping. ``groups``: their number, see ``regrouping.count_groups``."""

    workplace: Workplace
    groups: int

    def move(self, stores: Sequence[StoreVersion], new: Sequence[NewStore], run: RunTasks) -> Moved:
        """See Strategy."""
        numbers = new[0].merged.numbers
        done: list[Regrouped] = run(
            [
                RegroupTask(
                    self.workplace,
                    tuple(stores[group :: self.groups]),
                    tuple(numbers[group :: self.groups]),
                    tuple(new[group :: self.groups]),
                    len(new),
                )
                for group in range(self.groups)
            ],
            Regrouped,
        )
        return Moved([each for group in done for each in group.before], [each for group in done for each in group.made])
