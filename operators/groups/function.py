"""Call functions written for Spark's applyInPandasWithState with the same arguments, on keyed state.

PySpark's own code converts frames, keys and outputs, so a function sees the same values as in Spark. The saved time is
what Spark spends around the calls: it exchanges a pandas frame, a pickled state and a JSON text for each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import Row, StructType
from typing_extensions import override

from pyspark_ckpt.operators.declarations.processors import VectorContext, VectorProcessor
from pyspark_ckpt.operators.declarations.states import ValueState
from pyspark_ckpt.operators.declarations.timers import Timers
from pyspark_ckpt.operators.groups.frames import Conversion, GroupFrames, ReturnedFrames
from pyspark_ckpt.operators.groups.values import GroupValues
from pyspark_ckpt.operators.session.told_operators import NO_WATERMARK
from pyspark_ckpt.operators.task.group_times import TIME_OUTS
from pyspark_ckpt.operators.task.user_errors import CallError
from pyspark_ckpt.operators.types.struct_values import field_names, require_order
from pyspark_ckpt.state_store.errors import CkptError, InvalidInputError

if TYPE_CHECKING:
    from pyspark_ckpt.operators.declarations.ttl import Clock

GroupFunction: TypeAlias = Callable[[tuple[Any, ...], Iterator[pd.DataFrame], GroupState], Iterable[pd.DataFrame]]

_CLOCKS: Mapping[str, Clock | None] = {name: clock for clock, name in TIME_OUTS.items()}
FRAMES_AT_ONCE = 8192
_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})
"""Types whose values Spark keeps unchanged."""
_NEVER_MS = ((1 << 63) - 1) // 1000 - 1
"""The last time-out that a timer's timestamp can hold, in 292,000 years; a later one is set to mean never."""


def make_processor(
    function: GroupFunction,
    state: ValueState,
    output: StructType,
    time_out: str,
    how: Conversion,
    input_names: Sequence[str],
) -> GroupFunctionProcessor:
    """Return the processor that calls ``function``. ``time_out``: Spark's name for the kind of time-outs."""
    declared: dict[str, Any] = {"state": state}
    clock = _CLOCKS[time_out]
    if clock is not None:
        declared["time_out_ms"] = ValueState("time-out", "bigint")
        declared["time_outs"] = Timers("time-outs", clock=clock)
    kind = type(GroupFunctionProcessor.__name__, (GroupFunctionProcessor,), declared)
    processor: GroupFunctionProcessor = kind(function, output, time_out, how, input_names)
    return processor


class GroupFunctionProcessor(VectorProcessor):
    """Calls a function for each key, with its rows as pandas frames and its state as a GroupState.

    As in Spark, a call that sets the state or a time-out removes the old time-out. A call that touches neither leaves
    both as they are.
    """

    state: ValueState
    time_out_ms: ValueState
    time_outs: Timers

    @override
    def __init__(
        self, function: GroupFunction, output: StructType, time_out: str, how: Conversion, input_names: Sequence[str]
    ) -> None:
        self.function = function
        self.input_names = tuple(input_names)
        self.output = output
        self.time_out = time_out
        self.how = how

    def process_batch(self, ctx: VectorContext, batch: pa.Table) -> pa.Table | None:
        """Call the function for every key that has rows."""
        order = np.argsort(ctx.key_index, kind="stable")
        ends = np.cumsum(np.bincount(ctx.key_index, minlength=len(ctx.keys))).tolist()
        groups = GroupFrames(batch.take(pa.array(order)).combine_chunks(), ctx.keys.names, self.how)
        calls = _Calls(self, ctx)
        for position, (begin, end) in enumerate(pairwise([0, *ends])):
            calls.call(position, groups.key(begin), groups.frames(begin, end), timed_out=False)
        return calls.finish()

    def process_timers(self, ctx: VectorContext, _timers: pa.Table) -> pa.Table | None:
        """Call the function with an empty frame for every key that has timed out. A key has one time-out."""
        groups = GroupFrames(ctx.keys.to_table().combine_chunks(), ctx.keys.names, self.how)
        calls = _Calls(self, ctx)
        for position in ctx.key_index.tolist():
            empty = iter([pd.DataFrame(columns=list(self.input_names))])
            calls.call(position, groups.key(position), empty, timed_out=True)
        return calls.finish()


class _State(GroupState):
    """A GroupState that records what was done to it."""

    _names: tuple[str, ...]
    """The fields of the state."""

    def update(self, newValue: tuple[Any, ...]) -> None:  # noqa: N803 - Spark's name
        if type(newValue) is tuple and _PLAIN.issuperset(map(type, newValue)):
            self._value: Any = newValue
            self._defined = self._updated = True
            self._removed = False
        else:
            if isinstance(newValue, (tuple, list)):
                require_order(newValue, self._names, "update()")
            super().update(newValue)

    @property
    def time_out_ms(self) -> int | None:
        set_ms = self._timeout_timestamp
        return None if set_ms == GroupState.NO_TIMESTAMP else min(int(set_ms), _NEVER_MS)

    @property
    def is_touched(self) -> bool:
        return self._updated or self._removed or self.time_out_ms is not None


class _Calls:
    """Calls for some keys, with the states, time-outs and rows that they leave."""

    def __init__(self, processor: GroupFunctionProcessor, ctx: VectorContext) -> None:
        self._processor = processor
        self._ctx = ctx
        stored = processor.state.get(ctx.keys)
        names = field_names(stored.type)
        self._kinds = [_kind_of_state(processor.time_out, names, ctx, timed_out=each) for each in (False, True)]
        self._values = GroupValues(processor.state.name, stored.type)
        self._states = self._values.of(stored)
        self._clock = _CLOCKS[processor.time_out]
        times = [None] * len(self._states) if self._clock is None else processor.time_out_ms.get(ctx.keys).to_pylist()
        self._old_times, self._times = times, list(times)
        self._written: set[int] = set()
        self._returned = ReturnedFrames()
        self._width = len(processor.output)
        self._batches: list[pa.RecordBatch] = []

    def call(self, position: int, key: tuple[Any, ...], frames: Iterator[pd.DataFrame], *, timed_out: bool) -> None:
        value = self._states[position]
        state = object.__new__(self._kinds[timed_out])
        if value is not None:
            state._value, state._defined = value, True
        try:
            self._take(self._processor.function(key, frames, state))
        except CkptError:
            raise
        except BaseException as problem:
            raise CallError(key) from problem
        if state.is_touched:
            self._states[position] = state.getOption
            self._times[position] = state.time_out_ms
            self._written.add(position)
        elif timed_out:  # the key stays timed out
            self._times[position] = self._now_ms()

    def finish(self) -> pa.Table | None:
        """Write the states and the time-outs; return the rows."""
        keys, processor = self._ctx.keys, self._processor
        written = sorted(self._written)
        if written:
            values = [self._states[position] for position in written]
            processor.state.put(keys.at(written), self._values.column(values))
        moved = [n for n, (old, new) in enumerate(zip(self._old_times, self._times, strict=True)) if old != new]
        if moved:
            index = np.array(moved)
            old, new = ([times[position] for position in moved] for times in (self._old_times, self._times))
            processor.time_outs.delete_rows(keys, index, _instants(old))
            processor.time_outs.register_rows(keys, index, _instants(new))
            processor.time_out_ms.put(keys.at(moved), pa.array(new, pa.int64()))
        self._pack()
        return pa.Table.from_batches(self._batches) if self._batches else None

    def _now_ms(self) -> int:
        return self._ctx.watermark_ms if self._clock == "event" else self._ctx.processing_time_ms

    def _take(self, results: Any) -> None:
        if isinstance(results, pd.DataFrame) or not hasattr(results, "__iter__"):
            self._refuse(f"returned {type(results).__name__}, not an iterable of pandas.DataFrame.")
        for frame in results:
            if not isinstance(frame, pd.DataFrame):
                self._refuse(f"yielded {type(frame).__name__}, not a pandas.DataFrame.")
            width, rows = len(frame.columns), len(frame)
            if width not in {0, self._width}:
                names = self._processor.output.names
                self._refuse(f"yielded a frame of {width} columns, but the output has {self._width}: {names}.")
            if rows:
                self._returned.add(frame)
        if len(self._returned) >= FRAMES_AT_ONCE:
            self._pack()

    def _refuse(self, what: str) -> NoReturn:
        function = self._processor.function
        raise InvalidInputError(f"The function {getattr(function, '__name__', function)!r} {what}")

    def _pack(self) -> None:
        for frame in self._returned.take():
            self._batches.append(self._processor.how.to_rows(frame, self._processor.output))


def _kind_of_state(time_out: str, names: tuple[str, ...], ctx: VectorContext, *, timed_out: bool) -> type[_State]:
    """Return the class of the states passed to these calls, with the attributes that all of them begin with."""
    unset = _State(
        optionalValue=Row(),
        batchProcessingTimeMs=ctx.processing_time_ms,
        eventTimeWatermarkMs=max(0, ctx.watermark_ms),
        timeoutConf=time_out,
        hasTimedOut=timed_out,
        watermarkPresent=ctx.watermark_ms != NO_WATERMARK,
        defined=False,
        updated=False,
        removed=False,
        timeoutTimestamp=GroupState.NO_TIMESTAMP,
        keyAsUnsafe=b"",
        valueSchema=StructType(),
    )
    return type(_State.__name__, (_State,), {**vars(unset), "_names": names})


def _instants(times_ms: Sequence[int | None]) -> pa.Array:
    """Return when the timers of time-outs fire. In Spark a key times out once its clock is past the set time."""
    micros = [None if each is None else (each + 1) * 1000 for each in times_ms]
    return pa.array(micros, pa.int64()).cast(pa.timestamp("us"))
