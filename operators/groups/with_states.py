"""Value, list and map state for a function that Spark's own ``applyInPandasWithState`` calls for each group."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from pyspark_ckpt.operators.bound.declared_states import DeclaredStates, with_types
from pyspark_ckpt.operators.declarations.counters import MetricCounter
from pyspark_ckpt.operators.declarations.partition_states import PartitionState
from pyspark_ckpt.operators.declarations.processors import Context, find_declarations
from pyspark_ckpt.operators.declarations.timers import Timers
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.encoding.spark_hash import SparkHash
from pyspark_ckpt.operators.encoding.unsafe_rows import row_reader
from pyspark_ckpt.operators.session.group import GroupSession
from pyspark_ckpt.operators.session.state_partition import check_place
from pyspark_ckpt.operators.session.told_operators import NO_WATERMARK, find_own, read_told
from pyspark_ckpt.operators.session.worker import find_ticket, naming
from pyspark_ckpt.operators.task.event_times import read_frame_ms
from pyspark_ckpt.operators.task.group_times import require_present
from pyspark_ckpt.operators.task.staging import row_changes, spill, sweep_share, take_written
from pyspark_ckpt.operators.task.user_errors import locate_errors
from pyspark_ckpt.operators.types.value_types import make_handed_schema
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.format.keys import HASH_BYTES
from pyspark_ckpt.state_store.format.meta import check_uid
from pyspark_ckpt.state_store.options import Options, parse, read_settings
from pyspark_ckpt.state_store.transactions.ticket import Ticket

if TYPE_CHECKING:
    import pandas as pd
    from pyspark import TaskContext
    from pyspark.sql.streaming.state import GroupState

    from pyspark_ckpt.operators.declarations.ttl import Clock

StatesFunction: TypeAlias = (
    "Callable[[tuple[Any, ...], Iterator[pd.DataFrame], GroupState, Any], Iterable[pd.DataFrame]]"
)

PLACEMENT = {"partition": "spark hash"}
"""The placement of groups: ``pmod(hash(key), partitions)``, as Spark shuffles."""


def with_states(
    function: StatesFunction, states: object, *, uid: str, event_time: str | None = None
) -> GroupFunctionWithStates:
    """Return the function to pass to ``applyInPandasWithState`` for ``function(key, frames, state, states)``.

    ``states``: an object whose class declares states as attributes; the function gets a copy with the states of its
    group. Writes to them commit together with Spark's own state of the group, or not at all. Removing Spark's state
    does not remove these: clear them as well. ``uid``: the operator's name in the checkpoint, which must not change
    while its state lives. The query must use this package's state store provider. ``event_time``: the column of the
    frames with the event time for states that live by it; without it, they use the watermark of the batch, unless a
    write gives ``at``.

    Call it on the driver, where there is a session. Raises InvalidInputError (no states; timers, counters or states of
    a partition, which work only in keyed operators; a wrong uid or type).
    """
    who = f"with_states(uid={uid!r})"
    check_uid(uid, who)
    declared = find_declarations(states)
    if not declared:
        raise InvalidInputError(f"{who}: {type(states).__name__} declares no states.")
    for each in declared.values():
        if isinstance(each, (Timers, MetricCounter, PartitionState)):
            raise InvalidInputError(
                f"{who}: {type(each).__name__} {each.name!r} cannot be used in a call of applyInPandasWithState.",
                hint="Use a keyed operator, keyed(...).process(...), or Spark's time-outs in place of timers.",
            )
    if event_time is not None and not isinstance(event_time, str):
        raise InvalidInputError(
            f"{who}: event_time is {event_time!r}, not the name of a column.", hint="Name that of withWatermark: 'at'."
        )
    return GroupFunctionWithStates(function, states, DeclaredStates(uid, with_types(declared, who)), event_time)


@dataclass(frozen=True)
class GroupFunctionWithStates:
    """The function that Spark calls for each group."""

    function: StatesFunction
    states: object
    declared: DeclaredStates
    event_time: str | None = None

    @property
    def __name__(self) -> str:
        """The name in Spark's plans, by which the shim knows it."""
        return f"with_states(uid={self.declared.uid!r})"

    def __call__(
        self, key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """Process the group's rows. Writes are staged after the last output row has been taken."""
        task = _task(self, state)
        with naming(task.ticket, self.declared.uid):
            states = task.at(state)
            if self.event_time is not None:
                frames = task.in_time(frames, self.event_time)
            with locate_errors(f"The function of {self.__name__}", task.where, lambda: key):
                results = self.function(key, frames, state, states)
                self._require_frames(results)
                yield from results
            task.stage()

    def _require_frames(self, results: object) -> None:
        if not hasattr(type(results), "__iter__") or hasattr(type(results), "itertuples"):
            raise InvalidInputError(
                f"The function {getattr(self.function, '__name__', self.function)!r} of {self.__name__} returned "
                f"{type(results).__name__}, not an iterable of pandas.DataFrame.",
                hint="Yield frames, or return a list of them.",
            )


class _GroupsTask:
    """The states of one operator while Spark passes groups of one partition to this process.

    Spark makes a new TaskContext for each series of groups: those of a partition that have rows, those that have timed
    out, and after ``coalesce`` those of the task's next partition. Each series falls between the begin and the commit
    of the partition's transaction, so the ticket found is that of the partition.
    """

    def __init__(
        self, called: GroupFunctionWithStates, context: TaskContext, options: Options, state: GroupState
    ) -> None:
        self.context = context
        self.uid = called.declared.uid
        own = find_own(read_told(context.getLocalProperty), called.__name__)
        self.ticket = ticket = find_ticket(context.taskAttemptId(), options.local_dir, own.number if own else None)
        require_present(state.getCurrentProcessingTimeMs(), called.__name__, ticket.version)
        self.where = Context(ticket.version, ticket.partition, state.getCurrentProcessingTimeMs(), NO_WATERMARK)
        with naming(ticket, called.declared.uid):
            self._begin(called, ticket, state, options.worker_memory_bytes)
            self._session.spill_beyond(options.worker_memory_bytes, partial(spill, self._session, self._bound))

    def _begin(self, called: GroupFunctionWithStates, ticket: Ticket, state: GroupState, memory_bytes: int) -> None:
        # Spark has already refused keys that may be equal with different bytes: collated strings, maps.
        schema = _arrow_schema(ticket.key_schema)
        self._read, kinds = row_reader(schema), list(schema.types)
        self._codec, self._hash = KeyCodec(kinds, "a key of the group"), SparkHash(kinds)
        key_schema = {field.name: str(field.type) for field in schema}
        declared = called.declared.descriptors(ticket, key_schema, PLACEMENT)
        if not state._watermark_present:  # noqa: SLF001 - the public getter raises without a watermark
            called.declared.require_no_event_time()
        watermark_ms = state.getCurrentWatermarkMs() if state._watermark_present else NO_WATERMARK  # noqa: SLF001 - or it raises
        now_ms: Mapping[Clock, int] = {"processing": state.getCurrentProcessingTimeMs(), "event": watermark_ms}
        self._session = GroupSession(ticket, declared, self._codec, now_ms)
        self._states, self._bound = called.declared.bind(called.states, self._session)
        if self._session.is_first:
            sweep_share(self._session, self._bound, memory_bytes)
            self._session.stage_swept(take_written(self._bound), row_changes(self._bound))

    def at(self, state: GroupState) -> object:
        """Return the states of a group. One whose ``state`` has timed out may have been called for its rows before."""
        key = self._read(state._keyAsUnsafe)  # noqa: SLF001 - the key, unharmed by pandas
        key_hash = self._hash(key)
        check_place(self.ticket, self.uid, key_hash)
        suffix = key_hash.to_bytes(HASH_BYTES, "big") + self._codec.encode(key)
        self._session.at(suffix, is_again=state.hasTimedOut)
        self._session.position.time.end()
        return self._states

    def in_time(self, frames: Iterator[pd.DataFrame], column: str) -> Iterator[pd.DataFrame]:
        """Return the same frames. States read as of the earliest time of the taken frames, and write as of the latest.

        Before the first frame is taken, its event times count.
        """
        time, given = self._session.position.time, iter(frames)
        zone = self.context.getLocalProperty("spark.sql.session.timeZone") or "UTC"
        first = next(given, None)
        if first is None:
            return given
        of_first = read_frame_ms(first, column, zone, time.watermark_ms, f"with_states(uid={self.uid!r})")
        if len(of_first):
            time.begin(int(of_first.min()), int(of_first.max()))
        return chain([first], self._take_in_time(given, column, zone))

    def _take_in_time(self, frames: Iterator[pd.DataFrame], column: str, zone: str) -> Iterator[pd.DataFrame]:
        time = self._session.position.time
        for frame in frames:
            times_ms = read_frame_ms(frame, column, zone, time.watermark_ms, f"with_states(uid={self.uid!r})")
            if len(times_ms):
                time.extend(int(times_ms.min()), int(times_ms.max()))
            yield frame

    def stage(self) -> None:
        """Stage the group's writes."""
        self._session.stage_group(take_written(self._bound), partial(row_changes, self._bound))

    def close(self) -> None:
        """Close the session after the calls for all of its groups."""
        self._session.close()


_current: _GroupsTask | None = None
"""The task of the partition whose groups this worker process is processing; that of the next one replaces it."""


def _task(called: GroupFunctionWithStates, state: GroupState) -> _GroupsTask:
    global _current  # noqa: PLW0603 - Spark gives a function no other place that lives as long as a task
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise LifecycleError(
            f"The function of with_states(uid={called.declared.uid!r}) was called outside of a Spark task."
        )
    if _current is None or _current.context is not context or _current.uid != called.declared.uid:
        if _current is not None:
            _current.close()
            _current = None
        options = parse(read_settings(context.getLocalProperty))
        if options.allow_non_restored_state:
            called = replace(called, declared=replace(called.declared, allow_non_restored_state=True))
        _current = _GroupsTask(called, context, options, state)
    return _current


def _arrow_schema(spark_json: str) -> pa.Schema:
    from pyspark.sql.types import StructType

    return make_handed_schema(StructType.fromJson(json.loads(spark_json)))
