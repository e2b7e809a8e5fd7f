"""What all stores of one query in this process share to write packs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.packs.deferred import DeferredPacks, KnownPacks
from pyspark_ckpt.state_store.packs.gathering import Gathering
from pyspark_ckpt.state_store.packs.tasks import OpenTasks, WriteTimes


class QueryPacks:
    """The tasks of a query here, and the two ways in which their commits share an object."""

    def __init__(
        self,
        times: WriteTimes,
        writers: Executor,
        make_id: Callable[[], str],
        known: KnownPacks,
        failpoints: FailPoints,
    ) -> None:
        """Begin without any. See ``Gathering`` and ``DeferredPacks``."""
        self.tasks = OpenTasks()
        self.gathering = Gathering(self.tasks, times, make_id)
        self.deferred = DeferredPacks(self.tasks, times, writers, make_id, known, failpoints)
