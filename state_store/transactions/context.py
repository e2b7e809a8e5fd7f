"""The foundation of a store: its own places, options and folder, and the shared resources of its process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyspark_ckpt.state_store.attempts.agreement import Agreement
from pyspark_ckpt.state_store.attempts.runs import Epochs
from pyspark_ckpt.state_store.blobs import BlobPlace, Traffic, find_options
from pyspark_ckpt.state_store.blobs.base.place_clock import PlaceTimes
from pyspark_ckpt.state_store.database import Tuning
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.local.column_files import ColumnFiles
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.packs.query_packs import QueryPacks
from pyspark_ckpt.state_store.packs.store_place import StorePlace
from pyspark_ckpt.state_store.snapshots.restore_forecast import RestoreForecast
from pyspark_ckpt.state_store.transactions.operator_states import OperatorStates


@dataclass(frozen=True)
class SharedResources:
    """Folders, threads, settings, clocks and ids that all stores of a process share."""

    local_dir: Path
    tuning: Tuning
    pool: Executor
    sweeper: Executor
    mover: Executor
    packer: Executor
    columns: ColumnFiles
    failpoints: FailPoints
    forecast: RestoreForecast
    transaction_numbers: itertools.count[int]
    clock: Callable[[], float]
    make_id: Callable[[], str]
    times: PlaceTimes
    agreement: Agreement


@dataclass(frozen=True)
class StoreContext:
    """The foundation of one store.

    Durable objects are in ``place``, local copies in ``folder``. ``root`` is the folder with the state of the query.
    ``checkpoint`` is the place of its checkpoint,
    and ``epochs`` and ``operators`` hold what is known of that query, and ``packs`` its commits under way.
    ``traffic`` counts the requests.
    """

    identity: Identity
    place: StorePlace
    root: BlobPlace
    checkpoint: BlobPlace
    traffic: Traffic
    epochs: Epochs
    operators: OperatorStates
    packs: QueryPacks
    folder: Path
    options: Options
    shared: SharedResources

    @cached_property
    def place_options(self) -> dict[str, str]:
        """The options with which a command reaches checkpoint and state."""
        remote = {"remote": self.options.remote} if self.options.remote else {}
        return remote | find_options(self.checkpoint, self.place)

    @cached_property
    def tuning(self) -> Tuning:
        """The RocksDB settings of the store."""
        return self.shared.tuning.using(self.options.compression)

    @cached_property
    def log(self) -> StoreLog:
        """The log of the store."""
        return StoreLog("store", self.identity.short)
