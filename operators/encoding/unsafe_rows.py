"""Read Spark's in-memory rows (UnsafeRow) as Arrow columns, all rows at once.

Source of the format: ``UnsafeRow``, ``UnsafeArrayData``, ``UnsafeMapData`` and ``VariantVal`` in Spark 4.3's catalyst.

A row is a bitmap of its nulls in whole words, a word for each field, and then the values without a fixed width. The
word of such a value is ``offset << 32 | bytes``, with the offset counted from the begin of the row. Everything begins
at a multiple of 8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.types.columns import is_fixed_width, python_values
from pyspark_ckpt.operators.types.stored_types import is_variant
from pyspark_ckpt.operators.types.value_types import NO_NULL_KEY, reader
from pyspark_ckpt.state_store.arrays.packed import Bytes, Packed
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words: TypeAlias = NDArray[np.int64]
    Mask: TypeAlias = NDArray[np.bool_]

WORD = 8
_SIGN_BIT = 0x80
MAX_BYTES = 2**31 - 1
_LONG_DECIMAL = 18
_VARIANT_HEAD = 4
_WORD = Struct("<q")
_FLOATS = {32: "f", 64: "d"}
_INTEGERS = {1: "?", 8: "b", 16: "h", 32: "i", 64: "q"}


def read_rows(rows: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of ``rows``, whose fields have the types of ``schema``.

    Memory is limited to a multiple of the rows' size, also if damaged rows claim to be larger. Raises InvalidInputError
    (a type that cannot be read, too many bytes), ValueError or IndexError (rows that do not fit the schema).
    """
    return read_dense_rows(Packed.of(rows), schema)


def read_packed_rows(rows: Packed, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of ``rows``. See ``read_rows``."""
    return read_dense_rows(rows.dense(), schema)


def read_dense_rows(rows: Packed, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of ``rows``, which are one after the other in their array. See ``read_rows``."""
    if len(rows.data) > MAX_BYTES:
        raise InvalidInputError(
            f"A batch can have at most {MAX_BYTES} bytes, got {len(rows.data)} in {len(rows)} rows."
        )
    columns = _Memory(rows.data).fields(list(schema), rows.at, np.ones(len(rows), np.bool_))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def row_reader(schema: pa.Schema) -> Callable[[bytes], tuple[Any, ...]]:
    """Return a reader of single rows as Python values.

    It takes a few microseconds per row if all types are numbers, instants, text and bytes.
    """
    bitmap_bytes = (len(schema) + 63) // 64 * WORD
    fields = [_field_reader(field.type, bitmap_bytes + WORD * number) for number, field in enumerate(schema)]

    plain = [field for field in fields if field is not None]
    if len(plain) < len(fields):
        return lambda row: tuple([python_values(column)[0] for column in read_rows([row], schema).columns])

    def read(row: bytes) -> tuple[Any, ...]:
        nulls = int.from_bytes(row[:bitmap_bytes], "little")
        return tuple([None if nulls >> number & 1 else field(row) for number, field in enumerate(plain)])

    return read


def _field_reader(kind: pa.DataType, at: int) -> Callable[[bytes], Any] | None:
    """Return a reader of the value whose word is at ``at``; None for a type that is not that simple."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        is_text = pa.types.is_string(kind)

        def read(row: bytes) -> Any:
            (word,) = _WORD.unpack_from(row, at)
            begin = word >> 32
            value = row[begin : begin + (word & 0xFFFFFFFF)]
            return value.decode() if is_text else value

        return read
    if not is_fixed_width(kind):
        return None
    letters = _FLOATS if pa.types.is_floating(kind) else _INTEGERS
    unpack, convert = Struct(f"<{letters[kind.bit_width]}").unpack_from, reader(kind)
    return lambda row: convert(unpack(row, at)[0])


class _Memory:
    """The bytes of rows, one after the other."""

    def __init__(self, content: Bytes) -> None:
        self._bytes = content if len(content) else np.zeros(WORD, np.uint8)
        self._words: Words = self._bytes.view("<i8")

    def fields(self, fields: Sequence[pa.Field], begins: Words, valid: Mask) -> list[pa.Array]:
        """Return the fields of the rows that begin at ``begins``. A null row has no words; all its fields are null."""
        first = begins // WORD
        bitmap_words = (len(fields) + 63) // 64
        columns = []
        for number, field in enumerate(fields):
            here = valid & ~_bit(self._words[np.where(valid, first + number // 64, 0)], number % 64)
            content = self._words[np.where(here, first + bitmap_words + number, 0)]
            columns.append(self._column(field.type, np.where(here, content, 0), here, begins))
        return columns

    def _column(self, kind: pa.DataType, content: Words, valid: Mask, begins: Words) -> pa.Array:
        """Return values whose words are ``content`` (0 if null), in rows or arrays that begin at ``begins``."""
        if pa.types.is_null(kind):
            return pa.nulls(len(content))
        if is_in_word(kind):
            return _read_fixed(kind, content, valid)
        starts, sizes = begins + (content >> 32), content & 0xFFFFFFFF
        self._check(starts, sizes)
        if pa.types.is_decimal(kind):
            return self._long_decimals(kind, starts, sizes, valid)
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return self._texts(kind, starts, sizes, valid)
        starts = np.where(valid, starts, 0)
        if is_variant(kind):
            return self._variants(kind, starts, sizes, valid)
        if pa.types.is_struct(kind):
            return _array(kind, valid, [], self.fields(list(kind), starts, valid))
        if pa.types.is_map(kind):
            return self._maps(kind, starts, valid)
        if pa.types.is_list(kind):
            offsets, elements = self._elements(kind.value_type, starts, valid)
            return _array(kind, valid, [offsets.astype(np.int32)], [elements])
        raise InvalidInputError(f"Values of type {kind} cannot be passed to Python.")

    def _check(self, starts: Words, sizes: Words) -> None:
        """Raise ValueError if a value is outside of this memory, or if all together are larger than it."""
        if len(starts) and (starts.min() < 0 or int((starts + sizes).max()) > len(self._bytes)):
            raise ValueError("a value begins or ends outside of its row")
        self._check_sum(sizes, len(self._bytes))

    def _check_sum(self, sizes: Words, most: int) -> None:
        if len(sizes) and (sizes.min() < 0 or sizes.max() > most or int(sizes.sum()) > most):
            raise ValueError(f"values claim to be larger than the {len(self._bytes)} bytes that they are in")

    def _texts(self, kind: pa.DataType, starts: Words, sizes: Words, valid: Mask) -> pa.Array:
        offsets = _offsets(sizes)
        picked = np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])
        return _array(kind, valid, [offsets.astype(np.int32), self._bytes[picked]])

    def _variants(self, kind: pa.StructType, starts: Words, sizes: Words, valid: Mask) -> pa.Array:
        """Return variants: each has the size of its value in four bytes, its value, and its metadata (VariantVal)."""
        if np.any(sizes[valid] < _VARIANT_HEAD):
            raise ValueError(f"a variant must have at least {_VARIANT_HEAD} bytes")
        heads = np.ascontiguousarray(self._bytes[starts[:, None] + np.arange(_VARIANT_HEAD)])
        of_values = np.where(valid, heads.view("<i4")[:, 0].astype(np.int64), 0)
        of_metadata = np.where(valid, sizes - _VARIANT_HEAD - of_values, 0)
        if np.any(of_values < 0) or np.any(of_metadata < 0):
            raise ValueError("the value of a variant claims to be larger than the variant")
        begins = starts + _VARIANT_HEAD
        everywhere = np.ones(len(valid), np.bool_)
        values = self._texts(pa.binary(), begins, of_values, everywhere)
        metadata = self._texts(pa.binary(), begins + of_values, of_metadata, everywhere)
        return _array(kind, valid, [], [values, metadata])

    def _maps(self, kind: pa.MapType, starts: Words, valid: Mask) -> pa.Array:
        key_bytes = np.where(valid, self._words[starts // WORD], 0)
        self._check_sum(key_bytes, len(self._bytes))
        offsets, keys = self._elements(kind.key_type, np.where(valid, starts + WORD, 0), valid)
        if keys.null_count:  # Arrow would crash the process
            raise ValueError(NO_NULL_KEY)
        _, items = self._elements(kind.item_type, np.where(valid, starts + WORD + key_bytes, 0), valid)
        entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
        return _array(kind, valid, [offsets.astype(np.int32)], [entries])

    def _elements(self, kind: pa.DataType, starts: Words, valid: Mask) -> tuple[Words, pa.Array]:
        """Return where the elements of each array begin and end, and all elements."""
        counts = np.where(valid, self._words[starts // WORD], 0)
        self._check_sum(counts, 8 * len(self._bytes) if pa.types.is_null(kind) else len(self._bytes))
        offsets = _offsets(counts)
        position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        begins = np.repeat(starts, counts)
        header = np.repeat(WORD + (counts + 63) // 64 * WORD, counts)
        here = ~_bit(self._words[begins // WORD + 1 + position // 64], position % 64)
        if pa.types.is_null(kind):
            return offsets, pa.nulls(len(position))
        width = _element_width(kind)
        content = self._bytes.view(f"<i{width}")[(begins + header) // width + position].astype(np.int64)
        return offsets, self._column(kind, np.where(here, content, 0), here, begins)

    def _long_decimals(self, kind: pa.DataType, starts: Words, sizes: Words, valid: Mask) -> pa.Array:
        """Return decimals stored as big-endian numbers of up to 16 bytes, as few as each one needs."""
        there = sizes > 0
        sign = np.where(there & (self._bytes[np.where(there, starts, 0)] >= _SIGN_BIT), 0xFF, 0).astype(np.uint8)
        little_endian = np.empty((len(starts), 16), np.uint8)
        for position in range(16):
            inside = position < sizes
            source = np.where(inside, starts + sizes - 1 - position, 0)
            little_endian[:, position] = np.where(inside, self._bytes[source], sign)
        return _array(kind, valid, [little_endian])


def is_in_word(kind: pa.DataType) -> bool:
    """Return whether a value of this type is in the word of its field."""
    return int(kind.precision) <= _LONG_DECIMAL if pa.types.is_decimal(kind) else is_fixed_width(kind)


def _element_width(kind: pa.DataType) -> int:
    if pa.types.is_decimal(kind) or not is_in_word(kind):
        return WORD
    return max(1, int(kind.bit_width) // 8)


def _read_fixed(kind: pa.DataType, content: Words, valid: Mask) -> pa.Array:
    if pa.types.is_boolean(kind):
        return _array(kind, valid, [np.packbits((content & 0xFF).astype(np.bool_), bitorder="little")])
    if pa.types.is_decimal(kind):
        return _array(kind, valid, [np.stack([content, content >> 63], axis=1)])
    return _array(kind, valid, [content.astype(f"<i{int(kind.bit_width) // 8}")])


def _array(
    kind: pa.DataType, valid: Mask, buffers: Sequence[NDArray[Any]], children: Sequence[pa.Array] = ()
) -> pa.Array:
    present = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    contents = [pa.py_buffer(np.ascontiguousarray(buffer)) for buffer in buffers]
    return pa.Array.from_buffers(kind, len(valid), [present, *contents], children=list(children))


def _offsets(sizes: Words) -> Words:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _bit(words: Words, number: Words | int) -> Mask:
    found: Mask = ((words >> number) & 1).astype(np.bool_)
    return found
