"""One task of a StatefulProcessor: a copy of it, its state variables, its timers and the key whose turn it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from pyspark_ckpt.operators.declarations.states import Declared, ListState, ValueState
from pyspark_ckpt.operators.rows.base import NO_KEY, Position
from pyspark_ckpt.operators.stateful.handle import TaskHandle
from pyspark_ckpt.operators.stateful.timers import KeyTimers
from pyspark_ckpt.operators.stateful.variables import NO_TURN, TaskList, TaskMap, TaskValue, Turn
from pyspark_ckpt.state_store.errors import InternalError

if TYPE_CHECKING:
    from pyspark_ckpt.operators.encoding.distinct_keys import Keys

Payload = TypeVar("Payload")

KEYS_AT_ONCE = 8192
"""Lists and maps of so many keys are read at once."""


class Running:
    """What all calls of a task share."""

    def __init__(
        self,
        program: StatefulProcessor,
        variables: Mapping[str, Any],
        timers: KeyTimers | None,
        times: TimerValues,
        position: Position,
    ) -> None:
        """``variables``: bound states by name, each with the types of its values. Calls ``init``."""
        self.program = program
        self.times = times
        self._position = position
        self._turn = Turn()
        self._timers = timers
        made = {name: self._make(*each) for name, each in variables.items()}
        self._values = [each for each in made.values() if isinstance(each, TaskValue)]
        handle = TaskHandle(made, timers, type(program).__name__)
        program.init(handle)
        handle.is_in_init = False

    def turns(self, keys: Keys, calls: Iterable[tuple[int, Payload]]) -> Iterator[tuple[int, Payload]]:
        """Yield ``calls``: the place of a key and more. It is the turn of that key until the next call is taken."""
        turn, position = self._turn, self._position
        suffixes = keys.suffixes.strings
        turn.keys, remaining = keys, iter(calls)
        while some := list(islice(remaining, KEYS_AT_ONCE)):
            position.upcoming = [suffixes[place] for place in sorted({place for place, _ in some})]
            for place, more in some:
                turn.place, position.suffix = place, suffixes[place]
                yield place, more
        turn.place, position.suffix, position.key = NO_TURN, NO_KEY, None  # after an error, its key stays

    def finish(self) -> None:
        """Write the values that the turns have set."""
        for each in self._values:
            each.finish()
        self._turn.keys = None

    @contextmanager
    def firing(self) -> Iterator[KeyTimers]:
        """Call handlers of timers within: what they register for the past comes in the next batch."""
        if self._timers is None:
            raise InternalError("A timer fires in an operator without timers.")
        self._timers.is_firing = True
        yield self._timers
        self._timers.is_firing = False

    def _make(self, state: Declared, kinds: Mapping[str, Any]) -> Any:
        if isinstance(state, ValueState):
            return TaskValue(state, kinds["value"], self._turn)
        if isinstance(state, ListState):
            return TaskList(state, kinds["element"])
        return TaskMap(state, kinds["key"], kinds["value"])
