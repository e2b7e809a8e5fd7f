"""Rows of Spark's own operators: UnsafeRow keys and values, in the layouts of Spark's key encoders.

Source of the layouts: ``RocksDBStateEncoder`` of Spark 4.3 and ``KeyCodec.scala``. Spark's encoders put a version, a
zero byte, before each UnsafeRow. Whole keys and values do not pass through them and have no version::

    whole row           UnsafeRow
    prefix scan         bytes of the prefix:u32le · 00 UnsafeRow of the prefix · 00 UnsafeRow of the other columns
    range scan          as prefix scan; the prefix is the ordered columns, each as bytes; the rest may be missing
    event time first    micros:u64, sign flipped · 00 UnsafeRow of the other columns
    event time last     00 UnsafeRow of the other columns · micros:u64, sign flipped

A value whose schema may evolve has the id of its schema, a u16be, before its UnsafeRow.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_ckpt.offline.reading.rows.evolved_values import decode_evolved
from pyspark_ckpt.offline.reading.rows.ordered_columns import read_ordered
from pyspark_ckpt.offline.reading.rows.state_codec import Decoded, StoredRow, Wanted, struct_column
from pyspark_ckpt.operators.encoding.column_hash import hash_columns
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.encoding.spark_hash import SparkHash
from pyspark_ckpt.operators.encoding.unsafe_rows import read_packed_rows
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.operators.types.stored_types import arrow_type
from pyspark_ckpt.operators.types.struct_values import get_fields
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.meta import Descriptor
from pyspark_ckpt.state_store.json_objects import DAMAGE, Count

_VERSION = b"\x00"
_LENGTH = struct.Struct("<I")
_VALUE_LENGTH = struct.Struct(">I")
_INSTANT = struct.Struct(">Q")
_SIGN = 1 << 63
_WORD = 8
_INDEXED = "keyWithIndexToValue"
_EXPIRING = "$ttl_"
_ENTRY = ["key", "userKey"]
_TIMED = ("TimestampAsPrefixKeyStateEncoderSpec", "TimestampAsPostfixKeyStateEncoderSpec")
EVENT_TIME = "__event_time"
"""Spark's name of the column, in microseconds. A row without an event time has a number from 0 to 1023 in it."""

Columns: TypeAlias = "list[pa.Array]"
DecodeKeys: TypeAlias = Callable[[Packed], Columns]


class NativeRows:
    """The rows of one state of one of Spark's own operators. See StateCodec."""

    def __init__(self, descriptor: Descriptor, name: str, whose: str) -> None:
        """``name``: the name of the state, or of a store with only one. ``whose``: the state's name in errors.

        Raises FormatError, InvalidInputError.
        """
        self._whose = whose
        self._schema_of_keys = descriptor.key_schema
        encoder = self.encoder = _encoder(descriptor.key_encoder, whose)
        self.key_fields = _key_fields(descriptor.key_schema, encoder, whose)
        self.value_fields = _fields(descriptor.value_schema, whose)
        self.schemas: list[list[pa.Field]] = [_fields(schema, whose) for schema in descriptor.value_schemas or ()]
        self.is_multiple = descriptor.multiple_values
        """Whether a key has a list of values: each of them is a row, with its place in the list."""
        self._decode_keys = self._key_decoder(encoder)
        self._placing = _placing_columns(name, encoder, len(self.key_fields))
        self._is_of_entries = name.startswith(_EXPIRING) and _are_entries(self.placing_fields)

    @property
    def placing_fields(self) -> list[pa.Field]:
        """See StateCodec."""
        return [self.key_fields[n] for n in self._placing]

    @property
    def fields(self) -> list[pa.Field]:
        """See StateCodec."""
        index = [pa.field("index", pa.int64())] if self.is_multiple else []
        return [pa.field("key", pa.struct(self.key_fields)), *index, pa.field("value", pa.struct(self.value_fields))]

    @property
    def is_one_to_one(self) -> bool:
        """See StateCodec."""
        return not self.is_multiple

    def decode(self, rows: Sequence[StoredRow]) -> Decoded:
        """See StateCodec; a key with several values has one row for each."""
        try:
            values, counts = self.split_values([row.value for row in rows])
            keys = struct_column(self.key_fields, self._decode_keys(_keys_of(rows)), len(rows))
            columns = self._value_columns(values)
        except (ValueError, IndexError, OverflowError, struct.error, pa.ArrowException) as problem:
            raise FormatError(f"{self._whose} has a row that does not fit its column types: {problem}.") from problem
        positions = np.repeat(np.arange(len(rows)), counts)
        shown = struct_column(self.value_fields, columns, len(values))
        if not self.is_multiple:
            return Decoded([keys, shown], positions)
        index = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
        return Decoded([keys.take(pa.array(positions)), pa.array(index, pa.int64()), shown], positions)

    def decode_keys(self, rows: Sequence[StoredRow]) -> Decoded:
        """See StateCodec; a key with several values has one row."""
        columns = self._read_keys(_keys_of(rows))
        return Decoded([struct_column(self.key_fields, columns, len(rows))], np.arange(len(rows)))

    def hash_keys(self, keys: Packed) -> npt.NDArray[np.uint32]:
        """Return the unsigned hashes that place stored keys, without the states' numbers and hashes in them.

        Raises FormatError, InvalidInputError (a collation).
        """
        return self.hash_columns(self._read_keys(keys), len(keys))

    def hash_columns(self, columns: Columns, count: int) -> npt.NDArray[np.uint32]:
        """Return the unsigned hashes that place ``count`` keys with these columns.

        Raises InvalidInputError (a collation).
        """
        self._refuse_collations()
        placing = [columns[n] for n in self._placing]
        return hash_columns([placing[0].field(0)] if self._is_of_entries else placing, count)

    def _read_keys(self, keys: Packed) -> Columns:
        try:
            return self._decode_keys(keys)
        except (ValueError, IndexError, OverflowError, struct.error, pa.ArrowException) as problem:
            raise FormatError(f"{self._whose} has a key that does not fit its column types: {problem}.") from problem

    def find_wanted(self, key: Sequence[Any]) -> Wanted:
        """See StateCodec."""
        self._refuse_collations()
        placing = [key[n] for n in self._placing] if len(key) == len(self.key_fields) else list(key)
        encoded = self._choose_codec(key).encode(key)
        kinds = [field.type for field in self.placing_fields]
        if self._is_of_entries:
            placing, kinds = [get_fields(placing[0], tuple(_ENTRY))[0]], [kinds[0].field(0).type]
        return Wanted(SparkHash(kinds)(placing), b"", tuple(key), encoded)

    def _refuse_collations(self) -> None:
        if "__COLLATIONS" in repr(self._schema_of_keys):
            raise InvalidInputError(
                f"{self._whose} has keys with a collation; only Spark can compute their hash, so keys cannot be found.",
                hint="Read the whole state and filter it.",
            )

    def has_key(self, row: Any, wanted: Wanted) -> bool:  # noqa: ANN401 - see StateCodec
        """See StateCodec."""
        is_whole = len(wanted.values) == len(self.key_fields)
        columns = list(row) if is_whole else [row[n] for n in self._placing]
        return self._choose_codec(wanted.values).encode(columns) == wanted.encoded

    def _choose_codec(self, values: Sequence[Any]) -> KeyCodec:
        """Return the codec of whole keys if there is a value for each column, else of the columns that place them."""
        fields = self.key_fields if len(values) == len(self.key_fields) else self.placing_fields
        return KeyCodec([field.type for field in fields], f"a key of {self._whose}")

    def build_value(self, columns: pa.Table, wanted: Wanted) -> Any:  # noqa: ANN401 - see StateCodec
        """See StateCodec; a list of values if the state can have several for the given columns."""
        values = python_values(columns["value"].combine_chunks())
        is_single = not self.is_multiple and len(wanted.values) == len(self.key_fields)
        return values if not is_single else values[0] if values else None

    def _value_columns(self, values: Sequence[bytes]) -> Columns:
        if self.schemas:
            return decode_evolved(self.schemas, values, _unsafe_columns)
        return _unsafe_columns(self.value_fields, values)

    def split_values(self, stored: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[int]]:
        """Return the single values in stored ones, and how many each stored one has."""
        if not self.is_multiple:
            return stored, [1] * len(stored)
        values: list[bytes] = []
        counts = []
        for value in stored:
            at, before = 0, len(values)
            while at < len(value):
                (size,) = _VALUE_LENGTH.unpack_from(value, at)
                at += _VALUE_LENGTH.size
                values.append(_slice(value, at, at + size))
                at += size
            counts.append(len(values) - before)
        return values, counts

    def _key_decoder(self, encoder: Encoder) -> DecodeKeys:
        kind, fields = encoder.keyStateEncoderType, self.key_fields
        if kind == "NoPrefixKeyStateEncoderSpec":
            return lambda keys: _columns_of(fields, keys)
        if kind == "PrefixKeyScanStateEncoderSpec":
            return lambda keys: _prefix_columns(fields, encoder.numColsPrefixKey, keys.strings())
        if kind == "RangeKeyScanStateEncoderSpec":
            return lambda keys: _range_columns(fields, encoder.orderingOrdinals, keys.strings())
        if kind == "TimestampAsPrefixKeyStateEncoderSpec":
            return lambda keys: _add_time_columns(fields, slice(0, _WORD), slice(_WORD, None), keys.strings())
        if kind == "TimestampAsPostfixKeyStateEncoderSpec":
            return lambda keys: _add_time_columns(fields, slice(-_WORD, None), slice(0, -_WORD), keys.strings())
        raise InvalidInputError(f"{self._whose} uses the key encoder {kind!r}, which this release cannot read.")


def _keys_of(rows: Sequence[StoredRow]) -> Packed:
    return Packed.of([row.key for row in rows])


class Encoder(msgspec.Struct):
    """Spark's JSON of a key encoder."""

    keyStateEncoderType: str  # noqa: N815 - Spark's names, here and below
    numColsPrefixKey: Count = 0  # noqa: N815
    orderingOrdinals: tuple[Count, ...] = ()  # noqa: N815


def _encoder(stored: Any, whose: str) -> Encoder:  # noqa: ANN401 - JSON
    try:
        return msgspec.convert(stored, Encoder)
    except DAMAGE as problem:
        raise FormatError(f"The stored key encoder of {whose} cannot be read: {repr(stored)[:200]}.") from problem


def _key_fields(schema: Any, encoder: Encoder, whose: str) -> list[pa.Field]:  # noqa: ANN401 - JSON
    """Return the columns of a key. An event time is part of the key, but not of its stored schema."""
    fields, ordinals = _fields(schema, whose), encoder.orderingOrdinals
    columns = len(fields)
    if encoder.numColsPrefixKey > columns or len(set(ordinals)) < len(ordinals) or max(ordinals, default=-1) >= columns:
        raise FormatError(f"The stored key encoder of {whose} does not fit its {columns} key columns: {encoder}.")
    return [*fields, pa.field(EVENT_TIME, pa.int64())] if encoder.keyStateEncoderType in _TIMED else fields


def _placing_columns(name: str, encoder: Encoder, columns: int) -> list[int]:
    """Return which columns of a key decide its partition, as ``PartitionKey.columns`` in the shim does."""
    everything, kind = list(range(columns)), encoder.keyStateEncoderType
    if kind == "PrefixKeyScanStateEncoderSpec":
        return everything[: encoder.numColsPrefixKey]
    if kind == "RangeKeyScanStateEncoderSpec":
        return [n for n in everything if n not in encoder.orderingOrdinals]
    return everything[:-1] if kind in _TIMED or name.endswith(_INDEXED) else everything


def _are_entries(placing: Sequence[pa.Field]) -> bool:
    """Whether the keys are those of map entries, of which the operator's key alone decides the partition."""
    parts = [part for field in placing if pa.types.is_struct(field.type) for part in field.type]
    return [part.name for part in parts] == _ENTRY and all(pa.types.is_struct(part.type) for part in parts)


def _fields(schema: Any, whose: str) -> list[pa.Field]:  # noqa: ANN401 - JSON
    """Return the columns in Spark's JSON of a struct; a repeated name gets a number as a suffix."""
    try:
        kind = arrow_type(_without_metadata(schema))
    except FormatError as problem:
        raise FormatError(f"The columns of {whose}: {problem.message}", hint=problem.hint) from problem
    if not pa.types.is_struct(kind):
        raise FormatError(f"The stored type of a row must be a struct, got {str(kind)[:200]!r}.")
    names: Counter[str] = Counter()
    fields = []
    for field in kind:
        names[field.name] += 1
        name = field.name if names[field.name] == 1 else f"{field.name}_{names[field.name]}"
        fields.append(pa.field(name, field.type))
    return fields


def _without_metadata(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """Return Spark's JSON of a type without metadata of fields: PySpark rejects the collations that Spark writes."""
    if isinstance(schema, list):
        return [_without_metadata(each) for each in schema]
    if isinstance(schema, dict):
        return {what: {} if what == "metadata" else _without_metadata(each) for what, each in schema.items()}
    return schema


def _unsafe_columns(fields: Sequence[pa.Field], rows: Sequence[bytes]) -> Columns:
    return _columns_of(fields, Packed.of(rows))


def _columns_of(fields: Sequence[pa.Field], rows: Packed) -> Columns:
    least = _WORD * (len(fields) + (len(fields) + 63) // 64)
    if ((rows.size % _WORD != 0) | (rows.size < least)).any():
        raise ValueError(f"an UnsafeRow of {len(fields)} fields must have at least {least} bytes, in words of 8")
    columns = list(read_packed_rows(rows, pa.schema(fields)).columns)
    for column in columns:
        column.validate(full=True)
    return columns


def _prefix_columns(fields: Sequence[pa.Field], count: int, keys: Sequence[bytes]) -> Columns:
    parts = list(map(_parts, keys))
    prefix = _unsafe_columns(fields[:count], [first for first, _ in parts])
    return prefix + _unsafe_columns(fields[count:], [rest for _, rest in parts])


def _range_columns(fields: Sequence[pa.Field], ordinals: Sequence[int], keys: Sequence[bytes]) -> Columns:
    parts = list(map(_parts, keys))
    ordered = [fields[n] for n in ordinals]
    stored = _unsafe_columns([pa.field(field.name, pa.binary()) for field in ordered], [first for first, _ in parts])
    found = {n: read_ordered(column, fields[n].type) for n, column in zip(ordinals, stored, strict=True)}
    others = [n for n in range(len(fields)) if n not in found]
    if others:
        rest = _unsafe_columns([fields[n] for n in others], [rest for _, rest in parts])
        found.update(zip(others, rest, strict=True))
    return [found[n] for n in range(len(fields))]


def _add_time_columns(fields: Sequence[pa.Field], instant: slice, row: slice, keys: Sequence[bytes]) -> Columns:
    micros = [_INSTANT.unpack(key[instant])[0] - _SIGN for key in keys]
    others = _unsafe_columns(fields[:-1], [_strip_version(key[row]) for key in keys])
    return [*others, pa.array(micros, pa.int64())]


def _parts(key: bytes) -> tuple[bytes, bytes]:
    """Split a key of two rows; the second may be missing."""
    end = _LENGTH.size + int(_LENGTH.unpack_from(key)[0])
    first, rest = _slice(key, _LENGTH.size, end), key[end:]
    return _strip_version(first), _strip_version(rest) if rest else b""


def _strip_version(stored: bytes) -> bytes:
    if not stored.startswith(_VERSION):
        raise ValueError(f"the version of a row must be '00', got {stored[:1].hex()!r}")
    return stored[1:]


def _slice(stored: bytes, begin: int, end: int) -> bytes:
    if end > len(stored):
        raise ValueError(f"a field should end at byte {end}, but there are only {len(stored)} bytes")
    return stored[begin:end]
