"""Stored rows of keyed states, made of columns as ``open_state`` shows them: the reverse of ``reading/rows``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pyspark_ckpt.offline.reading.rows.keyed_rows import LISTS, TIMERS
from pyspark_ckpt.offline.reading.rows.partition_rows import BROADCASTS, OPERATOR_LISTS
from pyspark_ckpt.offline.writing.given_columns import (
    AT,
    INDEX,
    KEY,
    MAP_KEY,
    NAMESPACE,
    VALUE,
    WRITTEN,
    GivenColumns,
    WrittenState,
)
from pyspark_ckpt.operators.declarations.timers import namespace_bytes, round_up_ms
from pyspark_ckpt.operators.encoding.column_hash import hash_columns
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.encoding.suffixes import behind_hashes
from pyspark_ckpt.operators.encoding.value_codec import make_value_codec
from pyspark_ckpt.operators.rows.list_layout import encode_numbers
from pyspark_ckpt.operators.rows.ordered_rows import THERE, encode_ordered_keys
from pyspark_ckpt.operators.rows.timer_rows import EXACT, encode_timer_keys
from pyspark_ckpt.operators.rows.ttl_stamps import NEVER, count_step_bits, find_instants, stamp_all
from pyspark_ckpt.operators.types.conversions import WRONG_VALUE
from pyspark_ckpt.state_store.arrays.order import in_order
from pyspark_ckpt.state_store.arrays.packed import Packed, side_by_side
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.keys import state_head
from pyspark_ckpt.state_store.format.meta import StateMeta
from pyspark_ckpt.state_store.format.partition_states import encode_element

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RowEncoder:
    """Encodes rows of one state."""

    def __init__(self, target: WrittenState) -> None:
        """Raises FormatError, InvalidInputError (a kind of state that cannot be written)."""
        self._target, self._whose, self._kind = target, target.whose, target.kind
        self._head = state_head(target.state.number)
        self._columns = GivenColumns(target)
        self._keys = KeyCodec([field.type for field in self._columns.key_fields], f"a key of {self._whose}")
        schemas, map_kind = self._columns.value_schemas, self._columns.map_kind
        self._values = (
            None if schemas is None else make_value_codec(self._columns.value_kind, schemas.current, self._whose)
        )
        self._map_keys = None if map_kind is None else KeyCodec([map_kind], f"a key of a map of {self._whose}")
        self._earliest_ms: int | None = None

    @property
    def earliest_ms(self) -> int | None:
        """When the first encoded timer is due, in ms since 1970; None without timers."""
        return self._earliest_ms

    def prepare(self, rows: pa.Table) -> pa.Table:
        """Return the columns of rows in the types of the state; see ``GivenColumns``. Raises InvalidInputError."""
        return self._columns.take(rows)

    def encode(self, prepared: pa.Table) -> Iterator[tuple[str, PackedRows]]:
        """Yield the stored rows by the name of their state, each sorted.

        Raises InvalidInputError (two rows in one place, a value that cannot be stored).
        """
        columns = {name: prepared.column(name).combine_chunks() for name in prepared.column_names}
        try:
            places = self._place(columns, len(prepared))
        except WRONG_VALUE as problem:
            raise InvalidInputError(f"{self._whose}: a key or an entry cannot be stored: {problem}.") from problem
        order, are_twins = in_order(places)
        if are_twins.any():
            self._refuse_twins(prepared, int(order[int(np.argmax(are_twins))]))
        places = places.take(order)
        if self._values is None:
            at_us = columns[AT].cast(pa.int64())
            if len(at_us):
                first_ms = round_up_ms(int(at_us.to_numpy().min()))
                self._earliest_ms = first_ms if self._earliest_ms is None else min(first_ms, self._earliest_ms)
            yield self._target.state.name, PackedRows(places.prefix(self._head), _repeat(EXACT, len(places)))
            return
        try:
            values = self._values.encode_packed(columns[VALUE]).take(order)
        except WRONG_VALUE as problem:
            raise InvalidInputError(f"{self._whose}: a value cannot be stored: {problem}.") from problem
        if self._target.index is not None and self._target.has_life:
            written_ms = columns[WRITTEN].to_numpy()[order]
            # Metadata of the first release does not say how long rows live: then each has its own instant.
            step_bits = 0 if self._target.ttl is None else count_step_bits(self._target.ttl.duration_ms)
            values = stamp_all(values, step_bits, written_ms)
            timed = written_ms != NEVER
            instants = find_instants(step_bits, written_ms[timed])
            yield self._target.index.name, _make_index(self._target.index, places.take(timed), instants)
        yield self._target.state.name, PackedRows(places.prefix(self._head), values)

    def _place(self, columns: dict[str, pa.Array], count: int) -> Packed:
        """Return the stored keys of rows, without the number of the state."""
        keys = columns[KEY].flatten()
        if self._kind == OPERATOR_LISTS:  # the partition stands for a hash, and is all there is
            suffixes = behind_hashes(keys[0].to_numpy().astype(np.uint32), Packed.of([b""] * count))
            return side_by_side(suffixes, Packed.of([encode_element(0, each) for each in columns[INDEX].to_pylist()]))
        suffixes = behind_hashes(self._find_hashes(keys, count), self._keys.encode_packed(keys))
        if self._kind == LISTS:
            return side_by_side(suffixes, encode_numbers(columns[INDEX].to_numpy().astype(np.uint64)))
        if self._map_keys is not None:
            return side_by_side(suffixes, self._map_keys.encode_packed([columns[MAP_KEY]]))
        if self._kind == TIMERS:
            namespaces = Packed.of([namespace_bytes(each) for each in columns[NAMESPACE].to_pylist()])
            rows = side_by_side(suffixes, namespaces)
            return encode_timer_keys(columns[AT].cast(pa.int64()).to_numpy(), rows)
        return suffixes

    def _find_hashes(self, keys: Sequence[pa.Array], count: int) -> NDArray[np.uint32]:
        return np.zeros(count, np.uint32) if self._kind == BROADCASTS else hash_columns(keys, count)

    def _refuse_twins(self, prepared: pa.Table, position: int) -> None:
        names = [name for name in prepared.column_names if name not in (VALUE, WRITTEN)]
        (row,) = prepared.select(names).slice(position, 1).to_pylist()
        raise InvalidInputError(
            f"{self._whose}: two rows are given for {row!r}.", hint="Give one row for each value, element or entry."
        )


def _make_index(index: StateMeta, places: Packed, instants: NDArray[np.int64]) -> PackedRows:
    """Return the rows of an expiry index, sorted."""
    keys = encode_ordered_keys(instants, places)
    order, _ = in_order(keys)
    return PackedRows(keys.take(order).prefix(state_head(index.number)), _repeat(THERE, len(keys)))


def _repeat(value: bytes, count: int) -> Packed:
    return Packed.of([value]).take(np.zeros(count, np.int64))
