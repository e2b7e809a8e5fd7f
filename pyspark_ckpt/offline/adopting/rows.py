"""Rows of Spark's own providers as rows of this store: other keys, the same values.

::

    RocksDB provider, whole key     00 UnsafeRow                           value  00 UnsafeRow
    RocksDB provider, prefix scan   what Spark's encoder makes of the key  value  00 UnsafeRow
    HDFS-backed provider            UnsafeRow of the whole key             value  UnsafeRow

This store has the bytes of a whole key without a version, and those of Spark's encoders as they are. Rows that are
stored as Avro are described in ``avro_rows.py``.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_ckpt.offline.adopting.avro_rows import AvroRows
from pyspark_ckpt.offline.adopting.split_rows import join_prefix
from pyspark_ckpt.offline.adopting.stores import Form
from pyspark_ckpt.offline.reading.rows.native_rows import NativeRows
from pyspark_ckpt.state_store.arrays.order import in_order
from pyspark_ckpt.state_store.arrays.packed import Packed, side_by_side
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import ORDERED_BIT, state_head
from pyspark_ckpt.state_store.format.meta import StateMeta

if TYPE_CHECKING:
    import numpy.typing as npt

_VERSION = b"\x00"
_TO_FIRST_BYTE = np.uint64(56)
_SPARKS_SIZE = struct.Struct("<I")
_SIZE = struct.Struct(">I")
_TYPES = ("type", "elementType", "keyType", "valueType")
WHOLE = "NoPrefixKeyStateEncoderSpec"


def make_key_codec(state: StateMeta, name: str, whose: str) -> NativeRows:
    """Return what hashes the keys of a state. Raises FormatError, InvalidInputError: the keys cannot be hashed.

    Values are not read, and may be of any type. Text is taken as bytes: Spark's hash is the same, and its text need not
    be valid.
    """
    nothing = {"type": "struct", "fields": []}
    codec = NativeRows(
        msgspec.structs.replace(
            state.descriptor,
            key_schema=_as_bytes(state.descriptor.key_schema),
            value_schema=nothing,
            value_schemas=None,
        ),
        name,
        whose,
    )
    codec.hash_keys(Packed.of([]))
    return codec


def _as_bytes(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """Return Spark's JSON of a type with bytes in place of text."""
    if isinstance(schema, list):
        return [_as_bytes(each) for each in schema]
    if isinstance(schema, dict):
        return {
            what: "binary" if what in _TYPES and each == "string" else _as_bytes(each) for what, each in schema.items()
        }
    return schema


class RowConverter:
    """Converts the rows of one state."""

    def __init__(self, state: StateMeta, name: str, form: Form, whose: str) -> None:
        """``name``: of the state, or of a store with only one. ``whose``: the state's name in errors.

        Raises FormatError, InvalidInputError.
        """
        self._whose = whose
        self._form = form
        self._number = state.number
        self._is_whole = state.descriptor.encoder.get("keyStateEncoderType") == WHOLE
        self._codec = make_key_codec(state, name, whose)
        self._kinds = [field.type for field in self._codec.key_fields]
        self._is_multiple = state.descriptor.multiple_values
        self._prefix_columns = int(state.descriptor.encoder.get("numColsPrefixKey", 0))
        self._avro = AvroRows(state, name, whose) if state.descriptor.value_schemas else None

    def convert(self, rows: PackedRows) -> tuple[PackedRows, npt.NDArray[np.uint32]]:
        """Return rows under their stored keys, in key order, and their unsigned hashes.

        Raises FormatError, InvalidInputError (keys that only Spark can hash).
        """
        try:
            keys, values = self._keys(rows.keys), self._values(rows.values)
        except (ValueError, IndexError, struct.error, pa.ArrowException) as problem:
            raise FormatError(f"{self._whose} has a row that does not fit its types: {problem}.") from problem
        hashes = self._codec.hash_keys(keys)
        stored = self._place(keys, hashes)
        order, _ = in_order(stored)
        return PackedRows(stored.take(order), values.take(order)), hashes

    def _keys(self, keys: Packed) -> Packed:
        if self._avro is not None:
            return Packed.of(self._avro.read_keys(keys.strings()))
        if self._form.provider == "hdfs":
            if self._is_whole:
                return keys
            return Packed.of([join_prefix(key, self._kinds, self._prefix_columns) for key in keys.strings()])
        return self._strip(keys, "key") if self._is_whole else keys

    def _values(self, values: Packed) -> Packed:
        if self._form.provider == "hdfs":
            return values
        if not self._is_multiple:
            return self._read(values)
        parts = list(map(self._split, values.strings()))
        single = iter(self._read(Packed.of([value for own in parts for value in own])).strings())
        return Packed.of(
            [b"".join([_SIZE.pack(len(each)) + each for each in islice(single, len(own))]) for own in parts]
        )

    def _read(self, values: Packed) -> Packed:
        """Return single values as this store has them."""
        if self._avro is None:
            return self._strip(values, "value")
        return Packed.of(self._avro.read_values(values.strings()))

    def _split(self, stored: bytes) -> list[bytes]:
        """Return the values of a key, without the delimiters between them."""
        parts: list[bytes] = []
        at = 0
        while at < len(stored) or not parts:
            (size,) = _SPARKS_SIZE.unpack_from(stored, at)
            at += _SPARKS_SIZE.size
            value = stored[at : at + size]
            if len(value) != size or size < len(_VERSION):
                raise FormatError(f"{self._whose} has a value that should have {size} bytes from byte {at} on.")
            parts.append(value)
            at += size
            if at < len(stored):
                if not stored.startswith(self._form.delimiter, at):
                    raise FormatError(f"{self._whose} has values without {self._form.delimiter!r} between them.")
                at += len(self._form.delimiter)
                if at == len(stored):
                    raise FormatError(f"{self._whose} has values that end with {self._form.delimiter!r}.")
        return parts

    def _strip(self, stored: Packed, what: str) -> Packed:
        """Return what follows the version. Raises FormatError for another version, or none."""
        is_wrong = (stored.size < len(_VERSION)) | (stored.first_words >> _TO_FIRST_BYTE != 0)
        if is_wrong.any():
            wrong = stored[int(is_wrong.argmax())]
            raise FormatError(
                f"{self._whose} has a {what} that begins with {wrong[:1].hex()!r}, not with the version '00'."
            )
        return stored.behind(len(_VERSION))

    def _place(self, keys: Packed, hashes: npt.NDArray[np.uint32]) -> Packed:
        heads = hashes.astype(">u4").view("u1").reshape(len(keys), 4)
        if self._number & ORDERED_BIT:
            return side_by_side(keys.prefix(state_head(self._number)), Packed.of_matrix(heads))
        return keys.behind_heads(heads).prefix(state_head(self._number))
