"""Bound states that hold elements or entries: how these become stored bytes, whether they belong to a key or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from typing_extensions import override

from pyspark_ckpt.operators.bound.base import Binding, Bound
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.types.conversions import WRONG_VALUE
from pyspark_ckpt.operators.types.value_types import get_elements
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark_ckpt.state_store.arrays.packed import Packed


class BoundElements(Bound):
    """The elements of a list."""

    def _elements(self, column: pa.Array) -> pa.Array:
        """Return a column of elements. Raises InvalidInputError if one is null."""
        if column.null_count:
            raise self._no_element()
        return column

    def _encode_elements(self, values: Iterable[Any]) -> list[bytes]:
        try:
            elements = iter(get_elements(values))
        except TypeError as problem:
            raise InvalidInputError(
                f"State {self.name!r} of operator {self._uid!r}: {repr(values)[:200]} of type {type(values).__name__} "
                "is given, but several elements are expected.",
                hint="Give a list, or call add() for one element.",
            ) from problem
        return list(map(self._encode_element, elements))

    def _encode_element(self, value: Any) -> bytes:
        if value is None:
            raise self._no_element()
        return self._encode(value)

    def _no_element(self) -> InvalidInputError:
        return InvalidInputError(
            f"State {self.name!r} of operator {self._uid!r}: a list element must not be None.",
            hint="Leave it out, or make the elements structs with a field that may be None.",
        )


class BoundEntries(Bound):
    """The entries of a map, sorted by its keys."""

    @override
    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        self._keys = KeyCodec([binding.kinds["key"]], f"a key of the map {self.name!r}")

    def items(self, begin: Any = None, end: Any = None) -> Iterator[tuple[Any, Any]]:
        """See MapState."""
        found = self._scan(begin, end)
        return ((self._keys.decode(entry)[0], self._codec.decode(stored)) for entry, stored in found)

    def keys(self) -> Iterator[Any]:
        """See MapState."""
        return (self._keys.decode(entry)[0] for entry, _ in self._scan(None, None))

    def values(self) -> Iterator[Any]:
        """See MapState."""
        return (self._codec.decode(stored) for _, stored in self._scan(None, None))

    def _scan(self, begin: Any, end: Any) -> Iterator[tuple[bytes, bytes]]:
        """Return the stored entries from ``begin`` up to ``end`` (exclusive), if given, in key order."""
        raise NotImplementedError

    def _rows(self, entries: Mapping[Any, Any]) -> list[tuple[bytes, bytes | None]]:
        """Return entries and their stored values. Raises InvalidInputError (one of them, or all, are not entries)."""
        if not isinstance(entries, Mapping):
            raise InvalidInputError(
                f"State {self.name!r} of operator {self._uid!r}: {repr(entries)[:200]} of type "
                f"{type(entries).__name__} is given, but several entries are expected.",
                hint="Give a dict, or call put() for one entry.",
            )
        return [self._row(key, value) for key, value in entries.items()]

    def _row(self, key: Any, value: Any) -> tuple[bytes, bytes | None]:
        """Return an entry and its stored value, None to remove it. Raises InvalidInputError."""
        return self._entry(key), None if value is None else self._encode(value)

    def _entry(self, key: Any) -> bytes:
        if key is None:
            raise self._no_entry()
        try:
            return self._keys.encode((key,))
        except WRONG_VALUE as problem:
            raise self._mismatch("key", key, problem) from problem

    def _encode_keys(self, map_keys: pa.Array, count: int) -> Packed:
        """Encode ``count`` map keys. Raises InvalidInputError for a key that is null."""
        column = self._column("key", map_keys, count)
        if column.null_count:
            raise self._no_entry()
        return self._keys.encode_packed([column])

    def _no_entry(self) -> InvalidInputError:
        return InvalidInputError(f"State {self.name!r}: a map key must not be None.")

    def _bounds(self, begin: Any, end: Any) -> tuple[bytes, bytes | None]:
        return b"" if begin is None else self._entry(begin), None if end is None else self._entry(end)
