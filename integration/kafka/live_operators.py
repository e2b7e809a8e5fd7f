"""A driver whose queries, in real-time mode, have every form of a keyed operator; each goes from topic to topic."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.crash.program import serve
from integration.kafka.random_programs import draw
from integration.progress import recent_progress, stop_after_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OUTPUT = "user string, what string, n bigint"
_RUNNING: dict[str, StreamingQuery] = {}


class Rows(ckpt.KeyedProcessor):
    """Numbers the rows of a user."""

    count = ckpt.ValueState("count", "bigint", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        for _ in rows:
            self.count.update(self.count.value() + 1)
            yield key.user, "row", self.count.value()


class ManyRows(ckpt.VectorProcessor):
    """Tells how many rows the users of some rows have had."""

    count = ckpt.ReducingState("count", "bigint", "sum")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        import numpy as np
        import pyarrow as pa

        self.count.add_rows(ctx.keys, ctx.key_index, pa.array(np.ones(len(batch), np.int64)))
        what = pa.array(["rows"] * len(ctx.keys))
        return pa.table({"user": ctx.keys.column("user"), "what": what, "n": self.count.get_values(ctx.keys)})


class Collections(ckpt.KeyedProcessor):
    """Keeps the amounts of a user in a list, and counts them in a map."""

    amounts = ckpt.ListState("amounts", "bigint", ttl="1 day")
    counts = ckpt.MapState("counts", "bigint", "bigint")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        for row in rows:
            self.amounts.add(row.amount)
            self.counts.put(row.amount % 2, self.counts.get(row.amount % 2, 0) + 1)
        yield key.user, "list", sum(1 for _ in self.amounts.get())
        yield key.user, "map", sum(count for _, count in self.counts.items())


class TwoInputs(ckpt.KeyedProcessor):
    """Counts the rows of two inputs."""

    counts = ckpt.MapState("counts", "string", "bigint")

    def process_first(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        return self._count(key, "first", len(rows))

    def process_second(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        return self._count(key, "second", len(rows))

    def _count(self, key: Any, what: str, rows: int) -> Iterator[Any]:  # noqa: ANN401
        self.counts.put(what, self.counts.get(what, 0) + rows)
        yield key.user, what, self.counts.get(what)


class WithRules(Rows):
    """Also counts the rules that all partitions have."""

    rules = ckpt.BroadcastState("rules", "string", "bigint")

    def process_broadcast(self, _ctx: ckpt.Context, rows: Sequence[Any]) -> None:
        for row in rows:
            self.rules.put(row.user, row.amount)

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        yield from super().process(ctx, key, rows)
        yield key.user, "rules", sum(1 for _ in self.rules.items())


class Timed(Rows):
    """Tells two seconds after each row that they have gone by."""

    after = ckpt.Timers("after", clock="processing")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        self.after.register(ctx.processing_time_ms + 2000)
        yield from super().process(ctx, key, rows)

    def on_timer(self, ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
        yield key.user, "fired", ctx.processing_time_ms - timer.at_ms


class TimedByEvents(Rows):
    """Tells when the watermark has come to within a second of a row's event time."""

    passed = ckpt.Timers("passed", clock="event")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        for row in rows:
            self.passed.register(row.at - timedelta(seconds=1))
        yield from super().process(ctx, key, rows)

    def on_timer(self, _ctx: ckpt.Context, key: Any, _timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
        yield key.user, "passed", self.count.value()


def _processor(*, of_frames: bool) -> Any:  # noqa: ANN401
    """Spark's own form of a processor."""
    import pandas as pd
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Counting(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.count = handle.getValueState("count", "n bigint")

        def _add(self, rows: int) -> int:
            (before,) = self.count.get() or (0,)
            self.count.update((before + rows,))
            return int(before + rows)

        def handleInputRows(self, key: Any, rows: Any, _timers: Any) -> Iterator[Any]:  # noqa: ANN401, N802
            yield Row(user=key[0], what="Row", n=self._add(sum(1 for _ in rows)))

        def close(self) -> None:
            pass

    class CountingFrames(Counting):
        def handleInputRows(self, key: Any, rows: Any, _timers: Any) -> Iterator[Any]:  # noqa: ANN401, N802
            yield pd.DataFrame({"user": [key[0]], "what": ["pandas"], "n": [self._add(sum(map(len, rows)))]})

    return CountingFrames() if of_frames else Counting()


def _keyed(processor: ckpt.KeyedProcessor | ckpt.VectorProcessor, rows: DataFrame, uid: str = "it") -> DataFrame:
    return ckpt.keyed(rows, "user", uid=uid).process(processor, OUTPUT, "update")


def _two_inputs(rows: DataFrame, others: DataFrame) -> DataFrame:
    first, second = ckpt.KeyedInput(rows, "user"), ckpt.KeyedInput(others.select("at", "user"), "user")
    return ckpt.keyed_inputs(uid="it", first=first, second=second).process(TwoInputs(), OUTPUT, "update")


def _with_rules(rows: DataFrame, others: DataFrame) -> DataFrame:
    return ckpt.keyed(rows, "user", uid="it", broadcast=others).process(WithRules(), OUTPUT, "update")


def _in_sparks_form(rows: DataFrame, *, of_frames: bool) -> DataFrame:
    keyed = ckpt.keyed(rows.select("user", "amount"), "user", uid="it")
    call = keyed.transform_with_state_in_pandas if of_frames else keyed.transform_with_state
    return call(_processor(of_frames=of_frames), OUTPUT, "Update", "None")


QUERIES: Mapping[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "per key": lambda rows, _: _keyed(Rows(), rows),
    "vectorised": lambda rows, _: _keyed(ManyRows(), rows),
    "collections": lambda rows, _: _keyed(Collections(), rows),
    "chain": lambda rows, _: _keyed(ManyRows(), _keyed(Rows(), rows, uid="first")),
    "two inputs": _two_inputs,
    "rules": _with_rules,
    "timers": lambda rows, _: _keyed(Timed(), rows),
    "event timers": lambda rows, _: _keyed(TimedByEvents(), rows.withWatermark("at", "0 seconds")),
    "Row form": lambda rows, _: _in_sparks_form(rows, of_frames=False),
    "pandas form": lambda rows, _: _in_sparks_form(rows, of_frames=True),
}


def _random_query(seed: int) -> Callable[[DataFrame, DataFrame], DataFrame]:
    return lambda rows, _: _keyed(draw(seed), rows)


def start(spark: SparkSession, *, name: str, kafka: Mapping[str, str], checkpoint: str) -> None:
    """Start one of the QUERIES, or ``random <seed>``. ``kafka``: servers, rows, others and sink."""
    servers = {"kafka.bootstrap.servers": kafka["servers"]}

    def read(topic: str) -> DataFrame:
        reader = spark.readStream.format("kafka").options(**servers, subscribe=topic, startingOffsets="earliest")
        columns = [
            f.col("key").cast("string").alias("user"),
            f.col("value").cast("string").cast("long").alias("amount"),
        ]
        return reader.load().select(*columns, f.col("timestamp").alias("at"))

    of_name = QUERIES.get(name) or _random_query(int(name.removeprefix("random ")))
    out = of_name(read(kafka["rows"]), read(kafka["others"]))
    value = f.concat_ws("|", "what", "n")
    writer = out.select(f.col("user").alias("key"), value.alias("value")).writeStream.format("kafka")
    writer = writer.options(**servers, topic=kafka["sink"], checkpointLocation=checkpoint).outputMode("update")
    _RUNNING[name] = writer.trigger(realTime="5 seconds").start()  # type: ignore[call-overload]


def stop(_spark: SparkSession, *, name: str) -> dict[str, Any]:
    """Stop a query after the end of a batch. Return its error, or nothing, and what its progress says of its rows."""
    query = _RUNNING.pop(name)
    stop_after_batches(query)
    batches = recent_progress(query)
    last = [each.stateOperators[-1].customMetrics for each in batches]
    return {
        "problem": str(query.exception() or ""),
        "rows": sum(each.numInputRows for each in batches),
        "latencies": sum(n for each in last for metric, n in each.items() if metric.startswith("ckptLiveRows.")),
        "groups": sum(each["ckptLiveGroups"] for each in last),
    }


if __name__ == "__main__":
    sys.exit(serve({"start": start, "stop": stop}, real_time=True))
