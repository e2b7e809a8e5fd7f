"""The common interface of all strategies that move rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark_ckpt.state_store.checkpoints.digests import Digests
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion
from pyspark_ckpt.state_store.local.worker_process import Task
from pyspark_ckpt.state_store.redistribution.assembly import Assembled, NewStore


class RunTasks(Protocol):
    """Runs tasks, as many at once as there is room for, and records the result of each."""

    def __call__(self, tasks: Sequence[Task], kind: object) -> list[Any]:
        """Run ``tasks``; return their results, each a ``kind``, in their order. Raises what a task raises."""


@dataclass(frozen=True)
class Moved:
    """The result of moving the stores of one name."""

    before: Sequence[Digests]
    """Digests of the states that were read. The digests of one state add up to that of all its rows."""
    made: Sequence[Assembled]
    """The new stores, in their order."""


class Strategy(Protocol):
    """One way of moving rows."""

    def move(self, stores: Sequence[StoreVersion], new: Sequence[NewStore], run: RunTasks) -> Moved:
        """Make the ``new`` stores of all partitions from the old ``stores``. An interrupted call can be repeated.

        Raises FormatError, NotFoundError, StorageError.
        """
