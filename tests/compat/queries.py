"""The queries of the frozen checkpoints of Spark. What a release has frozen is not changed here: a new one is added.

Their source knows no paths: it counts, twelve rows a batch, ten minutes of event time from one batch to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyspark_ckpt as ckpt
from pyspark_ckpt.pyspark_releases import has_commit_ids_for_all

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

Query: TypeAlias = "Callable[[SparkSession], DataFrame]"
_TTL = ckpt.Ttl("15 minutes", clock="event")
_TOUCHED = ckpt.Ttl("15 minutes", refresh="on_read_and_write", clock="event")
_WAIT_MS = 15 * 60_000
_OUT = "user bigint, shown string"


@dataclass(frozen=True)
class Case:
    """A query, its output mode, and what it runs with."""

    query: Query
    mode: str = "append"
    checkpoint_format: int = 2
    partitions: int = 2


def counted(spark: SparkSession) -> DataFrame:
    """The source: a number, who it is of, a word, and when it was."""
    from pyspark.sql import functions as f

    source = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=12, numPartitions=2, startTimestamp=1_700_000_000_000, advanceMillisPerBatch=600_000
    )
    word = f.element_at(f.array(f.lit(""), f.lit("a"), f.lit("ä"), f.lit(None)), (f.col("value") % 4 + 1).cast("int"))
    at = f.col("timestamp").alias("at")
    return source.load().select("value", (f.col("value") % 5).alias("user"), word.alias("word"), at)


def aggregation(spark: SparkSession) -> DataFrame:
    from pyspark.sql import functions as f

    measures = f.count("*").alias("rows"), f.sum("value").alias("total"), f.max(f.struct("word", "at")).alias("last")
    return counted(spark).groupBy("user", "word").agg(*measures, f.collect_list("value").alias("all"))


def deduplication_and_limit(spark: SparkSession) -> DataFrame:
    return counted(spark).selectExpr("value % 17 as k", "word").dropDuplicates().limit(40)


def session_windows(spark: SparkSession) -> DataFrame:
    from pyspark.sql import functions as f

    gap = f.expr("case when user = 0 then '12 minutes' else '3 minutes' end")
    timely = counted(spark).withWatermark("at", "5 minutes")
    return timely.groupBy(f.session_window("at", gap), "user").agg(f.count("*").alias("rows"), f.sum("value"))


def join(spark: SparkSession) -> DataFrame:
    from pyspark.sql import functions as f

    left, right = (counted(spark).withWatermark("at", "15 minutes").alias(side) for side in ("l", "r"))
    near = f.expr("l.value = r.value * 2 and r.at between l.at - interval 20 minutes and l.at + interval 5 minutes")
    return left.join(right, near, "leftOuter").select("l.value", "l.at", "r.word", f.col("r.at").alias("right_at"))


class Kinds:
    """A state of every kind."""

    seen = ckpt.ValueState("seen", "struct<rows bigint, last timestamp>")
    word = ckpt.ValueState("word", "string", default="none")
    recent = ckpt.ListState("recent", "bigint", ttl=_TTL)
    touched = ckpt.ListState("touched", "bigint", ttl=_TOUCHED)
    names = ckpt.ListState("names", "string")
    words = ckpt.MapState("words", "string", "bigint", ttl=_TTL)
    days = ckpt.MapState("days", "date", "decimal(12,2)")
    most = ckpt.ReducingState("most", "bigint", "max")
    mean = ckpt.AggregatingState(
        "mean",
        "struct<n bigint, sum double>",
        create=lambda: (0, 0.0),
        add=lambda kept, value: (kept[0] + 1, kept[1] + value),
        result=lambda kept: kept[1] / kept[0],
    )


def _add(states: Any, rows: Sequence[tuple[int, str | None, Any]]) -> None:  # noqa: ANN401
    """Keep rows of one key: numbers, words and instants."""
    from decimal import Decimal

    for value, word, at in rows:
        before = states.seen.value()
        states.seen.update(((before.rows if before else 0) + 1, at))
        states.word.update(word or "no word")
        states.recent.add(value)
        states.touched.add(value)
        states.names.add(f"{word}{value}")
        states.words.put(word or "", (states.words.get(word or "") or 0) + 1)
        states.days.put(at.date(), states.days.get(at.date(), Decimal(0)) + Decimal(value) / 4)
        states.most.add(value)
        states.mean.add(value)


def _shown(states: Any) -> str:  # noqa: ANN401
    """All states of one key as text."""
    seen = states.seen.value()
    return repr(
        (
            None if seen is None else (seen.rows, seen.last.isoformat()),
            states.word.value(),
            list(states.recent.get()),
            list(states.touched.get()),
            list(states.names.get()),
            list(states.words.items()),
            [(day.isoformat(), str(total)) for day, total in states.days.items()],
            states.most.get(),
            states.mean.get(),
        )
    )


class KeyedKinds(Kinds, ckpt.KeyedProcessor):
    """All states, and timers, in an operator that is called once for each key."""

    due = ckpt.Timers("due", clock="event")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        ordered = sorted(rows)
        _add(self, [(row.value, row.word, row.at) for row in ordered])
        for row in ordered:
            self.due.register(int(row.at.timestamp() * 1000) + _WAIT_MS, row.word or "")
        yield key.user, _shown(self)

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.names.clear()
        yield key.user, f"{timer.namespace!r} at {timer.at.isoformat()}: {_shown(self)}"


def keyed(spark: SparkSession) -> DataFrame:
    timely = counted(spark).withWatermark("at", "1 minute")
    return ckpt.keyed(timely, "user", uid="kinds").process(KeyedKinds(), _OUT)


def _visit(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState, kinds: Kinds
) -> Iterator[pd.DataFrame]:
    import pandas as pd

    frame = pd.concat(frames).sort_values("value")
    words = [None if pd.isna(word) else word for word in frame["word"]]
    instants = [at.tz_localize("UTC").to_pydatetime() for at in frame["at"]]
    _add(kinds, list(zip(frame["value"].tolist(), words, instants, strict=True)))
    state.update(((state.get[0] if state.exists else 0) + 1,))
    yield pd.DataFrame({"user": [key[0]], "shown": [f"call {state.get[0]}: {_shown(kinds)}"]})


def plain_with_states(spark: SparkSession) -> DataFrame:
    timely = counted(spark).withWatermark("at", "1 minute")
    called = ckpt.with_states(_visit, Kinds(), uid="kinds")
    return timely.groupBy("user").applyInPandasWithState(called, _OUT, "calls bigint", "update", "NoTimeout")


def processor(spark: SparkSession) -> DataFrame:
    """States and timers of Spark's transformWithState."""
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Visits(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._handle = handle
            self._total = handle.getValueState("total", "rows bigint")
            self._numbers = handle.getListState("numbers", "number bigint")
            self._words = handle.getMapState("words", "word string", "rows bigint")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ANN401, N802, N803
            frame = pd.concat(rows).sort_values("value")
            before = self._total.get()
            self._total.update(((before[0] if before else 0) + len(frame),))
            self._numbers.appendList([(number,) for number in frame["value"].tolist()])
            for word in frame["word"].fillna("no word"):
                seen = self._words.getValue((word,))
                self._words.updateValue((word,), ((seen[0] if seen else 0) + 1,))
            self._handle.registerTimer(timerValues.getCurrentWatermarkInMs() + _WAIT_MS)
            yield self._shown(key, "")

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: ANN401, ARG002, N802, N803
            self._numbers.clear()
            yield self._shown(key, f"at {expiredTimerInfo.getExpiryTimeInMs()}: ")

        def close(self) -> None:
            pass

        def _shown(self, key: Any, what: str) -> pd.DataFrame:  # noqa: ANN401
            words = sorted((word[0], rows[0]) for word, rows in self._words.iterator())
            numbers = sorted(each[0] for each in self._numbers.get())
            total = self._total.get()
            shown = f"{what}{total and total[0]} {numbers} {words}"
            return pd.DataFrame({"user": [key[0]], "shown": [shown]})

    timely = counted(spark).withWatermark("at", "1 minute")
    return timely.groupBy("user").transformWithStateInPandas(Visits(), _OUT, "update", "eventTime")


CASES: Mapping[str, Case] = {
    "aggregation": Case(aggregation, "update"),
    "aggregation-format-1": Case(aggregation, "update", checkpoint_format=1),
    "deduplication-and-limit": Case(deduplication_and_limit),
    "session-windows": Case(session_windows),
    "join": Case(join, partitions=1),
    "keyed": Case(keyed, "update"),
    "with-states": Case(plain_with_states, "update"),
}
PROCESSOR = Case(processor, "update")
"""Spark keeps the paths of its schemas in the checkpoint, so this one is frozen as a savepoint."""


def run_batch(spark: SparkSession, case: Case, checkpoint: str) -> dict[str, list[str]]:
    """Run one more batch with rows, and those without that it brings about: their output rows as sorted text."""
    import pyspark_ckpt

    session = spark.newSession()
    prefix = "spark.sql.streaming.stateStore."
    session.conf.set(prefix + "providerClass", pyspark_ckpt.session.PROVIDER_CLASS)
    if has_commit_ids_for_all():  # as configure() does
        session.conf.set(prefix + "checkpointFormatVersion", str(case.checkpoint_format))
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.shuffle.partitions", str(case.partitions))
    shown: dict[str, list[str]] = {}

    def show(frame: DataFrame, batch: int) -> None:
        texts = frame.selectExpr(*(f"cast(`{name}` as string) as c{n}" for n, name in enumerate(frame.columns)))
        shown[str(batch)] = sorted(" | ".join(map(str, row)) for row in texts.collect())

    writer = case.query(session).writeStream.outputMode(case.mode).option("checkpointLocation", checkpoint)
    query = writer.foreachBatch(show).trigger(availableNow=True).start()
    query.awaitTermination()
    return shown
