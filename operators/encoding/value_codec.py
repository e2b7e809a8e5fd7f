"""Values of keyed state as bytes: packed if every field has a fixed width, otherwise msgpack. Never pickle.

A value begins with a byte, 1 to 127: the number of the state's schema by which it was written. A packed value then has
a byte for each field, 1 if the field is not null, and the fields, little-endian. Whole columns are written and read at
once. All other values are one msgpack value: structs as arrays of their fields, maps as arrays of pairs, dates as days,
instants as microseconds, times of day as nanoseconds, decimals as text.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from typing_extensions import override

from pyspark_ckpt.operators.types.columns import (
    AS_ARROW,
    arrow_of_plain,
    from_numbers,
    is_fixed_width,
    number_type,
    plain_type,
    plain_values,
    to_numbers,
    validity,
)
from pyspark_ckpt.operators.types.struct_values import field_names, get_fields, struct_class, struct_maker
from pyspark_ckpt.operators.types.value_types import BeyondPythonError, message_type, reader, writer
from pyspark_ckpt.state_store.arrays.cells import Cells
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.json_objects import DAMAGE

MAX_SCHEMAS = 127
SHOWN_BYTES = 32
_LETTERS = {"<i1": "b", "<i2": "h", "<i4": "i", "<i8": "q", "<f2": "e", "<f4": "f", "<f8": "d"}


class ValueCodec(ABC):
    """Converts values of one Arrow type to bytes and back, as schema number ``schema``."""

    def __init__(self, kind: pa.DataType, schema: int = 1, whose: str = "a state") -> None:
        """Write as schema number ``schema``, 1 to 127. ``whose``: the name of the state in errors."""
        self.kind = kind
        self._schema = schema
        self._whose = whose
        self._told = kind

    @cached_property
    def plain(self) -> ValueCodec:
        """The codec of the same bytes with dates and instants as numbers. See ``plain_type``."""
        kind = plain_type(self.kind)
        if kind == self.kind:
            return self
        codec = make_value_codec(kind, self._schema, self._whose)
        codec._told = self.kind  # noqa: SLF001 - it is of the same class
        return codec

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Return the bytes of a Python value, not None. Raises TypeError, ValueError, AttributeError, struct.error."""

    @abstractmethod
    def decode(self, stored: bytes) -> Any:
        """Return the value of stored bytes.

        Raises FormatError (not a value of this type), InvalidInputError (a value that Python cannot hold).
        """

    @abstractmethod
    def encode_packed(self, values: pa.Array) -> Packed:
        """Return the bytes of all values of a column, in order. The caller must replace the bytes of nulls."""

    def encode_cells(self, values: pa.Array) -> Cells:
        """Return ``encode_packed`` as cells; null is absent."""
        there, stored = validity(values), self.encode_packed(values)
        return Cells(stored if there.all() else Packed(stored.data, stored.at, stored.size * there), there)

    def decode_cells(self, stored: Cells) -> pa.Array:
        """Return ``decode_column`` of cells; absent becomes null."""
        return self.decode_column(stored.strings())

    @abstractmethod
    def decode_column(self, stored: Sequence[bytes | None]) -> pa.Array:
        """Return the column of stored bytes; None becomes null. Raises FormatError as ``decode`` does."""

    def _damage(self, stored: bytes, problem: object) -> FormatError:
        shown = stored[:SHOWN_BYTES].hex() + ("..." if len(stored) > SHOWN_BYTES else "")
        return FormatError(f"A stored value of {self._whose}, {shown!r}, is not of type {self._told}: {problem}.")

    def _unheld(self, problem: BeyondPythonError) -> InvalidInputError:
        return InvalidInputError(f"A value of {self._whose} has {problem}, which Python cannot hold.", hint=AS_ARROW)


def make_value_codec(kind: pa.DataType, schema: int = 1, whose: str = "a state") -> ValueCodec:
    """Return the codec of a type: packed if all its fields have a fixed width."""
    fields = list(kind) if pa.types.is_struct(kind) else [pa.field("value", kind)]
    packed = fields and all(is_fixed_width(field.type) for field in fields)
    return PackedCodec(kind, schema, whose) if packed else MessageCodec(kind, schema, whose)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _find_number_type(kind: pa.DataType) -> type | None:
    """Return the Python type whose values are stored as they are, if they fit; None if there is no such type."""
    return int if pa.types.is_signed_integer(kind) else float if pa.types.is_float64(kind) else None


class PackedCodec(ValueCodec):
    """A number or a struct of numbers. Converts whole columns without a Python loop."""

    @override
    def __init__(self, kind: pa.DataType, schema: int = 1, whose: str = "a state") -> None:
        super().__init__(kind, schema, whose)
        self._is_struct = pa.types.is_struct(kind)
        self._fields = list(kind) if self._is_struct else [pa.field("value", kind)]
        marks = [(f"has{n}", "u1") for n in range(len(self._fields))]
        numbers = [(f"f{n}", number_type(field.type)) for n, field in enumerate(self._fields)]
        self._row = np.dtype([("schema", "u1"), *marks, *numbers])
        self._struct = struct.Struct(f"<{1 + len(marks)}B{''.join(_LETTERS[each] for _, each in numbers)}")
        self._readers = [reader(field.type) for field in self._fields]
        self._make = struct_maker(kind) if self._is_struct else None
        self._names = field_names(kind) if self._is_struct else ()
        self._ordered = {tuple, struct_class(self._names)}
        self._whole = writer(kind)
        self._head_without_nulls = bytes([schema, *(1 for _ in marks)])
        self._numbers = struct.Struct(f"<{''.join(_LETTERS[each] for _, each in numbers)}")
        self._same_when_read = all(map(_is_number, (field.type for field in self._fields)))
        self._same_when_written = tuple(_find_number_type(field.type) for field in self._fields)

    @override
    def encode(self, value: Any) -> bytes:
        numbers = value if self._is_struct else (value,)
        if type(numbers) not in self._ordered:
            numbers = get_fields(numbers, self._names)
        if tuple(map(type, numbers)) == self._same_when_written:
            try:
                return self._head_without_nulls + self._numbers.pack(*numbers)
            except struct.error:
                pass  # a number that is too large: the error is of the writer, below
        fields = self._whole(numbers) if self._is_struct else [self._whole(value)]
        marks = [field is not None for field in fields]
        return self._struct.pack(self._schema, *marks, *(0 if field is None else field for field in fields))

    @override
    def decode(self, stored: bytes) -> Any:
        if self._same_when_read and len(stored) == self._row.itemsize and stored.startswith(self._head_without_nulls):
            numbers = self._numbers.unpack_from(stored, len(self._head_without_nulls))
            return numbers[0] if self._make is None else self._make(numbers)
        count = len(self._fields)
        try:
            schema, *content = self._struct.unpack(stored)
            values = [
                read(number) if present else None
                for read, present, number in zip(self._readers, content[:count], content[count:], strict=True)
            ]
        except BeyondPythonError as problem:
            raise self._unheld(problem) from problem
        except (struct.error, ValueError, OverflowError) as problem:
            raise self._damage(stored, problem) from problem
        if schema != self._schema:
            raise self._damage(stored, f"it is of schema {schema}, not {self._schema}")
        return values[0] if self._make is None else self._make(values)

    @override
    def encode_packed(self, values: pa.Array) -> Packed:
        rows = np.zeros(len(values), self._row)
        rows["schema"] = self._schema
        for n in range(len(self._fields)):
            column = values.field(n) if self._is_struct else values
            rows[f"has{n}"] = validity(column)
            rows[f"f{n}"] = to_numbers(column)
        return Packed.of_matrix(rows.view(np.uint8).reshape(len(rows), self._row.itemsize))

    @override
    def decode_column(self, stored: Sequence[bytes | None]) -> pa.Array:
        return self.decode_cells(Cells.of(stored))

    @override
    def decode_cells(self, stored: Cells) -> pa.Array:
        width, there = self._row.itemsize, stored.there
        values = stored.values if there.all() else stored.values.take(there)
        if (values.size != width).any():
            value = values[int((values.size != width).argmax())]
            raise self._damage(value, f"it has {len(value)} bytes, not {width}")
        rows = values.matrix(width).reshape(-1).view(self._row)
        if (rows["schema"] != self._schema).any():
            value = values[int((rows["schema"] != self._schema).argmax())]
            raise self._damage(value, f"it is of schema {value[0]}, not {self._schema}")
        if len(rows) < len(stored):
            some, rows = rows, np.zeros(len(stored), self._row)
            rows[there] = some
        columns = [
            from_numbers(field.type, rows[f"f{n}"], rows[f"has{n}"].astype(np.bool_))
            for n, field in enumerate(self._fields)
        ]
        for column in columns:
            self._require_times(column, stored)
        if not self._is_struct:
            return columns[0]
        return pa.StructArray.from_arrays(columns, fields=self._fields, mask=pa.array(~there))

    def _require_times(self, column: pa.Array, stored: Cells) -> None:
        """Raise FormatError for a time outside of a day, which Arrow would accept."""
        if pa.types.is_time(column.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as problem:
                raise self._damage(stored.values[0], problem) from problem


class MessageCodec(ValueCodec):
    """Values of any other type, as msgpack."""

    @override
    def __init__(self, kind: pa.DataType, schema: int = 1, whose: str = "a state") -> None:
        super().__init__(kind, schema, whose)
        self._head = bytes([schema])
        self._write, self._read = writer(kind), reader(kind)
        self._encoder, self._decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(message_type(kind))

    @override
    def encode(self, value: Any) -> bytes:
        return self._head + self._encoder.encode(self._write(value))

    @override
    def decode(self, stored: bytes) -> Any:
        if not stored.startswith(self._head):
            raise self._damage(stored, f"it is not of schema {self._schema}")
        try:
            return self._read(self._decoder.decode(memoryview(stored)[1:]))
        except BeyondPythonError as problem:
            raise self._unheld(problem) from problem
        except (*DAMAGE, ValueError, OverflowError) as problem:
            raise self._damage(stored, problem) from problem

    @override
    def encode_packed(self, values: pa.Array) -> Packed:
        return Packed.of(list(map(self.plain.encode, plain_values(values))))

    @override
    def decode_column(self, stored: Sequence[bytes | None]) -> pa.Array:
        decode = self.plain.decode
        values = [None if value is None else decode(value) for value in stored]
        try:
            return arrow_of_plain(values, self.kind)
        except ValueError:
            for value, content in zip(values, stored, strict=True):
                self._require_column(value, content)
            raise

    def _require_column(self, value: Any, stored: bytes | None) -> None:
        """Raise FormatError for a value that Python can hold and a column cannot: a map with a null key."""
        try:
            arrow_of_plain([value], self.kind)
        except ValueError as problem:
            raise self._damage(stored or b"", problem) from problem
