"""States as a running task has them: the declared ones, bound to the task's rows and to its current key."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.columns import arrow_values, validity
from pyspark_ckpt.operators.evolution import EvolvedCodec
from pyspark_ckpt.operators.state_rows import EntryRows, KeyRows
from pyspark_ckpt.operators.states import AggregatingState, ListState, MapState, ReducingState, State, ValueState
from pyspark_ckpt.operators.stored_keys import KeyCodec
from pyspark_ckpt.operators.stored_values import ValueCodec, value_codec
from pyspark_ckpt.operators.ttl import ExpiryIndex, Life, TimedEntryRows, TimedKeyRows
from pyspark_ckpt.operators.value_types import arrow_type
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.keys import Keys
    from pyspark_ckpt.operators.state_rows import Position
    from pyspark_ckpt.operators.worker_session import WorkerSession

Row: TypeAlias = "tuple[bytes, bytes | None]"

_WRONG = (TypeError, ValueError, AttributeError, struct.error, OverflowError)
_SEQUENCE = struct.Struct(">Q")
_NEXT = struct.Struct("<BQ")
_FIRST = _SEQUENCE.pack(0)


class Bound:
    """What binds a state: where its rows are, and how its values are written."""

    def __init__(
        self, state: State, kinds: Mapping[str, pa.DataType], number: int, index: int | None, session: WorkerSession
    ) -> None:
        """Bind ``state``, whose declared types are ``kinds``, to the rows of state ``number`` with expiry ``index``."""
        self.name = state.name
        self.number = number
        self._kinds = kinds
        self._codecs = {what: self._codec_of(what, state, session.value_schemas[number]) for what in kinds}
        self._at: Position = session.position
        self._session = session
        self._life: Life | None = None if state.ttl is None else Life(state.ttl, session.now_ms[state.ttl.clock])
        self.index = None if index is None else ExpiryIndex(index, session)

    def _codec_of(self, what: str, state: State, schemas: Mapping[str, Any] | None) -> ValueCodec:
        """The codec of values, which reads all schemas that they were ever written by."""
        known = (schemas or {}).get(what)
        if known is None:
            return value_codec(self._kinds[what])
        kinds = [arrow_type(schema) for schema in known["schemas"]]
        try:
            return EvolvedCodec(kinds, known["current"], state.aliases)
        except InvalidInputError as problem:
            raise InvalidInputError(
                f"State {self.name!r} has another type than in the checkpoint: {problem.message}", hint=problem.hint
            ) from problem

    def flush(self, end: bytes | None) -> Iterator[Row]:
        """What was written for keys below ``end`` (None: all of it), in stored order; it is forgotten."""
        raise NotImplementedError

    @property
    def change(self) -> int:
        """How many rows more there are than in the base version."""
        raise NotImplementedError

    def sweep(self, most: int) -> int:
        """Free up to ``most`` expired rows; returns how many."""
        raise NotImplementedError

    def _key_rows(self, number: int) -> KeyRows | TimedKeyRows:
        rows = KeyRows(number, self._session)
        return rows if self._life is None or self.index is None else TimedKeyRows(rows, self._life, self.index)

    def _entry_rows(self, number: int) -> EntryRows | TimedEntryRows:
        rows = EntryRows(number, self._session)
        return rows if self._life is None or self.index is None else TimedEntryRows(rows, self._life, self.index)

    def _stored(self, what: str, value: Any) -> bytes:
        try:
            return self._codecs[what].encode(value)
        except _WRONG as problem:
            raise self._mismatch(what, value) from problem

    def _mismatch(self, what: str, value: Any) -> InvalidInputError:
        shown = repr(value)
        return InvalidInputError(
            f"State {self.name!r}: its {what} is of type {self._kinds[what]}, and {shown[:200]} is not.",
        )

    def _column(self, what: str, values: pa.Array, count: int) -> pa.Array:
        """``values`` as one array, which must have ``count`` values of the declared type."""
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if not isinstance(values, pa.Array):
            values = arrow_values(values, self._kinds[what])
        if len(values) != count:
            raise InvalidInputError(f"State {self.name!r}: {len(values)} values are given for {count} keys.")
        if values.type != self._kinds[what]:
            try:
                return values.cast(self._kinds[what])
            except pa.ArrowException as problem:
                raise self._mismatch(what, values.type) from problem
        return values


class OneRow(Bound):
    """A state that keeps one row for each key."""

    def __init__(
        self, state: State, kinds: Mapping[str, pa.DataType], number: int, index: int | None, session: WorkerSession
    ) -> None:
        """See Bound."""
        super().__init__(state, kinds, number, index, session)
        self._rows = self._key_rows(number)
        (self._what,) = kinds
        self._codec: ValueCodec = self._codecs[self._what]
        self._kind = kinds[self._what]

    def flush(self, end: bytes | None) -> Iterator[Row]:
        """See Bound."""
        return self._rows.flush(end)

    @property
    def change(self) -> int:
        """See Bound."""
        return self._rows.change

    def sweep(self, most: int) -> int:
        """See Bound."""
        return len(self._rows.sweep(most))

    def clear(self) -> None:
        """Remove the row of the current key."""
        self._rows.put(self._at.suffix, None)

    def exists(self) -> bool:
        """Whether the current key has a row."""
        return self._rows.get(self._at.suffix) is not None

    def _load(self) -> Any:
        stored = self._rows.get(self._at.suffix)
        return None if stored is None else self._codec.decode(stored)

    def _save(self, value: Any) -> None:
        self._rows.put(self._at.suffix, None if value is None else self._stored(self._what, value))


class BoundValue(OneRow, ValueState):
    """See ValueState."""

    def __init__(
        self,
        state: ValueState,
        kinds: Mapping[str, pa.DataType],
        number: int,
        index: int | None,
        session: WorkerSession,
    ) -> None:
        """See Bound."""
        super().__init__(state, kinds, number, index, session)
        self._default = None if state.default is None else self._stored("value", state.default)

    def value(self) -> Any:
        """See ValueState."""
        stored = self._rows.get(self._at.suffix)
        if stored is None:
            stored = self._default
        return None if stored is None else self._codec.decode(stored)

    def update(self, value: Any) -> None:
        """See ValueState."""
        self._save(value)

    def get(self, keys: Keys) -> pa.Array:
        """See ValueState."""
        return self._codec.decode_column(self._rows.get_many(keys.suffixes))

    def put(self, keys: Keys, values: pa.Array) -> None:
        """See ValueState."""
        column = self._column("value", values, len(keys))
        stored: list[bytes | None] = list(self._codec.encode_column(column))
        for position in np.flatnonzero(~validity(column)).tolist():
            stored[position] = None
        self._rows.put_many(keys.suffixes, stored)


class BoundReducing(OneRow, ReducingState):
    """See ReducingState."""

    def __init__(
        self,
        state: ReducingState,
        kinds: Mapping[str, pa.DataType],
        number: int,
        index: int | None,
        session: WorkerSession,
    ) -> None:
        """See Bound."""
        super().__init__(state, kinds, number, index, session)
        self.reduce = state.reduce

    def get(self) -> Any:
        """See ReducingState."""
        return self._load()

    def add(self, value: Any) -> None:
        """See ReducingState."""
        kept = self._load()
        self._save(value if kept is None else self.reduce(kept, value))


class BoundAggregating(OneRow, AggregatingState):
    """See AggregatingState."""

    def __init__(
        self,
        state: AggregatingState,
        kinds: Mapping[str, pa.DataType],
        number: int,
        index: int | None,
        session: WorkerSession,
    ) -> None:
        """See Bound."""
        super().__init__(state, kinds, number, index, session)
        self.create, self.accumulate, self.result = state.create, state.accumulate, state.result

    def get(self) -> Any:
        """See AggregatingState."""
        kept = self._load()
        return None if kept is None else self.result(kept)

    def add(self, value: Any) -> None:
        """See AggregatingState."""
        kept = self._load()
        self._save(self.accumulate(self.create() if kept is None else kept, value))


class BoundList(Bound, ListState):
    """See ListState. A key's first row holds the number of the next element, and each element is a row behind it."""

    def __init__(
        self, state: ListState, kinds: Mapping[str, pa.DataType], number: int, index: int | None, session: WorkerSession
    ) -> None:
        """See Bound."""
        super().__init__(state, kinds, number, index, session)
        self._heads = KeyRows(number, session)
        self._elements = self._entry_rows(number)
        self._codec = self._codecs["element"]

    def flush(self, end: bytes | None) -> Iterator[Row]:
        """See Bound."""
        return merge(self._heads.flush(end), self._elements.flush(end))

    @property
    def change(self) -> int:
        """See Bound."""
        return self._heads.change + self._elements.change

    def get(self) -> Iterator[Any]:
        """See ListState."""
        suffix = self._at.suffix
        if self._next(suffix) == 0:
            return iter(())
        return (self._codec.decode(stored) for _, stored in self._elements.scan(suffix, _FIRST))

    def exists(self) -> bool:
        """See ListState."""
        suffix = self._at.suffix
        return self._next(suffix) != 0 and next(self._elements.scan(suffix, _FIRST), None) is not None

    def add(self, value: Any) -> None:
        """See ListState."""
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        """See ListState."""
        self._append(self._at.suffix, [self._stored("element", value) for value in values])

    def update(self, values: Iterable[Any]) -> None:
        """See ListState."""
        stored = [self._stored("element", value) for value in values]
        self.clear()
        self._append(self._at.suffix, stored)

    def clear(self) -> None:
        """See ListState."""
        suffix = self._at.suffix
        if self._next(suffix):
            self._elements.remove_all(suffix, _FIRST)
            self._heads.put(suffix, None)

    def sweep(self, most: int) -> int:
        """See Bound. A list that has lost its last element begins anew."""
        freed = self._elements.sweep(most, lambda row: len(row) - _SEQUENCE.size)
        for suffix in {row[: -_SEQUENCE.size] for row in freed}:
            if not self._elements.has_rows(suffix, _FIRST) and self._heads.get(suffix) is not None:
                self._heads.put(suffix, None)
        return len(freed)

    def add_rows(self, keys: Keys, index: NDArray[Any], values: pa.Array) -> None:
        """See ListState."""
        stored = self._codec.encode_column(self._column("element", values, len(index)))
        self._heads.get_many(keys.suffixes)
        for position, value in zip(index.tolist(), stored, strict=True):
            self._append(keys.suffixes[position], (value,))

    def get_lists(self, keys: Keys) -> pa.ListArray:
        """See ListState."""
        counts, stored = [0], []
        for suffix, head in zip(keys.suffixes, self._heads.get_many(keys.suffixes), strict=True):
            if head is not None:
                stored.extend([value for _, value in self._elements.scan(suffix, _FIRST)])
            counts.append(len(stored))
        return pa.ListArray.from_arrays(pa.array(counts, pa.int32()), self._codec.decode_column(stored))

    def _next(self, suffix: bytes) -> int:
        stored = self._heads.get(suffix)
        return 0 if stored is None else int(_NEXT.unpack(stored)[1])

    def _append(self, suffix: bytes, stored: Sequence[bytes]) -> None:
        if stored:
            number = self._next(suffix)
            for number, value in enumerate(stored, number):  # noqa: B020 - goes on from there
                self._elements.put(suffix, _SEQUENCE.pack(number), value, there=False)
            self._heads.put(suffix, _NEXT.pack(1, number + 1))


class BoundMap(Bound, MapState):
    """See MapState. Each entry is a row, whose key ends with the entry's."""

    def __init__(
        self, state: MapState, kinds: Mapping[str, pa.DataType], number: int, index: int | None, session: WorkerSession
    ) -> None:
        """See Bound."""
        kinds_of_values = {"value": kinds["value"]}
        super().__init__(state, kinds_of_values, number, index, session)
        self._kinds = kinds
        self._entries = self._entry_rows(number)
        self._keys = KeyCodec([kinds["key"]])
        stored = ((session.value_schemas[number] or {}).get("key") or {}).get("schemas", ())
        if len(stored) > 1:
            raise InvalidInputError(
                f"State {state.name!r} is stored with keys of type {stored[0]}, and the program declares {stored[-1]}.",
                hint="The keys of a map keep their type. Give the changed state another name.",
            )
        self._codec = self._codecs["value"]

    def flush(self, end: bytes | None) -> Iterator[Row]:
        """See Bound."""
        return self._entries.flush(end)

    @property
    def change(self) -> int:
        """See Bound."""
        return self._entries.change

    def sweep(self, most: int) -> int:
        """See Bound."""
        return len(self._entries.sweep(most, self._session.end_of_key))

    def get(self, key: Any, default: Any = None) -> Any:
        """See MapState."""
        stored = self._entries.get(self._at.suffix, self._entry(key))
        return default if stored is None else self._codec.decode(stored)

    def contains(self, key: Any) -> bool:
        """See MapState."""
        return self._entries.get(self._at.suffix, self._entry(key)) is not None

    def put(self, key: Any, value: Any) -> None:
        """See MapState."""
        self._entries.put(self._at.suffix, self._entry(key), self._stored("value", value))

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """See MapState."""
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """See MapState."""
        self._entries.put(self._at.suffix, self._entry(key), None)

    def items(self, begin: Any = None, end: Any = None) -> Iterator[tuple[Any, Any]]:
        """See MapState."""
        for entry, stored in self._scan(begin, end):
            yield self._keys.decode(entry)[0], self._codec.decode(stored)

    def keys(self) -> Iterator[Any]:
        """See MapState."""
        return (self._keys.decode(entry)[0] for entry, _ in self._scan(None, None))

    def values(self) -> Iterator[Any]:
        """See MapState."""
        return (self._codec.decode(stored) for _, stored in self._scan(None, None))

    def is_empty(self) -> bool:
        """See MapState."""
        return next(self._scan(None, None), None) is None

    def clear(self) -> None:
        """See MapState."""
        self._entries.remove_all(self._at.suffix)

    def get_entries(self, keys: Keys, index: NDArray[Any], map_keys: pa.Array) -> pa.Array:
        """See MapState."""
        entries = self._keys.encode_columns([self._column("key", map_keys, len(index))])
        suffixes = [keys.suffixes[position] for position in index.tolist()]
        return self._codec.decode_column(self._entries.get_many(suffixes, entries))

    def put_entries(self, keys: Keys, index: NDArray[Any], map_keys: pa.Array, values: pa.Array) -> None:
        """See MapState."""
        entries = self._keys.encode_columns([self._column("key", map_keys, len(index))])
        column = self._column("value", values, len(index))
        stored = self._codec.encode_column(column)
        for position, entry, value, there in zip(
            index.tolist(), entries, stored, validity(column).tolist(), strict=True
        ):
            self._entries.put(keys.suffixes[position], entry, value if there else None)

    def _entry(self, key: Any) -> bytes:
        if key is None:
            raise InvalidInputError(f"State {self.name!r}: a map has no entry under None.")
        try:
            return self._keys.encode((key,))
        except _WRONG as problem:
            raise self._mismatch("key", key) from problem

    def _scan(self, begin: Any, end: Any) -> Iterator[tuple[bytes, bytes]]:
        return self._entries.scan(
            self._at.suffix,
            b"" if begin is None else self._entry(begin),
            None if end is None else self._entry(end),
        )


_BOUND: Mapping[type[State], type[Any]] = {
    ValueState: BoundValue,
    ListState: BoundList,
    MapState: BoundMap,
    ReducingState: BoundReducing,
    AggregatingState: BoundAggregating,
}


def bind(state: State, kinds: Mapping[str, pa.DataType], number: int, index: int | None, session: WorkerSession) -> Any:
    """``state``, bound to its rows in ``session``, which are those of states ``number`` and ``index``; also a Bound."""
    kind = next(_BOUND[each] for each in type(state).__mro__ if each in _BOUND)
    return kind(state, kinds, number, index, session)
