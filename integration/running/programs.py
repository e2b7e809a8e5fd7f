"""Programs of users that can be started on any checkpoint, and what their sinks must have in the end."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import OURS
from integration.savepoints.test_running import BUSY, ROWS, USERS, Sink, expected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from integration.operators.providers import Provider


class Counting:
    """Counts rows of users, each batch ``ROWS`` more, in a session of its own; shows each batch to a sink."""

    def __init__(self, spark: SparkSession, folder: Path, partitions: int, provider: Provider = OURS) -> None:
        """Begin in ``folder`` with so many partitions."""
        self.session = provider.session(spark.newSession(), **BUSY, **{SHUFFLE_PARTITIONS: str(partitions)})
        self.checkpoint = str(folder / "query")
        self.sink = Sink()
        self.write: Callable[[DataFrame, int], None] = self.sink
        self.calls: list[tuple[str, str | None]] = []
        self.trigger: dict[str, Any] = {"processingTime": "0 seconds"}

    def start(self, checkpoint: str) -> StreamingQuery:
        """Start the query."""
        self.calls.append((checkpoint.rpartition("/")[2], self.session.conf.get(SHUFFLE_PARTITIONS)))
        rows = self.session.readStream.format("rate-micro-batch").options(
            rowsPerBatch=ROWS, numPartitions=1, startTimestamp=0
        )
        counted = rows.load().groupBy((f.col("value") % USERS).alias("user")).agg(f.count("*"), f.sum("value"))
        writer = counted.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
        return writer.foreachBatch(self.write).trigger(**self.trigger).start()

    @contextmanager
    def running(self) -> Iterator[StreamingQuery]:
        """The query, until all of its session end."""
        try:
            yield self.start(self.checkpoint)
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop what runs."""
        for query in self.session.streams.active:
            query.stop()

    def await_more(self, batches: int = 2) -> None:
        """Return when the sink has so many batches more."""
        self.sink.await_batch((self.sink.shown[-1][0] if self.sink.shown else -1) + batches)

    def require_all(self) -> None:
        """Fail unless the sink has every batch once, with what it must show."""
        assert self.sink.shown == [(batch, expected(batch)) for batch in range(len(self.sink.shown))]


def require_each_batch(program: Counting) -> None:
    """Fail unless the sink has every batch, perhaps twice, with the same rows: one that was interrupted runs again."""
    shown = dict(program.sink.shown)
    assert sorted(shown.items()) == [(batch, expected(batch)) for batch in range(len(shown))]
    assert all(rows == expected(batch) for batch, rows in program.sink.shown)
