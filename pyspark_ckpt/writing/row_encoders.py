"""Stored rows of keyed states, made of columns as ``open_state`` shows them: the reverse of ``reading/rows``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.operators.declarations.timers import MICROSECONDS, namespace_bytes, round_up_ms
from pyspark_ckpt.operators.encoding.column_hash import hash_columns
from pyspark_ckpt.operators.encoding.evolution import read_schemas
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec, normalise
from pyspark_ckpt.operators.encoding.suffixes import behind_hashes
from pyspark_ckpt.operators.encoding.value_codec import make_value_codec
from pyspark_ckpt.operators.rows.list_layout import encode_numbers
from pyspark_ckpt.operators.rows.ordered_rows import THERE, encode_ordered_keys
from pyspark_ckpt.operators.rows.timer_rows import EXACT, encode_timer_keys
from pyspark_ckpt.operators.rows.ttl_stamps import NEVER, count_step_bits, find_instants, stamp_all
from pyspark_ckpt.operators.types.columns import validity
from pyspark_ckpt.operators.types.conversions import WRONG_VALUE
from pyspark_ckpt.operators.types.exact_columns import exact_column
from pyspark_ckpt.operators.types.stored_types import arrow_type
from pyspark_ckpt.operators.types.type_names import arrow_type_named
from pyspark_ckpt.reading.rows.keyed_rows import INSTANTS, LISTS, MAPS, TIMERS, VALUES, has_ended
from pyspark_ckpt.reading.rows.partition_rows import BROADCASTS, OPERATOR_LISTS
from pyspark_ckpt.state_store.arrays.order import in_order
from pyspark_ckpt.state_store.arrays.packed import Packed, side_by_side
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.keys import state_head
from pyspark_ckpt.state_store.format.meta import Descriptor, StateMeta, TimeToLive
from pyspark_ckpt.state_store.format.partition_states import encode_element

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNREAD = frozenset({"partition", "key_group", "hash", "expires_at", "at_ms", "clock"})
"""Columns that follow from others, or from the state."""
_KEY, _VALUE, _INDEX, _MAP_KEY, _WRITTEN, _AT, _NAMESPACE = (
    "key", "value", "index", "map_key", "written_at", "at", "namespace",
)  # fmt: skip
_WITHOUT_KEYS = (OPERATOR_LISTS, BROADCASTS)
_VALUES = {**VALUES, OPERATOR_LISTS: "element", BROADCASTS: "value"}


@dataclass(frozen=True)
class WrittenState:
    """A state that gets rows, and the index of its rows with a time to live, if it has one.

    ``now_ms``: when rows are written that do not say when.
    """

    state: StateMeta
    index: StateMeta | None
    whose: str
    now_ms: int

    @property
    def kind(self) -> str:
        """The kind of the state."""
        return str(self.state.descriptor.encoder.get("kind"))

    @property
    def is_list(self) -> bool:
        """Whether each key has a head before its elements, which is not among the rows that are encoded."""
        return self.kind == LISTS


class RowEncoder:
    """Encodes rows of one state."""

    def __init__(self, target: WrittenState) -> None:
        """Raises FormatError, InvalidInputError (a kind of state that cannot be written)."""
        descriptor = target.state.descriptor
        self._target, self._whose, self._kind = target, target.whose, target.kind
        self._head = state_head(target.state.number)
        if self._kind not in {*_VALUES, TIMERS}:
            raise InvalidInputError(f"{self._whose} is of the kind {self._kind!r}, which cannot be written.")
        self._key_fields = self._find_key_fields(descriptor)
        self._keys = KeyCodec([field.type for field in self._key_fields], f"a key of {self._whose}")
        self._map_kind = self._find_type("key") if self._kind == MAPS else None
        if self._kind != TIMERS:
            schemas = read_schemas(descriptor, _VALUES[self._kind], self._whose)
            if schemas is None:
                raise FormatError(f"The metadata of {self._whose} has no type for its values.")
            self._value_kind = arrow_type(schemas.schemas[schemas.current - 1])
            self._values = make_value_codec(self._value_kind, schemas.current, self._whose)
        self._ttl = descriptor.ttl if isinstance(descriptor.ttl, TimeToLive) else None
        self._has_life = target.index is not None and not has_ended(descriptor)
        self._earliest_ms: int | None = None

    @property
    def earliest_ms(self) -> int | None:
        """When the first of the timers is due that were encoded, in ms since 1970; None without any."""
        return self._earliest_ms

    @property
    def columns(self) -> list[str]:
        """The columns that rows must have, or may have, without those of the key."""
        if self._kind == TIMERS:
            return [_AT, _NAMESPACE]
        entry = {LISTS: [_INDEX], OPERATOR_LISTS: [_INDEX], MAPS: [_MAP_KEY]}.get(self._kind, [])
        return [*entry, _VALUE, *([_WRITTEN] if self._has_life else [])]

    def encode(self, rows: pa.Table) -> Iterator[tuple[str, PackedRows]]:
        """Yield the stored rows by the name of their state, each sorted.

        Raises InvalidInputError (columns that are missing, unknown or of other types, nulls, two rows in one place).
        """
        key_columns = self._take_keys(rows)
        hashes = self._find_hashes(key_columns, len(rows))
        suffixes = behind_hashes(hashes, self._encode_keys(key_columns))
        if self._kind == TIMERS:
            yield self._target.state.name, self._encode_timers(suffixes, rows)
            return
        places = self._place(suffixes, rows)
        order, are_twins = in_order(places)
        if are_twins.any():
            self._refuse_twins(rows, int(order[int(np.argmax(are_twins))]))
        places = places.take(order)
        values = self._values.encode_packed(self._take(rows, _VALUE, self._value_kind)).take(order)
        if self._target.index is not None and self._has_life:
            written_ms = self._take_written(rows)[order]
            # Metadata of the first release does not say how long rows live: then each has its own instant.
            step_bits = 0 if self._ttl is None else count_step_bits(self._ttl.duration_ms)
            values = stamp_all(values, step_bits, written_ms)
            timed = written_ms != NEVER
            instants = find_instants(step_bits, written_ms[timed])
            yield self._target.index.name, _make_index(self._target.index, places.take(timed), instants)
        yield self._target.state.name, PackedRows(places.prefix(self._head), values)

    def _find_key_fields(self, descriptor: Descriptor) -> list[pa.Field]:
        if self._kind == OPERATOR_LISTS:
            return [pa.field("partition", pa.int32())]
        if self._kind == BROADCASTS:
            return [pa.field("key", self._find_type("key"))]
        schema = descriptor.key_schema
        if not isinstance(schema, dict) or not all(isinstance(kind, str) for kind in schema.values()):
            raise FormatError(f"The stored key type of {self._whose}, {str(schema)[:200]!r}, is not the type of a key.")
        return [pa.field(name, arrow_type_named(kind)) for name, kind in schema.items()]

    def _find_type(self, what: str) -> pa.DataType:
        schemas = read_schemas(self._target.state.descriptor, what, self._whose)
        if schemas is None:
            raise FormatError(f"The metadata of {self._whose} has no type for its {what}.")
        return arrow_type(schemas.schemas[schemas.current - 1])

    def _take_keys(self, rows: pa.Table) -> list[pa.Array]:
        """Return the columns of the keys. Raises InvalidInputError, also for columns that are not of such rows."""
        names = [field.name for field in self._key_fields]
        is_nested = _KEY in rows.column_names and pa.types.is_struct(rows.schema.field(_KEY).type)
        known = {*([_KEY] if is_nested else names), *self.columns, *_UNREAD}
        if unknown := [name for name in rows.column_names if name not in known]:
            raise InvalidInputError(
                f"{self._whose}: rows have a column {unknown[0]!r}.{suggest(unknown[0], known - _UNREAD)}",
                hint=f"Give the key as a struct {_KEY!r} of {names} or as these columns, and {self.columns}.",
            )
        if not is_nested:
            return [self._take_key(rows, field) for field in self._key_fields]
        column = rows.column(_KEY).combine_chunks()
        if column.null_count:
            raise InvalidInputError(f"{self._whose}: a row has a null in the column {_KEY!r}.")
        given = pa.Table.from_arrays(column.flatten(), names=[field.name for field in column.type])
        if sorted(given.column_names) != sorted(names):
            raise InvalidInputError(
                f"{self._whose}: its keys have the columns {names}, and the column {_KEY!r} has {given.column_names}."
            )
        return [self._take_key(given, field) for field in self._key_fields]

    def _take_key(self, rows: pa.Table, field: pa.Field) -> pa.Array:
        has_nulls = self._kind not in _WITHOUT_KEYS  # a key of rows may be null, as a group may
        return normalise(self._take(rows, field.name, field.type, has_nulls=has_nulls))

    def _take(self, rows: pa.Table, name: str, kind: pa.DataType, *, has_nulls: bool = False) -> pa.Array:
        """Return a column as one array of a type. Raises InvalidInputError."""
        if rows.column_names.count(name) != 1:
            has = "has no" if name not in rows.column_names else "has several"
            raise InvalidInputError(
                f"{self._whose}: the table of rows {has} column {name!r}; it has {rows.column_names}."
                + (" The index of an element is its place in the list, from 0." if name == _INDEX else "")
            )
        column = rows.column(name).combine_chunks()
        try:
            found = exact_column(column, kind)
        except WRONG_VALUE as problem:
            raise InvalidInputError(
                f"{self._whose}: column {name!r} of type {column.type} does not fit the type {kind}: {problem}.",
                hint="Cast it.",
            ) from problem
        if not has_nulls and found.null_count:
            raise InvalidInputError(
                f"{self._whose}: a row has a null in the column {name!r}.",
                hint="Leave such rows out." if name == _VALUE else "",
            )
        return found

    def _find_hashes(self, keys: Sequence[pa.Array], count: int) -> NDArray[np.uint32]:
        if self._kind == BROADCASTS:
            return np.zeros(count, np.uint32)
        if self._kind == OPERATOR_LISTS:
            if pc.any(pc.less(keys[0], 0)).as_py():
                raise InvalidInputError(f"{self._whose}: a row has a partition below 0.")
            partitions: NDArray[np.uint32] = keys[0].to_numpy().astype(np.uint32)
            return partitions
        return hash_columns(keys, count)

    def _encode_keys(self, keys: Sequence[pa.Array]) -> Packed:
        if self._kind == OPERATOR_LISTS:  # the hash is all there is
            return Packed.of([b""] * len(keys[0]))
        return self._keys.encode_packed(keys)

    def _place(self, suffixes: Packed, rows: pa.Table) -> Packed:
        """Return the stored keys of rows, without the state."""
        if self._kind in (LISTS, OPERATOR_LISTS):
            index = self._take(rows, _INDEX, pa.int64()).to_numpy()
            if len(index) and int(index.min()) < 0:
                raise InvalidInputError(f"{self._whose}: a row has the index {index.min()}, which is below 0.")
            if self._kind == OPERATOR_LISTS:
                return side_by_side(suffixes, Packed.of([encode_element(0, each) for each in index.tolist()]))
            return side_by_side(suffixes, encode_numbers(index.astype(np.uint64)))
        if self._map_kind is None:
            return suffixes
        entries = KeyCodec([self._map_kind], f"a key of a map of {self._whose}")
        return side_by_side(suffixes, entries.encode_packed([self._take(rows, _MAP_KEY, self._map_kind)]))

    def _refuse_twins(self, rows: pa.Table, position: int) -> None:
        names = [name for name in rows.column_names if name not in {*_UNREAD, _VALUE, _WRITTEN} or name == "partition"]
        (row,) = rows.select(names).slice(position, 1).to_pylist()
        raise InvalidInputError(
            f"{self._whose}: two rows are given for {row!r}.", hint="Give one row for each value, element or entry."
        )

    def _take_written(self, rows: pa.Table) -> NDArray[np.int64]:
        """Return when each row was written, in ms since 1970; 0 for those that wait for the first watermark."""
        waits = self._ttl is not None and self._ttl.clock == "event"
        if _WRITTEN not in rows.column_names:
            return np.full(len(rows), 0 if waits else self._target.now_ms, np.int64)
        micros = self._take(rows, _WRITTEN, INSTANTS, has_nulls=True).cast(pa.int64())
        there = validity(micros)
        found = pc.fill_null(pc.divide(micros, MICROSECONDS), 0).to_numpy()
        if len(found) and int(found.min()) < 0:
            raise InvalidInputError(f"{self._whose}: a row was written before 1970, by its column {_WRITTEN!r}.")
        return np.where(there, found, 0 if waits else NEVER)

    def _encode_timers(self, suffixes: Packed, rows: pa.Table) -> PackedRows:
        at_us = self._take(rows, _AT, INSTANTS).cast(pa.int64()).to_numpy()
        if _NAMESPACE in rows.column_names:
            namespaces = self._take(rows, _NAMESPACE, pa.string()).to_pylist()
            suffixes = side_by_side(suffixes, Packed.of([namespace_bytes(each) for each in namespaces]))
        keys = encode_timer_keys(at_us, suffixes)
        order, are_twins = in_order(keys)
        if are_twins.any():
            self._refuse_twins(rows, int(order[int(np.argmax(are_twins))]))
        if len(at_us):
            first_ms = round_up_ms(int(at_us.min()))
            self._earliest_ms = first_ms if self._earliest_ms is None else min(first_ms, self._earliest_ms)
        values = Packed.of([EXACT]).take(np.zeros(len(keys), np.int64))
        return PackedRows(keys.take(order).prefix(self._head), values)


def _make_index(index: StateMeta, places: Packed, instants: NDArray[np.int64]) -> PackedRows:
    """Return the rows of an expiry index, sorted."""
    keys = encode_ordered_keys(instants, places)
    order, _ = in_order(keys)
    values = Packed.of([THERE]).take(np.zeros(len(keys), np.int64))
    return PackedRows(keys.take(order).prefix(state_head(index.number)), values)
