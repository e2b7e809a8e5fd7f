"""Parts of an UnsafeRow as rows of their own, byte by byte as Spark writes them.

See ``operators/encoding/unsafe_rows.py`` for the format. Source: ``UnsafeRowWriter`` of Spark 4.3. A decimal of more
than 18 digits has 16 bytes after the words, even if it is null.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from pyspark_ckpt.operators.encoding.unsafe_rows import is_in_word

_WORD = 8
_BITS = 64
_FIELD = struct.Struct("<q")
_LENGTH = struct.Struct("<I")
_VERSION = b"\x00"
_LONG_DECIMAL_BYTES = 16


def join_prefix(row: bytes, kinds: Sequence[pa.DataType], prefix: int) -> bytes:
    """Return a key as Spark's encoder for prefix scans makes it of the whole row. Raises ValueError, struct.error."""
    first = _VERSION + take_fields(row, kinds, range(prefix))
    return _LENGTH.pack(len(first)) + first + _VERSION + take_fields(row, kinds, range(prefix, len(kinds)))


def split_prefix(key: bytes, kinds: Sequence[pa.DataType], prefix: int) -> bytes:
    """Return the whole row of a key as Spark's encoder for prefix scans makes it. Raises ValueError, struct.error."""
    (size,) = _LENGTH.unpack_from(key)
    first, rest = key[_LENGTH.size : _LENGTH.size + size], key[_LENGTH.size + size :]
    if len(first) != size or not (first.startswith(_VERSION) and rest.startswith(_VERSION)):
        raise ValueError(f"a key of {len(key)} bytes has no two rows, the first of them of {size} bytes")
    first, rest = first[len(_VERSION) :], rest[len(_VERSION) :]
    return _write([*_fields(first, kinds[:prefix]), *_fields(rest, kinds[prefix:])], kinds)


def take_fields(row: bytes, kinds: Sequence[pa.DataType], which: Sequence[int]) -> bytes:
    """Return the row of some fields of a row with fields of these ``kinds``. Raises ValueError, struct.error."""
    fields = _fields(row, kinds)
    return _write([fields[number] for number in which], [kinds[number] for number in which])


class _Field(NamedTuple):
    """A field of a row: whether it is null, its word, and what lies after the words, None if nothing can."""

    is_null: bool
    word: int
    content: bytes | None


def _fields(row: bytes, kinds: Sequence[pa.DataType]) -> list[_Field]:
    begin = _words_begin(len(kinds))
    nulls = int.from_bytes(row[:begin], "little")
    fields = []
    for number, kind in enumerate(kinds):
        is_null = bool(nulls >> number & 1)
        (word,) = _FIELD.unpack_from(row, begin + _WORD * number)
        if is_in_word(kind):
            fields.append(_Field(is_null, word, None))
            continue
        at, size = word >> 32, word & 0xFFFFFFFF
        content = b"" if is_null else row[at : at + size]
        if len(content) != size * (not is_null):
            raise ValueError(f"a field should have {size} bytes from byte {at} on, of {len(row)}")
        fields.append(_Field(is_null, word, content))
    return fields


def _write(fields: Sequence[_Field], kinds: Sequence[pa.DataType]) -> bytes:
    begin = _words_begin(len(fields))
    bitmap, words, behind = 0, [], b""
    for place, (kind, field) in enumerate(zip(kinds, fields, strict=True)):
        bitmap |= field.is_null << place
        word, content = field.word, field.content
        if content is not None:
            is_decimal = pa.types.is_decimal(kind)
            at = begin + _WORD * len(fields) + len(behind)
            word = 0 if field.is_null and not is_decimal else at << 32 | len(content)
            behind += content.ljust(_LONG_DECIMAL_BYTES if is_decimal else -(-len(content) // _WORD) * _WORD, b"\0")
        words.append(_FIELD.pack(word))
    return bitmap.to_bytes(begin, "little") + b"".join(words) + behind


def _words_begin(fields: int) -> int:
    """Return the bytes of the bitmap of nulls."""
    return -(-fields // _BITS) * _WORD
