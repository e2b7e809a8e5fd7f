"""What all stores of one query in this process share to write packs."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ckpt.state_store.packs.deferred import DeferredPacks
from pyspark_ckpt.state_store.packs.gathering import Gathering
from pyspark_ckpt.state_store.packs.tasks import OpenTasks


@dataclass(frozen=True)
class QueryPacks:
    """The tasks of a query here, and the two ways in which their commits share an object."""

    tasks: OpenTasks
    gathering: Gathering
    deferred: DeferredPacks
