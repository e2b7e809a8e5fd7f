"""The parts of a table file other than rows: small blocks, the index, the properties, and their numbers."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pyspark_ckpt.state_store.columns.packed import Bytes, Integers
from pyspark_ckpt.state_store.database import TABLE_FORMAT_VERSION, Tuning, write_table_file
from pyspark_ckpt.state_store.sst.layout import FOOTER_BYTES, FOOTER_END, MAGIC, MORE, XXH3, Handle, encode_number
from pyspark_ckpt.state_store.sst.table import SortedTable


def place_of(handle: Handle) -> bytes:
    """Encode where a block begins, and its size."""
    return encode_number(handle[0]) + encode_number(handle[1])


def block_of(entries: Sequence[tuple[bytes, bytes]], run: int) -> bytes:
    """Return a block of entries whose keys rise, in runs of ``run`` entries. Keys share bytes within a run only."""
    parts, runs, at, before = [], [], 0, b""
    for number, (key, value) in enumerate(entries):
        if number % run == 0:
            runs.append(at)
            before = b""
        shared = _count_shared_bytes(before, key)
        parts.append(
            encode_number(shared) + encode_number(len(key) - shared) + encode_number(len(value)) + key[shared:] + value
        )
        at, before = at + len(parts[-1]), key
    return b"".join(parts) + runs_of(runs)


def _count_shared_bytes(one: bytes, other: bytes) -> int:
    both = min(len(one), len(other))
    return next((at for at in range(both) if one[at] != other[at]), both)


def index_of(first: Sequence[bytes], last: Sequence[bytes], blocks: Sequence[Handle]) -> bytes:
    """Return the index of data blocks, given their first and last keys and where they are.

    The index has a short key for each block: at least the last key of the block, and less than the first key of the
    next one.
    """
    widest = max(map(len, (*first, *last)))
    firsts, keys = (_matrix(some, widest) for some in (first, last))
    first_bytes, key_bytes = (np.fromiter(map(len, some), np.int64, len(some)) for some in (first, last))
    differ = keys[:-1] != firsts[1:]
    at = differ.argmax(axis=1)
    shortened = np.flatnonzero(differ.any(axis=1) & (at + 1 < first_bytes[1:]))
    keys[shortened], key_bytes[shortened] = firsts[shortened + 1], at[shortened] + 1
    places = np.array(blocks, np.int64)
    parts = [
        _varints(np.zeros_like(key_bytes)),  # nothing is shared
        _varints(key_bytes),
        (keys, key_bytes),
        _varints(places[:, 0]),
        _varints(places[:, 1]),
    ]
    content = np.concatenate([part for part, _ in parts], axis=1)
    is_there = np.concatenate([np.arange(part.shape[1]) < sizes[:, None] for part, sizes in parts], axis=1)
    ends = np.cumsum(is_there.sum(axis=1))
    entries: bytes = content[is_there].tobytes()
    return entries + runs_of([0, *ends[:-1].tolist()])


def _matrix(strings: Sequence[bytes], width: int) -> Bytes:
    """Return the strings as rows, padded with zeros."""
    rows = b"".join(string.ljust(width, b"\0") for string in strings)
    return np.frombuffer(rows, np.uint8).reshape(len(strings), width).copy()


def _varints(numbers: Integers) -> tuple[Bytes, Integers]:
    """Return numbers, seven bits a byte, as rows of a matrix, and how many bytes of each row are used."""
    shifts = np.arange(0, max(1, int(numbers.max(initial=0)).bit_length()), 7)
    rest = numbers[:, None] >> shifts
    sizes = np.maximum((rest > 0).sum(axis=1), 1)
    more = np.where(np.arange(len(shifts)) + 1 < sizes[:, None], MORE, 0)
    return (rest & (MORE - 1) | more).astype(np.uint8), sizes


def runs_of(begins: Sequence[int]) -> bytes:
    """Return the end of a block: where its runs begin, and how many there are."""
    return struct.pack(f"<{len(begins) + 1}I", *begins, len(begins))


def footer_of(meta: Handle, index: Handle) -> bytes:
    """Return the footer of a file."""
    begin = bytes([XXH3]) + place_of(meta) + place_of(index)
    return begin.ljust(FOOTER_BYTES - FOOTER_END.size, b"\0") + FOOTER_END.pack(TABLE_FORMAT_VERSION, MAGIC)


def properties_like(tuning: Tuning) -> dict[bytes, bytes]:
    """Return the properties that RocksDB gives to a table file of one empty row with these settings.

    Only the session identity is new each time: RocksDB's cache identifies files by it.
    """
    return {**_properties(tuning.compression), b"rocksdb.creating.session.identity": _new_session()}


@cache
def _properties(compression: str) -> dict[bytes, bytes]:
    with TemporaryDirectory() as folder:
        path, key = Path(folder) / "like.sst", bytes(8)
        write_table_file(path, [(key, b"")], Tuning(0, compression))
        table = SortedTable(path, (key, key))
        table.close()
        return dict(table.properties)


def _new_session() -> bytes:
    """Return a session identity as RocksDB makes one: 103 random bits, 41 in eight digits and 62 in twelve."""
    return b"".join(
        np.base_repr(secrets.randbits(bits), 36).zfill(digits).encode() for bits, digits in ((41, 8), (62, 12))
    )
