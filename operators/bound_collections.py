"""Bound states that keep any number of rows for each key: lists and maps."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.bound import WRONG_VALUE, Binding, Bound, Row
from pyspark_ckpt.operators.columns import arrow_values, validity
from pyspark_ckpt.operators.state_rows import KeyRows
from pyspark_ckpt.operators.states import ListState, MapState
from pyspark_ckpt.operators.stored_keys import KeyCodec
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.keys import Keys

_SEQUENCE = struct.Struct(">Q")
_NEXT = struct.Struct("<BQ")
_FIRST = _SEQUENCE.pack(0)


class BoundList(Bound, ListState):
    """See ListState. A key's first row holds the number of the next element, and each element is a row behind it."""

    def __init__(self, binding: Binding) -> None:
        """See Bound."""
        super().__init__(binding)
        self._heads = KeyRows(self.number, self._session)
        self._elements = self._entry_rows()

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
        self._append(self._at.suffix, [self._stored(value) for value in values])

    def update(self, values: Iterable[Any]) -> None:
        """See ListState."""
        stored = [self._stored(value) for value in values]
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
        last = {row[: -_SEQUENCE.size]: row[-_SEQUENCE.size :] for row in sorted(freed)}
        suffixes = list(last)
        for suffix, head in zip(suffixes, self._heads.get_many(suffixes), strict=True):
            if head is None:
                continue
            # The newest element is the last to expire, but for older ones that have been read since.
            has_newest = _SEQUENCE.unpack(last[suffix])[0] + 1 < _NEXT.unpack(head)[1]
            is_refreshed = self._life is not None and self._life.refreshed_by_reads
            if (is_refreshed or not has_newest) and not self._elements.has_rows(suffix, _FIRST):
                self._heads.put(suffix, None)
        return len(freed)

    def add_rows(self, keys: Keys, index: NDArray[Any], values: pa.Array) -> None:
        """See ListState."""
        stored = self._codec.encode_column(self._column("element", values, len(index)))
        positions, places, counts = np.unique(index, return_inverse=True, return_counts=True)
        suffixes = [keys.suffixes[position] for position in positions.tolist()]
        heads = self._heads.get_many(suffixes)
        begins = np.array([0 if head is None else _NEXT.unpack(head)[1] for head in heads], np.int64)
        order = np.argsort(places, kind="stable")
        of_key = places[order]
        numbers = begins[of_key] + np.arange(len(order)) - (np.cumsum(counts) - counts)[of_key]
        self._elements.add_many(
            [suffixes[place] for place in of_key.tolist()],
            numbers.astype(">u8").view("V8").tolist(),
            [stored[n] for n in order.tolist()],
        )
        self._heads.put_many(suffixes, [_NEXT.pack(1, end) for end in (begins + counts).tolist()])

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

    def __init__(self, binding: Binding) -> None:
        """See Bound."""
        super().__init__(binding)
        self._entries = self._entry_rows()
        self._keys = KeyCodec([binding.kinds["key"]])
        stored = (binding.schemas("key") or {}).get("schemas", ())
        if len(stored) > 1:
            raise InvalidInputError(
                f"State {self.name!r} is stored with keys of type {stored[0]}, and the program declares {stored[-1]}.",
                hint="The keys of a map keep their type. Give the changed state another name.",
            )

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
        self._entries.put(self._at.suffix, self._entry(key), self._stored(value))

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

    def get_range(self, keys: Keys, begin: Any = None, end: Any = None) -> pa.MapArray:
        """See MapState."""
        first, last = self._bounds(begin, end)
        counts, map_keys, stored = [0], [], []
        for suffix in keys.suffixes:
            for entry, value in self._entries.scan(suffix, first, last):
                map_keys.append(self._keys.decode(entry)[0])
                stored.append(value)
            counts.append(len(stored))
        columns = arrow_values(map_keys, self._kinds["key"]), self._codec.decode_column(stored)
        return pa.MapArray.from_arrays(pa.array(counts, pa.int32()), *columns)

    def put_entries(self, keys: Keys, index: NDArray[Any], map_keys: pa.Array, values: pa.Array) -> None:
        """See MapState."""
        entries = self._keys.encode_columns([self._column("key", map_keys, len(index))])
        column = self._column("value", values, len(index))
        stored = self._codec.encode_column(column)
        valid = validity(column).tolist()
        values_or_none = [value if there else None for value, there in zip(stored, valid, strict=True)]
        self._entries.put_many([keys.suffixes[position] for position in index.tolist()], entries, values_or_none)

    def _entry(self, key: Any) -> bytes:
        if key is None:
            raise InvalidInputError(f"State {self.name!r}: a map has no entry under None.")
        try:
            return self._keys.encode((key,))
        except WRONG_VALUE as problem:
            raise self._mismatch("key", key) from problem

    def _scan(self, begin: Any, end: Any) -> Iterator[tuple[bytes, bytes]]:
        return self._entries.scan(self._at.suffix, *self._bounds(begin, end))

    def _bounds(self, begin: Any, end: Any) -> tuple[bytes, bytes | None]:
        return b"" if begin is None else self._entry(begin), None if end is None else self._entry(end)
