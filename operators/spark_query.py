"""A keyed operator as part of a query of Spark: rows, routed to their partition, and the answers of its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.operators.broadcast import add_broadcast_rows
from pyspark_ckpt.operators.declarations.counters import MetricCounter, metric_name
from pyspark_ckpt.operators.declarations.operator import (
    CLOCKS,
    HASH,
    INITIAL,
    INPUT,
    NEVER_LATE,
    PLAIN,
    ROUTE,
    ROWS,
    KeyedOperator,
    plain_column,
    row_column,
)
from pyspark_ckpt.operators.frames import Columns, find_names, quote, require_frame
from pyspark_ckpt.operators.initial_state import add_initial_rows
from pyspark_ckpt.operators.placement import route_column
from pyspark_ckpt.operators.plan import WATERMARK, find_watermark
from pyspark_ckpt.operators.task.group_times import GROUP_ROW, TIME_OUTS
from pyspark_ckpt.operators.task.partition_task import PartitionTask
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.extras import require_jar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.conf import RuntimeConfig
    from pyspark.sql.types import StructField, StructType

    from pyspark_ckpt.operators.plan import Processor


@dataclass(frozen=True)
class SparkQuery:
    """A query over ``frames``, the inputs of the operator, and its ``broadcast`` input, if any. See ``Host``."""

    frames: tuple[DataFrame, ...]
    broadcast: DataFrame | None = None

    @property
    def conf(self) -> RuntimeConfig:
        """The settings of the session."""
        return self._session.conf

    def read_initial(self, given: Any, by: Sequence[str], who: str) -> DataFrame:
        """Return a frame with its keys named as here. Raises InvalidInputError."""
        require_frame(given, who, "Give a DataFrame that is not a stream, such as spark.read...load().")
        frame: DataFrame = given
        if frame.isStreaming:
            raise InvalidInputError(f"{who} is a stream.", hint="Give a DataFrame that spark.read has made.")
        names = find_names(Columns.of(frame), by, who, "to key by")
        return frame.withColumnsRenamed(dict(zip(names, by, strict=True)))

    def start(
        self,
        operator: KeyedOperator,
        processor: Processor,
        output: StructType,
        mode: str,
        initial: DataFrame | None,
    ) -> DataFrame:
        """Return the frame of the rows that ``processor`` outputs. Raises ProcessError (the jar is missing)."""
        from pyspark.sql import functions as f

        require_jar(is_there=self._session.catalog.functionExists("ckpt_row"))
        counters = [
            metric_name(operator.uid, each.state) for each in operator.states if isinstance(each.state, MetricCounter)
        ]
        answers = self._answers(PartitionTask(operator, processor), mode, initial)
        named_counters = f.array(*map(f.lit, counters)).cast("array<string>")
        rows = answers.select(f.call_function("ckpt_rows", f.col(ROWS), f.lit(output.json()), named_counters))
        return rows if operator.event_time is None else _mark(rows, operator.event_time, 0)

    @property
    def _session(self) -> SparkSession:
        return self.frames[0].sparkSession

    def _answers(self, task: PartitionTask, mode: str, initial: DataFrame | None) -> DataFrame:
        """Build the query: rows, routed to their partition, go to the task, whose answers Spark cannot read."""
        from pyspark.sql import functions as f

        operator = task.operator
        watermarks = [find_watermark(frame.schema) for frame in self.frames]
        is_alone = len(self.frames) == 1 and initial is None and self.broadcast is None
        routed = [
            self._rows(frame, None if is_alone else number, each.by, operator, watermark)
            for number, (frame, each, watermark) in enumerate(
                zip(self.frames, operator.inputs, watermarks, strict=True)
            )
        ]
        if not is_alone:
            routed = [rows.withColumn(INPUT, f.lit(n).cast("byte")) for n, rows in enumerate(routed)]
        # Spark knows sources without names by their position: it must not change with the order of the inputs.
        by_name = sorted(zip(operator.inputs, routed, strict=True), key=lambda each: each[0].name)
        rows = reduce(_unite, [rows for _, rows in by_name])
        if len(routed) > 1 and operator.has_watermark:  # of the first input, which may have none
            rows = _mark(rows, operator.time, max(each.metadata[WATERMARK] for each in watermarks if each))
        if initial is not None:
            rows = add_initial_rows(rows, self._rows(initial, INITIAL, operator.by, operator))
        rows = rows.withColumn(ROUTE, route_column(HASH, operator.partitions, operator.max_parallelism))
        if self.broadcast is not None:
            rows = add_broadcast_rows(rows, self.broadcast, operator)
        function: Any = task  # the shim calls it as a function of mapInArrow
        return rows.groupBy(ROUTE).applyInPandasWithState(
            function, f"{ROWS} binary, {CLOCKS} binary", GROUP_ROW, mode, TIME_OUTS[operator.time_out_clock]
        )

    def _rows(
        self,
        frame: DataFrame,
        number: int | None,
        by: Sequence[str],
        operator: KeyedOperator,
        watermark: StructField | None = None,
    ) -> DataFrame:
        """Return rows of an input with the hash of their key and, if any input has a watermark, their event time.

        ``number``: that of one of several inputs, whose rows become structs; None for the only one.
        """
        from pyspark.sql import functions as f

        columns = [f.hash(*(f.col(quote(name)) for name in by)).alias(HASH)]
        if watermark is not None:
            micros = f.call_function("ckpt_micros", f.col(quote(watermark.name)))
            columns.append(micros.alias(operator.time, metadata={WATERMARK: watermark.metadata[WATERMARK]}))
        elif operator.has_watermark:
            columns.append(f.lit(NEVER_LATE).alias(operator.time))
        if number is not None:
            return frame.select(*columns, f.struct(f.col("*")).alias(row_column(number)))
        rows = frame.select(*columns, f.col("*"))
        names = [*rows.columns[: len(columns)], *map(plain_column, range(len(frame.columns)))]
        return _unmark(rows.toDF(*names), names[len(columns) :])


def _unite(some: DataFrame, more: DataFrame) -> DataFrame:
    """Return the rows of both, in which columns that one does not have are null."""
    return some.unionByName(more, allowMissingColumns=True)


def _unmark(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return a frame in which none of these columns is an event time."""
    from pyspark.sql import functions as f

    plain = {each.name: {PLAIN: True} for each in frame.schema if each.name in names and WATERMARK in each.metadata}
    return frame.select(
        *(f.col(each).alias(each, metadata=plain[each]) if each in plain else each for each in frame.columns)
    )


def _mark(frame: DataFrame, name: str, delay_ms: int) -> DataFrame:
    """Return a frame with a column as its event time, under the watermark of the frame's inputs."""
    from pyspark.sql import functions as f

    # A Connect server drops the metadata of a column that withColumn replaces.
    marked = f.col(quote(name)).alias(name, metadata={WATERMARK: delay_ms})
    return frame.select(*(marked if each == name else f.col(quote(each)) for each in frame.columns))
