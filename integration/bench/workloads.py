"""What is measured: the query, its partitions, and its input, written once and read by every variant."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

Query: TypeAlias = Callable[["SparkSession", Sequence["DataFrame"]], "DataFrame"]

SCHEMA = "key long, amount long, at timestamp"
FILES_A_BATCH = 2
FILL_BATCHES = 1

_START_US = 1_700_000_000_000_000
_MINUTE_US = 60_000_000


@dataclass(frozen=True)
class Workload:
    """One query over ``keys`` keys. The first batch fills the state with every key; the others have ``rows`` rows."""

    name: str
    what: str
    query: Query
    keys: int
    rows: int
    inputs: int = 1
    partitions: int = 2
    fill: bool = True
    restarts: bool = False
    warm: int = 4
    rounds_factor: int = 1
    distinct: bool = False
    """Whether no two rows of a batch have one key, so that a batch has as many keys however large the state is."""

    def smaller(self, factor: int) -> Workload:
        """The same with less of everything: to try the bench out."""
        return replace(
            self,
            keys=max(1, self.keys // factor),
            rows=min(self.rows, max(100, self.rows // factor)),
            partitions=max(2, self.partitions // factor),
            warm=4,
            rounds_factor=1,
        )

    def write(self, folder: Path, batches: int) -> list[Path]:
        """Write the files of ``batches`` batches for every input; returns the inputs' folders."""
        folders = [folder / f"input{number}" for number in range(self.inputs)]
        for number, one_input in enumerate(folders):
            one_input.mkdir(parents=True)
            rng = np.random.default_rng([number, self.keys, self.rows])
            for batch in range(batches):
                _write_batch(one_input, batch, self._keys_of(batch, rng), rng)
        return folders

    def _keys_of(self, batch: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if batch < FILL_BATCHES and self.fill:
            return rng.permutation(self.keys).astype(np.int64)
        if self.distinct:
            return rng.choice(self.keys, self.rows, replace=False).astype(np.int64)
        return rng.integers(0, self.keys, self.rows, dtype=np.int64)


def _write_batch(folder: Path, batch: int, keys: NDArray[np.int64], rng: np.random.Generator) -> None:
    times = _START_US + batch * _MINUTE_US + rng.integers(0, _MINUTE_US, len(keys))
    for part, (some_keys, some_times) in enumerate(
        zip(np.array_split(keys, FILES_A_BATCH), np.array_split(times, FILES_A_BATCH), strict=True)
    ):
        table = pa.table(
            {
                "key": some_keys,
                "amount": some_keys % 1000,
                "at": pa.array(some_times, pa.timestamp("us", tz="UTC")),
            }
        )
        path = folder / f"{batch:04d}-{part}.parquet"
        pq.write_table(table, path)
        # Spark reads files in the order of their times.
        os.utime(path, (_START_US / 1e6 + batch, _START_US / 1e6 + batch))


def _aggregation(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    from pyspark.sql import functions as f

    return frames[0].groupBy("key").agg(f.count("*").alias("rows"), f.sum("amount").alias("total"))


def _deduplication(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].selectExpr("key + 1000000 * (key % 2) * minute(at) as key").dropDuplicates(["key"])


def _deduplication_within_watermark(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].withWatermark("at", "2 minutes").dropDuplicatesWithinWatermark(["key"])


def _sessions(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    from pyspark.sql import functions as f

    timely = frames[0].withWatermark("at", "2 minutes")
    return timely.groupBy(f.session_window("at", "20 seconds"), "key").agg(f.count("*"), f.sum("amount"))


def _join(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    from pyspark.sql import functions as f

    left, right = (frame.withWatermark("at", "1 minute") for frame in frames)
    near = "l.key = r.key and l.at between r.at - interval 1 minute and r.at + interval 1 minute"
    return left.alias("l").join(right.alias("r"), f.expr(near)).selectExpr("l.key", "l.amount + r.amount as amount")


RESCALE = Workload("rescale", "count and sum, 50k rows a batch on 5M keys", _aggregation, 5_000_000, 50_000)
ADVISED_LARGE = Workload(
    "advised-large", "500k rows a batch over 200k keys", _aggregation, 200_000, 500_000, partitions=1
)
ADVISED_SMALL = Workload("advised-small", "2k rows a batch on 200k keys", _aggregation, 200_000, 2_000, partitions=64)

ALL: tuple[Workload, ...] = (
    Workload("aggregation", "count and sum, 500k rows a batch over 200k keys", _aggregation, 200_000, 500_000),
    Workload(
        "large-state",
        "count and sum, 50k rows a batch on 2M keys",
        _aggregation,
        2_000_000,
        50_000,
        restarts=True,
    ),
    Workload("same-change", "count and sum, 50k rows a batch on 200k keys", _aggregation, 200_000, 50_000),
    Workload(
        "small-batch",
        "count and sum, 100 rows a batch on 200k keys",
        _aggregation,
        200_000,
        100,
        warm=40,  # the JVM compiles for that long where a batch has few rows
        rounds_factor=4,
    ),
    Workload("dedup", "dropDuplicates, 50k rows a batch", _deduplication, 200_000, 50_000),
    Workload(
        "dedup-watermark",
        "dropDuplicatesWithinWatermark, 50k rows a batch, 2 minutes kept",
        _deduplication_within_watermark,
        200_000,
        50_000,
    ),
    Workload("sessions", "session windows, 50k rows a batch over 20k keys", _sessions, 20_000, 50_000, fill=False),
    Workload("join", "inner join in a time range, 20k rows a side and batch", _join, 20_000, 20_000, 2, fill=False),
    Workload(
        "partitions",
        "200 partitions on one executor, 20k rows a batch on 200k keys",
        _aggregation,
        200_000,
        20_000,
        partitions=200,
        rounds_factor=2,  # enough of them for a p99
    ),
    Workload(
        "keyed",
        "count and sum in Python, 500k rows a batch over 200k keys",
        _aggregation,
        200_000,
        500_000,
        warm=30,  # the JVM compiles for that long
    ),
    Workload(
        "keyed-plan",
        "count and sum in Python, 500k rows a batch over 200k keys: what the plan and the state take",
        _aggregation,
        200_000,
        500_000,
        warm=30,
    ),
    Workload("keyed-small", "count and sum in Python, 50k rows a batch over 20k keys", _aggregation, 20_000, 50_000),
    Workload(
        "keyed-partitions",
        "count and sum in Python, 200 partitions, 2k rows a batch on 200k keys",
        _aggregation,
        200_000,
        2_000,
        partitions=200,
        warm=20,  # the JVM compiles for that long
    ),
    Workload("stateful", "transformWithState in Python, 50k rows a batch over 20k keys", _aggregation, 20_000, 50_000),
    Workload(
        "stateful-large",
        "transformWithState in Python, 500k rows a batch over 200k keys",
        _aggregation,
        200_000,
        500_000,
    ),
    Workload(
        "keyed-large",
        "count and sum in Python, 50k rows a batch over 5M keys",
        _aggregation,
        5_000_000,
        50_000,
        warm=30,  # what the first batch of five million keys leaves to do in the background takes that long
        rounds_factor=2,
    ),
    Workload(
        "keyed-large-distinct",
        "count and sum in Python, 50k rows of different keys a batch over 5M keys",
        _aggregation,
        5_000_000,
        50_000,
        warm=30,
        rounds_factor=2,
        distinct=True,
    ),
    Workload(
        "keyed-states",
        "value, list and map in Python, 50k rows a batch on 20k keys",
        _aggregation,
        20_000,
        50_000,
        warm=30,  # before that the JVM still compiles, and no element of a list has expired
    ),
    Workload(
        "keyed-chain",
        "one and two operators in Python that output all rows, 200k rows a batch over 100k keys",
        _aggregation,
        100_000,
        200_000,
        warm=30,  # the JVM compiles for that long
    ),
    Workload(
        "broadcast",
        "count and sum in Python, 200 partitions, 20k rows a batch over 200k keys",
        _aggregation,
        200_000,
        20_000,
        partitions=200,
        warm=8,
    ),
    Workload("timers", "a batch without rows, none of the timers due", _aggregation, 1_000_000, 0),
)


def named(names: Sequence[str]) -> Iterator[Workload]:
    """The workloads of these names, all of them for no names."""
    known = {workload.name: workload for workload in ALL}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"No workload {', '.join(unknown)}; there are: {', '.join(known)}.")
    return (workload for workload in ALL if not names or workload.name in names)
