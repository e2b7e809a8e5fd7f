"""Checksums of rows, which Spark's own providers store with ``spark.sql.streaming.stateStore.rowChecksum.enabled``.

::

    RocksDB provider       sum:u32le · bytes:u32le · value    several values of a key: this of each, with what RocksDB's
                                                              merge operator puts between values
    HDFS-backed provider   sum:u32le · value
    a deletion in a log    sum:u32le · key

A sum is the CRC-32C of the key, with the number of its state, and of the value. Source: ``StateStoreRowChecksum.scala``
of Spark 4.3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from pyspark_ckpt.offline.adopting.records import Change
from pyspark_ckpt.state_store.arrays.packed import Packed, side_by_side
from pyspark_ckpt.state_store.errors import FormatError

if TYPE_CHECKING:
    import numpy.typing as npt

CHANGES_AT_ONCE = 4096
_SUM = struct.Struct("<I")
_HEAD = struct.Struct("<II")
_POLYNOMIAL = 0x82F63B78
_ALL_BITS = 0xFFFFFFFF


def _make_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ _POLYNOMIAL, table >> 1).astype(np.uint32)
    return table


_TABLE = _make_table()


def compute_sums(strings: Packed) -> npt.NDArray[np.uint32]:
    """Return the CRC-32C of each string."""
    order = np.argsort(-strings.size, kind="stable")  # long ones first: position n is in the first few of them
    at, sizes = strings.at[order], strings.size[order]
    sums = np.full(len(order), _ALL_BITS, np.uint32)
    longest = int(sizes[0]) if len(sizes) else 0
    counts = np.searchsorted(-sizes, -np.arange(longest), "left")  # how many are longer than n
    for position, count in enumerate(counts.tolist()):
        some = sums[:count]
        index = (some ^ strings.data[at[:count] + position]) & 0xFF
        sums[:count] = _TABLE[index] ^ (some >> 8)
    found = np.empty_like(sums)
    found[order] = sums ^ np.uint32(_ALL_BITS)
    return found


def check_changes(changes: Iterable[Change], where: str) -> Iterator[Change]:
    """Yield changes as a store without sums logs them, except that values keep their sums. Raises FormatError."""
    waiting = iter(changes)
    while some := list(islice(waiting, CHANGES_AT_ONCE)):
        deleted = [change.key for change in some if change.value is None]
        _require([], [(_take_sum(key, where), key[_SUM.size :]) for key in deleted], where)
        for change in some:
            yield change if change.value is not None else Change(change.key[_SUM.size :], None)


def strip_sums(
    rows: Sequence[tuple[bytes, bytes]], where: str, *, are_sized: bool, delimiter: bytes
) -> list[tuple[bytes, bytes]]:
    """Return rows as they are stored without sums. Raises FormatError about ``where`` if a sum is wrong.

    ``are_sized``: whether they are rows of the RocksDB provider. ``delimiter``: what it puts between several values.
    """
    parts = [list(_split(value, delimiter, where)) if are_sized else [_split_off(value, where)] for _, value in rows]
    keys = [key for (key, _), own in zip(rows, parts, strict=True) for _ in own]
    _require(keys, [part for own in parts for part in own], where)
    return [(key, delimiter.join(value for _, value in own)) for (key, _), own in zip(rows, parts, strict=True)]


def add_sums(
    keys: Sequence[bytes], values: Sequence[Sequence[bytes]], *, are_sized: bool, delimiter: bytes
) -> list[bytes]:
    """Return the stored values of keys, each with one value or several: the inverse of ``strip_sums``."""
    flat = [value for own in values for value in own]
    of_keys = [key for key, own in zip(keys, values, strict=True) for _ in own]
    sums = iter(compute_sums(side_by_side(Packed.of(of_keys), Packed.of(flat))).tolist())

    def write(value: bytes) -> bytes:
        return _HEAD.pack(next(sums), len(value)) + value if are_sized else _SUM.pack(next(sums)) + value

    return [delimiter.join(map(write, own)) for own in values]


def _split(stored: bytes, delimiter: bytes, where: str) -> Iterator[tuple[int, bytes]]:
    """Yield the values of a key, each with its sum."""
    at = 0
    while True:
        if at + _HEAD.size > len(stored):
            raise FormatError(f"{where} has a value that ends within the head of a checksum.")
        found, size = _HEAD.unpack_from(stored, at)
        at += _HEAD.size
        if at + size > len(stored):
            raise FormatError(f"{where} has a value that should have {size} bytes from byte {at} on.")
        yield found, stored[at : at + size]
        at += size
        if at == len(stored):
            return
        if not stored.startswith(delimiter, at):
            raise FormatError(f"{where} has values without {delimiter!r} between them.")
        at += len(delimiter)


def _split_off(stored: bytes, where: str) -> tuple[int, bytes]:
    return _take_sum(stored, where), stored[_SUM.size :]


def _take_sum(stored: bytes, where: str) -> int:
    if len(stored) < _SUM.size:
        raise FormatError(f"{where} has a row of {len(stored)} bytes, which has no checksum.")
    return int(_SUM.unpack_from(stored)[0])


def _require(keys: Sequence[bytes], found: Sequence[tuple[int, bytes]], where: str) -> None:
    """Raise FormatError unless the sums are those of ``keys`` with their values, or of the values alone."""
    values = Packed.of([value for _, value in found])
    sums = compute_sums(side_by_side(Packed.of(keys), values) if keys else values)
    if wrong := np.flatnonzero(sums != np.fromiter((each for each, _ in found), np.uint32, len(found))).tolist():
        raise FormatError(f"{where} is damaged: the checksum of {len(wrong)} of {len(found)} rows is wrong.")
