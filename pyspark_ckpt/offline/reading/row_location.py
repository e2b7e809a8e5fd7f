"""Where rows lie: the partition and the range of stored keys that can have a row, and the place columns of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from pyspark_ckpt.offline.reading.rows.partition_rows import BROADCASTS, OPERATOR_LISTS
from pyspark_ckpt.offline.reading.rows.state_codec import StoredRow, Wanted
from pyspark_ckpt.offline.reading.stored_state import StoredState
from pyspark_ckpt.state_store.arrays.sums import hash_row
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.key_groups import (
    HASHES,
    MAX_PARALLELISM,
    find_keyed_partition,
    find_spark_partition,
    read_max_parallelism,
)
from pyspark_ckpt.state_store.format.keys import HASH_BYTES, STATE_BYTES, encode_hashed_key, read_hash, state_range
from pyspark_ckpt.state_store.format.meta import StateMeta
from pyspark_ckpt.state_store.format.partition_states import encode_sum
from pyspark_ckpt.state_store.restore.range_restorer import Range

PLACE = [pa.field("partition", pa.int32()), pa.field("key_group", pa.int32()), pa.field("hash", pa.int32())]


def place_columns(state: StoredState, partition: int, rows: Sequence[StoredRow]) -> list[pa.Array]:
    """Return the columns of ``PLACE`` for rows of a partition. Raises FormatError."""
    if state.kind in (OPERATOR_LISTS, BROADCASTS):  # their rows have no hash
        of_list = [row.hash if state.kind == OPERATOR_LISTS else partition for row in rows]
        return [pa.array(of_list, pa.int32()), *([pa.nulls(len(rows), pa.int32())] * 2)]
    groups = read_max_parallelism(state.descriptor, state.whose) or MAX_PARALLELISM
    hashes = np.fromiter((row.hash for row in rows), np.int64, len(rows))
    return [
        pa.array(np.full(len(hashes), partition, np.int32)),
        pa.array((hashes * groups // HASHES).astype(np.int32)),
        pa.array(hashes.astype(np.uint32).view(np.int32)),
    ]


def find_range(own: StateMeta, wanted: Wanted) -> Range:
    """Return the range of stored keys that can have the key: the whole state if it is not sorted by hash."""
    if own.descriptor.ordered:
        return state_range(own.number)
    begin = encode_hashed_key(own.number, wanted.hash, wanted.prefix)
    return begin, _behind(begin)


def _behind(prefix: bytes) -> bytes:
    """Return the first key after all keys that begin with ``prefix``, which begins with the number of a state."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


def find_partition(state: StoredState, key_hash: int, in_use: int) -> int:
    """Return which of the ``in_use`` partitions has the rows of a hash. Raises FormatError, InvalidInputError."""
    if state.kind == OPERATOR_LISTS:
        if key_hash >= in_use:
            raise InvalidInputError(f"{state.whose} has partitions 0 to {in_use - 1}, not {key_hash}.")
        return key_hash
    groups = read_max_parallelism(state.descriptor, state.whose)
    if groups is not None:
        return find_keyed_partition(key_hash, in_use, groups)
    return find_spark_partition(key_hash, in_use)


def read_stored_row(key: bytes, value: bytes, *, is_ordered: bool) -> StoredRow:
    """Split a stored key and value into a row. Raises FormatError."""
    begin, end = (STATE_BYTES, len(key) - HASH_BYTES) if is_ordered else (STATE_BYTES + HASH_BYTES, len(key))
    if len(key) < STATE_BYTES + HASH_BYTES:
        raise FormatError(f"A row is stored under the key {key.hex()!r}, which is too short to have a hash.")
    return StoredRow(read_hash(key), key[begin:end], value)


def prove_copy(own: StateMeta, whose: str, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield all rows of a state. Raises FormatError at the end if it is a broadcast state with another digest."""
    if own.digest is UNSET:
        yield from rows
        return
    total = 0
    for key, value in rows:
        total += hash_row(key, value)
        yield key, value
    if encode_sum(total) != own.digest:
        raise FormatError(
            f"{whose} was committed with the digest {own.digest}, but its rows have the digest {encode_sum(total)}."
        )
