"""Reads the entries of many data blocks at once. RocksDB's iterator takes one call for each entry.

A block consists of runs of entries, followed by an array that says where each run begins. An entry says how many bytes
its key shares with the previous key of its run. A key ends in eight bytes for the sequence number and the kind of the
entry. All runs of many blocks are read in parallel, entry by entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyspark_ckpt.state_store.arrays.packed import WIDEST, Bytes, Integers, Packed, are_same, repeat
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.sst.layout import MORE, SUFFIX_BYTES

DELETION, VALUE, MERGE = 0, 1, 2
ENTRY_BYTES = 128
"""Memory for each entry in addition to its key and its value."""
_MAX_SHIFT = 56
"""No number in a table has more bits. The limit stops the decoding of damaged numbers."""
_MAX_HEADER_BYTES = 7


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of a table in key order. Entries of the same key are in order from new to old."""

    keys: Packed
    values: Packed
    sequences: npt.NDArray[np.uint64]
    kinds: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.keys)

    def take(self, which: slice | npt.NDArray[np.generic]) -> Entries:
        """Return the entries at some positions, or where a mask is true."""
        return Entries(self.keys.take(which), self.values.take(which), self.sequences[which], self.kinds[which])


@dataclass(frozen=True, eq=False)
class ParsedEntries:
    """Entries of data blocks, in order, before their keys are put together.

    ``counts`` has the number of entries of each block. Each entry has the number of key bytes that it shares with the
    previous key (``shared``), the number of its ``own`` key bytes, the position of these (``at``), and the ``size`` of
    the value that follows them.
    """

    data: Bytes
    counts: Integers
    shared: Integers
    own: Integers
    size: Integers
    at: Integers

    def size_bytes(self, blocks: npt.NDArray[np.bool_]) -> int:
        """Estimate the memory that the entries of some blocks take, Python objects included."""
        keys, others = self.shared + self.own, self.own + self.size
        if not blocks.all():
            some = np.repeat(blocks, self.counts)
            keys, others = keys[some], others[some]
        widest = int(keys.max(initial=0))
        in_keys = int(keys.sum()) if widest > WIDEST else len(keys) * widest
        return in_keys + int(others.sum()) + len(keys) * ENTRY_BYTES

    def entries(self, what: str, *, may_merge: bool = False) -> Entries:
        """Put the entries together. Raises FormatError that names ``what``, also for merge operands unless allowed."""
        if not len(self.at):
            return Entries(Packed.of([]), Packed.of([]), np.zeros(0, np.uint64), np.zeros(0, np.uint8))
        values = Packed(self.data, self.at + self.own, self.size)
        found = _with_keys(self.data, self.shared, self.own, self.at, values, what)
        if (found.kinds > (MERGE if may_merge else VALUE)).any():
            raise FormatError(f"{what} is damaged: it has entries that are neither values nor deletions.")
        return found


def parse_entries(blocks: Sequence[bytes | memoryview], what: str) -> ParsedEntries:
    """Return all entries of data blocks. Raises FormatError that names ``what``."""
    if not blocks:
        nothing = np.zeros(0, np.int64)
        return ParsedEntries(np.zeros(0, np.uint8), nothing, nothing, nothing, nothing, nothing)
    data, begins, ends, runs = _lay_out(blocks, what)
    alike = _alike(data, begins, ends)
    if alike is not None:
        return alike
    at, counts = _walk(data, *_runs(data, begins, ends, runs, what), what)
    return ParsedEntries(data, np.add.reduceat(counts, np.cumsum(runs) - runs), *_headers(data, at))


def _lay_out(blocks: Sequence[bytes | memoryview], what: str) -> tuple[Bytes, Integers, Integers, Integers]:
    """Return the blocks in one array, where the entries of each block begin and end in it, and its number of runs."""
    pad = bytes(WIDEST)
    data = np.frombuffer(b"".join([pad, *blocks, pad]), np.uint8)
    ends = len(pad) + np.cumsum([len(block) for block in blocks])
    begins = np.concatenate(([len(pad)], ends[:-1]))
    runs = np.ndarray((len(data) - 3,), "<u4", data, 0, (1,))[ends - 4].astype(np.int64)
    entries_end = ends - 4 - 4 * runs
    if (runs < 1).any() or (entries_end < begins).any():
        raise FormatError(f"{what} is damaged: a block has no runs, or more runs than fit into it.")
    return data, begins, entries_end, runs


def _alike(data: Bytes, begins: Integers, ends: Integers) -> ParsedEntries | None:
    """Return the entries, without a walk over them, if all have the same sizes and share nothing; else None."""
    (shared,), (own,), (size,), (key_at,) = map(np.ndarray.tolist, _headers(data, begins[:1]))
    header_bytes = key_at - int(begins[0])
    entry_bytes = header_bytes + own + size
    if shared or header_bytes > _MAX_HEADER_BYTES or entry_bytes > len(data) or ((ends - begins) % entry_bytes).any():
        return None
    counts = (ends - begins) // entry_bytes
    first = np.cumsum(counts) - counts
    at = np.repeat(begins - first * entry_bytes, counts) + np.arange(int(counts.sum())) * entry_bytes
    headers = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))[at] << np.uint64(64 - 8 * header_bytes)
    if not len(at) or (headers != headers[0]).any():
        return None
    shared, own, size = (repeat(each, len(at)) for each in (0, own, size))
    return ParsedEntries(data, counts, shared, own, size, at + header_bytes)


def _walk(data: Bytes, at: Integers, ends: Integers, what: str) -> tuple[Integers, Integers]:
    """Return where all entries of some runs begin, run by run, and the number of each. Runs are read in parallel."""
    run, counts = np.arange(len(at)), np.zeros(len(at), np.int64)
    steps = []
    while len(at):
        steps.append((run, at))
        counts[run] += 1
        _, own, size, key_at = _headers(data, at)
        at = key_at + own + size
        if (at > ends).any():
            raise FormatError(f"{what} is damaged: an entry ends after its block.")
        goes_on = at < ends
        if not goes_on.all():
            run, at, ends = run[goes_on], at[goes_on], ends[goes_on]
    first = np.cumsum(counts) - counts
    begins = np.empty(int(counts.sum()), np.int64)
    for number, (run, at) in enumerate(steps):
        begins[first[run] + number] = at
    return begins, counts


def _runs(data: Bytes, begins: Integers, ends: Integers, runs: Integers, what: str) -> tuple[Integers, Integers]:
    """Return where each run of each block begins and ends."""
    words = np.ndarray((len(data) - 3,), "<u4", data, 0, (1,))
    block_of = np.repeat(np.arange(len(runs)), runs)
    last_run = np.cumsum(runs) - 1
    nth = np.arange(len(block_of)) - (last_run - runs + 1)[block_of]
    run_begin = begins[block_of] + words[ends[block_of] + 4 * nth]
    run_end = np.append(run_begin[1:], 0)
    run_end[last_run] = ends
    if (run_begin >= run_end).any():
        raise FormatError(f"{what} is damaged: a run of a block has no entries.")
    return run_begin, run_end


def _headers(data: Bytes, at: Integers) -> tuple[Integers, Integers, Integers, Integers]:
    """Return the three numbers at each position, and the position after them."""
    three = np.ndarray((len(data) - 3,), "<u4", data, 0, (1,))[at]
    if not (np.bitwise_or.reduce(three) & 0x808080):
        columns = three.view(np.uint8)
        shared, own, size = (columns[number::4].astype(np.int64) for number in range(3))
        return shared, own, size, at + 3
    shared, behind = varints(data, at)
    own, behind = varints(data, behind)
    size, behind = varints(data, behind)
    return shared, own, size, behind


def varints(data: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """Return the number at each position, with seven bits a byte, and where it ends."""
    number = np.zeros(len(at), np.int64)
    ends, going, shift = at.copy(), np.arange(len(at)), 0
    while len(going) and shift < _MAX_SHIFT:
        byte = data[ends[going]].astype(np.int64)
        number[going] |= (byte & 0x7F) << shift
        ends[going] += 1
        going, shift = going[byte >= MORE], shift + 7
    return number, ends


def _with_keys(data: Bytes, shared: Integers, own: Integers, at: Integers, values: Packed, what: str) -> Entries:
    """Return the entries with whole keys: the bytes that each shares with the previous key, and its own bytes."""
    is_shared = bool(shared[0]) or not are_same(shared)
    size = shared + own if is_shared else own
    if int(size.min()) < SUFFIX_BYTES or (is_shared and (shared[0] or (shared[1:] > size[:-1]).any())):
        raise FormatError(f"{what} is damaged: an entry has no complete key.")
    width = int(size.max(initial=0))
    if not is_shared:
        keys = Packed(data, at, size)
    elif width > WIDEST:
        keys = _long_keys(data.tobytes(), shared, own, at)
    else:
        windows = np.ndarray((len(data) - width + 1,), f"V{max(1, width)}", data, 0, (1,))
        matrix = windows[at - shared].view(np.uint8).reshape(len(at), width)
        for column in range(int(shared.max(initial=0))):  # the byte is that of the last entry that does not share it
            owners = np.flatnonzero(shared <= column)
            matrix[:, column] = np.repeat(matrix[owners, column], np.diff(owners, append=len(at)))
        keys = Packed(matrix.reshape(-1), np.arange(len(at)) * width, size)
    suffix_at = keys.at + size - SUFFIX_BYTES
    suffixes = np.ndarray((max(0, len(keys.data) - 7),), "<u8", keys.data, 0, (1,))[suffix_at]
    kinds = (suffixes & np.uint64(0xFF)).astype(np.uint8)
    return Entries(keys.before(SUFFIX_BYTES), values, suffixes >> np.uint64(8), kinds)


def _long_keys(data: bytes, shared: Integers, own: Integers, at: Integers) -> Packed:
    keys, key = [], b""
    for common, rest, begin in zip(shared.tolist(), own.tolist(), at.tolist(), strict=True):
        key = key[:common] + data[begin : begin + rest]
        keys.append(key)
    return Packed.of(keys)
