"""Rows of this store as rows of Spark's own providers: the reverse of ``adoption/rows.py``, which describes both."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import islice

import pyarrow as pa

from pyspark_ckpt.offline.adopting.avro_rows import AvroRows
from pyspark_ckpt.offline.adopting.row_sums import add_sums
from pyspark_ckpt.offline.adopting.rows import WHOLE, make_key_codec
from pyspark_ckpt.offline.adopting.split_rows import split_prefix
from pyspark_ckpt.offline.adopting.stores import Form
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import HASH_BYTES, ORDERED_BIT, STATE_BYTES
from pyspark_ckpt.state_store.format.meta import StateMeta

_VERSION = b"\x00"
_SPARKS_SIZE = struct.Struct("<I")


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
        self._codec = make_key_codec(state, name, whose)
        self._kinds = [field.type for field in self._codec.key_fields]
        self._prefix_columns = int(state.descriptor.encoder.get("numColsPrefixKey", 0))
        self._avro = AvroRows(state, name, whose) if state.descriptor.value_schemas else None

    def revert(self, rows: PackedRows, head: bytes = b"") -> tuple[list[bytes], list[bytes]]:
        """Return Spark's keys and values of rows, in their order. ``head``: what the keys begin with.

        Raises FormatError, InvalidInputError (a value that Spark cannot store).
        """
        stored = rows.keys.behind(STATE_BYTES)
        own = (stored.before(HASH_BYTES) if self._is_ordered else stored.behind(HASH_BYTES)).strings()
        try:
            keys = [head + key for key in self._keys(own)]
            values = self._values(rows.values.strings())
        except (ValueError, struct.error, pa.ArrowException) as problem:
            raise FormatError(f"{self._whose} has a row that does not fit its types: {problem}.") from problem
        if self._form.has_sums:
            return keys, add_sums(
                keys, values, are_sized=self._form.provider == "rocksdb", delimiter=self._form.delimiter
            )
        return keys, [self._form.delimiter.join(each) for each in values]

    def _keys(self, keys: Sequence[bytes]) -> list[bytes]:
        if self._avro is not None:
            return self._avro.write_keys(keys)
        if self._form.provider == "hdfs":
            if self._is_whole:
                return list(keys)
            return [split_prefix(key, self._kinds, self._prefix_columns) for key in keys]
        return [_VERSION + key for key in keys] if self._is_whole else list(keys)

    def _values(self, stored: Sequence[bytes]) -> list[list[bytes]]:
        """Return the values of each key: one, unless the state may have several."""
        if self._form.provider == "hdfs":
            return [[value] for value in stored]
        if not self._is_multiple:
            return [[value] for value in self._write(stored)]
        single, counts = self._codec.split_values(stored)
        values = iter(self._write(single))
        return [[_SPARKS_SIZE.pack(len(value)) + value for value in islice(values, count)] for count in counts]

    def _write(self, values: Sequence[bytes]) -> list[bytes]:
        return [_VERSION + value for value in values] if self._avro is None else self._avro.write_values(values)
