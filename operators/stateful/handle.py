"""The handle of a StatefulProcessor in a running task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from typing_extensions import override

from pyspark_ckpt.operators.stateful.variables import TaskList, TaskMap, TaskValue
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark_ckpt.operators.stateful.timers import KeyTimers

Kind = TypeVar("Kind")


class TaskHandle(StatefulProcessorHandle):
    """Gives ``init`` the state variables that it declared when the query was planned, and calls timers."""

    @override
    def __init__(self, variables: Mapping[str, Any], timers: KeyTimers | None, who: str) -> None:
        """``timers``: None in the time mode None. ``who``: the processor, for errors."""
        self._variables = dict(variables)
        self._timers = timers
        self._who = who
        self.is_in_init = True

    @override
    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> TaskValue:
        return self._get(stateName, TaskValue, "value")

    @override
    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> TaskList:
        return self._get(stateName, TaskList, "list")

    @override
    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> TaskMap:
        return self._get(stateName, TaskMap, "map")

    @override
    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._require_timers("registerTimer").register(expiryTimestampMs)

    @override
    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._require_timers("deleteTimer").delete(expiryTimestampMs)

    @override
    def listTimers(self) -> Iterator[int]:
        return self._require_timers("listTimers").list_all()

    @override
    def deleteIfExists(self, stateName: str) -> None:
        """Do nothing: a query whose checkpoint has state that ``init`` does not declare does not get this far."""
        self._require_init("deleteIfExists")

    def _get(self, name: str, kind: type[Kind], shown: str) -> Kind:
        self._require_init(f"get{shown.capitalize()}State")
        variable = self._variables.get(name)
        if not isinstance(variable, kind):
            raise InvalidInputError(
                f"{self._who}: init() declares the {shown} state {name!r} in a task, but it did not when the query was "
                "planned.",
                hint="Declare the same state variables in each call of init().",
            )
        return variable

    def _require_init(self, call: str) -> None:
        if not self.is_in_init:
            raise InvalidInputError(
                f"{self._who} calls {call}() after init().", hint="Declare all state variables in init()."
            )

    def _require_timers(self, call: str) -> KeyTimers:
        if self._timers is None:
            raise InvalidInputError(
                f"{self._who} calls {call}(), but there are no timers in the timeMode 'None'.",
                hint="Give the timeMode 'ProcessingTime' or 'EventTime'.",
            )
        return self._timers
