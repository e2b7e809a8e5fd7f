"""Avro's binary form of Spark's rows, many at once, as Spark writes them with ``stateStore.encodingFormat=avro``.

Spark derives the schema from the columns (``SchemaConverters.toAvroTypeWithDefaults`` of Spark 4.3): each column, and
each struct, array or map within them, is a union of null and its type. Elements of other types are not::

    union     0 for null, 1 and the value
    number    zigzag, seven bits a byte: Boolean one byte, float and double little-endian
    text      size, bytes
    decimal   big-endian, as many bytes as its precision needs
    array     blocks of a count and elements, up to a block of 0; a negative count has the block's bytes after it
    map       an array of keys, which are text, each with its value
    struct    its fields

Everything works on one value of all rows at a time. Read columns have no slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.types.columns import from_numbers, number_type, to_numbers, validity
from pyspark_ckpt.operators.types.stored_types import is_variant
from pyspark_ckpt.state_store.arrays.packed import Packed, side_by_side
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_MORE, _DIGIT_BITS, _MAX_DIGITS = 0x80, 7, 10
_DECIMAL_BYTES = 16
_NULL, _PRESENT = 0, 2
"""The branches of a union, as Avro writes them."""
_SIGN_BIT = 0x80


def refuse_columns(fields: Sequence[pa.Field], whose: str) -> None:
    """Raise InvalidInputError if Spark has no Avro for the type of a column."""
    for field in fields:
        if not _has_form(field.type):
            raise InvalidInputError(f"{whose}: Spark has no Avro for column {field.name!r} of type {field.type}.")


def _has_form(kind: pa.DataType, *, is_element: bool = False) -> bool:
    if is_variant(kind) or (pa.types.is_map(kind) and not pa.types.is_string(kind.key_type)):
        return False
    if pa.types.is_struct(kind):
        return all(_has_form(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _has_form(kind.item_type, is_element=True)
    if pa.types.is_list(kind):
        return _has_form(kind.value_type, is_element=True)
    if pa.types.is_null(kind):
        return not is_element  # it would take no bytes, and any number of them would fit
    is_time = pa.types.is_temporal(kind) and not (pa.types.is_date(kind) or pa.types.is_timestamp(kind))
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return is_text or pa.types.is_decimal(kind) or (pa.types.is_primitive(kind) and not is_time)


def read_records(fields: Sequence[pa.Field], records: Sequence[bytes]) -> list[pa.Array]:
    """Return the columns of records. Raises ValueError (a record does not fit), pa.ArrowException."""
    packed = Packed.of(records)
    data = np.concatenate([packed.data, np.zeros(_DECIMAL_BYTES, np.uint8)])
    cursor = _Cursor(data, packed.at.copy(), packed.at + packed.size)
    columns = [_read_nullable(field.type, cursor) for field in fields]
    if (wrong := cursor.at != cursor.end).any():
        raise ValueError(f"{wrong.sum()} of {len(records)} records of Avro have bytes after their end")
    return columns


def write_records(columns: Sequence[pa.Array], count: int) -> Packed:
    """Return ``count`` records with these columns. Raises InvalidInputError (a null that Spark cannot write)."""
    parts = [_write_nullable(column) for column in columns if not pa.types.is_null(column.type)]
    return side_by_side(*parts) if parts else Packed.of([b""] * count)


@dataclass
class _Cursor:
    """Where each of some records is read next, and where it ends."""

    data: NDArray[np.uint8]
    at: Words
    end: Words

    def take(self, which: Mask) -> _Cursor:
        return _Cursor(self.data, self.at[which], self.end[which])

    def pass_by(self, sizes: Words | int) -> Words:
        """Advance by some bytes, and return where they begin. Raises ValueError."""
        begin = self.at
        self.at = begin + sizes
        if (self.at > self.end).any() or (self.at < begin).any():
            raise ValueError("a value of Avro ends outside of its record")
        return begin

    def read_bytes(self, width: int) -> NDArray[np.uint8]:
        """Return the next bytes, as rows of a matrix. Raises ValueError."""
        found: NDArray[np.uint8] = self.data[self.pass_by(width)[:, None] + np.arange(width)]
        return found

    def read_numbers(self) -> Words:
        """Return the next numbers. Raises ValueError."""
        found = np.zeros(len(self.at), np.uint64)
        sizes = np.zeros(len(self.at), np.int64)
        active = np.arange(len(self.at))
        for digit in range(_MAX_DIGITS):
            places = self.at[active] + digit
            if (places >= self.end[active]).any():
                raise ValueError("a number of Avro ends outside of its record")
            byte = self.data[places].astype(np.uint64)
            found[active] |= (byte & np.uint64(_MORE - 1)) << np.uint64(_DIGIT_BITS * digit)
            sizes[active] += 1
            active = active[byte >= _MORE]
            if not len(active):
                self.at = self.at + sizes
                half = (found >> np.uint64(1)).view(np.int64)
                return half ^ -(found & np.uint64(1)).view(np.int64)
        raise ValueError("a number of Avro has more than 64 bits")


def _is_union(kind: pa.DataType) -> bool:
    """Whether an element of this type may be null."""
    return bool(pa.types.is_nested(kind))


def _read_nullable(kind: pa.DataType, cursor: _Cursor) -> pa.Array:
    if pa.types.is_null(kind):
        return pa.nulls(len(cursor.at))
    branches = cursor.read_numbers()
    if ((branches != 0) & (branches != 1)).any():
        raise ValueError("a union of Avro has a branch that is neither 0 nor 1")
    valid = branches == 1
    if valid.all():
        return _read(kind, cursor)
    some = cursor.take(valid)
    column = _read(kind, some)
    cursor.at[valid] = some.at
    places = np.maximum(np.cumsum(valid) - 1, 0)
    return column.take(pa.array(places, mask=~valid))


def _read_element(kind: pa.DataType, cursor: _Cursor) -> pa.Array:
    return _read_nullable(kind, cursor) if _is_union(kind) else _read(kind, cursor)


def _read(kind: pa.DataType, cursor: _Cursor) -> pa.Array:
    if pa.types.is_nested(kind):
        return _read_nested(kind, cursor)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _read_texts(kind, cursor)
    return _read_decimals(kind, cursor) if pa.types.is_decimal(kind) else _read_fixed(kind, cursor)


def _read_nested(kind: pa.DataType, cursor: _Cursor) -> pa.Array:
    if pa.types.is_struct(kind):
        columns = [_read_nullable(field.type, cursor) for field in kind]
        if not columns:
            return pa.array([{}] * len(cursor.at), kind)
        return pa.StructArray.from_arrays(columns, fields=list(kind))
    if pa.types.is_map(kind):
        offsets, (keys, items) = _read_blocks([pa.string(), kind.item_type], cursor)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind)
    offsets, (elements,) = _read_blocks([kind.value_type], cursor)
    return pa.ListArray.from_arrays(offsets, elements, type=kind)


def _read_texts(kind: pa.DataType, cursor: _Cursor) -> pa.Array:
    sizes = cursor.read_numbers()
    texts = Packed(cursor.data, cursor.pass_by(sizes), sizes).dense()
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
    column = pa.Array.from_buffers(kind, len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(texts.data)])
    column.validate(full=True)
    return column


def _read_fixed(kind: pa.DataType, cursor: _Cursor) -> pa.Array:
    everywhere = np.ones(len(cursor.at), np.bool_)
    if pa.types.is_boolean(kind):
        return from_numbers(kind, cursor.read_bytes(1)[:, 0], everywhere)
    if pa.types.is_floating(kind):
        width = int(kind.bit_width) // 8
        return from_numbers(kind, np.ascontiguousarray(cursor.read_bytes(width)).view(f"<f{width}")[:, 0], everywhere)
    numbers = cursor.read_numbers()
    narrow = numbers.astype(number_type(kind))
    if (narrow != numbers).any():
        raise ValueError(f"a number of Avro does not fit into {kind}")
    return from_numbers(kind, narrow, everywhere)


def _read_decimals(kind: pa.DataType, cursor: _Cursor) -> pa.Array:
    stored = cursor.read_bytes(count_decimal_bytes(kind.precision))
    content = np.zeros((len(stored), _DECIMAL_BYTES), np.uint8)
    content[stored[:, 0] >= _SIGN_BIT] = 0xFF
    content[:, : stored.shape[1]] = stored[:, ::-1]
    return pa.Array.from_buffers(kind, len(stored), [None, pa.py_buffer(content)])


def count_decimal_bytes(precision: int) -> int:
    """Return how many bytes hold each number of so many digits."""
    return int((10**precision).bit_length() // 8 + 1)


def _read_blocks(kinds: Sequence[pa.DataType], cursor: _Cursor) -> tuple[pa.Array, list[pa.Array]]:
    """Return the offsets of arrays, and the columns of their elements."""
    left = _begin_blocks(cursor)
    counts = np.zeros(len(left), np.int64)
    parts: list[list[pa.Array]] = [[pa.nulls(0, kind)] for kind in kinds]
    owners = [np.zeros(0, np.int64)]
    while len(active := np.flatnonzero(left)):
        here = left > 0
        some = cursor.take(here)
        for own, kind in zip(parts, kinds, strict=True):
            own.append(_read_element(kind, some))
        cursor.at[here] = some.at
        owners.append(active)
        counts[here] += 1
        left[here] -= 1
        ended = here & (left == 0)
        some = cursor.take(ended)
        left[ended] = _begin_blocks(some)
        cursor.at[ended] = some.at
    order = pa.array(np.argsort(np.concatenate(owners), kind="stable"))
    offsets = pa.array(np.append(0, np.cumsum(counts)).astype(np.int32))
    return offsets, [pa.concat_arrays(own).take(order) for own in parts]


def _begin_blocks(cursor: _Cursor) -> Words:
    """Return how many elements the next block of each array has."""
    counts = cursor.read_numbers()
    if (sized := counts < 0).any():
        some = cursor.take(sized)
        some.read_numbers()
        cursor.at[sized] = some.at
        counts = np.abs(counts)
    if (counts > cursor.end - cursor.at).any() or (counts < 0).any():
        raise ValueError("an array of Avro claims to have more elements than there are bytes")
    return counts


def _write_nullable(column: pa.Array) -> Packed:
    valid = validity(column)
    content = _write(column)
    heads = Packed.of_matrix(np.where(valid, _PRESENT, _NULL).astype(np.uint8)[:, None])
    return side_by_side(heads, Packed(content.data, content.at, np.where(valid, content.size, 0)))


def _write_element(column: pa.Array) -> Packed:
    if _is_union(column.type):
        return _write_nullable(column)
    if column.null_count:
        raise InvalidInputError(
            f"An array or a map has a null among elements of type {column.type}, which Spark cannot write as Avro.",
            hint="Remove the nulls with `write_state`, or run the query over its history with "
            "spark.sql.streaming.stateStore.encodingFormat=unsaferow.",
        )
    return _write(column)


def _write(column: pa.Array) -> Packed:
    kind, count = column.type, len(column)
    if pa.types.is_struct(kind):
        return write_records([column.field(n) for n in range(kind.num_fields)], count)
    if pa.types.is_nested(kind):
        return _write_blocks(column, _write_entries(column))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        texts = Packed.of([value.as_buffer().to_pybytes() if value.is_valid else b"" for value in column])
        return side_by_side(write_numbers(texts.size), texts)
    if pa.types.is_decimal(kind):
        pairs = np.frombuffer(column.buffers()[1] or b"", np.uint8).reshape(-1, _DECIMAL_BYTES)
        pairs = pairs[column.offset : column.offset + count]
        return Packed.of_matrix(np.ascontiguousarray(pairs[:, count_decimal_bytes(kind.precision) - 1 :: -1]))
    numbers = to_numbers(column)
    if pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return Packed.of_matrix(np.ascontiguousarray(numbers).view(np.uint8).reshape(count, numbers.itemsize))
    return write_numbers(numbers.astype(np.int64))


def _write_entries(column: pa.ListArray | pa.MapArray) -> Packed:
    if pa.types.is_map(column.type):
        return side_by_side(_write_element(column.keys), _write_element(column.items))
    return _write_element(column.values)


def _write_blocks(column: pa.ListArray | pa.MapArray, elements: Packed) -> Packed:
    strings, offsets = elements.strings(), np.asarray(column.offsets)
    counts = np.diff(offsets)
    heads = write_numbers(counts.astype(np.int64)).strings()
    places = zip(offsets[:-1].tolist(), offsets[1:].tolist(), heads, strict=True)
    return Packed.of(
        [head + b"".join(strings[begin:end]) + b"\0" if begin < end else b"\0" for begin, end, head in places]
    )


def write_numbers(numbers: Words) -> Packed:
    """Return numbers as Avro writes them."""
    words = (numbers << 1 ^ numbers >> 63).view(np.uint64)
    digits = np.zeros((len(words), _MAX_DIGITS), np.uint8)
    sizes = np.ones(len(words), np.int64)
    for digit in range(_MAX_DIGITS):
        rest = words >> np.uint64(_DIGIT_BITS * (digit + 1)) if digit < _MAX_DIGITS - 1 else np.zeros_like(words)
        low = words >> np.uint64(_DIGIT_BITS * digit) & np.uint64(_MORE - 1)
        digits[:, digit] = low.astype(np.uint8) | np.where(rest > 0, _MORE, 0).astype(np.uint8)
        sizes += rest > 0
    return Packed(digits.reshape(-1), np.arange(len(words)) * _MAX_DIGITS, sizes)
