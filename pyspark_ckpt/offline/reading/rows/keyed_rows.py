"""Rows of keyed operators: values, elements of lists, entries of maps and timers of declared states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_ckpt.offline.reading.rows.state_codec import Decoded, StoredRow, Wanted, struct_column
from pyspark_ckpt.operators.declarations.timers import Timer, round_up_ms, timer_at
from pyspark_ckpt.operators.encoding.evolution import EvolvedCodec, Schemas, read_schemas
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.encoding.spark_hash import SparkHash
from pyspark_ckpt.operators.encoding.value_codec import ValueCodec
from pyspark_ckpt.operators.rows.list_layout import SEQUENCE
from pyspark_ckpt.operators.rows.timer_rows import read_instant
from pyspark_ckpt.operators.rows.ttl_stamps import split_stamp
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.operators.types.stored_types import arrow_type
from pyspark_ckpt.operators.types.type_names import arrow_type_named
from pyspark_ckpt.operators.types.value_types import hashable
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.meta import Descriptor, TimeToLive

INSTANTS = pa.timestamp("us", "UTC")
LISTS, MAPS, TIMERS = "ListState", "MapState", "Timers"
VALUES: Mapping[str, str] = {
    "ValueState": "value",
    "ReducingState": "value",
    "AggregatingState": "accumulator",
    LISTS: "element",
    MAPS: "value",
}
"""The descriptor's name for the values of each kind of state."""
_LAST_US = (1 << 63) - 1


class _KeyedRows:
    """The part that all states of keyed operators share: their keys."""

    is_one_to_one = True

    def __init__(self, descriptor: Descriptor, whose: str) -> None:
        self._whose = whose
        schema = descriptor.key_schema
        if not isinstance(schema, dict) or not all(isinstance(kind, str) for kind in schema.values()):
            raise FormatError(f"The stored key type of {whose}, {str(schema)[:200]!r}, is not the type of a key.")
        self.key_fields = [pa.field(name, arrow_type_named(kind)) for name, kind in schema.items()]
        self._kinds = [field.type for field in self.key_fields]
        self._keys = KeyCodec(self._kinds, f"a key of {whose}")

    @property
    def placing_fields(self) -> list[pa.Field]:
        """See StateCodec: all key columns."""
        return self.key_fields

    def find_wanted(self, key: Sequence[Any]) -> Wanted:
        """See StateCodec."""
        encoded = self._keys.encode(key)
        return Wanted(SparkHash(self._kinds)(key), encoded, tuple(key), encoded)

    def has_key(self, row: Any, wanted: Wanted) -> bool:  # noqa: ANN401 - see StateCodec
        """See StateCodec."""
        return self._keys.encode(row) == wanted.encoded

    def _key_column(self, keys: Sequence[tuple[Any, ...]]) -> pa.Array:
        """Return the column of keys that the plain codec has read."""
        return struct_column(self.key_fields, self._keys.to_columns(keys), len(keys))

    @property
    def _key_field(self) -> pa.Field:
        return pa.field("key", pa.struct(self.key_fields))


class KeyedValues(_KeyedRows):
    """The rows of a state with values. See StateCodec."""

    def __init__(self, descriptor: Descriptor, newest: Descriptor, whose: str, *, has_life: bool) -> None:
        """``newest``: the descriptor of the store that was written last, perhaps in another partition.

        Raises FormatError, InvalidInputError.
        """
        super().__init__(descriptor, whose)
        self._kind: str = descriptor.key_encoder["kind"]
        self._codec = make_value_codec(descriptor, newest, VALUES[self._kind], whose)
        self._map_kind: pa.DataType | None = None
        self._map_keys: KeyCodec | None = None
        if self._kind == MAPS:
            self._map_kind, self._map_keys = make_map_keys(descriptor, whose)
        self._has_life = has_life
        ttl = find_ttl(descriptor, newest)
        self._life_ms = None if ttl is None else ttl.duration_ms
        self.is_one_to_one = self._kind != LISTS

    @property
    def fields(self) -> list[pa.Field]:
        """See StateCodec."""
        entry = [pa.field("index", pa.int64())] if self._kind == LISTS else []
        if self._map_kind is not None:
            entry = [pa.field("map_key", self._map_kind)]
        life = [pa.field("written_at", INSTANTS), pa.field("expires_at", INSTANTS)] if self._has_life else []
        return [self._key_field, *entry, pa.field("value", self._codec.kind), *life]

    def decode(self, rows: Sequence[StoredRow]) -> Decoded:
        """See StateCodec; the heads of lists give no rows."""
        keys, positions = self.decode_keys(rows)
        lives, values = _without_stamps([rows[position].value for position in positions.tolist()])
        columns = [*keys, self._codec.decode_column(values)]
        if self._has_life:
            columns += [_instants(lives), _instants([_expiry(written, self._life_ms) for written in lives])]
        return Decoded(columns, positions)

    def decode_keys(self, rows: Sequence[StoredRow]) -> Decoded:
        """See StateCodec; the heads of lists give no rows."""
        read = self._keys.plain.read
        keys, entries, positions = [], [], []
        for position, row in enumerate(rows):
            key, end = read(row.key)
            if end == len(row.key) and self._kind == LISTS:
                continue
            keys.append(key)
            entries.append(row.key[end:])
            positions.append(position)
        return Decoded([self._key_column(keys), *self._entry_columns(entries)], np.array(positions, np.int64))

    def build_value(self, columns: pa.Table, _wanted: Wanted) -> Any:  # noqa: ANN401 - see StateCodec
        """See StateCodec: a list for a list state, a dict for a map state."""
        values = python_values(columns["value"].combine_chunks())
        if self._kind == LISTS:
            return values
        if self._kind == MAPS:
            return dict(zip(map(hashable, python_values(columns["map_key"].combine_chunks())), values, strict=True))
        return values[0] if values else None

    def _entry_columns(self, entries: Sequence[bytes]) -> list[pa.Array]:
        if self._map_keys is not None:
            return self._map_keys.decode_columns(entries)
        size = SEQUENCE.size if self._kind == LISTS else 0
        damaged = next((entry for entry in entries if len(entry) != size), None)
        if damaged is not None:
            raise FormatError(f"{self._whose} must have {size} bytes after a key, got {damaged[:32].hex()!r}.")
        return [pa.array([SEQUENCE.unpack(entry)[0] for entry in entries], pa.int64())] if size else []


class KeyedTimers(_KeyedRows):
    """The rows of timers. See StateCodec."""

    def __init__(self, descriptor: Descriptor, name: str, whose: str) -> None:
        """``name``: of the declared Timers. Raises FormatError."""
        super().__init__(descriptor, whose)
        self._name = name
        self._clock = str(descriptor.key_encoder.get("clock", ""))

    @property
    def fields(self) -> list[pa.Field]:
        """See StateCodec."""
        return [
            self._key_field,
            pa.field("at", INSTANTS),
            pa.field("at_ms", pa.int64()),
            pa.field("namespace", pa.string()),
            pa.field("clock", pa.string()),
        ]

    def decode(self, rows: Sequence[StoredRow]) -> Decoded:
        """See StateCodec."""
        keys, at_us, namespaces = [], [], []
        for row in rows:
            try:
                instant, begin = read_instant(row.key)
            except FormatError as problem:
                raise FormatError(f"{self._whose}: {problem.message}") from problem
            key, end = self._keys.plain.read(row.key, begin)
            keys.append(key)
            at_us.append(instant)
            try:
                namespaces.append(row.key[end:].decode())
            except UnicodeDecodeError as problem:
                raise FormatError(
                    f"{self._whose} has the namespace {row.key[end:][:32].hex()!r}, which is not UTF-8."
                ) from problem
        at_ms = pa.array(list(map(round_up_ms, at_us)), pa.int64())
        columns = [self._key_column(keys), _timestamps(at_us), at_ms]
        texts = [pa.array(namespaces, pa.string()), pa.array([self._clock] * len(rows), pa.string())]
        return Decoded([*columns, *texts], np.arange(len(rows)))

    def decode_keys(self, rows: Sequence[StoredRow]) -> Decoded:
        """See StateCodec: all columns, since timers have no values."""
        return self.decode(rows)

    def build_value(self, columns: pa.Table, _wanted: Wanted) -> Any:  # noqa: ANN401 - see StateCodec
        """See StateCodec: timers, sorted by time."""
        columns = columns.append_column("us", columns["at"].cast(pa.int64()))
        rows = zip(*(columns[name].to_pylist() for name in ("namespace", "at_ms", "us")), strict=True)
        return [
            Timer(self._name, namespace, at_ms) if at_us is None else timer_at(self._name, namespace, at_us)
            for namespace, at_ms, at_us in rows
        ]


def find_ttl(*descriptors: Descriptor) -> TimeToLive | None:
    """Return the time to live from the first descriptor that has one. Pass the one of the rows' own store first.

    None if no descriptor has one, or if the first one says that rows live for ever now.
    """
    found = next((each.ttl for each in descriptors if each.ttl is not msgspec.UNSET), None)
    return None if found is None or found.has_ended else found


def has_ended(descriptor: Descriptor) -> bool:
    """Whether rows of a store once had a time to live, and live for ever now."""
    return descriptor.ttl is not msgspec.UNSET and descriptor.ttl.has_ended


def make_value_codec(own: Descriptor, newest: Descriptor, what: str, whose: str) -> ValueCodec:
    """Return a codec that reads values by all schemas of a store, as the last type of the program.

    ``what``: the descriptor's name for the values. Raises FormatError, InvalidInputError.
    """
    known, goal = _require(own, what, whose), _require(newest, what, whose)
    schemas, target = list(known.schemas), goal.schemas[goal.current - 1]
    if target not in schemas:
        schemas.append(target)
    aliases = {} if newest.aliases is msgspec.UNSET else newest.aliases
    return EvolvedCodec([arrow_type(schema) for schema in schemas], schemas.index(target) + 1, aliases, whose)


def make_map_keys(descriptor: Descriptor, whose: str) -> tuple[pa.DataType, KeyCodec]:
    """Return the type and the codec of the keys of a map. Raises FormatError."""
    keys = _require(descriptor, "key", whose)
    kind = arrow_type(keys.schemas[keys.current - 1])
    return kind, KeyCodec([kind], f"a key of a map of {whose}")


def _require(descriptor: Descriptor, what: str, whose: str) -> Schemas:
    found = read_schemas(descriptor, what, whose)
    if found is None:
        raise FormatError(f"The metadata of {whose} has no type for its {what}.")
    return found


def _without_stamps(stored: Sequence[bytes]) -> tuple[list[int | None], list[bytes]]:
    pairs = list(map(split_stamp, stored))
    return [written for written, _ in pairs], [value for _, value in pairs]


def _expiry(written_ms: int | None, life_ms: int | None) -> int | None:
    """Return when a row expires; None if it has no time, or waits for the first watermark."""
    return None if not written_ms or life_ms is None else written_ms + life_ms


def _instants(milliseconds: Sequence[int | None]) -> pa.Array:
    """Return milliseconds since 1970 as instants; null if a timestamp cannot hold them."""
    return _timestamps([None if ms is None else ms * 1000 for ms in milliseconds])


def _timestamps(microseconds: Sequence[int | None]) -> pa.Array:
    """Return microseconds since 1970 as instants; null if a timestamp cannot hold them."""
    micros = [None if each is None or abs(each) > _LAST_US else each for each in microseconds]
    return pa.array(micros, pa.int64()).cast(INSTANTS)
