"""State variables in a running task, on bound states: they are those of the key whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState
from pyspark.sql.types import Row, _create_row
from typing_extensions import override

from pyspark_ckpt.operators.stateful.values import Tuples
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_ckpt.operators.encoding.distinct_keys import Keys


class _NoTurn:
    """Stands for the place of a key while no key has its turn."""

    def __index__(self) -> NoReturn:
        raise InvalidInputError(
            "A state variable is used for the current key, but no key is being processed.",
            hint="Use it in handleInputRows(), handleExpiredTimer() or handleInitialState().",
        )


NO_TURN: Any = _NoTurn()


class Turn:
    """The key whose turn it is: its place among ``keys``, those of one call."""

    def __init__(self) -> None:
        """Begin before the first call."""
        self.keys: Keys | None = None
        self.place: int = NO_TURN


class TaskValue(ValueState):
    """A value for each key. Those of all keys of a call are read at once, and written at once by ``finish``."""

    @override
    def __init__(self, state: Any, kind: pa.StructType, turn: Turn) -> None:
        self._state = state
        self._tuples = Tuples(state.name, kind)
        self._turn = turn
        self._values: list[Any] | None = None
        self._written: set[int] = set()

    @override
    def exists(self) -> bool:
        values = self._read() if self._values is None else self._values
        return values[self._turn.place] is not None

    @override
    def get(self) -> tuple[Any, ...] | None:
        values = self._read() if self._values is None else self._values
        value: tuple[Any, ...] | None = values[self._turn.place]
        return None if value is None else self._tuples.copy(value)

    @override
    def update(self, newValue: tuple[Any, ...]) -> None:
        self._write(self._tuples.take(newValue))

    @override
    def clear(self) -> None:
        self._write(None)

    def finish(self) -> None:
        """Write the values that were set since the last call."""
        keys, values = self._turn.keys, self._values
        if self._written and keys is not None and values is not None:
            places = sorted(self._written)
            self._state.put(keys.at(places), self._tuples.column([values[place] for place in places]))
        self._values, self._written = None, set()

    def _write(self, value: tuple[Any, ...] | None) -> None:
        values = self._read() if self._values is None else self._values
        place = self._turn.place
        values[place] = value
        self._written.add(place)

    def _read(self) -> list[Any]:
        keys = self._turn.keys
        if keys is None:
            NO_TURN.__index__()
        self._values = values = self._tuples.of_column(self._state.get(keys))
        return values


class TaskList(ListState):
    """A list for each key."""

    @override
    def __init__(self, state: Any, kind: pa.StructType) -> None:
        self._state = state
        self._tuples = Tuples(state.name, kind)

    @override
    def exists(self) -> bool:
        there: bool = self._state.exists()
        return there

    @override
    def get(self) -> Iterator[tuple[Any, ...]]:
        show = self._tuples.show
        for element in self._state.get():  # of the moment at which the first element is taken, as in Spark
            yield show(element)

    @override
    def put(self, newState: list[tuple[Any, ...]]) -> None:
        self._state.update(self._take_all(newState))

    @override
    def appendValue(self, newState: tuple[Any, ...]) -> None:
        self._state.add(self._tuples.store(newState))

    @override
    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        self._state.add_all(self._take_all(newState))

    @override
    def clear(self) -> None:
        self._state.clear()

    def _take_all(self, given: Sequence[tuple[Any, ...]]) -> list[Any]:
        elements = list(map(self._tuples.store, given))
        if not elements:
            raise InvalidInputError(
                f"State variable {self._state.name!r}: an empty list is given.",
                hint="As in Spark, a list has at least one element. To remove it, call clear().",
            )
        return elements


class TaskMap(MapState):
    """A map for each key, in the order of its keys."""

    @override
    def __init__(self, state: Any, key_kind: pa.StructType, kind: pa.StructType) -> None:
        self._state = state
        self._keys = Tuples(state.name, key_kind)
        self._tuples = Tuples(state.name, kind)
        self._names = [field.name for field in kind]

    @override
    def exists(self) -> bool:
        return not self._state.is_empty()

    @override
    def getValue(self, key: tuple[Any, ...]) -> Row | None:
        value = self._state.get(self._keys.store(key))
        return None if value is None else _create_row(self._names, self._tuples.show(value))

    @override
    def containsKey(self, key: tuple[Any, ...]) -> bool:
        there: bool = self._state.contains(self._keys.store(key))
        return there

    @override
    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._state.put(self._keys.store(key), self._tuples.store(value))

    @override
    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        show_key, show = self._keys.show, self._tuples.show
        for key, value in self._state.items():  # of the moment at which the first entry is taken, as in Spark
            yield show_key(key), show(value)

    @override
    def keys(self) -> Iterator[tuple[Any, ...]]:
        for key in self._state.keys():  # noqa: SIM118 - it is not a dict
            yield self._keys.show(key)

    @override
    def values(self) -> Iterator[tuple[Any, ...]]:
        for value in self._state.values():
            yield self._tuples.show(value)

    @override
    def removeKey(self, key: tuple[Any, ...]) -> None:
        self._state.remove(self._keys.store(key))

    @override
    def clear(self) -> None:
        self._state.clear()
