"""Rows that Spark's RocksDB provider stores as Avro, as rows of this store, and back.

::

    Spark, value          00 · id of the schema:u16le · Avro
    Spark, whole key      00 · 0:u16le · Avro
    Spark, prefix scan    bytes of the first part:u32le · 00 Avro of the prefix · 00 · 0:u16le · Avro of the others
    Spark, range scan     the same; the first part is a record with two columns for each ordered one: a byte for the
                          sign, and the number
    this store, value     id of the schema:u16be · UnsafeRow
    this store, key       as ``reading/rows/native_rows.py`` says: UnsafeRows

Source: ``AvroStateEncoder`` of Spark 4.3. It is the form of ``transformWithState`` alone: Spark starts no query
with another operator and this encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_ckpt.offline.adopting.avro_records import read_records, refuse_columns, write_records
from pyspark_ckpt.offline.reading.rows.native_rows import NativeRows
from pyspark_ckpt.offline.reading.rows.ordered_columns import read_ordered, write_ordered
from pyspark_ckpt.offline.reading.rows.state_codec import StoredRow
from pyspark_ckpt.offline.writing.native.encoder import encode_key_columns
from pyspark_ckpt.operators.encoding.unsafe_rows import read_rows
from pyspark_ckpt.operators.encoding.unsafe_writer import write_rows
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.meta import StateMeta

_VERSION = b"\x00"
_SPARKS_ID, _ID = struct.Struct("<H"), struct.Struct(">H")
_KEY_ID = _SPARKS_ID.pack(0)
"""Spark refuses other columns of a key, so that these have the first id for ever."""
_SIZE = struct.Struct("<I")
_WHOLE, _PREFIX, _RANGE = (f"{kind}StateEncoderSpec" for kind in ("NoPrefixKey", "PrefixKeyScan", "RangeKeyScan"))

Convert: TypeAlias = Callable[[Sequence[pa.Field], Sequence[bytes]], list[bytes]]


class AvroRows:
    """The keys and values of one state. Methods raise ValueError and pa.ArrowException for rows that do not fit."""

    def __init__(self, state: StateMeta, name: str, whose: str) -> None:
        """``name``: of the state, or of a store with only one. ``whose``: the state's name in errors.

        Raises FormatError, InvalidInputError (columns that are not stored as Avro).
        """
        self._whose = whose
        self._codec = NativeRows(state.descriptor, name, whose)
        self._kind = self._codec.encoder.keyStateEncoderType
        if self._kind not in (_WHOLE, _PREFIX, _RANGE) or not self._codec.schemas:
            raise InvalidInputError(f"{whose} cannot be Avro: its keys have the encoder {self._kind!r}.")
        for fields in (self._codec.key_fields, *self._codec.schemas):
            refuse_columns(fields, whose)

    def read_keys(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return Spark's keys as this store has them."""
        if self._kind == _WHOLE:
            columns = read_records(self._codec.key_fields, [_strip(key, _VERSION + _KEY_ID) for key in keys])
        else:
            parts = list(map(_split, keys))
            firsts = [_strip(first, _VERSION) for first, _ in parts]
            others = read_records(self._other_fields, [_strip(rest, _VERSION + _KEY_ID) for _, rest in parts])
            columns = self._join(self._read_prefix(firsts), others)
        return encode_key_columns(self._codec, columns, len(keys), self._whose).strings()

    def write_keys(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return keys of this store as Spark has them."""
        (decoded,) = self._codec.decode_keys([StoredRow(0, key, b"") for key in keys]).columns
        columns = decoded.flatten()
        if self._kind == _WHOLE:
            return write_records(columns, len(keys)).prefix(_VERSION + _KEY_ID).strings()
        own = self._ordinals
        rest = [column for n, column in enumerate(columns) if n not in own]
        firsts = self._write_prefix([columns[n] for n in own], len(keys)).prefix(_VERSION).strings()
        others = write_records(rest, len(keys)).prefix(_VERSION + _KEY_ID).strings()
        return [_SIZE.pack(len(first)) + first + other for first, other in zip(firsts, others, strict=True)]

    def read_values(self, values: Sequence[bytes]) -> list[bytes]:
        """Return Spark's single values as this store has them."""

        def convert(fields: Sequence[pa.Field], records: Sequence[bytes]) -> list[bytes]:
            return write_rows(read_records(fields, records), len(records)).strings()

        found = [_strip(value, _VERSION) for value in values]
        return self._by_schema(found, _SPARKS_ID, _ID, convert)

    def write_values(self, values: Sequence[bytes]) -> list[bytes]:
        """Return single values of this store as Spark has them."""

        def convert(fields: Sequence[pa.Field], rows: Sequence[bytes]) -> list[bytes]:
            return write_records(read_rows(rows, pa.schema(fields)).columns, len(rows)).strings()

        return [_VERSION + value for value in self._by_schema(values, _ID, _SPARKS_ID, convert)]

    def _by_schema(
        self, values: Sequence[bytes], before: struct.Struct, after: struct.Struct, convert: Convert
    ) -> list[bytes]:
        """Convert the values of each schema together. ``before``, ``after``: how its id is written."""
        if any(len(value) < before.size for value in values):
            raise ValueError("a value ends within the id of its schema")
        ids = np.array([before.unpack_from(value)[0] for value in values], np.int64)
        found = [b""] * len(values)
        for number in np.unique(ids).tolist():
            if number >= len(self._codec.schemas):
                raise FormatError(
                    f"{self._whose} has a value of schema {number}, but the last schema is "
                    f"{len(self._codec.schemas) - 1}."
                )
            where = np.flatnonzero(ids == number).tolist()
            rows = convert(self._codec.schemas[number], [values[n][before.size :] for n in where])
            for n, row in zip(where, rows, strict=True):
                found[n] = after.pack(number) + row
        return found

    @property
    def _ordinals(self) -> list[int]:
        """The columns of the first part of a key."""
        encoder = self._codec.encoder
        return list(range(encoder.numColsPrefixKey)) if self._kind == _PREFIX else list(encoder.orderingOrdinals)

    @property
    def _other_fields(self) -> list[pa.Field]:
        own = self._ordinals
        return [field for n, field in enumerate(self._codec.key_fields) if n not in own]

    def _join(self, firsts: Sequence[pa.Array], others: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the columns of keys in their order."""
        own, rest = dict(zip(self._ordinals, firsts, strict=True)), iter(others)
        return [own[n] if n in own else next(rest) for n in range(len(self._codec.key_fields))]

    def _read_prefix(self, firsts: Sequence[bytes]) -> list[pa.Array]:
        fields = [self._codec.key_fields[n] for n in self._ordinals]
        if self._kind == _PREFIX:
            return read_records(fields, firsts)
        halves = read_records([pa.field("", pa.binary())] * (2 * len(fields)), firsts)
        return [read_ordered(_add(halves[2 * n], halves[2 * n + 1]), field.type) for n, field in enumerate(fields)]

    def _write_prefix(self, columns: Sequence[pa.Array], count: int) -> Packed:
        if self._kind == _PREFIX:
            return write_records(columns, count)
        stored = [write_ordered(column).to_pylist() for column in columns]
        halves = [pa.array([each[part] for each in own]) for own in stored for part in (slice(0, 1), slice(1, None))]
        return write_records([half.cast(pa.binary()) for half in halves], count)


def _add(marks: pa.Array, numbers: pa.Array) -> pa.Array:
    pairs = zip(marks.to_pylist(), numbers.to_pylist(), strict=True)
    return pa.array([(mark or b"") + (number or b"") for mark, number in pairs], pa.binary())


def _strip(stored: bytes, head: bytes) -> bytes:
    if not stored.startswith(head):
        raise ValueError(f"a row begins with {stored[: len(head)].hex()!r}, not with {head.hex()!r}")
    return stored[len(head) :]


def _split(key: bytes) -> tuple[bytes, bytes]:
    (size,) = _SIZE.unpack_from(key)
    if _SIZE.size + size > len(key):
        raise ValueError(f"the first part of a key should have {size} bytes, but the whole key has {len(key)}")
    return key[_SIZE.size : _SIZE.size + size], key[_SIZE.size + size :]
