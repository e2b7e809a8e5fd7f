"""Bytes of keys and values of keyed state, for whole columns at a time.

A key column is a byte that is 0 for null, and 1 and the value: numbers big-endian with the sign flipped, text and
bytes with 00 as ``00 FF`` and ``00 00`` behind. So keys sort as their values do, and no key is the beginning of
another one. A value of fixed width is packed: a byte for each field (1: it has a value), then the fields, little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes2D: TypeAlias = NDArray[np.uint8]

INTEGERS = {pa.int8(): 1, pa.int16(): 2, pa.int32(): 4, pa.int64(): 8, pa.date32(): 4, pa.bool_(): 1}


def integer_width(kind: pa.DataType) -> int | None:
    """Bytes of a type that is stored as an integer; None for another one."""
    if pa.types.is_timestamp(kind):
        return 8
    return INTEGERS.get(kind)


def _as_integers(column: pa.Array, width: int) -> NDArray[np.signedinteger]:
    plain = pa.int8() if pa.types.is_boolean(column.type) else {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}[width]
    return column.cast(plain).fill_null(0).to_numpy(zero_copy_only=False)


@dataclass(frozen=True)
class KeyLayout:
    """Names and types of the key columns."""

    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]

    def encode(self, keys: pa.Table) -> list[bytes]:
        """The bytes of every key, without state and hash."""
        parts = [self._column(keys.column(name).combine_chunks(), kind) for name, kind in zip(self.names, self.types, strict=True)]
        if all(isinstance(part, np.ndarray) for part in parts):
            matrix = np.ascontiguousarray(np.hstack(parts))
            width = matrix.shape[1]
            packed = matrix.tobytes()
            return [packed[at : at + width] for at in range(0, len(packed), width)]
        columns = [[row.tobytes() for row in part] if isinstance(part, np.ndarray) else part for part in parts]
        return [b"".join(pieces) for pieces in zip(*columns, strict=True)]

    def _column(self, column: pa.Array, kind: pa.DataType) -> Bytes2D | list[bytes]:
        width = integer_width(kind)
        if width is not None:
            values = _as_integers(column, width)
            present = column.is_valid().to_numpy(zero_copy_only=False)
            big_endian = values.astype(f">i{width}").view(np.uint8).reshape(-1, width)
            big_endian[:, 0] ^= 0x80
            return np.hstack([present.astype(np.uint8)[:, None], big_endian * present[:, None]])
        if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
            return [_escaped(value) for value in column.cast(pa.binary()).to_pylist()]
        raise InvalidInputError(f"A key column of type {kind} is not supported yet.")


def _escaped(value: bytes | None) -> bytes:
    return b"\x00" if value is None else b"\x01" + value.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


@dataclass(frozen=True)
class PackedLayout:
    """A value of fixed width: one integer or floating-point number, or a struct of them."""

    kind: pa.DataType

    @property
    def fields(self) -> Sequence[pa.Field]:
        """The fields of the struct, or the value itself as the only one."""
        return list(self.kind) if pa.types.is_struct(self.kind) else [pa.field("value", self.kind)]

    @property
    def packed(self) -> np.dtype[np.void]:
        """How numpy sees one value."""
        marks = [(f"has{n}", "u1") for n in range(len(self.fields))]
        return np.dtype([*marks, *((f"f{n}", _number(field.type)) for n, field in enumerate(self.fields))])

    def encode(self, values: pa.Array) -> list[bytes]:
        """The bytes of every value; a null value is one whose fields are all null."""
        rows = np.zeros(len(values), self.packed)
        for n, field in enumerate(self.fields):
            column = values.field(n) if pa.types.is_struct(self.kind) else values
            width = integer_width(field.type)
            rows[f"has{n}"] = column.is_valid().to_numpy(zero_copy_only=False)
            rows[f"f{n}"] = (
                _as_integers(column, width)
                if width is not None
                else column.fill_null(0).to_numpy(zero_copy_only=False)
            )
        width = rows.dtype.itemsize
        packed = rows.tobytes()
        return [packed[at : at + width] for at in range(0, len(packed), width)]

    def decode(self, stored: Sequence[bytes | None]) -> pa.Array:
        """The values, null where there are no bytes."""
        absent = bytes(self.packed.itemsize)
        there = np.fromiter((value is not None for value in stored), np.bool_, len(stored))
        rows = np.frombuffer(b"".join([value or absent for value in stored]), self.packed)
        columns = []
        for n, field in enumerate(self.fields):
            valid = rows[f"has{n}"].astype(np.bool_)
            column = pa.array(np.ascontiguousarray(rows[f"f{n}"]), mask=~valid)
            columns.append(column.cast(field.type) if column.type != field.type else column)
        if not pa.types.is_struct(self.kind):
            return columns[0]
        return pa.StructArray.from_arrays(columns, fields=self.fields, mask=pa.array(~there))


def _number(kind: pa.DataType) -> str:
    width = integer_width(kind)
    if width is not None:
        return f"<i{width}"
    if pa.types.is_floating(kind):
        return f"<f{kind.bit_width // 8}"
    raise InvalidInputError(f"A value of type {kind} has no fixed width.")
