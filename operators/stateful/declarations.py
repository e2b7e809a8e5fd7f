"""What a StatefulProcessor declares in ``init``, found when its query is planned."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType
from typing_extensions import override

from pyspark_ckpt.operators.declarations.programs import dump_program, load_program
from pyspark_ckpt.operators.declarations.states import DeclaredState, ListState, MapState, ValueState
from pyspark_ckpt.operators.declarations.ttl import Ttl
from pyspark_ckpt.operators.types.value_types import resolve_type
from pyspark_ckpt.state_store.errors import CkptError, InvalidInputError

if TYPE_CHECKING:
    from pyspark_ckpt.operators.declarations.ttl import Clock

TIME_MODES: Mapping[str, Clock | None] = {"none": None, "processingtime": "processing", "eventtime": "event"}
"""The clock of the timers of each time mode; names are in any letter case."""
RESERVED = "$"
"""Names that begin so are those of an operator's timers."""


def require_processor(processor: object, who: str) -> StatefulProcessor:
    """Return ``processor``. Raises InvalidInputError if it is not an instance of a StatefulProcessor."""
    if isinstance(processor, type):
        raise InvalidInputError(
            f"{who}: the processor is the class {processor.__name__}.",
            hint=f"Give an instance: {processor.__name__}().",
        )
    if not isinstance(processor, StatefulProcessor):
        raise InvalidInputError(
            f"{who}: the processor is {repr(processor)[:200]}, of type {type(processor).__name__}.",
            hint="Give an instance of a class that derives from pyspark.sql.streaming.StatefulProcessor.",
        )
    return processor


def find_clock(time_mode: object, who: str) -> Clock | None:
    """Return the clock of a time mode's timers, None without timers. Raises InvalidInputError (no time mode)."""
    if not isinstance(time_mode, str) or time_mode.lower() not in TIME_MODES:
        raise InvalidInputError(
            f"{who}: the timeMode is {time_mode!r}, not one of 'None', 'ProcessingTime' and 'EventTime'."
        )
    return TIME_MODES[time_mode.lower()]


def find_variables(processor: StatefulProcessor, clock: Clock | None, who: str) -> dict[str, DeclaredState]:
    """Return the state variables that ``init`` of a copy of ``processor`` declares, by name.

    ``clock``: that of the timers. Raises InvalidInputError (a wrong declaration, or ``init`` fails).
    """
    name = type(processor).__name__
    try:
        copy = load_program(dump_program(processor))
    except Exception as problem:
        raise InvalidInputError(f"{who}: {name} cannot be copied to the workers: {problem}") from problem
    handle = RecordingHandle(clock, f"{who}: {name}")
    try:
        copy.init(handle)
        copy.close()
        handle.require_kept()
    except CkptError:
        raise
    except Exception as problem:
        raise InvalidInputError(
            f"{who}: {name}.init() failed when the query was planned: {type(problem).__name__}: {problem}",
            hint="Planning calls init() on a copy of the processor, to find its state variables.",
        ) from problem
    return handle.declared


class RecordingHandle(StatefulProcessorHandle):
    """The handle that ``init`` gets when the query is planned. It records state variables."""

    @override
    def __init__(self, clock: Clock | None, who: str) -> None:
        self.declared: dict[str, DeclaredState] = {}
        self._deleted: set[str] = set()
        self._clock = clock
        self._who = who

    @override
    def getValueState(self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None) -> Any:
        kind = self._type(stateName, "schema", schema)
        return self._add(ValueState(self._name(stateName), kind, ttl=self._ttl(stateName, ttlDurationMs)))

    @override
    def getListState(self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None) -> Any:
        kind = self._type(stateName, "schema", schema)
        return self._add(ListState(self._name(stateName), kind, ttl=self._ttl(stateName, ttlDurationMs)))

    @override
    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> Any:
        keys = self._type(stateName, "userKeySchema", userKeySchema)
        values = self._type(stateName, "valueSchema", valueSchema)
        return self._add(MapState(self._name(stateName), keys, values, ttl=self._ttl(stateName, ttlDurationMs)))

    @override
    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._refuse("registerTimer()")

    @override
    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._refuse("deleteTimer()")

    @override
    def listTimers(self) -> Any:
        self._refuse("listTimers()")

    @override
    def deleteIfExists(self, stateName: str) -> None:
        self._deleted.add(stateName)

    def require_kept(self) -> None:
        """Raise InvalidInputError if ``init`` deletes a state variable that it declares: each task would empty it."""
        if twice := sorted(self._deleted.intersection(self.declared)):
            raise InvalidInputError(f"{self._who}.init() declares the state variable {twice[0]!r}, but deletes it.")

    def _refuse(self, call: str) -> NoReturn:
        raise InvalidInputError(f"{self._who}.init() calls {call}, but no key is being processed there.")

    def _add(self, state: DeclaredState) -> Variable:
        if state.name in self.declared:
            raise InvalidInputError(
                f"{self._who}.init() declares more than one state variable with the name {state.name!r}.",
                hint="Give each state variable its own name.",
            )
        self.declared[state.name] = state
        return Variable(state.name, self._who)

    def _name(self, name: object) -> str:
        if not isinstance(name, str) or not name or name.startswith(RESERVED):
            raise InvalidInputError(
                f"{self._who}.init() declares a state variable with the name {name!r}.",
                hint=f"Give it a name: text that is not empty and does not begin with {RESERVED!r}.",
            )
        return name

    def _type(self, name: object, argument: str, schema: StructType | str) -> StructType:
        what = f"{self._who}: the {argument} of state variable {name!r}"
        kind = resolve_type(schema, what)
        if not pa.types.is_struct(kind.arrow):
            raise InvalidInputError(f"{what} is {schema!r}: give columns, like 'user string, views long'.")
        return StructType.fromJson(kind.schema)

    def _ttl(self, name: object, duration_ms: object) -> Ttl | None:
        if duration_ms is None or duration_ms == 0:  # as in Spark, zero means that it lives forever
            return None
        what = f"{self._who}: the ttlDurationMs of state variable {name!r} is {duration_ms!r}"
        if isinstance(duration_ms, bool) or not isinstance(duration_ms, int) or duration_ms < 0:
            raise InvalidInputError(f"{what}, not a positive number of milliseconds.")
        if self._clock != "processing":
            raise InvalidInputError(f"{what}, but only the timeMode 'ProcessingTime' has times to live.")
        return Ttl(timedelta(milliseconds=duration_ms))


class Variable:
    """What ``init`` gets for a state variable when the query is planned: there is no state yet."""

    def __init__(self, name: str, who: str) -> None:
        """``who``: the processor, for errors."""
        self._name = name
        self._who = who

    def __getattr__(self, call: str) -> NoReturn:
        """Raise InvalidInputError: there is no key."""
        if call.startswith("__"):
            raise AttributeError(call)
        raise InvalidInputError(
            f"{self._who}.init() uses {call} of state variable {self._name!r}, but no key is being processed there."
        )
