"""Stored rows of Spark's own operators, made of columns as ``open_state`` shows them: ``native_rows`` reversed."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pyspark_ckpt.offline.reading.rows.native_rows import NativeRows
from pyspark_ckpt.offline.reading.rows.ordered_columns import write_ordered
from pyspark_ckpt.offline.reading.rows.state_codec import struct_column
from pyspark_ckpt.offline.writing.given_columns import (
    INDEX,
    KEY,
    MAX_INDEX,
    UNREAD,
    VALUE,
    WrittenState,
    fit_column,
    take_index,
)
from pyspark_ckpt.offline.writing.native.value_lists import add_sizes
from pyspark_ckpt.operators.encoding.key_codec import normalise
from pyspark_ckpt.operators.encoding.unsafe_writer import write_rows
from pyspark_ckpt.operators.rows.list_layout import encode_numbers
from pyspark_ckpt.state_store.arrays.order import in_order
from pyspark_ckpt.state_store.arrays.packed import Packed, side_by_side
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.keys import state_head

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VERSION = b"\x00"
_SIGN = np.uint64(1 << 63)


class NativeEncoder:
    """Encodes rows of one state of one of Spark's own operators."""

    earliest_ms: int | None = None
    """See RowEncoder: such states have no timers that this package knows."""

    def __init__(self, target: WrittenState) -> None:
        """Raises FormatError, InvalidInputError (keys of a kind that cannot be written)."""
        self._target, self._whose = target, target.whose
        self._codec = NativeRows(target.state.descriptor, target.native_name, target.whose)
        self._names = [field.name for field in self._codec.fields]

    def prepare(self, rows: pa.Table) -> pa.Table:
        """Return the columns that ``open_state`` shows in the types of the state. Raises InvalidInputError."""
        if unknown := [name for name in rows.column_names if name not in {*self._names, *UNREAD}]:
            numbers = f", the {INDEX!r} of each value of a key" if self._codec.is_multiple else ""
            raise InvalidInputError(
                f"{self._whose}: rows have a column {unknown[0]!r}.{suggest(unknown[0], self._names)}",
                hint=f"Give the columns of open_state: a struct {KEY!r}{numbers}, and a struct {VALUE!r}.",
            )
        keys = self._take(rows, KEY, self._codec.key_fields)
        columns = keys.flatten()
        if not self._target.has_plain_keys:
            columns = list(map(normalise, columns))
        key = struct_column(self._codec.key_fields, columns, len(rows))
        places = {INDEX: take_index(rows, MAX_INDEX, self._whose)} if self._codec.is_multiple else {}
        return pa.table({KEY: key, **places, VALUE: self._take(rows, VALUE, self._codec.value_fields)})

    def encode(self, prepared: pa.Table) -> Iterator[tuple[str, PackedRows]]:
        """Yield the stored rows by the name of their state, sorted; see ``value_lists`` for those with several values.

        Raises InvalidInputError (two rows in one place).
        """
        key, value = (prepared.column(name).combine_chunks() for name in (KEY, VALUE))
        columns = key.flatten()
        keys = encode_key_columns(self._codec, columns, len(prepared), self._whose)
        hashes = self.hash_keys(prepared).astype(">u4").view(np.uint8).reshape(-1, 4)
        head = state_head(self._target.state.number)
        if self._codec.is_multiple:
            keys = side_by_side(keys, encode_numbers(prepared.column(INDEX).to_numpy().astype(np.uint64)))
        if self._target.state.descriptor.ordered:
            places = side_by_side(keys.prefix(head), Packed.of_matrix(hashes))
        else:
            places = keys.behind_heads(hashes).prefix(head)
        order, are_twins = in_order(places)
        if are_twins.any():
            (row,) = prepared.drop_columns([VALUE]).slice(int(order[int(np.argmax(are_twins))]), 1).to_pylist()
            what = "index of a key" if self._codec.is_multiple else "key"
            raise InvalidInputError(
                f"{self._whose}: two rows are given for {row!r}.", hint=f"Give one row for each {what}."
            )
        values = write_rows(value.flatten(), len(prepared))
        if self._codec.schemas:
            values = values.prefix(struct.pack(">H", len(self._codec.schemas) - 1))
        if self._codec.is_multiple:
            values = add_sizes(values)
        yield self._target.state.name, PackedRows(places.take(order), values.take(order))

    def hash_keys(self, prepared: pa.Table) -> NDArray[np.uint32]:
        """Return the unsigned hashes that place rows. Raises InvalidInputError (a collation)."""
        return self._codec.hash_columns(prepared.column(KEY).combine_chunks().flatten(), len(prepared))

    def _take(self, rows: pa.Table, name: str, fields: Sequence[pa.Field]) -> pa.StructArray:
        """Return a column of structs in the types of the state. Raises InvalidInputError."""
        if rows.column_names.count(name) != 1 or not pa.types.is_struct(rows.schema.field(name).type):
            raise InvalidInputError(
                f"{self._whose}: rows need one column {name!r}, a struct of {[field.name for field in fields]}; they "
                f"have {rows.column_names}."
            )
        column = rows.column(name).combine_chunks()
        given = [field.name for field in column.type]
        if column.null_count or given != [field.name for field in fields]:
            what = (
                "has a null" if column.null_count else f"has the fields {given}, not {[each.name for each in fields]}"
            )
            raise InvalidInputError(f"{self._whose}: the column {name!r} {what}.")
        columns = [
            fit_column(each, field.type, f"{self._whose}: field {field.name!r} of column {name!r}")
            for each, field in zip(column.flatten(), fields, strict=True)
        ]
        return struct_column(fields, columns, len(rows))


def encode_key_columns(codec: NativeRows, columns: Sequence[pa.Array], count: int, whose: str) -> Packed:
    """Return ``count`` keys as Spark's encoders write them: see ``native_rows``.

    Raises InvalidInputError about ``whose`` (a null as an event time).
    """
    encoder = codec.encoder
    kind = encoder.keyStateEncoderType
    if kind == "PrefixKeyScanStateEncoderSpec":
        prefix, rest = columns[: encoder.numColsPrefixKey], columns[encoder.numColsPrefixKey :]
        return side_by_side(_with_size(write_rows(prefix, count)), _with_version(write_rows(rest, count)))
    if kind == "RangeKeyScanStateEncoderSpec":
        ordinals = encoder.orderingOrdinals
        first = _with_size(write_rows([write_ordered(columns[n]) for n in ordinals], count))
        rest = [column for n, column in enumerate(columns) if n not in ordinals]
        return side_by_side(first, _with_version(write_rows(rest, count))) if rest else first
    if kind in ("TimestampAsPrefixKeyStateEncoderSpec", "TimestampAsPostfixKeyStateEncoderSpec"):
        if columns[-1].null_count:
            raise InvalidInputError(f"{whose}: a key has a null as its event time.")
        instants = _order_instants(columns[-1])
        rows = _with_version(write_rows(columns[:-1], count))
        return side_by_side(instants, rows) if "Prefix" in kind else side_by_side(rows, instants)
    return write_rows(columns, count)  # NativeRows knows no other kinds


def _with_version(rows: Packed) -> Packed:
    return rows.prefix(_VERSION)


def _with_size(rows: Packed) -> Packed:
    """Return rows after their version and, before that, the size of both."""
    whole = _with_version(rows)
    return whole.behind_heads(whole.size.astype("<u4").view(np.uint8).reshape(-1, 4))


def _order_instants(column: pa.Array) -> Packed:
    """Return microseconds as bytes that sort as the instants do."""
    micros: NDArray[np.uint64] = column.to_numpy().view(np.uint64) ^ _SIGN
    return Packed.of_matrix(micros.astype(">u8").view(np.uint8).reshape(-1, 8))
