"""``keyed()``: a keyed operator in a streaming query, run on one Spark group per partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from pyspark_ckpt.operators.bound.declared_states import require_no_event_time, with_types
from pyspark_ckpt.operators.declarations.counters import Counter, metric_name
from pyspark_ckpt.operators.declarations.operator import BATCH, HASH, ROUTE, ROW, KeyedOperator
from pyspark_ckpt.operators.declarations.processors import (
    KeyedProcessor,
    VectorProcessor,
    find_states,
    takes_late_rows,
)
from pyspark_ckpt.operators.declarations.states import ValueState
from pyspark_ckpt.operators.frames import (
    check_key,
    check_order,
    find_names,
    quote,
    read_groups,
    require_frame,
    resolve_columns,
)
from pyspark_ckpt.operators.initial_state import add_initial_rows, make_initial_schema
from pyspark_ckpt.operators.placement import route_column
from pyspark_ckpt.operators.task.group_times import GROUP_ROW, TIME_OUTS
from pyspark_ckpt.operators.task.partition_task import PartitionTask
from pyspark_ckpt.operators.types.value_types import check_handed, make_handed_schema
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.extras import require_jar
from pyspark_ckpt.state_store.format.key_groups import MAX_PARALLELISM
from pyspark_ckpt.state_store.format.meta import check_uid
from pyspark_ckpt.state_store.options import parse, read_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructField, StructType

    from pyspark_ckpt.operators.groups.function import GroupFunction
    from pyspark_ckpt.operators.stateful.processor import Form

Processor: TypeAlias = KeyedProcessor | VectorProcessor
LateOutput: TypeAlias = Literal["count", "fail"]

NEVER_LATE = 2**63 - 1
"""The event time, in microseconds, of rows that have none."""
WATERMARK = "spark.watermarkDelayMs"
"""The key in the metadata of a column by which Spark knows an event time (EventTimeWatermark.delayKey)."""


def keyed(
    frame: DataFrame,
    by: str | Sequence[str],
    *,
    uid: str,
    order_by: str | Sequence[str] = (),
    max_parallelism: int = MAX_PARALLELISM,
) -> KeyedStream:
    """Key a streaming frame by columns; call ``process`` on the result.

    ``by``: names of columns, case-insensitive unless Spark is not, of any type that Spark groups by, except maps,
    VARIANT and collations. ``uid``: names the operator for as long as its state lives; without ``/``. ``order_by``:
    columns by which the rows of a key are sorted within a batch, as Spark's orderBy does: ascending, nulls first, NaN
    last. ``max_parallelism``: the number of key groups, and so the largest number of partitions that the query can ever
    have, 1 to 32768. It is fixed by the first batch.

    Raises InvalidInputError (not a streaming frame, unknown columns, a wrong uid or number).
    """
    require_frame(frame, f"keyed(uid={uid!r})")
    names = find_names(frame, by, f"keyed(uid={uid!r})", "to key by")
    order = find_names(frame, order_by, f"keyed(uid={uid!r})", "to order by")
    if not names:
        raise InvalidInputError(f"keyed(uid={uid!r}): there are no columns to key by; the frame has {frame.columns}.")
    if len(set(names)) < len(names):  # stored keys name their columns
        raise InvalidInputError(f"keyed(uid={uid!r}): a column is given twice to key by: {list(names)}.")
    check_uid(uid, f"keyed(uid={uid!r})")
    if not frame.isStreaming:
        raise InvalidInputError(
            f"keyed(uid={uid!r}): the frame is not a stream. Only streaming queries have keyed state."
        )
    return KeyedStream(frame, names, uid, order, read_groups(max_parallelism, f"keyed(uid={uid!r})"))


@dataclass(frozen=True)
class KeyedStream:
    """A frame whose rows are keyed, as ``keyed`` returns it."""

    frame: DataFrame
    by: tuple[str, ...]
    uid: str
    order_by: tuple[str, ...]
    max_parallelism: int

    def process(
        self,
        processor: Processor,
        output: StructType | str,
        mode: str = "update",
        *,
        event_time: str | None = None,
        late_output: LateOutput = "count",
        initial_state: DataFrame | None = None,
    ) -> DataFrame:
        """Return the frame of the rows that ``processor`` outputs, an ordinary streaming frame.

        ``processor``: an instance of a KeyedProcessor or VectorProcessor. ``output``: the type of its rows, as a
        StructType or Spark DDL. ``mode``: "update" or "append" (needed before Spark's own stateful operators), in any
        letter case. ``event_time``: the column of the output, a timestamp, that is the event time for operators after
        this one; they have the watermark of ``frame``. ``late_output``: what happens to output rows whose event time is
        late for these operators, which may drop them: "count" them in the metric ckptLateOutputRows, or "fail".
        ``initial_state``: a frame that is not a stream, with the key columns. In the first batch of the query, and
        exactly once, its other columns are the first values of the states with their names (a ListState has an array, a
        MapState a map; null leaves a state empty), before the rows of the stream. Or its rows, any number for a key, go
        to ``process_initial`` of the processor. Later batches, restarts and restores do not read it.

        Raises InvalidInputError (types, timers or times to live that do not fit, no watermark for ``event_time``).
        """
        columns = resolve_columns(output, f"keyed(uid={self.uid!r}): the output")
        self._check_event_time(event_time, late_output, columns)
        frame = self._process(
            processor,
            columns,
            mode,
            event_time=event_time,
            refuses_late_output=late_output == "fail",
            initial=None if initial_state is None else self._check_initial(initial_state),
        )
        return frame if event_time is None else _mark_event_time(frame, event_time)

    def _check_event_time(self, name: str | None, late_output: str, output: StructType) -> None:
        """Raise InvalidInputError if the column cannot be an event time."""
        from pyspark.sql.types import TimestampType

        who = f"keyed(uid={self.uid!r})"
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
        if self._find_watermark() is None:
            raise InvalidInputError(
                f"{who}: the output has the event time {name!r}, and the frame has no watermark.",
                hint="Call withWatermark on the frame.",
            )

    def apply_in_pandas_with_state(
        self,
        func: GroupFunction,
        outputStructType: StructType | str,  # noqa: N803 - the names are Spark's
        stateStructType: StructType | str,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeoutConf: str,  # noqa: N803
    ) -> DataFrame:
        """Do what ``GroupedData.applyInPandasWithState`` does by the key columns: same arguments, same results.

        State is stored by name and type. Where Spark stores null because a value does not fit its type, the value is
        kept or the query fails. State of an existing query of Spark's is not read. Raises InvalidInputError.
        """
        from pyspark_ckpt.operators.groups.frames import Conversion
        from pyspark_ckpt.operators.groups.function import make_processor

        who = f"keyed(uid={self.uid!r})"
        if timeoutConf not in TIME_OUTS.values():
            known = list(TIME_OUTS.values())
            raise InvalidInputError(f"{who}: the timeoutConf is {timeoutConf!r}, not one of {known}.")
        output = resolve_columns(outputStructType, f"{who}: the output")
        resolve_columns(stateStructType, f"{who}: the state")
        how = Conversion.of(self.frame.sparkSession)
        state = ValueState("state", stateStructType)
        processor = make_processor(func, state, output, timeoutConf, how, self.frame.columns)
        return self._process(processor, output, outputMode, keeps_late_rows=True)

    def transform_with_state(
        self,
        statefulProcessor: StatefulProcessor,  # noqa: N803 - the names are Spark's
        outputStructType: StructType | str,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeMode: str,  # noqa: N803
        initial_state: DataFrame | None = None,
        eventTimeColumnName: str = "",  # noqa: N803
    ) -> DataFrame:
        """Do what ``GroupedData.transformWithState`` does by the key columns: same results.

        ``statefulProcessor``: an instance of PySpark's StatefulProcessor, which gets and returns Rows. Its ``init`` is
        also called here, on a copy, to find its state variables. ``initial_state``: a frame that is not a stream, with
        the key columns. Spark's ``initialState`` is the same frame, grouped. The other arguments are Spark's.

        State is stored by name and type, as that of any keyed operator. Where Spark stores null because a value does
        not fit its type, the value is converted without loss or the query fails. State of an existing query of Spark's
        is not read. Raises InvalidInputError.
        """
        from pyspark_ckpt.operators.stateful.row_form import RowForm

        output = resolve_columns(outputStructType, f"keyed(uid={self.uid!r}): the output")
        form = RowForm.of(self.frame.sparkSession, make_handed_schema(output))
        how = outputMode, timeMode, initial_state, eventTimeColumnName
        return self._transform(statefulProcessor, output, form, *how)

    def transform_with_state_in_pandas(
        self,
        statefulProcessor: StatefulProcessor,  # noqa: N803 - the names are Spark's
        outputStructType: StructType | str,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeMode: str,  # noqa: N803
        initial_state: DataFrame | None = None,
        eventTimeColumnName: str = "",  # noqa: N803
    ) -> DataFrame:
        """Do what ``GroupedData.transformWithStateInPandas`` does by the key columns: same results.

        The processor gets and returns pandas frames. Otherwise as ``transform_with_state``. Raises InvalidInputError.
        """
        from pyspark_ckpt.operators.stateful.frame_form import FrameForm

        output = resolve_columns(outputStructType, f"keyed(uid={self.uid!r}): the output")
        form = FrameForm.of(self.frame.sparkSession, output)
        how = outputMode, timeMode, initial_state, eventTimeColumnName
        return self._transform(statefulProcessor, output, form, *how)

    def _transform(
        self,
        processor: object,
        output: StructType,
        form: Form,
        mode: str,
        time_mode: str,
        initial_state: DataFrame | None,
        event_time: str,
    ) -> DataFrame:
        from pyspark_ckpt.operators.stateful.declarations import find_clock, find_variables, require_processor
        from pyspark_ckpt.operators.stateful.processor import make_calls

        who = f"keyed(uid={self.uid!r})"
        program, clock = require_processor(processor, who), find_clock(time_mode, who)
        variables = find_variables(program, clock, who)
        name = event_time or None
        self._check_event_time(name, "fail", output)
        frame = self._process(
            make_calls(program, list(variables.values()), clock, form, self.uid),
            output,
            mode,
            keeps_late_rows=True,
            event_time=name,
            refuses_late_output=True,
            initial=None if initial_state is None else self._check_initial(initial_state),
        )
        return frame if name is None else _mark_event_time(frame, name)

    def _process(
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
        from pyspark.sql import functions as f

        require_jar(is_there=self.frame.sparkSession.catalog.functionExists("ckpt_row"))
        watermark = self._find_watermark()
        operator = replace(
            self._operator(processor, columns, has_watermark=watermark is not None),
            takes_late_rows=takes_late_rows(processor),
            event_time=event_time,
            refuses_late_output=refuses_late_output,
            keeps_late_rows=keeps_late_rows,
        )
        if str(mode).lower() not in {"update", "append"}:
            raise InvalidInputError(f"keyed(uid={self.uid!r}): mode must be 'update' or 'append', got {mode!r}.")
        if initial is not None:
            schema = make_initial_schema(initial.schema, self.frame.schema, operator, processor)
            operator = replace(operator, initial=schema)
        counters = [metric_name(self.uid, each.state) for each in operator.states if isinstance(each.state, Counter)]
        batches = self._batches(PartitionTask(operator, processor), watermark, mode, initial)
        named = f.array(*map(f.lit, counters)).cast("array<string>")
        return batches.select(f.call_function("ckpt_rows", f.col(BATCH), f.lit(columns.json()), named))

    def _find_watermark(self) -> StructField | None:
        """Return the column that has the event time; None if the frame has no watermark."""
        return next((field for field in self.frame.schema if WATERMARK in field.metadata), None)

    def _operator(self, processor: Processor, output: StructType, *, has_watermark: bool) -> KeyedOperator:
        session = self.frame.sparkSession
        who = f"keyed(uid={self.uid!r})"
        if HASH in self.frame.columns:
            raise InvalidInputError(f"{who}: the name of column {HASH!r} is reserved.", hint="Rename the column.")
        for field in self.frame.schema:
            check_handed(field.dataType, f"{who}: column {field.name!r}")
        options = parse(read_settings(partial(session.conf.get, default=None)))
        operator = KeyedOperator(
            uid=self.uid,
            by=self.by,
            input=make_handed_schema(self.frame.schema),
            output=make_handed_schema(output),
            states=with_types(find_states(processor), who),
            partitions=int(str(session.conf.get("spark.sql.shuffle.partitions"))),
            max_parallelism=self.max_parallelism,
            local_dir=options.local_dir,
            has_watermark=has_watermark,
            memory_bytes=options.worker_memory_bytes,
            order_by=self.order_by,
            allow_non_restored_state=options.allow_non_restored_state,
        )
        if "event" in operator.clocks and not has_watermark:
            raise InvalidInputError(
                f"{who}: {type(processor).__name__} declares timers of event time, and the frame has no watermark.",
                hint="Call withWatermark on the frame, or declare the timers with clock='processing'.",
            )
        if not has_watermark:
            require_no_event_time(operator.states, lambda each: f"{who}: state {each.state.name!r}")
        for name in self.order_by:
            check_order(self.frame, name, operator.input.field(name).type, who)
        for name, kind in zip(self.by, operator.key_types, strict=True):
            check_key(self.frame, name, kind, who)
        return operator

    def _check_initial(self, frame: DataFrame) -> DataFrame:
        """Return the frame with its keys named as here. Raises InvalidInputError if it is no initial state."""
        who = f"keyed(uid={self.uid!r}): the initial state"
        require_frame(frame, who, "Give a DataFrame that is not a stream, such as spark.read...load().")
        if frame.isStreaming:
            raise InvalidInputError(f"{who} is a stream.", hint="Give a DataFrame that spark.read has made.")
        return frame.withColumnsRenamed(dict(zip(find_names(frame, self.by, who, "to key by"), self.by, strict=True)))

    def _batches(
        self, task: PartitionTask, watermark: StructField | None, mode: str, initial: DataFrame | None
    ) -> DataFrame:
        """Build the query: rows as bytes, routed to their partition, go to the task, which yields Arrow batches."""
        from pyspark.sql import functions as f

        columns = [
            f.hash(*(f.col(quote(name)) for name in self.by)).alias(HASH),
            f.call_function("ckpt_row", f.col("*")).alias(ROW),
        ]
        if watermark is not None:
            micros = f.call_function("ckpt_micros", f.col(quote(watermark.name)))
            columns.append(micros.alias(task.operator.time, metadata={WATERMARK: watermark.metadata[WATERMARK]}))
        route = route_column(HASH, task.operator.partitions, self.max_parallelism)
        routed = self.frame.select(*columns)
        if initial is not None:
            never_late = () if watermark is None else (f.lit(NEVER_LATE).alias(task.operator.time),)
            routed = add_initial_rows(routed, initial.select(*columns[:2], *never_late))
        routed = routed.withColumn(ROUTE, route)
        return routed.groupBy(ROUTE).applyInPandasWithState(
            task, f"{BATCH} binary", GROUP_ROW, mode, TIME_OUTS[task.operator.time_out_clock]
        )


def _mark_event_time(frame: DataFrame, name: str) -> DataFrame:
    """Return the output with a column as its event time, under the watermark of the operator's input."""
    from pyspark.sql import functions as f

    # A Connect server drops the metadata of a column that withColumn replaces.
    marked = f.col(quote(name)).alias(name, metadata={WATERMARK: 0})
    return frame.select(*(marked if each == name else f.col(quote(each)) for each in frame.columns))
