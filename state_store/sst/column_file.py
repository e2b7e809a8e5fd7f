"""The entries of a table file as arrays, to look many keys up without reading it: a column file.

A random row of a table file takes RocksDB three microseconds: a block is inflated for it. In a column file, which is
mapped into memory and searched by numpy, it takes a third of one. It is an Arrow file of parts; of each entry there is
the key, its first eight bytes as a number, the value and the kind. Parts are in the order of keys, and of a part every
entry is there. Entries that are no use here (long keys and values, keys that begin alike) are in none.

Column files are local and never the only ones that have a row. The name ends in a checksum of all bytes.
"""

from __future__ import annotations

import logging
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64, xxh3_64_hexdigest

from pyspark_ckpt.state_store.columns.order import Bools, are_equal, place_of
from pyspark_ckpt.state_store.columns.packed import Integers, Packed, concatenate
from pyspark_ckpt.state_store.database import TableFile
from pyspark_ckpt.state_store.database.column_names import checksum_in, column_file_name, column_files_in
from pyspark_ckpt.state_store.errors import StorageError
from pyspark_ckpt.state_store.format.keys import STATE_BYTES
from pyspark_ckpt.state_store.sst.blocks import Entries
from pyspark_ckpt.state_store.sst.scan import Portion, between
from pyspark_ckpt.state_store.sst.table import SortedTable

MAX_KEY_BYTES = 64
"""Longer keys are in no column file, and left to RocksDB."""
MAX_VALUE_BYTES = 512
"""... nor are values that are longer on average."""
FEW_TIES = 64
"""... nor keys of which more than one in so many begins as the one before: such are left to RocksDB, too."""
MAX_BESIDE = 4
"""Column files are used if not more than one byte in so many of the table files is in none."""
PART_BYTES = 8 << 20
MAX_BYTES = 64 << 20
_SCHEMA = pa.schema([("word", pa.uint64()), ("key", pa.binary()), ("value", pa.binary()), ("kind", pa.uint8())])
_PIECE_BYTES = 1 << 20
CHECKED_S = 60.0
"""The checksum of a file that is in use is compared again after so long: that takes 15 ms for each 100 MB."""
_log = logging.getLogger(__name__)


def write_column_file(path: Path, bounds: tuple[bytes, bytes], folder: Path, most_bytes: int = sys.maxsize) -> None:
    """Write the one of the table file ``path``, with its first and last key, into ``folder``.

    Readers see all of it or nothing. Raises FileNotFoundError (the table file has gone, or the folder has),
    FormatError, StorageError (also for more than ``most_bytes``).
    """
    unfinished = folder / f"{path.stem}.tmp"
    try:
        with closing(SortedTable(path, bounds)) as table:
            with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
                for entries in _parts(table, bounds):
                    writer.write_batch(_batch(entries))
                    if sink.tell() > most_bytes:
                        raise StorageError(f"{most_bytes} bytes, which may be taken, are not enough for {path}.")
            unfinished.rename(folder / column_file_name(path, _checksum(unfinished)))
    finally:
        with suppress(OSError):
            unfinished.unlink()


def _parts(table: SortedTable, bounds: tuple[bytes, bytes]) -> Iterator[list[Entries]]:
    """Entries that follow each other, of one state and of bounded size."""
    part: list[Entries] = []
    size_bytes, state = 0, b""
    for some in _runs(table, bounds):
        new_state = b"" if some is None else some.keys[0][:STATE_BYTES]
        if part and (some is None or new_state != state or size_bytes > PART_BYTES):
            yield part
            part, size_bytes = [], 0
        if some is not None:
            part.append(some)
            size_bytes += int(some.keys.size.sum() + some.values.size.sum())
        state = new_state
    if part:
        yield part


def _runs(table: SortedTable, bounds: tuple[bytes, bytes]) -> Iterator[Entries | None]:
    """Entries of one state that follow each other; None where there are some that are left out."""
    first, last = bounds
    if table.hidden:
        return
    for begin, end in pairwise([first, *(cut for cut in table.cuts if first < cut <= last), last + b"\0"]):
        entries = Portion(begin, end, ((table, 0),), str(table.path)).entries(MAX_BYTES)
        if entries is None or int(entries.keys.size.min(initial=STATE_BYTES)) < STATE_BYTES:
            yield None
            continue
        entries = entries.take(between(entries.keys, np.arange(len(entries)), begin, end))
        states = entries.keys.matrix(STATE_BYTES).view(">u2").reshape(-1)
        for at, behind in pairwise([0, *(np.flatnonzero(np.diff(states)) + 1).tolist(), len(entries)]):
            some = entries.take(slice(at, behind))
            yield some if len(some) and _is_useful(some) else None


def _is_useful(entries: Entries) -> bool:
    words = entries.keys.words(0)
    ties = int((words[1:] == words[:-1]).sum())
    return (
        ties * FEW_TIES <= len(entries)
        and int(entries.keys.size.max()) <= MAX_KEY_BYTES
        and int(entries.values.size.sum()) <= MAX_VALUE_BYTES * len(entries)
    )


def _batch(parts: list[Entries]) -> pa.RecordBatch:
    keys, values = concatenate([part.keys for part in parts]), concatenate([part.values for part in parts])
    kinds = np.concatenate([part.kinds for part in parts])
    arrays = [pa.array(keys.words(0)), _binary(keys), _binary(values), pa.array(kinds)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _binary(strings: Packed) -> pa.Array:
    """Strings that lie one behind the other."""
    ends = np.zeros(len(strings) + 1, np.int32)
    np.cumsum(strings.size, out=ends[1:])
    return pa.Array.from_buffers(pa.binary(), len(strings), [None, pa.py_buffer(ends), pa.py_buffer(strings.data)])


def _checksum(path: Path) -> str:
    digest = xxh3_64()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Matches:
    """What some keys that were asked for have in a part.

    ``is_near``: where an entry begins as the key, so that it may be there. ``found``: places among those that were
    asked for, and what the keys there have.
    """

    which: slice
    is_near: Bools
    found: Integers
    values: Packed
    kinds: npt.NDArray[np.uint8]


class ColumnFile:
    """A column file, mapped for as long as there is this object."""

    def __init__(self, path: Path) -> None:
        """Map it. Raises FileNotFoundError, ValueError (damaged)."""
        with pa.memory_map(str(path)) as file:
            self._content = file.read_buffer()
        self.path = path
        self._check()
        batches = pa.ipc.open_file(self._content)
        self._parts = [_Part(batches.get_batch(number)) for number in range(batches.num_record_batches)]

    def check_again(self) -> None:
        """Raise ValueError if it is damaged by now: what is mapped is what the disk has. FileNotFoundError.

        Its checksum is compared if somebody has written to it, and from time to time: an answer of the disk that is
        not what was written shows in nothing else.
        """
        if self._change() != self._checked or time.monotonic() - self._checked_at > CHECKED_S:
            self._check()

    def _check(self) -> None:
        self._checked, self._checked_at = self._change(), time.monotonic()
        if xxh3_64_hexdigest(self._content) != checksum_in(self.path):
            raise ValueError(f"{self.path} is damaged: the checksum is wrong.")

    def _change(self) -> tuple[int, int]:
        state = self.path.stat()
        return state.st_size, state.st_ctime_ns

    def matches(self, asked: Packed) -> Iterator[Matches]:
        """Of keys that rise, those that a part must have if the table file has them."""
        begin = 0
        for part in self._parts:
            begin = bisect_left(asked, part.first, lo=begin)
            behind = bisect_left(asked, part.last + b"\0", lo=begin)
            if begin < behind:
                yield part.matches(asked.take(slice(begin, behind)), slice(begin, behind))
            begin = behind


class _Part:
    """Entries that follow each other."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        words, keys, values, kinds = batch.columns
        self._words = words.to_numpy()
        self._kinds = kinds.to_numpy()
        self._keys, self._values = _Strings(keys), _Strings(values)
        self.first, self.last = keys[0].as_py(), keys[-1].as_py()

    def matches(self, asked: Packed, which: slice) -> Matches:
        at, is_near = place_of(self._words, asked.words(0))
        found = np.flatnonzero(is_near)
        found = found[are_equal(asked.take(found), self._keys.take(at[found]))]
        return Matches(which, is_near, found + which.start, self._values.take(at[found]), self._kinds[at[found]])


class _Strings:
    """A column of strings, some of which are copied out of it."""

    def __init__(self, column: pa.Array) -> None:
        _, ends, data = column.buffers()
        self._ends = np.frombuffer(ends, np.int32)
        self._data = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)

    def take(self, which: Integers) -> Packed:
        at = self._ends[which].astype(np.int64)
        return Packed(self._data, at, self._ends[which + 1] - at).dense()


class OpenColumnFiles:
    """Those of a folder, as far as they are there: each is mapped until it is there no more."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: dict[str, Path] = {}
        self._open: dict[Path, ColumnFile] = {}
        self._unchecked: set[Path] = set()

    def check_again(self) -> None:
        """Have each file checked before it is used next: a task that begins does not believe what others have found."""
        self._unchecked = set(self._open)

    def have_most_of(self, tables: Sequence[TableFile]) -> bool:
        """Look what there is now; whether the table files that are not in columns are few beside those that are."""
        self._paths = column_files_in(self._folder)
        there = set(self._paths.values())
        self._open = {path: file for path, file in self._open.items() if path in there}
        beside = sum(table.size_bytes for table in tables if table.name not in self._paths)
        return bool(there) and MAX_BESIDE * beside < sum(table.size_bytes for table in tables)

    def of(self, table: str) -> ColumnFile | None:
        """The one of a table file. One that is damaged is removed: it will be written again."""
        path = self._paths.get(table)
        if path is None:
            return None
        try:
            if path not in self._open:
                self._open[path] = ColumnFile(path)
            elif path in self._unchecked:
                self._open[path].check_again()
        except FileNotFoundError:
            return None
        except ValueError as problem:
            _log.warning("%s RocksDB is asked instead.", problem)
            self._open.pop(path, None)
            with suppress(OSError):
                path.unlink()
            return None
        self._unchecked.discard(path)
        return self._open[path]
