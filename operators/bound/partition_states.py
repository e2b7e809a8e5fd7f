"""Operator lists and broadcast states in a running task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from typing_extensions import override

from pyspark_ckpt.operators.bound.base import Binding
from pyspark_ckpt.operators.bound.encoded import BoundElements, BoundEntries
from pyspark_ckpt.operators.declarations.partition_states import BroadcastState, OperatorListState
from pyspark_ckpt.operators.rows.broadcast_rows import BroadcastRows, Copy
from pyspark_ckpt.operators.rows.partition_rows import PartitionListRows
from pyspark_ckpt.state_store.errors import InvalidInputError


class BoundOperatorList(BoundElements, OperatorListState):
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

    def _encode_column(self, values: pa.Array) -> list[bytes]:
        return self._codec.encode_packed(self._elements(self._column("element", values, len(values)))).strings()


class BoundBroadcast(BoundEntries, BroadcastState):
    """See BroadcastState."""

    @override
    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        session, whose = binding.session, f"Broadcast state {self.name!r} of operator {self._uid!r}"
        self.rows = BroadcastRows(binding.number, session, session.find_base(binding.number), whose)
        self._types = str(binding.session.descriptors[binding.number]), str(binding.kinds)

    @override
    def get(self, key: Any, default: Any = None) -> Any:
        stored = self.rows.get(self._entry(key))
        return default if stored is None else self._codec.decode(stored)

    @override
    def contains(self, key: Any) -> bool:
        return self.rows.get(self._entry(key)) is not None

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
        for entry, stored in self._rows(entries):
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
        entries = self._encode_keys(map_keys, len(map_keys)).strings()
        return self._codec.decode_column(list(map(self.rows.get, entries)))

    @override
    def to_table(self) -> pa.Table:
        return self.rows.copy.make(("table", self._types), self._make_table)

    @override
    def put_entries(self, map_keys: pa.Array, values: pa.Array) -> None:
        self._require_broadcast("put_entries")
        column = self._column("value", values, len(map_keys))
        entries = self._encode_keys(map_keys, len(map_keys)).strings()
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
                "process_broadcast. Other rows are in one partition only, so the copies would differ.",
                hint="Write it only from the rows of the broadcast input.",
            )

    @override
    def _scan(self, begin: Any, end: Any) -> Iterator[tuple[bytes, bytes]]:
        return self.rows.scan(*self._bounds(begin, end))
