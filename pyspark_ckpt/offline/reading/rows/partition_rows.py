"""Rows of operator lists and of broadcast states. The key of a list is its partition; that of an entry, its map key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_ckpt.offline.reading.rows.keyed_rows import make_map_keys, make_value_codec
from pyspark_ckpt.offline.reading.rows.state_codec import Decoded, StoredRow, Wanted, struct_column
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.meta import Descriptor
from pyspark_ckpt.state_store.format.partition_states import ELEMENT_BYTES

OPERATOR_LISTS, BROADCASTS = "OperatorListState", "BroadcastState"


class OperatorListRows:
    """The elements of the lists of all partitions, read in their order. See StateCodec."""

    is_one_to_one = True

    def __init__(self, own: Descriptor, newest: Descriptor, whose: str) -> None:
        """``newest``: the descriptor of the store that was written last. Raises FormatError, InvalidInputError."""
        self._whose = whose
        self._next: Counter[int] = Counter()
        """The index of the next element, by partition."""
        self._codec = make_value_codec(own, newest, "element", whose)
        self.key_fields = self.placing_fields = [pa.field("partition", pa.int32())]
        self.fields = [
            pa.field("key", pa.struct(self.key_fields)),
            pa.field("index", pa.int64()),
            pa.field("value", self._codec.kind),
        ]

    def decode(self, rows: Sequence[StoredRow]) -> Decoded:
        """See StateCodec; the index of an element goes on from call to call."""
        if damaged := next((row.key for row in rows if len(row.key) != ELEMENT_BYTES), None):
            raise FormatError(
                f"{self._whose} must have {ELEMENT_BYTES} bytes after a partition, got {damaged[:32].hex()!r}."
            )
        index = pa.array([self._count(row.hash) for row in rows], pa.int64())
        (keys,), positions = self.decode_keys(rows)
        return Decoded([keys, index, self._codec.decode_column([row.value for row in rows])], positions)

    def decode_keys(self, rows: Sequence[StoredRow]) -> Decoded:
        """See StateCodec; an index cannot be told from a key."""
        partitions = pa.array([row.hash for row in rows], pa.int32())
        return Decoded([struct_column(self.key_fields, [partitions], len(rows))], np.arange(len(rows)))

    def _count(self, partition: int) -> int:
        self._next[partition] += 1
        return self._next[partition] - 1

    def find_wanted(self, key: Sequence[Any]) -> Wanted:
        """See StateCodec."""
        (partition,) = key
        if isinstance(partition, bool) or not isinstance(partition, int) or partition < 0:
            raise ValueError("the number of a partition is an integer from 0 on")
        return Wanted(partition, b"", tuple(key), b"")

    def has_key(self, row: Any, wanted: Wanted) -> bool:  # noqa: ANN401 - see StateCodec
        """See StateCodec."""
        return tuple(row) == wanted.values

    def build_value(self, columns: pa.Table, _wanted: Wanted) -> Any:  # noqa: ANN401 - see StateCodec
        """See StateCodec: a list."""
        return python_values(columns["value"].combine_chunks())


class BroadcastRows:
    """The entries of one copy. See StateCodec."""

    is_one_to_one = True

    def __init__(self, own: Descriptor, newest: Descriptor, whose: str) -> None:
        """``newest``: the descriptor of the store that was written last. Raises FormatError, InvalidInputError."""
        self._codec = make_value_codec(own, newest, "value", whose)
        kind, self._keys = make_map_keys(own, whose)
        self.key_fields = self.placing_fields = [pa.field("key", kind)]
        self.fields = [pa.field("key", pa.struct(self.key_fields)), pa.field("value", self._codec.kind)]

    def decode(self, rows: Sequence[StoredRow]) -> Decoded:
        """See StateCodec."""
        keys, positions = self.decode_keys(rows)
        return Decoded([*keys, self._codec.decode_column([row.value for row in rows])], positions)

    def decode_keys(self, rows: Sequence[StoredRow]) -> Decoded:
        """See StateCodec."""
        (keys,) = self._keys.decode_columns([row.key for row in rows])
        return Decoded([struct_column(self.key_fields, [keys], len(rows))], np.arange(len(rows)))

    def find_wanted(self, key: Sequence[Any]) -> Wanted:
        """See StateCodec."""
        encoded = self._keys.encode(key)
        return Wanted(0, encoded, tuple(key), encoded)

    def has_key(self, row: Any, wanted: Wanted) -> bool:  # noqa: ANN401 - see StateCodec
        """See StateCodec."""
        return self._keys.encode(row) == wanted.encoded

    def build_value(self, columns: pa.Table, _wanted: Wanted) -> Any:  # noqa: ANN401 - see StateCodec
        """See StateCodec."""
        values = python_values(columns["value"].combine_chunks())
        return values[0] if values else None
