"""Check the inputs and the processor of a keyed operator, and make it ready to run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar, get_args

from pyspark_ckpt.operators.bound.declared_states import require_no_event_time, with_types
from pyspark_ckpt.operators.declarations.operator import HASH, Input, KeyedOperator
from pyspark_ckpt.operators.declarations.processors import (
    KeyedProcessor,
    VectorProcessor,
    find_states,
    require_broadcast,
    require_methods,
    takes_late_rows,
)
from pyspark_ckpt.operators.frames import check_key, check_order, resolve_columns
from pyspark_ckpt.operators.initial_state import make_initial_schema
from pyspark_ckpt.operators.types.value_types import check_handed, make_handed_schema
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import parse, read_settings

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

    from pyspark_ckpt.operators.declarations.host import Host, InitialState

Processor: TypeAlias = KeyedProcessor | VectorProcessor
LateOutput: TypeAlias = Literal["count", "fail"]
Result = TypeVar("Result")

WATERMARK = "spark.watermarkDelayMs"
"""The key in the metadata of a column by which Spark knows an event time (EventTimeWatermark.delayKey)."""


def find_watermark(columns: StructType) -> StructField | None:
    """Return the column that has the event time; None if there is no watermark."""
    return next((field for field in columns if WATERMARK in field.metadata), None)


def require_one_event_time(columns: StructType, who: str) -> None:
    """Raise InvalidInputError if several columns have an event time, as after a join: Spark refuses that, too."""
    names = sorted({field.name for field in columns if WATERMARK in field.metadata})
    if len(names) > 1:
        raise InvalidInputError(
            f"{who}: the columns {names} all have an event time, but only one can decide which rows are late.",
            hint="Before the operator, drop all but one of them, or make them ordinary columns: "
            f"withColumn({names[-1]!r}, f.col({names[-1]!r}) + f.expr('interval 0 seconds')).",
        )


@dataclass(frozen=True)
class KeyedColumns:
    """The columns of one input of an operator. ``name``: empty if it is the only one."""

    name: str
    schema: StructType
    by: tuple[str, ...]
    order_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperatorPlan(Generic[Result]):
    """A keyed operator that is being planned, to run on ``host``. ``who``: as errors name it.

    ``broadcast``: the input whose rows go to all partitions, which has no keys; None without one.
    """

    inputs: tuple[KeyedColumns, ...]
    uid: str
    max_parallelism: int
    who: str
    host: Host[Result]
    merges_inputs: bool = False
    broadcast: KeyedColumns | None = None

    def process(
        self,
        processor: Processor,
        output: StructType | str,
        mode: str,
        event_time: str | None,
        late_output: LateOutput,
        initial_state: InitialState | None,
    ) -> Result:
        """See ``KeyedStream.process``."""
        columns = resolve_columns(output, f"{self.who}: the output")
        self.check_event_time(event_time, late_output, columns)
        return self.start(
            processor,
            columns,
            mode,
            event_time=event_time,
            refuses_late_output=late_output == "fail",
            initial=initial_state,
        )

    def start(
        self,
        processor: Processor,
        columns: StructType,
        mode: str,
        *,
        initial: InitialState | None = None,
        event_time: str | None = None,
        refuses_late_output: bool = False,
        keeps_late_rows: bool = False,
    ) -> Result:
        """Run an operator whose output has these ``columns``. Raises InvalidInputError."""
        operator = replace(
            self._operator(processor, columns),
            event_time=event_time,
            refuses_late_output=refuses_late_output,
            keeps_late_rows=keeps_late_rows,
        )
        if str(mode).lower() not in {"update", "append"}:
            raise InvalidInputError(f"{self.who}: mode must be 'update' or 'append', got {mode!r}.")
        if initial is not None:
            who = f"{self.who}: the initial state"
            initial = self.host.read_initial(initial, operator.by, who)
            schema = make_initial_schema(initial.schema, self.inputs[0].schema, operator, processor, who)
            operator = replace(operator, initial=schema)
        return self.host.start(operator, processor, columns, mode, initial)

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
                f"{who}: the output has the event time {name!r}, but the frame has no watermark.",
                hint="Call withWatermark on the frame.",
            )

    @property
    def _has_watermark(self) -> bool:
        return any(find_watermark(each.schema) is not None for each in self.inputs)

    def _operator(self, processor: Processor, output: StructType) -> KeyedOperator:
        require_methods(processor, [each.name for each in self.inputs])
        require_broadcast(processor, has_input=self.broadcast is not None)
        conf = self.host.conf
        options = parse(read_settings(partial(conf.get, default=None)))
        operator = KeyedOperator(
            uid=self.uid,
            inputs=tuple(self._input(each, processor) for each in self.inputs),
            output=make_handed_schema(output),
            states=with_types(find_states(processor), self.who),
            partitions=int(str(conf.get("spark.sql.shuffle.partitions"))),
            max_parallelism=self.max_parallelism,
            local_dir=options.local_dir,
            has_watermark=self._has_watermark,
            memory_bytes=options.worker_memory_bytes,
            merges_inputs=self.merges_inputs,
            allow_non_restored_state=options.allow_non_restored_state,
            broadcast=None if self.broadcast is None else self._input(self.broadcast, processor),
        )
        if "event" in operator.clocks and not self._has_watermark:
            raise InvalidInputError(
                f"{self.who}: {type(processor).__name__} declares event-time timers, but the frame has no watermark.",
                hint="Call withWatermark on the frame, or declare the timers with clock='processing'.",
            )
        if not self._has_watermark:
            require_no_event_time(operator.states, lambda each: f"{self.who}: state {each.state.name!r}")
        return operator

    def _input(self, given: KeyedColumns, processor: Processor) -> Input:
        who = f"{self.who}: input {given.name!r}" if given.name else self.who
        if HASH in given.schema.names:
            raise InvalidInputError(f"{who}: the name of column {HASH!r} is reserved.", hint="Rename the column.")
        for field in given.schema:
            check_handed(field.dataType, f"{who}: column {field.name!r}")
        if given is not self.broadcast:
            require_one_event_time(given.schema, who)
        columns = make_handed_schema(given.schema)
        for name in given.order_by:
            check_order(given.schema, name, columns.field(name).type, who)
        for name in given.by:
            check_key(given.schema, name, columns.field(name).type, who)
        is_late_taken = given is not self.broadcast and takes_late_rows(processor, given.name)
        watermark = None if given is self.broadcast else find_watermark(given.schema)
        time = None if watermark is None else watermark.name
        return Input(given.name, given.by, columns, given.order_by, is_late_taken, time)
