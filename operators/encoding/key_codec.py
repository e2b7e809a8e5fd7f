"""Keys as bytes that sort as the keys do. No key's bytes are a prefix of another key's.

A value begins with a byte: 0 for null, 1 otherwise. The rest depends on the type:

- a number: big-endian with its sign bit flipped; all bits of a negative float are flipped; -0.0 is written as 0.0,
  and every NaN as the same one, which sorts after infinity. Spark's RangeKeyScanStateEncoder orders numbers alike;
- an instant in microseconds, a date in days, a time of day in nanoseconds: as numbers;
- text and bytes: with ``00`` as ``00 FF``, then ``00 00``;
- a decimal: its unscaled value, as a number of 16 bytes;
- a struct: its fields;
- an array: ``01`` before each element, and ``00`` after the last.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.operators.encoding.value_codec import SHOWN_BYTES
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
from pyspark_ckpt.operators.types.conversions import EXACT
from pyspark_ckpt.operators.types.struct_values import field_names, get_fields, struct_maker
from pyspark_ckpt.operators.types.value_types import (
    BeyondPythonError,
    get_elements,
    reader,
    writer,
)
from pyspark_ckpt.state_store.arrays.order import in_order
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Encode: TypeAlias = Callable[[Any], bytes]
Decode: TypeAlias = Callable[[bytes, int], tuple[Any, int]]

_NULL, _PRESENT = b"\x00", b"\x01"
_ENDS = b"\x00\x00"
_DECIMAL_BYTES = 16
_ESCAPED = 0xFF


class KeyCodec:
    """Converts keys, tuples of values of the given types, to bytes and back."""

    def __init__(self, kinds: Sequence[pa.DataType], what: str = "a key") -> None:
        """``what``: the name of the key in errors. Raises InvalidInputError (a type that cannot be part of a key)."""
        self._kinds = tuple(kinds)
        self._what = what
        self._told = self._kinds
        self._encoders = [_encoder(kind) for kind in kinds]
        self._decoders = [_decoder(kind) for kind in kinds]
        self.width: int | None = None
        """The number of bytes of every key, if all types have a fixed width."""
        if all(map(is_fixed_width, kinds)):
            self.width = sum(1 + np.dtype(number_type(kind)).itemsize for kind in kinds)

    @cached_property
    def is_simple(self) -> bool:
        """Whether the values of a key cannot change, and equal ones have the same bytes: see ``normalise``."""
        return not any(pa.types.is_nested(kind) or pa.types.is_floating(kind) for kind in self._kinds)

    @cached_property
    def plain(self) -> KeyCodec:
        """The codec of the same bytes with dates and instants as numbers. See ``plain_type``."""
        kinds = tuple(map(plain_type, self._kinds))
        if kinds == self._kinds:
            return self
        codec = KeyCodec(kinds, self._what)
        codec._told = self._kinds
        return codec

    def encode(self, values: Sequence[Any]) -> bytes:
        """Return the bytes of one key. Raises TypeError, ValueError, AttributeError, struct.error (a wrong type)."""
        return b"".join([encode(value) for encode, value in zip(self._encoders, values, strict=True)])

    def read(self, stored: bytes, at: int = 0) -> tuple[tuple[Any, ...], int]:
        """Return the key whose bytes begin at ``at``, and where they end.

        Raises FormatError (not a key of these types), InvalidInputError (a value that Python cannot hold).
        """
        values = []
        end = at
        try:
            for decode in self._decoders:
                value, end = decode(stored, end)
                values.append(value)
        except BeyondPythonError as problem:
            unheld = f"{self._what} has {problem}, which Python cannot hold."
            raise InvalidInputError(unheld, hint=AS_ARROW) from problem
        except (IndexError, ValueError, OverflowError, struct.error) as problem:
            raise self._damage(stored, at, problem) from problem
        if end > len(stored):
            raise self._damage(stored, at, "it is cut off")
        return tuple(values), end

    def decode(self, stored: bytes) -> tuple[Any, ...]:
        """Return the key of these bytes. Raises as ``read`` does."""
        values, end = self.read(stored)
        if end != len(stored):
            raise self._damage(stored, 0, f"it ends after {end} bytes")
        return values

    def _damage(self, stored: bytes, at: int, problem: object) -> FormatError:
        shown = stored[at : at + SHOWN_BYTES].hex() + ("..." if len(stored) > at + SHOWN_BYTES else "")
        kinds = ", ".join(map(str, self._told))
        return FormatError(f"{self._what} is stored as {shown!r}, which is not of type {kinds}: {problem}.")

    def encode_columns(self, columns: Sequence[pa.Array]) -> list[bytes]:
        """Return the bytes of all keys in some columns, without a Python loop if all types have a fixed width."""
        return self.encode_packed(columns).strings()

    def decode_columns(self, stored: Sequence[bytes]) -> list[pa.Array]:
        """Return the inverse of ``encode_columns``, also for values that Python cannot hold. Raises FormatError."""
        return self.to_columns(list(map(self.plain.decode, stored)))

    def to_columns(self, keys: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
        """Return keys that ``plain`` has read as columns."""
        return [arrow_of_plain([key[n] for key in keys], kind) for n, kind in enumerate(self._kinds)]

    def encode_packed(self, columns: Sequence[pa.Array]) -> Packed:
        """Return ``encode_columns`` as columns."""
        parts = [self._column(column, n) for n, column in enumerate(columns)]
        if all(isinstance(part, np.ndarray) for part in parts):
            return Packed.of_matrix(np.hstack(parts))
        rows = [
            part.view(f"V{part.shape[1]}").ravel().tolist() if isinstance(part, np.ndarray) else part for part in parts
        ]
        return Packed.of([b"".join(pieces) for pieces in zip(*rows, strict=True)])

    def _column(self, column: pa.Array, n: int) -> NDArray[np.uint8] | list[bytes]:
        kind = self._kinds[n]
        if is_fixed_width(kind):
            present = validity(column).astype(np.uint8)[:, None]
            return np.ascontiguousarray(np.hstack([present, _sortable(kind, to_numbers(column)) * present]))
        return list(map(self.plain._encoders[n], plain_values(column)))  # noqa: SLF001 - it is of the same class


_IN_ARROWS_ORDER = (
    pa.types.is_signed_integer,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_string,
)
"""Types that Arrow sorts as Spark does, several times as fast as by encoded keys. Floats are not: they may be NaN."""


def argsort(columns: Sequence[pa.Array]) -> NDArray[np.int64]:
    """Return the positions of rows in Spark's ascending order of these columns; equal rows keep their order.

    Null comes first, -0.0 equals 0.0, NaN is the greatest. Raises InvalidInputError (a type that has no order).
    """
    if all(any(matches(column.type) for matches in _IN_ARROWS_ORDER) for column in columns):
        sorted_by: list[pa.Array] = []
        for column in columns:
            sorted_by += [pc.is_valid(column).cast(pa.int8())] if column.null_count else []  # null comes first
            sorted_by.append(column)
        table = pa.Table.from_arrays(sorted_by, names=list(map(str, range(len(sorted_by)))))
        order = pc.sort_indices(table, [(name, "ascending") for name in table.column_names])
        return np.asarray(order.to_numpy(), np.int64)
    return in_order(KeyCodec([column.type for column in columns]).encode_packed(columns))[0]


def argsort_rows(rows: pa.Table, names: Sequence[str]) -> NDArray[np.int64]:
    """Return the positions of rows in the order of some of their columns: see ``argsort``."""
    return argsort([rows.column(name).combine_chunks() for name in names])


def normalise(column: pa.Array) -> pa.Array:
    """Return a column whose floats, also nested ones, have one zero and one NaN, as Spark compares keys."""
    if pa.types.is_floating(column.type):
        return from_numbers(column.type, _comparable(to_numbers(column)), validity(column))
    if not _has_floats(column.type):
        return column
    codec = KeyCodec([column.type])
    return codec.decode_columns(codec.encode_columns([column]))[0]


def _comparable(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return floats with one zero and one NaN."""
    with np.errstate(invalid="ignore"):  # a signalling NaN is valid as well
        comparable = numbers + 0.0
    comparable[np.isnan(comparable)] = np.nan
    return comparable


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_floats(kind.field(n).type) for n in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def _sortable(kind: pa.DataType, numbers: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of numbers, one row each, which sort as the numbers do."""
    width = numbers.dtype.itemsize
    if pa.types.is_boolean(kind):
        return numbers.astype(np.uint8)[:, None]
    if not pa.types.is_floating(kind):
        rows = numbers.astype(f">i{width}").view(np.uint8).reshape(-1, width)
        rows[:, 0] ^= 0x80
        return rows
    bits = _comparable(numbers).view(f"<i{width}")
    flipped = np.where(bits < 0, ~bits, bits ^ np.iinfo(bits.dtype).min)
    return flipped.astype(f">i{width}").view(np.uint8).reshape(-1, width)


def _encoder(kind: pa.DataType) -> Encode:
    if pa.types.is_null(kind):
        return _encode_nothing
    body = _body_encoder(kind)
    nothing = _NULL + bytes(np.dtype(number_type(kind)).itemsize) if is_fixed_width(kind) else _NULL
    return lambda value: nothing if value is None else _PRESENT + body(value)


def _encode_nothing(value: Any) -> bytes:
    if value is not None:
        raise TypeError(f"{value!r} is not None")
    return _NULL


def _body_encoder(kind: pa.DataType) -> Encode:
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        text = writer(kind)
        if pa.types.is_string(kind):
            return lambda value: text(value).encode().replace(b"\x00", b"\x00\xff") + _ENDS
        return lambda value: text(value).replace(b"\x00", b"\x00\xff") + _ENDS
    if is_fixed_width(kind):
        write, dtype = writer(kind), np.dtype(number_type(kind))
        if pa.types.is_floating(kind):
            return lambda value: _sortable(kind, np.array([write(value)], dtype)).tobytes()
        if pa.types.is_boolean(kind):
            return lambda value: b"\x01" if write(value) else b"\x00"
        flip, width = 1 << (dtype.itemsize * 8 - 1), dtype.itemsize
        return lambda value: int(write(value) + flip).to_bytes(width, "big")
    if pa.types.is_decimal(kind):
        write = writer(kind)
        return lambda value: (
            int(Decimal(write(value)).scaleb(kind.scale, EXACT)) + (1 << (_DECIMAL_BYTES * 8 - 1))
        ).to_bytes(_DECIMAL_BYTES, "big")
    if pa.types.is_struct(kind):
        return _struct_encoder(kind)
    if pa.types.is_list(kind):
        element = _encoder(kind.value_type)
        return lambda value: b"".join([_PRESENT + element(each) for each in get_elements(value)]) + _NULL
    raise InvalidInputError(
        f"A value of type {kind} cannot be part of a key.", hint="Spark cannot group by it either; key by its parts."
    )


def _struct_encoder(kind: pa.StructType) -> Encode:
    names, fields = field_names(kind), [_encoder(field.type) for field in kind]

    return lambda value: b"".join([field(each) for field, each in zip(fields, get_fields(value, names), strict=True)])


def _decoder(kind: pa.DataType) -> Decode:
    body = _body_decoder(kind)
    skipped = 1 + (np.dtype(number_type(kind)).itemsize if is_fixed_width(kind) else 0)

    def decode(stored: bytes, at: int) -> tuple[Any, int]:
        return body(stored, at + 1) if _is_marked(stored, at) else (None, at + skipped)

    return decode


def _decode_nothing(_stored: bytes, _at: int) -> tuple[Any, int]:
    raise ValueError("there is no value of type void")


def _is_marked(stored: bytes, at: int) -> bool:
    """Whether a value or one more element follows. Raises IndexError, ValueError."""
    mark = stored[at]
    if mark > 1:
        raise ValueError(f"the mark before a value must be 0 or 1, got {mark:#04x}")
    return mark == 1


def _body_decoder(kind: pa.DataType) -> Decode:
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _text_decoder(is_text=pa.types.is_string(kind))
    if is_fixed_width(kind):
        return _number_decoder(kind)
    if pa.types.is_null(kind):
        return _decode_nothing
    if pa.types.is_decimal(kind):
        return _decimal_decoder(kind)
    if pa.types.is_struct(kind):
        make, fields = struct_maker(kind), [_decoder(field.type) for field in kind]

        def decode_struct(stored: bytes, at: int) -> tuple[Any, int]:
            values = []
            for field in fields:
                value, at = field(stored, at)
                values.append(value)
            return make(values), at

        return decode_struct
    element = _decoder(kind.value_type)

    def decode_list(stored: bytes, at: int) -> tuple[Any, int]:
        values = []
        while _is_marked(stored, at):
            value, at = element(stored, at + 1)
            values.append(value)
        return values, at + 1

    return decode_list


def _decimal_decoder(kind: pa.DataType) -> Decode:
    most, zero = 10**kind.precision, 1 << (_DECIMAL_BYTES * 8 - 1)

    def decode(stored: bytes, at: int) -> tuple[Any, int]:
        unscaled = int.from_bytes(stored[at : at + _DECIMAL_BYTES], "big") - zero
        if not -most < unscaled < most:
            raise ValueError(f"it has more than {kind.precision} digits")
        return Decimal(unscaled).scaleb(-kind.scale, EXACT), at + _DECIMAL_BYTES

    return decode


def _text_decoder(*, is_text: bool) -> Decode:
    def decode(stored: bytes, at: int) -> tuple[Any, int]:
        end = stored.index(b"\x00", at)
        while mark := stored[end + 1]:
            if mark != _ESCAPED:
                raise ValueError(f"{mark:#04x} follows a zero, where only 0x00 or 0xff may")
            end = stored.index(b"\x00", end + 2)
        value = stored[at:end].replace(b"\x00\xff", b"\x00")
        return value.decode() if is_text else value, end + 2

    return decode


def _number_decoder(kind: pa.DataType) -> Decode:
    read, width = reader(kind), np.dtype(number_type(kind)).itemsize
    flip = 1 << (width * 8 - 1)
    if pa.types.is_boolean(kind):
        return lambda stored, at: (_is_marked(stored, at), at + 1)
    if pa.types.is_floating(kind):
        layout = struct.Struct(">d" if width == 8 else ">f")  # noqa: PLR2004

        def decode_float(stored: bytes, at: int) -> tuple[Any, int]:
            bits = int.from_bytes(stored[at : at + width], "big")
            bits = bits ^ flip if bits & flip else ~bits & (2 * flip - 1)
            return layout.unpack(bits.to_bytes(width, "big"))[0], at + width

        return decode_float
    return lambda stored, at: (read(int.from_bytes(stored[at : at + width], "big") - flip), at + width)
