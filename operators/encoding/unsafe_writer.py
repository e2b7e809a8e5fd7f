"""Write Arrow columns as Spark's in-memory rows (UnsafeRow), all rows at once: the reverse of ``unsafe_rows``.

The bytes are those that Spark writes, since Spark looks up rows by the bytes of their keys. Source of the format:
``UnsafeRowWriter`` and ``UnsafeArrayWriter`` in Spark 4.3's catalyst.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.encoding.unsafe_rows import WORD, is_in_word
from pyspark_ckpt.operators.types.columns import to_numbers, validity
from pyspark_ckpt.operators.types.stored_types import is_variant
from pyspark_ckpt.state_store.arrays.packed import Packed, side_by_side
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.int64]
    Mask = NDArray[np.bool_]

DECIMAL_BYTES, DECIMAL_STEP = 16, WORD
"""What the bytes of a long decimal are padded to, in a row and in an array."""
_BITS = 64


class _Field(NamedTuple):
    """The values of a field: words that hold them, or the sizes and the content of what lies after the words.

    ``is_reserved``: whether a null has content, too.
    """

    valid: Mask
    words: Words
    content: Packed | None = None
    is_reserved: bool = False


def write_rows(columns: Sequence[pa.Array], count: int) -> Packed:
    """Return ``count`` rows with these columns. Raises InvalidInputError (a type that cannot be written)."""
    fields = list(map(_make_field, columns))
    bitmap_words = (len(fields) + _BITS - 1) // _BITS
    matrix = np.zeros((count, bitmap_words + len(fields)), np.int64)
    ends = np.full(count, WORD * matrix.shape[1], np.int64)
    parts = []
    for number, field in enumerate(fields):
        matrix[:, number // _BITS] |= _bits(~field.valid, number % _BITS)
        if field.content is None:
            matrix[:, bitmap_words + number] = np.where(field.valid, field.words, 0)
            continue
        there = field.valid | field.is_reserved
        matrix[:, bitmap_words + number] = np.where(there, ends << 32 | np.where(field.valid, field.words, 0), 0)
        ends += field.content.size
        parts.append(field.content)
    fixed = Packed.of_matrix(matrix.view(np.uint8))
    return side_by_side(fixed, *parts)


def _make_field(column: pa.Array, decimal_bytes: int = DECIMAL_BYTES) -> _Field:
    """Return a field of rows, or the elements of arrays. ``decimal_bytes``: what long decimals are padded to."""
    kind, valid = column.type, validity(column)
    if pa.types.is_null(kind):
        return _Field(np.zeros(len(column), np.bool_), np.zeros(len(column), np.int64))
    if pa.types.is_decimal(kind):
        return _make_decimals(column, valid, decimal_bytes)
    if is_in_word(kind):
        return _Field(valid, _to_words(to_numbers(column)))
    content = _write_contents(column, valid)
    return _Field(valid, content.size, _pad(content))


def _write_contents(column: pa.Array, valid: Mask) -> Packed:
    """Return the bytes of each value that has its place after the words, none for a null."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _take_bytes(column, valid)
    if pa.types.is_struct(kind) and not is_variant(kind):
        return _only(write_rows(column.flatten(), len(column)), valid)
    if pa.types.is_map(kind):
        keys, items = _write_arrays(column, column.keys, valid), _write_arrays(column, column.items, valid)
        heads = Packed.of_matrix(keys.size.astype("<i8").view(np.uint8).reshape(-1, WORD))
        return _only(side_by_side(heads, keys, items), valid)
    if pa.types.is_list(kind):
        return _write_arrays(column, column.values, valid)
    raise InvalidInputError(
        f"Values of type {kind} cannot be written.", hint="Leave out this state, or run the query over its history."
    )


def _write_arrays(column: pa.ListArray | pa.MapArray, elements: pa.Array, valid: Mask) -> Packed:
    """Return the bytes of each array: its length, a bitmap of nulls, the elements, and what lies after them."""
    offsets, kind = np.asarray(column.offsets), elements.type
    field = _make_field(elements, DECIMAL_STEP)
    is_narrow = is_in_word(kind) and not pa.types.is_decimal(kind) and not pa.types.is_null(kind)
    width = max(1, int(kind.bit_width) // 8) if is_narrow else WORD
    arrays = []
    for begin, end, is_there in zip(offsets[:-1].tolist(), offsets[1:].tolist(), valid.tolist(), strict=True):
        if not is_there:
            arrays.append(b"")
            continue
        count, here = end - begin, field.valid[begin:end]
        bitmap = np.zeros((count + _BITS - 1) // _BITS * WORD, np.uint8)
        packed = np.packbits(~here, bitorder="little")
        bitmap[: len(packed)] = packed
        words, after = np.where(here, field.words[begin:end], 0), b""
        if field.content is not None:
            some = field.content.take(slice(begin, end))
            begins = WORD + len(bitmap) + WORD * count + np.cumsum(some.size) - some.size
            words = np.where(here, begins << 32 | words, 0)
            after = b"".join(some.strings())
        content = words.astype(f"<i{width}").tobytes()
        padding = bytes(-len(content) % WORD)
        arrays.append(b"".join([count.to_bytes(WORD, "little"), bitmap.tobytes(), content, padding, after]))
    return Packed.of(arrays)


def _to_words(numbers: NDArray[np.generic]) -> Words:
    """Return numbers as words, whose other bytes are zeros: not as a negative number of eight bytes has them."""
    width = numbers.dtype.itemsize
    words: Words = np.ascontiguousarray(numbers).view(f"<u{width}").astype(np.uint64).view(np.int64)
    return words


def _make_decimals(column: pa.Array, valid: Mask, padded_to: int) -> _Field:
    """Return decimals: those of up to 18 digits in their words, others as bytes.

    In a row, each has 16 bytes, a null as well. In an array, each has whole words, and a null none.
    """
    pairs = np.frombuffer(column.buffers()[1] or b"", "<i8").reshape(-1, 2)
    pairs = pairs[column.offset : column.offset + len(column)]
    if is_in_word(column.type):
        return _Field(valid, np.where(valid, pairs[:, 0], 0))
    stored = [
        _write_number(low % (1 << _BITS) + (high << _BITS)) if is_there else b""
        for (low, high), is_there in zip(pairs.tolist(), valid.tolist(), strict=True)
    ]
    sizes = np.fromiter(map(len, stored), np.int64, len(stored))
    content = Packed.of([each + bytes(-len(each) % padded_to) for each in stored])
    if padded_to == DECIMAL_STEP:
        return _Field(valid, sizes, content)
    nulls = Packed(np.zeros(DECIMAL_BYTES, np.uint8), np.zeros(len(valid), np.int64), np.where(valid, 0, DECIMAL_BYTES))
    return _Field(valid, sizes, side_by_side(content, nulls), is_reserved=True)


def _write_number(number: int) -> bytes:
    """Return as few big-endian bytes as Java's BigInteger takes."""
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def _take_bytes(column: pa.Array, valid: Mask) -> Packed:
    if not len(column):
        return Packed.of([])
    offsets = np.frombuffer(column.buffers()[1], "<i4")[column.offset : column.offset + len(column) + 1].astype(
        np.int64
    )
    data = column.buffers()[2]
    content = np.frombuffer(b"" if data is None else data, np.uint8)
    return Packed(content, offsets[:-1], np.where(valid, offsets[1:] - offsets[:-1], 0))


def _only(strings: Packed, valid: Mask) -> Packed:
    """Return strings, empty where not valid."""
    return Packed(strings.data, strings.at, np.where(valid, strings.size, 0))


def _pad(content: Packed) -> Packed:
    """Return strings with zeros after them, up to a whole number of words."""
    lacking = -content.size % WORD
    if not lacking.any():
        return content
    return side_by_side(content, Packed(np.zeros(WORD, np.uint8), np.zeros(len(content), np.int64), lacking))


def _bits(mask: Mask, number: int) -> Words:
    """Return words with one bit where the mask is true."""
    bits: Words = (mask.astype(np.uint64) << np.uint64(number)).view(np.int64)
    return bits
