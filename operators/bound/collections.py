"""Bound states with any number of rows per key: lists and maps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from pyspark_ckpt.operators.bound.base import Binding
from pyspark_ckpt.operators.bound.encoded import BoundElements, BoundEntries
from pyspark_ckpt.operators.declarations.states import ListState, MapState
from pyspark_ckpt.operators.rows.entry_rows import EntryKeys
from pyspark_ckpt.operators.types.columns import validity
from pyspark_ckpt.state_store.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.declarations.instants import InstantLike, InstantsLike
    from pyspark_ckpt.operators.encoding.distinct_keys import Keys
    from pyspark_ckpt.state_store.arrays.cells import Cells


class BoundList(BoundElements, ListState):
    """See ListState."""

    @override
    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        self.rows = self._list_rows()

    @override
    def get(self) -> Iterator[Any]:
        return map(self._codec.decode, self.rows.get(self._at.suffix))

    @override
    def exists(self) -> bool:
        return next(self.rows.get(self._at.suffix), None) is not None

    @override
    def add(self, value: Any, *, at: InstantLike | None = None) -> None:
        self.add_all((value,), at=at)

    @override
    def add_all(self, values: Iterable[Any], *, at: InstantLike | None = None) -> None:
        stored = self._encode_elements(values)
        if at is None:
            self.rows.append(self._at.suffix, stored)
        else:
            with self._as_of(at):
                self.rows.append(self._at.suffix, stored)

    @override
    def update(self, values: Iterable[Any], *, at: InstantLike | None = None) -> None:
        stored = self._encode_elements(values)
        with nullcontext() if at is None else self._as_of(at):
            self.clear()
            self.rows.append(self._at.suffix, stored)

    @override
    def clear(self) -> None:
        self.rows.clear(self._at.suffix)

    @override
    def clear_keys(self, keys: Keys) -> None:
        self.rows.clear_many(keys.suffixes)

    @override
    def exists_keys(self, keys: Keys) -> pa.BooleanArray:
        return pa.array(self.rows.exist_many(keys.suffixes, *self._times(keys)))

    @override
    def add_rows(self, keys: Keys, index: NDArray[Any], values: pa.Array, *, at: InstantsLike = None) -> None:
        stored = self._codec.encode_packed(self._elements(self._column("element", values, len(index))))
        positions, counts = np.unique(index, return_counts=True)
        order = np.argsort(index, kind="stable")
        times = (each.take(order) for each in self._times(keys, index, at))
        self.rows.append_many(keys.suffixes.at(positions), counts, stored.take(order), *times)

    @override
    def get_lists(self, keys: Keys) -> pa.ListArray:
        counts, stored = [0], list[bytes]()
        for elements in self.rows.get_many(keys.suffixes, *self._times(keys)):
            stored.extend(elements)
            counts.append(len(stored))
        return pa.ListArray.from_arrays(pa.array(counts, pa.int32()), self._codec.decode_column(stored))

    @override
    def put_lists(self, keys: Keys, lists: pa.ListArray, *, at: InstantsLike = None) -> None:
        self._put_lists(keys, lists, at)

    @override
    def put_contents(self, keys: Keys, contents: pa.Array) -> None:
        self._put_lists(keys, contents, None)

    def _put_lists(self, keys: Keys, contents: pa.Array, at: InstantsLike) -> None:
        given = self._column("element", contents, len(keys), pa.list_(self._kinds["element"]))
        counts = pc.list_value_length(given).fill_null(0).to_numpy()
        stored = self._codec.encode_packed(self._elements(given.flatten()))
        times = [each.take(np.repeat(np.arange(len(keys)), counts)) for each in self._times(keys, at=at)]
        self.rows.clear_many(keys.suffixes)
        places = np.flatnonzero(counts)
        self.rows.append_many(keys.suffixes.at(places), counts[places], stored, *times)


class BoundMap(BoundEntries, MapState):
    """See MapState. Each entry is a row. The row's key ends with the key of the entry."""

    @override
    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        self.rows = self._entry_rows()

    @override
    def get(self, key: Any, default: Any = None) -> Any:
        stored = self.rows.get(self._at.suffix, self._entry(key))
        return default if stored is None else self._codec.decode(stored)

    @override
    def contains(self, key: Any) -> bool:
        return self.rows.get(self._at.suffix, self._entry(key)) is not None

    @override
    def put(self, key: Any, value: Any, *, at: InstantLike | None = None) -> None:
        if at is None:
            self.rows.put(self._at.suffix, *self._row(key, value))
        else:
            with self._as_of(at):
                self.put(key, value)

    @override
    def put_all(self, entries: Mapping[Any, Any], *, at: InstantLike | None = None) -> None:
        with nullcontext() if at is None else self._as_of(at):
            for entry, stored in self._rows(entries):
                self.rows.put(self._at.suffix, entry, stored)

    @override
    def remove(self, key: Any) -> None:
        self.rows.put(self._at.suffix, self._entry(key), None)

    @override
    def is_empty(self) -> bool:
        return next(self._scan(None, None), None) is None

    @override
    def clear(self) -> None:
        self.rows.remove_all(self._at.suffix)

    @override
    def clear_keys(self, keys: Keys) -> None:
        for suffix in keys.suffixes:
            self.rows.remove_all(suffix)

    @override
    def exists_keys(self, keys: Keys) -> pa.BooleanArray:
        scans = (self.rows.scan(suffix, b"", None, *times) for suffix, times in self._each(keys))
        return pa.array([next(scan, None) is not None for scan in scans], pa.bool_())

    @override
    def get_entries(self, keys: Keys, index: NDArray[Any], map_keys: pa.Array) -> pa.Array:
        return self._codec.decode_cells(self._cells(keys, index, map_keys))

    @override
    def contains_entries(self, keys: Keys, index: NDArray[Any], map_keys: pa.Array) -> pa.BooleanArray:
        return pa.array(self._cells(keys, index, map_keys).there)

    @override
    def get_range(self, keys: Keys, begin: Any = None, end: Any = None) -> pa.MapArray:
        bounds = zip(self._encode_bounds(begin, len(keys)), self._encode_bounds(end, len(keys)), strict=True)
        counts, entries, stored = [0], list[bytes](), list[bytes]()
        for (suffix, times), (first, last) in zip(self._each(keys), bounds, strict=True):
            for entry, value in self.rows.scan(suffix, first or b"", last, *times):
                entries.append(entry)
                stored.append(value)
            counts.append(len(stored))
        (map_keys,) = self._keys.decode_columns(entries)
        if map_keys.null_count:
            raise FormatError(f"State {self.name!r} of operator {self._uid!r} has an entry under a key that is null.")
        return pa.MapArray.from_arrays(pa.array(counts, pa.int32()), map_keys, self._codec.decode_column(stored))

    @override
    def put_entries(
        self, keys: Keys, index: NDArray[Any], map_keys: pa.Array, values: pa.Array, *, at: InstantsLike = None
    ) -> None:
        self._put(keys, index, map_keys, values, at)

    @override
    def put_contents(self, keys: Keys, contents: pa.Array) -> None:
        given = self._column("value", contents, len(keys), pa.map_(self._kinds["key"], self._kinds["value"]))
        ends = given.offsets.to_numpy()
        index = np.repeat(np.arange(len(keys)), np.diff(ends))
        self._put(keys, index, given.keys[ends[0] : ends[-1]], given.items[ends[0] : ends[-1]], None)

    def _put(self, keys: Keys, index: NDArray[Any], map_keys: pa.Array, values: pa.Array, at: InstantsLike) -> None:
        cells = self._codec.encode_cells(self._column("value", values, len(index)))
        self.rows.put_cells(self._places(keys, index, map_keys), cells, *self._times(keys, index, at))

    def _cells(self, keys: Keys, index: NDArray[Any], map_keys: pa.Array) -> Cells:
        return self.rows.get_cells(self._places(keys, index, map_keys), *self._times(keys, index))

    def _each(self, keys: Keys) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
        """Yield the suffix of each key, and the times of its rows, to be passed on."""
        of_keys = self._times(keys)
        for place, suffix in enumerate(keys.suffixes):
            yield suffix, tuple(each.take(place) for each in of_keys)

    def _places(self, keys: Keys, index: NDArray[Any], map_keys: pa.Array) -> EntryKeys:
        """Return where the rows of some entries are. Raises InvalidInputError for a key that is null."""
        return EntryKeys.of(keys.suffixes.each(index), self._encode_keys(map_keys, len(index)))

    def _encode_bounds(self, bound: Any, count: int) -> Sequence[bytes | None]:
        """Encode a bound of a range as an entry for each of ``count`` keys: one for all, or one per key."""
        if not isinstance(bound, (pa.Array, pa.ChunkedArray)):
            return [None if bound is None else self._entry(bound)] * count
        column = self._column("key", bound, count)
        entries = self._keys.encode_packed([column]).strings()
        return [entry if there else None for entry, there in zip(entries, validity(column).tolist(), strict=True)]

    @override
    def _scan(self, begin: Any, end: Any) -> Iterator[tuple[bytes, bytes]]:
        return self.rows.scan(self._at.suffix, *self._bounds(begin, end))
