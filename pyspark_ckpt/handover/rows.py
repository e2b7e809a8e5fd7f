"""Rows of this store as rows of Spark's own providers: the reverse of ``adoption/rows.py``, which describes both."""

from __future__ import annotations

import struct

from pyspark_ckpt.adoption.rows import WHOLE, make_key_codec
from pyspark_ckpt.adoption.split_rows import split_prefix
from pyspark_ckpt.adoption.stores import Form
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import HASH_BYTES, ORDERED_BIT, STATE_BYTES
from pyspark_ckpt.state_store.format.meta import StateMeta

_VERSION = b"\x00"
_SPARKS_SIZE = struct.Struct("<I")
_SIZE = struct.Struct(">I")


class RowReverter:
    """Turns the rows of one state into those of a provider of Spark."""

    def __init__(self, state: StateMeta, name: str, form: Form, whose: str) -> None:
        """``name``: of the state, or of a store with only one. ``whose``: the state's name in errors.

        Raises FormatError, InvalidInputError.
        """
        self._whose = whose
        self._form = form
        self._is_ordered = bool(state.number & ORDERED_BIT)
        self._is_whole = state.descriptor.encoder.get("keyStateEncoderType") == WHOLE
        self._is_multiple = state.descriptor.multiple_values
        fields = make_key_codec(state, name, whose).key_fields
        self._kinds = [field.type for field in fields]
        self._prefix_columns = int(state.descriptor.encoder.get("numColsPrefixKey", 0))

    def revert(self, rows: PackedRows) -> tuple[list[bytes], list[bytes]]:
        """Return Spark's keys and values of rows, in their order. Raises FormatError."""
        stored = rows.keys.behind(STATE_BYTES)
        keys = (stored.before(HASH_BYTES) if self._is_ordered else stored.behind(HASH_BYTES)).strings()
        try:
            return [self._key(key) for key in keys], [self._value(value) for value in rows.values.strings()]
        except (ValueError, struct.error) as problem:
            raise FormatError(f"{self._whose} has a row that does not fit its types: {problem}.") from problem

    def _key(self, key: bytes) -> bytes:
        if self._form.provider == "hdfs":
            return key if self._is_whole else split_prefix(key, self._kinds, self._prefix_columns)
        return _VERSION + key if self._is_whole else key

    def _value(self, value: bytes) -> bytes:
        if self._form.provider == "hdfs":
            return value
        return self._join(value) if self._is_multiple else _VERSION + value

    def _join(self, stored: bytes) -> bytes:
        """Return several values of a key as Spark appends them to one another."""
        parts, at = [], 0
        while at < len(stored):
            (size,) = _SIZE.unpack_from(stored, at)
            at += _SIZE.size
            if at + size > len(stored):
                raise ValueError(f"a value should have {size} bytes from byte {at} on, of {len(stored)}")
            parts.append(_SPARKS_SIZE.pack(size + len(_VERSION)) + _VERSION + stored[at : at + size])
            at += size
        return self._form.delimiter.join(parts)
