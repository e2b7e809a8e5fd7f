"""The columns of rows that are given for a state: checked, and converted to the types of the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.offline.reading.rows.keyed_rows import INSTANTS, LISTS, MAPS, TIMERS, VALUES, has_ended
from pyspark_ckpt.offline.reading.rows.partition_rows import BROADCASTS, OPERATOR_LISTS
from pyspark_ckpt.offline.reading.rows.state_codec import struct_column
from pyspark_ckpt.operators.declarations.timers import MICROSECONDS
from pyspark_ckpt.operators.encoding.evolution import Schemas, read_schemas
from pyspark_ckpt.operators.encoding.key_codec import normalise
from pyspark_ckpt.operators.rows.list_layout import SPAN_BIT
from pyspark_ckpt.operators.rows.ttl_stamps import NEVER
from pyspark_ckpt.operators.types.conversions import WRONG_VALUE
from pyspark_ckpt.operators.types.exact_columns import exact_column
from pyspark_ckpt.operators.types.stored_types import arrow_type
from pyspark_ckpt.operators.types.type_names import arrow_type_named
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.meta import StateMeta, TimeToLive
from pyspark_ckpt.state_store.format.partition_states import MAX_ELEMENTS
from pyspark_ckpt.state_store.format.remote import DEFAULT_STORE

KEY, VALUE, INDEX, MAP_KEY, WRITTEN, AT, NAMESPACE = (
    "key", "value", "index", "map_key", "written_at", "at", "namespace",
)  # fmt: skip
UNREAD = frozenset({"partition", "key_group", "hash", "expires_at", "at_ms", "clock"})
"""Columns that follow from others, or from the state."""
MAX_INDEX = SPAN_BIT // 2
"""The program appends after the last element."""
_VALUES = {**VALUES, OPERATOR_LISTS: "element", BROADCASTS: "value"}
_WITHOUT_KEYS = (OPERATOR_LISTS, BROADCASTS)


@dataclass(frozen=True)
class WrittenState:
    """A state that gets rows, and the index of its rows with a time to live, if it has one.

    ``now_ms``: when rows are written that do not say when. ``partitions``: of the savepoint. ``store``: its name.
    ``has_plain_keys``: whether Spark stores keys as its rows have them, with two zeros and any NaN.
    """

    state: StateMeta
    index: StateMeta | None
    whose: str
    now_ms: int
    partitions: int
    store: str = DEFAULT_STORE
    has_plain_keys: bool = False

    @property
    def is_native(self) -> bool:
        """Whether it is a state of one of Spark's own operators."""
        return self.state.uid is None

    @property
    def native_name(self) -> str:
        """The name of a state of Spark's: that of its store if the store has no other."""
        return self.store if self.state.name == DEFAULT_STORE else self.state.name

    @property
    def kind(self) -> str:
        """The kind of the state."""
        return str(self.state.descriptor.encoder.get("kind"))

    @property
    def is_list(self) -> bool:
        """Whether each key has a head before its elements, which is not among the rows that are encoded."""
        return self.kind == LISTS

    @property
    def is_joined(self) -> bool:
        """Whether all values of a key are one stored row, which is made when all of them are encoded."""
        return self.is_native and bool(self.state.descriptor.multiple_values)

    @property
    def ttl(self) -> TimeToLive | None:
        """The time to live, if the metadata says it: that of the first release does not."""
        found = self.state.descriptor.ttl
        return found if isinstance(found, TimeToLive) else None

    @property
    def has_life(self) -> bool:
        """Whether rows have a time to live."""
        return self.index is not None and not has_ended(self.state.descriptor)


class GivenColumns:
    """Takes the columns of one state from the tables of a user."""

    def __init__(self, target: WrittenState) -> None:
        """Raises FormatError, InvalidInputError (a kind of state that cannot be written)."""
        self._target, self._whose, self._kind = target, target.whose, target.kind
        if self._kind not in {*_VALUES, TIMERS}:
            raise InvalidInputError(f"{self._whose} is of the kind {self._kind!r}, which cannot be written.")
        self.key_fields = self._find_key_fields()
        self.map_kind = self._find_type(self._find_schemas("key")) if self._kind == MAPS else None
        self.value_schemas = None if self._kind == TIMERS else self._find_schemas(_VALUES[self._kind])
        self.value_kind = None if self.value_schemas is None else self._find_type(self.value_schemas)

    @property
    def names(self) -> list[str]:
        """The columns that rows must have, or may have, without those of the key."""
        if self._kind == TIMERS:
            return [AT, NAMESPACE]
        entry = {LISTS: [INDEX], OPERATOR_LISTS: [INDEX], MAPS: [MAP_KEY]}.get(self._kind, [])
        return [*entry, VALUE, *([WRITTEN] if self._target.has_life else [])]

    def take(self, rows: pa.Table) -> pa.Table:
        """Return the columns of rows in the types of the state: ``key``, a struct, and ``names``, all of them.

        ``written_at`` is in ms since 1970: 0 for rows that wait for the first watermark, NEVER for rows without a time.

        Raises InvalidInputError (columns that are missing, unknown or of other types, nulls).
        """
        columns = {KEY: self.take_keys(rows)}
        for name in self.names:
            if name == WRITTEN:
                columns[name] = self._take_written(rows)
            elif name == INDEX:
                most = MAX_ELEMENTS if self._kind == OPERATOR_LISTS else MAX_INDEX
                columns[name] = take_index(rows, most, self._whose)
            elif name == NAMESPACE and name not in rows.column_names:
                columns[name] = pa.array([""] * len(rows), pa.string())
            else:
                columns[name] = self._take(rows, name, self._kind_of(name))
        return pa.table(columns)

    def _kind_of(self, name: str) -> pa.DataType:
        return {VALUE: self.value_kind, MAP_KEY: self.map_kind, AT: INSTANTS, NAMESPACE: pa.string()}[name]

    def _find_key_fields(self) -> list[pa.Field]:
        if self._kind == OPERATOR_LISTS:
            return [pa.field("partition", pa.int32())]
        if self._kind == BROADCASTS:
            return [pa.field("key", self._find_type(self._find_schemas("key")))]
        schema = self._target.state.descriptor.key_schema
        if not isinstance(schema, dict) or not all(isinstance(kind, str) for kind in schema.values()):
            raise FormatError(f"The stored key type of {self._whose}, {str(schema)[:200]!r}, is not the type of a key.")
        return [pa.field(name, arrow_type_named(kind)) for name, kind in schema.items()]

    def _find_schemas(self, what: str) -> Schemas:
        schemas = read_schemas(self._target.state.descriptor, what, self._whose)
        if schemas is None:
            raise FormatError(f"The metadata of {self._whose} has no type for its {what}.")
        return schemas

    def _find_type(self, schemas: Schemas) -> pa.DataType:
        return arrow_type(schemas.schemas[schemas.current - 1])

    def take_keys(self, rows: pa.Table) -> pa.StructArray:
        """Return the columns of the keys. Raises InvalidInputError, also for columns that are not of such rows."""
        names = [field.name for field in self.key_fields]
        is_nested = KEY in rows.column_names and pa.types.is_struct(rows.schema.field(KEY).type)
        known = {*([KEY] if is_nested else names), *self.names, *UNREAD}
        if unknown := [name for name in rows.column_names if name not in known]:
            raise InvalidInputError(
                f"{self._whose}: rows have a column {unknown[0]!r}.{suggest(unknown[0], known - UNREAD)}",
                hint=f"Give the key as a struct {KEY!r} of {names} or as these columns, and {self.names}.",
            )
        given = rows
        if is_nested:
            column = rows.column(KEY).combine_chunks()
            if column.null_count:
                raise InvalidInputError(f"{self._whose}: a row has a null in the column {KEY!r}.")
            given = pa.Table.from_arrays(column.flatten(), names=[field.name for field in column.type])
            if sorted(given.column_names) != sorted(names):
                raise InvalidInputError(
                    f"{self._whose}: its keys have the columns {names}, but the column {KEY!r} has "
                    f"{given.column_names}."
                )
        elif both := sorted(set(names) & set(self.names)):
            raise InvalidInputError(
                f"{self._whose}: {both[0]!r} is a column of the key, but also of the rows.",
                hint=f"Give the key as one column {KEY!r}, a struct of {names}.",
            )
        has_nulls = self._kind not in _WITHOUT_KEYS  # a key of rows may be null, as a group may
        columns = [normalise(self._take(given, each.name, each.type, has_nulls=has_nulls)) for each in self.key_fields]
        if self._kind == OPERATOR_LISTS:
            why = "the savepoint has no other"
            _require_within(columns[0], "partition", self._target.partitions, self._whose, why)
        return struct_column(self.key_fields, columns, len(rows))

    def _take_written(self, rows: pa.Table) -> pa.Array:
        waits = self._target.ttl is not None and self._target.ttl.clock == "event"
        if WRITTEN not in rows.column_names:
            return pa.array([0 if waits else self._target.now_ms] * len(rows), pa.int64())
        micros = self._take(rows, WRITTEN, INSTANTS, has_nulls=True).cast(pa.int64())
        if (least := pc.min(micros).as_py()) is not None and least < 0:
            raise InvalidInputError(f"{self._whose}: a row was written before 1970, by its column {WRITTEN!r}.")
        return pc.fill_null(pc.divide(micros, MICROSECONDS), NEVER)

    def _take(self, rows: pa.Table, name: str, kind: pa.DataType, *, has_nulls: bool = False) -> pa.Array:
        return take_column(rows, name, kind, self._whose, has_nulls=has_nulls)


def take_column(rows: pa.Table, name: str, kind: pa.DataType, whose: str, *, has_nulls: bool = False) -> pa.Array:
    """Return a column as one array of a type. Raises InvalidInputError."""
    if rows.column_names.count(name) != 1:
        has = "has no" if name not in rows.column_names else "has more than one"
        more = " The index of an element is its place in the list, from 0." if name == INDEX else ""
        raise InvalidInputError(f"{whose}: the table of rows {has} column {name!r}; it has {rows.column_names}.{more}")
    found = fit_column(rows.column(name).combine_chunks(), kind, f"{whose}: column {name!r}")
    if not has_nulls and found.null_count:
        raise InvalidInputError(
            f"{whose}: a row has a null in the column {name!r}.",
            hint="Leave such rows out." if name == VALUE else "",
        )
    return found


def take_index(rows: pa.Table, end: int, whose: str) -> pa.Array:
    """Return the places of elements in their lists, which are less than ``end``. Raises InvalidInputError."""
    index = take_column(rows, INDEX, pa.int64(), whose)
    _require_within(index, INDEX, end, whose, "a list has no more elements")
    return index


def _require_within(column: pa.Array, name: str, end: int, whose: str, why: str) -> None:
    """Raise InvalidInputError unless all numbers are from 0 up to ``end``, exclusive."""
    least, most = pc.min_max(column).as_py().values()
    if least is not None and not 0 <= least <= most < end:
        wrong = least if least < 0 else most
        raise InvalidInputError(f"{whose}: a row has the {name} {wrong}. It must be 0 to {end - 1}: {why}.")


def fit_column(column: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    """Return a column in the type that it must have. Raises InvalidInputError that says ``what`` does not fit."""
    try:
        found = exact_column(column, kind)
        found.validate(full=True)  # text that is not UTF-8
    except WRONG_VALUE as problem:
        raise InvalidInputError(
            f"{what} of type {column.type} does not fit the type {kind}: {problem}.", hint="Cast it."
        ) from problem
    return found


def with_key(state: StateMeta, schema: Mapping[str, str]) -> StateMeta:
    """Return a state whose keys have other columns, given with the names of their types."""
    return msgspec.structs.replace(state, descriptor=msgspec.structs.replace(state.descriptor, key_schema=schema))
