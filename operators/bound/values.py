"""Bound states with one row per key: values, reduced values and aggregates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from pyspark_ckpt.operators.bound.base import Binding, Bound
from pyspark_ckpt.operators.declarations.reducing_states import AggregatingState, ReducingState
from pyspark_ckpt.operators.declarations.states import ValueState
from pyspark_ckpt.operators.encoding.spark_order import (
    by_stored_order,
    greatest_float,
    in_order_as_numbers,
    least_float,
    numbers_to_floats,
)
from pyspark_ckpt.operators.rows.event_time import Times
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.operators.types.conversions import EXACT, WRONG_VALUE
from pyspark_ckpt.operators.types.exact_columns import exact_column
from pyspark_ckpt.operators.types.value_types import normaliser
from pyspark_ckpt.state_store.arrays.cells import Cells
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.declarations.instants import InstantLike, InstantsLike
    from pyspark_ckpt.operators.encoding.distinct_keys import Keys


def _sum(kept: Any, value: Any) -> Any:
    return EXACT.add(kept, value) if isinstance(kept, Decimal) else kept + value


_REDUCED: Mapping[str, Callable[[Any, Any], Any]] = {"sum": _sum, "min": min, "max": max}
_FLOATS_REDUCED: Mapping[str, Callable[[Any, Any], Any]] = {"sum": _sum, "min": least_float, "max": greatest_float}
_COMBINED: Mapping[str, Callable[[Any, Any], Any]] = {
    "sum": pc.add_checked,
    "min": pc.min_element_wise,
    "max": pc.max_element_wise,
}
_INTEGERS_END = 1 << 63


def _may_overflow(column: pa.Array) -> bool:
    """Return whether Arrow's sum may overflow: integers wrap silently, and decimals may lack room for a larger sum."""
    if pa.types.is_decimal(column.type):
        return True
    if not pa.types.is_integer(column.type):
        return False
    bounds = [each for each in pc.min_max(column).as_py().values() if each is not None]
    return max(map(abs, bounds), default=0) * len(column) >= _INTEGERS_END


def _type_of_columns(kind: pa.DataType, how: str) -> pa.DataType | None:
    """Return the type as which Arrow reduces whole columns (numbers for dates and instants), None if it cannot."""
    if pa.types.is_temporal(kind):
        numbers = pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64()
        return numbers if how != "sum" or pa.types.is_duration(kind) else None
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    is_compared = how != "sum" and (pa.types.is_string(kind) or pa.types.is_binary(kind))
    return kind if is_number or is_compared else None


class OneRow(Bound):
    """A state with one row per key."""

    @override
    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        self.rows = self._key_rows()

    def clear(self) -> None:
        """Remove the row of the current key."""
        self.rows.put(self._at.suffix, None)

    def exists(self) -> bool:
        """Return whether the current key has a row."""
        return self.rows.get(self._at.suffix) is not None

    def clear_keys(self, keys: Keys) -> None:
        """See State."""
        self.rows.put_cells(keys.suffixes, Cells.absent(len(keys)))

    def exists_keys(self, keys: Keys) -> pa.BooleanArray:
        """See State."""
        return pa.array(self._cells(keys).there)

    @override
    def put_contents(self, keys: Keys, contents: pa.Array) -> None:
        self._put_contents(keys, contents, None)

    def _put_contents(self, keys: Keys, contents: pa.Array, at: InstantsLike) -> None:
        cells = self._codec.encode_cells(self._column(self._what, contents, len(keys)))
        self.rows.put_cells(keys.suffixes, cells, *self._times(keys, at=at))

    def _cells(self, keys: Keys) -> Cells:
        return self.rows.get_cells(keys.suffixes, *self._times(keys))

    @contextmanager
    def _for_a_function(self) -> Iterator[None]:
        """If Python cannot represent a value that is read within, explain why it has to."""
        try:
            yield
        except InvalidInputError as problem:
            raise InvalidInputError(
                f"State {self.name!r} calls a function for each value. {problem.message}",
                hint="Give the state a type whose values Python can all represent, such as a number.",
            ) from problem

    def _load(self) -> Any:
        stored = self.rows.get(self._at.suffix)
        return None if stored is None else self._codec.decode(stored)

    def _save(self, value: Any) -> None:
        self.rows.put(self._at.suffix, None if value is None else self._encode(value))

    def _times_of(self, keys: Keys, index: NDArray[Any], positions: NDArray[Any], at: InstantsLike) -> tuple[Any, ...]:
        """Return, as arguments, the times of additions to the keys at ``positions``: the keys that ``index`` names."""
        if at is None:
            return tuple(each.take(positions) for each in self._times(keys))
        (times,) = self._times(keys, index, at)
        first, last = np.full(len(keys), np.iinfo(np.int64).max), np.zeros(len(keys), np.int64)
        np.minimum.at(first, index, times.reads_ms)
        np.maximum.at(last, index, times.writes_ms)
        return (Times(first[positions], last[positions]),)

    def _add_each(
        self,
        keys: Keys,
        index: NDArray[Any],
        values: Sequence[Any],
        add: Callable[[Any, Any], Any],
        at: InstantsLike,
    ) -> None:
        """Add values one after another to the kept values of their keys. Each key is read and written once."""
        if len(values) != len(index):
            raise InvalidInputError(f"State {self.name!r}: {len(values)} values are given for {len(index)} rows.")
        positions, places = np.unique(index, return_inverse=True)
        suffixes, times = keys.suffixes.at(positions), self._times_of(keys, index, positions, at)
        rows = self.rows.get_cells(suffixes, *times).strings()
        with self._for_a_function():
            kept = [None if row is None else self._codec.decode(row) for row in rows]
        is_nested = pa.types.is_nested(self._kinds[self._what])
        for place, value in zip(places.tolist(), values, strict=True):
            new = add(kept[place], value)
            # The kept value has the form that a read returns, whatever the user's function returned.
            kept[place] = self._codec.decode(self._encode(new)) if is_nested and new is not None else new
        cells = Cells.of([None if each is None else self._encode(each) for each in kept])
        self.rows.put_cells(suffixes, cells, *times)


class BoundValue(OneRow, ValueState):
    """See ValueState."""

    @override
    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        default = binding.state.default  # type: ignore[attr-defined]  # it is a ValueState
        self._default = None if default is None else self._encode(default)

    @override
    def value(self) -> Any:
        stored = self.rows.get(self._at.suffix)
        if stored is None:
            stored = self._default
        return None if stored is None else self._codec.decode(stored)

    @override
    def update(self, value: Any, *, at: InstantLike | None = None) -> None:
        if at is None:
            self._save(value)
        else:
            with self._as_of(at):
                self._save(value)

    @override
    def get(self, keys: Keys) -> pa.Array:
        return self._codec.decode_cells(self._cells(keys))

    @override
    def put(self, keys: Keys, values: pa.Array, *, at: InstantsLike = None) -> None:
        self._put_contents(keys, values, at)


class BoundReducing(OneRow, ReducingState):
    """See ReducingState."""

    @override
    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        how: Any = binding.state.reduce  # type: ignore[attr-defined]  # it is a ReducingState
        kind = self._kinds["value"]
        column_kind = None if callable(how) else _type_of_columns(kind, how)
        self._by_column = None if column_kind is None else (how, column_kind, _COMBINED[how])
        self._reduce: Callable[[Any, Any], Any] = how if callable(how) else self._reduction(how, kind)
        self._taken: Callable[[Any], Any] | None = None if callable(how) else normaliser(kind)

    @override
    def get(self) -> Any:
        return self._load()

    @override
    def add(self, value: Any, *, at: InstantLike | None = None) -> None:
        if at is not None:
            with self._as_of(at):
                self.add(value)
        elif value is not None:
            kept = self._load()
            self._save(value if kept is None else self._reduce(kept, self._as_kept(value)))

    @override
    def get_values(self, keys: Keys) -> pa.Array:
        return self._codec.decode_cells(self._cells(keys))

    @override
    def add_rows(self, keys: Keys, index: NDArray[Any], values: pa.Array, *, at: InstantsLike = None) -> None:
        column = self._column("value", values, len(index))
        how, kind, combined = self._by_column or ("", column.type, None)
        is_float = pa.types.is_floating(column.type) and how in {"min", "max"}
        numbers = in_order_as_numbers(column) if is_float else column.view(kind)
        if combined is None or (how == "sum" and _may_overflow(numbers)):
            with self._for_a_function():
                added = python_values(column)
            self._add_each(keys, index, added, self._reduce_as_kept, at)
            return
        grouped = pa.table({"key": index, "value": numbers}).group_by("key").aggregate([("value", how)])
        grouped = grouped.filter(pc.is_valid(grouped.column(f"value_{how}"))).sort_by("key")
        positions = grouped.column("key").to_numpy()
        suffixes, times = keys.suffixes.at(positions), self._times_of(keys, index, positions, at)
        given = grouped.column(f"value_{how}").combine_chunks()
        old = self._codec.decode_cells(self.rows.get_cells(suffixes, *times))
        old = in_order_as_numbers(old) if is_float else old.view(kind)
        try:
            new = exact_column(pc.if_else(pc.is_valid(old), combined(old, given), given), numbers.type)
        except (pa.ArrowException, ValueError) as problem:
            raise InvalidInputError(
                f"State {self.name!r}: the {how} of its values is not a value of type {column.type}: {problem}"
            ) from problem
        reduced = numbers_to_floats(new, column.type) if is_float else new.view(column.type)
        self.rows.put_cells(suffixes, self._codec.encode_cells(reduced), *times)

    def _reduction(self, how: str, kind: pa.DataType) -> Callable[[Any, Any], Any]:
        if how == "sum" or not pa.types.is_nested(kind):
            return (_FLOATS_REDUCED if pa.types.is_floating(kind) else _REDUCED)[how]
        try:
            return by_stored_order(kind, how)
        except InvalidInputError as problem:
            raise InvalidInputError(
                f"State {self.name!r} of operator {self._uid!r} keeps the {how} of values of type {kind}, which have "
                "no order.",
                hint="Reduce them with a function of your own.",
            ) from problem

    def _as_kept(self, value: Any) -> Any:
        """Return a value in the form in which it is read back. Raises InvalidInputError if it is not of the type."""
        if self._taken is None:
            return value
        try:
            return self._taken(value)
        except WRONG_VALUE as problem:
            raise self._mismatch("value", value, problem) from problem

    def _reduce_as_kept(self, kept: Any, value: Any) -> Any:
        if value is None or kept is None:
            return kept if value is None else value
        return self._reduce(kept, value)


class BoundAggregating(OneRow, AggregatingState):
    """See AggregatingState."""

    @override
    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        state: Any = binding.state
        self.create, self.accumulate, self.result = state.create, state.accumulate, state.result

    @override
    def get(self) -> Any:
        kept = self._load()
        return None if kept is None else self.result(kept)

    @override
    def add(self, value: Any, *, at: InstantLike | None = None) -> None:
        if at is None:
            self._save(self._accumulate(self._load(), value))
        else:
            with self._as_of(at):
                self.add(value)

    @override
    def get_results(self, keys: Keys) -> list[Any]:
        with self._for_a_function():
            kept = python_values(self._codec.decode_cells(self._cells(keys)))
        return [None if each is None else self.result(each) for each in kept]

    @override
    def add_rows(
        self, keys: Keys, index: NDArray[Any], values: Sequence[Any] | pa.Array, *, at: InstantsLike = None
    ) -> None:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        with self._for_a_function():
            given = python_values(values) if isinstance(values, pa.Array) else values
        self._add_each(keys, index, given, self._accumulate, at)

    def _accumulate(self, kept: Any, value: Any) -> Any:
        return self.accumulate(self.create() if kept is None else kept, value)
