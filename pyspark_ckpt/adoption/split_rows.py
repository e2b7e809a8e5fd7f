"""Parts of an UnsafeRow as rows of their own, byte by byte as Spark writes them.

See ``operators/encoding/unsafe_rows.py`` for the format. Source: ``UnsafeRowWriter`` of Spark 4.3. A decimal of more
than 18 digits has 16 bytes after the words, even if it is null.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

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


def take_fields(row: bytes, kinds: Sequence[pa.DataType], which: Sequence[int]) -> bytes:
    """Return the row of some fields of a row with fields of these ``kinds``. Raises ValueError, struct.error."""
    begin, own = _words_begin(len(kinds)), _words_begin(len(which))
    nulls = int.from_bytes(row[:begin], "little")
    bitmap, words, behind = 0, [], b""
    for place, number in enumerate(which):
        kind, is_null = kinds[number], bool(nulls >> number & 1)
        (word,) = _FIELD.unpack_from(row, begin + _WORD * number)
        bitmap |= is_null << place
        if not is_in_word(kind):
            at, size = word >> 32, word & 0xFFFFFFFF
            content = b"" if is_null else row[at : at + size]
            if len(content) != size * (not is_null):
                raise ValueError(f"a field should have {size} bytes from byte {at} on, of {len(row)}")
            is_decimal = pa.types.is_decimal(kind)
            word = 0 if is_null and not is_decimal else own + _WORD * len(which) + len(behind) << 32 | len(content)
            behind += content.ljust(_LONG_DECIMAL_BYTES if is_decimal else -(-len(content) // _WORD) * _WORD, b"\0")
        words.append(_FIELD.pack(word))
    return bitmap.to_bytes(own, "little") + b"".join(words) + behind


def _words_begin(fields: int) -> int:
    """Return the bytes of the bitmap of nulls."""
    return -(-fields // _BITS) * _WORD
