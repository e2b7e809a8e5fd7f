"""Call a StatefulProcessor, written for Spark's transformWithState, with the same arguments, on keyed state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import LongType
from typing_extensions import override

from pyspark_ckpt.operators.declarations.processors import AdaptingProcessor, VectorContext
from pyspark_ckpt.operators.declarations.programs import dump_program, load_program
from pyspark_ckpt.operators.declarations.states import Declared, MapState
from pyspark_ckpt.operators.declarations.timers import Timers
from pyspark_ckpt.operators.groups.values import GroupValues
from pyspark_ckpt.operators.stateful.frame_form import FrameForm, FrameGroups
from pyspark_ckpt.operators.stateful.row_form import RowForm, RowGroups, row_maker
from pyspark_ckpt.operators.stateful.running import Running
from pyspark_ckpt.operators.stateful.timers import KeyTimers, set_ms
from pyspark_ckpt.operators.task.user_errors import locate_errors
from pyspark_ckpt.operators.types.value_types import resolve_type

if TYPE_CHECKING:
    from pyspark_ckpt.operators.declarations.states import DeclaredState
    from pyspark_ckpt.operators.declarations.ttl import Clock

Form: TypeAlias = "FrameForm | RowForm"

TIMERS: Mapping[Clock, str] = {"processing": "$procTimers", "event": "$eventTimers"}
"""The names of the state of timers, as in Spark."""
_BY_KEY = " by key"


def make_calls(
    processor: StatefulProcessor, variables: Sequence[DeclaredState], clock: Clock | None, form: Form, uid: str
) -> StatefulCalls:
    """Return the processor that calls ``processor``. ``clock``: that of its timers, None without."""
    declared: dict[str, Declared] = {f"variable_{n}": each for n, each in enumerate(variables)}
    if clock is not None:
        declared["timers"] = Timers(TIMERS[clock], clock=clock)
        declared["timers_of_key"] = MapState(TIMERS[clock] + _BY_KEY, LongType(), LongType())
    kind = type(type(processor).__name__, (StatefulCalls,), declared)
    calls: StatefulCalls = kind(processor, variables, clock, form, uid)
    return calls


class StatefulCalls(AdaptingProcessor):
    """Calls a StatefulProcessor for each key that has rows, and for each timer."""

    timers: Any
    timers_of_key: Any

    @override
    def __init__(
        self,
        processor: StatefulProcessor,
        variables: Sequence[DeclaredState],
        clock: Clock | None,
        form: Form,
        uid: str,
    ) -> None:
        self._name = type(processor).__name__
        self._program = dump_program(processor)
        """Each task has a copy of its own."""
        self._types = [
            (each.name, {what: resolve_type(kind, what).arrow for what, kind in each.types.items()})
            for each in variables
        ]
        self._clock = clock
        self._form = form
        self._uid = uid
        self._running: Running | None = None

    @override
    def process_initial_batch(self, ctx: VectorContext, batch: pa.Table) -> None:
        running = self._begin(ctx)
        call, times, position = running.program.handleInitialState, running.times, self.position
        groups, spans = self._group(ctx, batch)
        with locate_errors(self._who("handleInitialState"), ctx, lambda: position.key):
            for _, (begin, end) in running.turns(ctx.keys, enumerate(spans)):
                key, rows = groups.take(begin, end)
                position.key = key
                for each in rows:
                    call(key, each, times)
            running.finish()

    @override
    def process_batch(self, ctx: VectorContext, batch: pa.Table) -> pa.Table | None:
        running = self._begin(ctx)
        who = self._who("handleInputRows")
        returned = self._form.collect(lambda: who)
        call, times, position = running.program.handleInputRows, running.times, self.position
        groups, spans = self._group(ctx, batch)
        with locate_errors(who, ctx, lambda: position.key):
            for _, (begin, end) in running.turns(ctx.keys, enumerate(spans)):
                key, rows = groups.take(begin, end)
                position.key = key
                returned.take(call(key, rows, times))
            running.finish()
            return returned.finish()

    @override
    def process_timers(self, ctx: VectorContext, timers: pa.Table) -> pa.Table | None:
        running = self._begin(ctx)
        who = self._who("handleExpiredTimer")
        returned = self._form.collect(lambda: who)
        call, times, position = running.program.handleExpiredTimer, running.times, self.position
        keys = _list_keys(ctx.keys.to_table())
        at_ms = (timers.column("at").cast(pa.int64()).to_numpy() // 1000).tolist()
        set_to = list(map(set_ms, timers.column("namespace").to_pylist(), at_ms))
        fired = sorted(zip(ctx.key_index.tolist(), set_to, strict=True), key=itemgetter(1))
        with locate_errors(who, ctx, lambda: position.key), running.firing() as own:
            for place, expired_ms in running.turns(ctx.keys, fired):
                position.key = key = keys[place]
                returned.take(call(key=key, timerValues=times, expiredTimerInfo=ExpiredTimerInfo(expired_ms)))
                own.delete(expired_ms)
            running.finish()
            return returned.finish()

    @override
    def close(self) -> None:
        if self._running is not None:
            self._running.program.close()

    def _begin(self, ctx: VectorContext) -> Running:
        """Return what the calls of this task share; the first call makes it."""
        if self._running is None:
            program = load_program(self._program)
            bound = [vars(self)[f"variable_{n}"] for n in range(len(self._types))]
            variables = {name: (state, kinds) for state, (name, kinds) in zip(bound, self._types, strict=True)}
            timers, times = None, TimerValues(-1, -1)
            if self._clock is not None:
                now_ms = ctx.watermark_ms if self._clock == "event" else ctx.processing_time_ms
                timers = KeyTimers(self.timers, self.timers_of_key, now_ms)
                times = TimerValues(ctx.processing_time_ms, ctx.watermark_ms)
            with locate_errors(self._who("init"), ctx):
                self._running = Running(program, variables, timers, times, self.position)
        return self._running

    def _group(self, ctx: VectorContext, batch: pa.Table) -> tuple[FrameGroups | RowGroups, Iterator[tuple[int, int]]]:
        """Return rows in the order of their keys, and where those of each key begin and end."""
        order = np.argsort(ctx.key_index, kind="stable")
        ends = np.cumsum(np.bincount(ctx.key_index, minlength=len(ctx.keys))).tolist()
        return self._form.group(batch.take(pa.array(order)).combine_chunks(), ctx.keys.names), pairwise([0, *ends])

    def _who(self, method: str) -> str:
        return f"{self._name}.{method}() of keyed operator {self._uid!r}"


def _list_keys(keys: pa.Table) -> list[Any]:
    """Return keys as Spark passes those of timers: Rows, with values as those of states."""
    fields = list(keys.schema)
    columns = [column.combine_chunks() for column in keys.columns]
    values = GroupValues("keys", pa.struct(fields)).of(pa.StructArray.from_arrays(columns, fields=fields))
    return list(map(row_maker(keys.column_names), values))
