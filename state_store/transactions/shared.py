"""What the stores of one process share."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from pyspark_ckpt.state_store.blobs.base.place_clock import PlaceTimes
from pyspark_ckpt.state_store.database import Tuning
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.local.column_files import ColumnFiles
from pyspark_ckpt.state_store.snapshots.restore_forecast import RestoreForecast


@dataclass(frozen=True)
class Shared:
    """Folders, threads, settings and clocks that all stores of a process share."""

    local_dir: Path
    tuning: Tuning
    pool: Executor
    sweeper: Executor
    mover: Executor
    columns: ColumnFiles
    failpoints: FailPoints
    forecast: RestoreForecast
    transaction_numbers: itertools.count[int]
    clock: Callable[[], float]
    times: PlaceTimes
