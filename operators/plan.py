"""From the inputs of a keyed operator, and its processor, to a streaming frame: what Spark is asked to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from pyspark_ckpt.operators.bound.declared_states import require_no_event_time, with_types
from pyspark_ckpt.operators.declarations.counters import Counter, metric_name
from pyspark_ckpt.operators.declarations.operator import BATCH, HASH, INPUT, ROUTE, ROW, Input, KeyedOperator
from pyspark_ckpt.operators.declarations.processors import (
    KeyedProcessor,
    VectorProcessor,
    find_states,
    require_methods,
    takes_late_rows,
)
from pyspark_ckpt.operators.frames import check_key, check_order, find_names, quote, require_frame, resolve_columns
from pyspark_ckpt.operators.initial_state import add_initial_rows, make_initial_schema
from pyspark_ckpt.operators.placement import route_column
from pyspark_ckpt.operators.task.group_times import GROUP_ROW, TIME_OUTS
from pyspark_ckpt.operators.task.partition_task import PartitionTask
from pyspark_ckpt.operators.types.value_types import check_handed, make_handed_schema
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.extras import require_jar
from pyspark_ckpt.state_store.options import parse, read_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

Processor: TypeAlias = KeyedProcessor | VectorProcessor
LateOutput: TypeAlias = Literal["count", "fail"]

NEVER_LATE = 2**63 - 1
"""The event time, in microseconds, of rows that have none."""
WATERMARK = "spark.watermarkDelayMs"
"""The key in the metadata of a column by which Spark knows an event time (EventTimeWatermark.delayKey)."""


@dataclass(frozen=True)
class KeyedFrame:
    """A frame whose rows are keyed: one input of an operator. ``name``: empty if it is the only one."""

    name: str
    frame: DataFrame
    by: tuple[str, ...]
    order_by: tuple[str, ...] = ()

    @property
    def watermark(self) -> StructField | None:
        """The column that has the event time; None if the frame has no watermark."""
        return next((field for field in self.frame.schema if WATERMARK in field.metadata), None)


@dataclass(frozen=True)
class OperatorPlan:
    """A keyed operator that is being planned. ``who``: as errors name it."""

    inputs: tuple[KeyedFrame, ...]
    uid: str
    max_parallelism: int
    who: str
    merges_inputs: bool = False

    def process(
        self,
        processor: Processor,
        output: StructType | str,
        mode: str,
        event_time: str | None,
        late_output: LateOutput,
        initial_state: DataFrame | None,
    ) -> DataFrame:
        """See ``KeyedStream.process``."""
        columns = resolve_columns(output, f"{self.who}: the output")
        self.check_event_time(event_time, late_output, columns)
        return self.frame(
            processor,
            columns,
            mode,
            event_time=event_time,
            refuses_late_output=late_output == "fail",
            initial=initial_state,
        )

    def frame(
        self,
        processor: Processor,
        columns: StructType,
        mode: str,
        *,
        initial: DataFrame | None = None,
        event_time: str | None = None,
        refuses_late_output: bool = False,
        keeps_late_rows: bool = False,
    ) -> DataFrame:
        """Return the frame of the rows that ``processor`` outputs, with these ``columns``. Raises InvalidInputError."""
        from pyspark.sql import functions as f

        require_jar(is_there=self._session.catalog.functionExists("ckpt_row"))
        operator = replace(
            self._operator(processor, columns),
            event_time=event_time,
            refuses_late_output=refuses_late_output,
            keeps_late_rows=keeps_late_rows,
        )
        if str(mode).lower() not in {"update", "append"}:
            raise InvalidInputError(f"{self.who}: mode must be 'update' or 'append', got {mode!r}.")
        if initial is not None:
            named = self._name_keys(initial)
            schema = make_initial_schema(named.schema, self.inputs[0].frame.schema, operator, processor)
            initial, operator = named, replace(operator, initial=schema)
        counters = [metric_name(self.uid, each.state) for each in operator.states if isinstance(each.state, Counter)]
        batches = self._batches(PartitionTask(operator, processor), mode, initial)
        named_counters = f.array(*map(f.lit, counters)).cast("array<string>")
        output = batches.select(f.call_function("ckpt_rows", f.col(BATCH), f.lit(columns.json()), named_counters))
        return output if event_time is None else _mark(output, event_time, 0)

    def check_event_time(self, name: str | None, late_output: str, output: StructType) -> None:
        """Raise InvalidInputError unless ``name`` is a column of the output that may be its event time."""
        from pyspark.sql.types import TimestampType

        who = self.who
        if late_output not in get_args(LateOutput):
            raise InvalidInputError(f"{who}: late_output must be 'count' or 'fail', got {late_output!r}.")
        if name is None:
            return
        if name not in output.names:
            meant = suggest(str(name), output.names)
            raise InvalidInputError(f"{who}: the output has no column {name!r} for event_time.{meant}")
        kind = output[name].dataType
        if not isinstance(kind, TimestampType):
            raise InvalidInputError(
                f"{who}: column {name!r} of type {kind.simpleString()} cannot be the event time of the output.",
                hint="Give it the type timestamp.",
            )
        if not self._has_watermark:
            raise InvalidInputError(
                f"{who}: the output has the event time {name!r}, and the frame has no watermark.",
                hint="Call withWatermark on the frame.",
            )

    @property
    def _session(self) -> SparkSession:
        return self.inputs[0].frame.sparkSession

    @property
    def _has_watermark(self) -> bool:
        return any(each.watermark is not None for each in self.inputs)

    def _operator(self, processor: Processor, output: StructType) -> KeyedOperator:
        require_methods(processor, [each.name for each in self.inputs])
        options = parse(read_settings(partial(self._session.conf.get, default=None)))
        operator = KeyedOperator(
            uid=self.uid,
            inputs=tuple(self._input(each, processor) for each in self.inputs),
            output=make_handed_schema(output),
            states=with_types(find_states(processor), self.who),
            partitions=int(str(self._session.conf.get("spark.sql.shuffle.partitions"))),
            max_parallelism=self.max_parallelism,
            local_dir=options.local_dir,
            has_watermark=self._has_watermark,
            memory_bytes=options.worker_memory_bytes,
            merges_inputs=self.merges_inputs,
            allow_non_restored_state=options.allow_non_restored_state,
        )
        if "event" in operator.clocks and not self._has_watermark:
            raise InvalidInputError(
                f"{self.who}: {type(processor).__name__} declares timers of event time, and the frame has no "
                "watermark.",
                hint="Call withWatermark on the frame, or declare the timers with clock='processing'.",
            )
        if not self._has_watermark:
            require_no_event_time(operator.states, lambda each: f"{self.who}: state {each.state.name!r}")
        return operator

    def _input(self, given: KeyedFrame, processor: Processor) -> Input:
        who = f"{self.who}: input {given.name!r}" if given.name else self.who
        if HASH in given.frame.columns:
            raise InvalidInputError(f"{who}: the name of column {HASH!r} is reserved.", hint="Rename the column.")
        for field in given.frame.schema:
            check_handed(field.dataType, f"{who}: column {field.name!r}")
        columns = make_handed_schema(given.frame.schema)
        for name in given.order_by:
            check_order(given.frame, name, columns.field(name).type, who)
        for name in given.by:
            check_key(given.frame, name, columns.field(name).type, who)
        return Input(given.name, given.by, columns, given.order_by, takes_late_rows(processor, given.name))

    def _name_keys(self, frame: DataFrame) -> DataFrame:
        """Return an initial state with its keys named as here. Raises InvalidInputError if it is none."""
        who, by = f"{self.who}: the initial state", self.inputs[0].by
        require_frame(frame, who, "Give a DataFrame that is not a stream, such as spark.read...load().")
        if frame.isStreaming:
            raise InvalidInputError(f"{who} is a stream.", hint="Give a DataFrame that spark.read has made.")
        return frame.withColumnsRenamed(dict(zip(find_names(frame, by, who, "to key by"), by, strict=True)))

    def _batches(self, task: PartitionTask, mode: str, initial: DataFrame | None) -> DataFrame:
        """Build the query: rows as bytes, routed to their partition, go to the task, which yields Arrow batches."""
        from pyspark.sql import functions as f

        operator = task.operator
        routed = [self._rows(each.frame, each.by, operator.time, each.watermark) for each in self.inputs]
        if len(routed) > 1:
            numbered = [rows.withColumn(INPUT, f.lit(n).cast("byte")) for n, rows in enumerate(routed)]
            rows = reduce(lambda some, more: some.union(more), numbered)
            if self._has_watermark:  # of the first input, which may have none
                delays = [each.watermark.metadata[WATERMARK] for each in self.inputs if each.watermark is not None]
                rows = _mark(rows, operator.time, max(delays))
        else:
            (rows,) = routed
        if initial is not None:
            rows = add_initial_rows(rows, self._rows(initial, operator.by, operator.time))
        rows = rows.withColumn(ROUTE, route_column(HASH, operator.partitions, self.max_parallelism))
        return rows.groupBy(ROUTE).applyInPandasWithState(
            task, f"{BATCH} binary", GROUP_ROW, mode, TIME_OUTS[operator.time_out_clock]
        )

    def _rows(self, frame: DataFrame, by: Sequence[str], time: str, watermark: StructField | None = None) -> DataFrame:
        """Return rows as bytes, with the hash of their key and, if any input has a watermark, their event time."""
        from pyspark.sql import functions as f

        columns = [
            f.hash(*(f.col(quote(name)) for name in by)).alias(HASH),
            f.call_function("ckpt_row", f.col("*")).alias(ROW),
        ]
        if watermark is not None:
            micros = f.call_function("ckpt_micros", f.col(quote(watermark.name)))
            columns.append(micros.alias(time, metadata={WATERMARK: watermark.metadata[WATERMARK]}))
        elif self._has_watermark:
            columns.append(f.lit(NEVER_LATE).alias(time))
        return frame.select(*columns)


def _mark(frame: DataFrame, name: str, delay_ms: int) -> DataFrame:
    """Return a frame with a column as its event time, under the watermark of what the frame is made of."""
    from pyspark.sql import functions as f

    # A Connect server drops the metadata of a column that withColumn replaces.
    marked = f.col(quote(name)).alias(name, metadata={WATERMARK: delay_ms})
    return frame.select(*(marked if each == name else f.col(quote(each)) for each in frame.columns))
