"""What every way of moving rows takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark_ckpt.state_store.checkpoints.digests import Digests
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion
from pyspark_ckpt.state_store.local.worker_process import Task
from pyspark_ckpt.state_store.redistribution.assembly import Assembled, NewStore


class RunTasks(Protocol):
    """Runs tasks, as many at once as there is room for, and records what each has done."""

    def __call__(self, tasks: Sequence[Task], kind: object) -> list[Any]:
        """The results of ``tasks``, each a ``kind``, in their order. Raises what a task raises."""


@dataclass(frozen=True)
class Moved:
    """What became of the stores of one name."""

    before: Sequence[Digests]
    """Of the states that were read. The digests of one state add up to that of all its rows."""
    made: Sequence[Assembled]
    """The new stores, in their order."""


class Strategy(Protocol):
    """One way of moving rows."""

    def move(self, stores: Sequence[StoreVersion], new: Sequence[NewStore], run: RunTasks) -> Moved:
        """Make the ``new`` stores of all partitions of the old ``stores``; what is interrupted can be done again.

        Raises FormatError, NotFoundError, StorageError.
        """
