"""What a checkpoint says: how many partitions each operator has, and how evenly rows and bytes are spread over them."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion, list_operators
from pyspark_ckpt.state_store.checkpoints.layout import Layout, keeps_one_partition

MAX_SKEW = 2.0
"""Rows of the largest partition over the mean: from here on, one partition holds up the others."""
MIN_ROWS = 30
"""With fewer rows in the mean partition, the largest one may have twice as many by chance."""


@dataclass(frozen=True)
class StateFigures:
    """One operator's state. ``rows`` and ``sizes_bytes``: of each partition, over all its stores.

    ``name``: for people. ``operator_name``: Spark's. ``max_partitions``: how many it can have; None if there is no
    limit. ``keeps_one``: it needs all rows in one place.
    """

    number: int
    name: str
    rows: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    max_partitions: int | None
    keeps_one: bool
    operator_name: str = ""

    @property
    def partitions(self) -> int:
        """How many partitions have state."""
        return len(self.rows)

    @property
    def skew(self) -> float:
        """The rows of the largest partition over the mean; 1 if there are none."""
        return self.largest_share * len(self.rows) if sum(self.rows) else 1.0

    @property
    def largest_share(self) -> float:
        """The rows of the largest partition over those of all; 0 if there are none."""
        total = sum(self.rows)
        return max(self.rows) / total if total else 0.0

    @property
    def is_skewed(self) -> bool:
        """Whether one partition has so many rows that chance does not explain it."""
        return sum(self.rows) >= MIN_ROWS * len(self.rows) and self.skew >= MAX_SKEW


def read_state(checkpoint: Checkpoint) -> list[StateFigures]:
    """Return the figures of all operators at the newest version. Raises as ``list_operators``."""
    return [_read(operator) for operator in list_operators(checkpoint, checkpoint.newest_version)]


def _read(operator: OperatorVersion) -> StateFigures:
    rows, sizes = [0] * operator.partitions, [0] * operator.partitions
    for stores in operator.stores.values():
        for number, store in enumerate(stores):
            rows[number] += sum(state.rows for state in store.meta.states)
            sizes[number] += store.size_bytes
    uids = operator.uids
    return StateFigures(
        operator.operator.number,
        f"keyed {', '.join(uids)}" if uids else operator.operator.name,
        tuple(rows),
        tuple(sizes),
        operator.key_groups if operator.layout is Layout.KEY_GROUPS else None,
        keeps_one_partition(operator.operator.name, [state for meta in operator.metas for state in meta.states]),
        operator.operator.name,
    )
