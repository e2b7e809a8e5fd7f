"""Operator lists and broadcast states in a running task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from typing_extensions import override

from pyspark_ckpt.operators.bound.base import Binding, Bound
from pyspark_ckpt.operators.declarations.partition_states import BroadcastState, OperatorListState
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.rows.broadcast_rows import BroadcastRows, Copy
from pyspark_ckpt.operators.rows.partition_rows import PartitionListRows
from pyspark_ckpt.operators.types.conversions import WRONG_VALUE
from pyspark_ckpt.operators.types.value_types import get_elements
from pyspark_ckpt.state_store.errors import InvalidInputError


class BoundOperatorList(Bound, OperatorListState):
    """See OperatorListState."""

    @override
    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        self.rows = PartitionListRows(binding.number, binding.session)

    @override
    def get(self) -> Iterator[Any]:
        return map(self._codec.decode, self.rows.get())

    @override
    def add(self, value: Any) -> None:
        self.add_all((value,))

    @override
    def add_all(self, values: Iterable[Any]) -> None:
        self.rows.append(self._encode_elements(values))

    @override
    def update(self, values: Iterable[Any]) -> None:
        stored = self._encode_elements(values)
        self.rows.clear()
        self.rows.append(stored)

    @override
    def clear(self) -> None:
        self.rows.clear()

    @override
    def get_values(self) -> pa.Array:
        return self._codec.decode_column(list(self.rows.get()))

    @override
    def add_values(self, values: pa.Array) -> None:
        self.rows.append(self._encode_column(values))

    @override
    def put_values(self, values: pa.Array) -> None:
        stored = self._encode_column(values)
        self.rows.clear()
        self.rows.append(stored)

    def _encode_elements(self, values: Iterable[Any]) -> list[bytes]:
        try:
            elements = list(get_elements(values))
        except TypeError as problem:
            raise InvalidInputError(
                f"State {self.name!r} of operator {self._uid!r}: {repr(values)[:200]} of type {type(values).__name__} "
                "is given, but several elements are expected.",
                hint="Give a list, or call add() for one element.",
            ) from problem
        if any(value is None for value in elements):
            raise self._make_null_error()
        return list(map(self._encode, elements))

    def _encode_column(self, values: pa.Array) -> list[bytes]:
        column = self._column("element", values, len(values))
        if column.null_count:
            raise self._make_null_error()
        return self._codec.encode_packed(column).strings()

    def _make_null_error(self) -> InvalidInputError:
        return InvalidInputError(
            f"State {self.name!r} of operator {self._uid!r}: a list element must not be None.",
            hint="Leave it out, or make the elements structs with a field that may be None.",
        )


class BoundBroadcast(Bound, BroadcastState):
    """See BroadcastState."""

    @override
    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        session, whose = binding.session, f"Broadcast state {self.name!r} of operator {self._uid!r}"
        self.rows = BroadcastRows(binding.number, session, session.find_base(binding.number), whose)
        self._keys = KeyCodec([binding.kinds["key"]], f"a key of the map {self.name!r}")
        self._types = str(binding.session.descriptors[binding.number]), str(binding.kinds)

    @override
    def get(self, key: Any, default: Any = None) -> Any:
        stored = self.rows.get(self._entry(key))
        return default if stored is None else self._codec.decode(stored)

    @override
    def contains(self, key: Any) -> bool:
        return self.rows.get(self._entry(key)) is not None

    @override
    def items(self, begin: Any = None, end: Any = None) -> Iterator[tuple[Any, Any]]:
        found = self.rows.scan(*self._bounds(begin, end))
        return ((self._keys.decode(entry)[0], self._codec.decode(stored)) for entry, stored in found)

    @override
    def keys(self) -> Iterator[Any]:
        return (self._keys.decode(entry)[0] for entry, _ in self.rows.scan())

    @override
    def values(self) -> Iterator[Any]:
        return (self._codec.decode(stored) for _, stored in self.rows.scan())

    @override
    def is_empty(self) -> bool:
        return not self.rows.copy.rows

    @override
    def put(self, key: Any, value: Any) -> None:
        self._require_broadcast("put")
        self.rows.put(*self._row(key, value))

    @override
    def put_all(self, entries: Mapping[Any, Any]) -> None:
        self._require_broadcast("put_all")
        if not isinstance(entries, Mapping):
            raise InvalidInputError(
                f"State {self.name!r} of operator {self._uid!r}: {repr(entries)[:200]} of type "
                f"{type(entries).__name__} is given, but several entries are expected.",
                hint="Give a dict, or call put() for one entry.",
            )
        for entry, stored in [self._row(key, value) for key, value in entries.items()]:
            self.rows.put(entry, stored)

    @override
    def remove(self, key: Any) -> None:
        self._require_broadcast("remove")
        self.rows.put(self._entry(key), None)

    @override
    def clear(self) -> None:
        self._require_broadcast("clear")
        self.rows.clear()

    @override
    def get_entries(self, map_keys: pa.Array) -> pa.Array:
        entries = self._encode_keys(map_keys).strings()
        return self._codec.decode_column(list(map(self.rows.get, entries)))

    @override
    def to_table(self) -> pa.Table:
        return self.rows.copy.make(("table", self._types), self._make_table)

    @override
    def put_entries(self, map_keys: pa.Array, values: pa.Array) -> None:
        self._require_broadcast("put_entries")
        column = self._column("value", values, len(map_keys))
        entries = self._encode_keys(map_keys).strings()
        stored = self._codec.encode_cells(column).strings()
        for entry, value in zip(entries, stored, strict=True):
            self.rows.put(entry, value)

    def _make_table(self, copy: Copy) -> pa.Table:
        (keys,) = self._keys.decode_columns(copy.keys)
        values = self._codec.decode_column([copy.rows[entry] for entry in copy.keys])
        return pa.table({"key": keys, "value": values})

    def _require_broadcast(self, call: str) -> None:
        if not self._at.takes_broadcast:
            raise InvalidInputError(
                f"Broadcast state {self.name!r} of operator {self._uid!r}: {call}() is called outside of "
                "process_broadcast. Rows of a key are in one partition alone, so the copies would differ.",
                hint="Write it from the rows of the broadcast input alone.",
            )

    def _encode_keys(self, map_keys: pa.Array) -> Any:
        column = self._column("key", map_keys, len(map_keys))
        if column.null_count:
            raise self._make_null_error()
        return self._keys.encode_packed([column])

    def _row(self, key: Any, value: Any) -> tuple[bytes, bytes | None]:
        return self._entry(key), None if value is None else self._encode(value)

    def _entry(self, key: Any) -> bytes:
        if key is None:
            raise self._make_null_error()
        try:
            return self._keys.encode((key,))
        except WRONG_VALUE as problem:
            raise self._mismatch("key", key, problem) from problem

    def _make_null_error(self) -> InvalidInputError:
        return InvalidInputError(f"State {self.name!r} of operator {self._uid!r}: a map key must not be None.")

    def _bounds(self, begin: Any, end: Any) -> tuple[bytes, bytes | None]:
        return b"" if begin is None else self._entry(begin), None if end is None else self._entry(end)
