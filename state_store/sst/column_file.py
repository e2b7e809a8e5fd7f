"""Column files: the entries of a table file as arrays, to look up many keys without reading the table file.

RocksDB takes three microseconds for a random row of a table file, because it inflates a block for it. A column file is
mapped into memory and searched by numpy, which takes a third of a microsecond. It is an Arrow file of parts. Each entry
has its key, the first eight bytes of the key as a number, its value and its kind. Parts are in key order, and a part
has every entry of the table file between its first and its last key. Entries for which this does not pay (long keys,
long values, keys that begin alike) are in no part.

Column files are local, and every row in them is in a table file as well. The name ends in a checksum of all bytes.
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

from pyspark_ckpt.state_store.arrays.order import Bools, are_equal, search_sorted
from pyspark_ckpt.state_store.arrays.packed import Integers, Packed, concatenate
from pyspark_ckpt.state_store.chunks import hash_file
from pyspark_ckpt.state_store.database import TableFile
from pyspark_ckpt.state_store.database.column_names import checksum_in, column_file_name, column_files_in
from pyspark_ckpt.state_store.errors import StorageError
from pyspark_ckpt.state_store.format.keys import STATE_BYTES
from pyspark_ckpt.state_store.plain_files import NotPlainFileError, open_plain, require_plain
from pyspark_ckpt.state_store.sst.blocks import Entries
from pyspark_ckpt.state_store.sst.scan import Portion, between
from pyspark_ckpt.state_store.sst.table import SortedTable

MAX_KEY_BYTES = 64
"""Longer keys are in no column file and are left to RocksDB."""
MAX_VALUE_BYTES = 512
"""... and so are runs of entries whose values are longer on average."""
FEW_TIES = 64
"""... and runs where more than one key in this number begins with the same eight bytes as the key before it."""
MAX_BESIDE = 4
"""Column files are used if the table files without one have less than one byte in this number."""
PART_BYTES = 8 << 20
MAX_BYTES = 64 << 20
_SCHEMA = pa.schema([("word", pa.uint64()), ("key", pa.binary()), ("value", pa.binary()), ("kind", pa.uint8())])
CHECKED_S = 60.0
"""Seconds after which the checksum of a file in use is verified again. That takes 15 ms for each 100 MB."""
_log = logging.getLogger(__name__)


def write_column_file(path: Path, bounds: tuple[bytes, bytes], folder: Path, most_bytes: int = sys.maxsize) -> None:
    """Write the column file of the table file ``path`` into ``folder``.

    ``bounds``: the first and last key of the table file. Readers see the whole file or none. Raises FileNotFoundError
    (the table file or the folder is gone), FormatError, StorageError (also for more than ``most_bytes``).
    """
    unfinished = folder / f"{path.stem}.tmp"
    try:
        with closing(SortedTable(path, bounds)) as table:
            with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
                for entries in _parts(table, bounds):
                    writer.write_batch(_batch(entries))
                    if sink.tell() > most_bytes:
                        raise StorageError(f"The column file of {path} needs more than the {most_bytes} bytes allowed.")
            unfinished.rename(folder / column_file_name(path, _checksum(unfinished)))
    finally:
        with suppress(OSError):
            unfinished.unlink()


def _parts(table: SortedTable, bounds: tuple[bytes, bytes]) -> Iterator[list[Entries]]:
    """Yield parts of bounded size: consecutive entries of one state."""
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
    """Yield consecutive entries of one state, and None where entries are left out."""
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
    """Return strings that lie one after the other as an Arrow array, without a copy."""
    ends = np.zeros(len(strings) + 1, np.int32)
    np.cumsum(strings.size, out=ends[1:])
    return pa.Array.from_buffers(pa.binary(), len(strings), [None, pa.py_buffer(ends), pa.py_buffer(strings.data)])


def _checksum(path: Path) -> str:
    digest = xxh3_64()
    with open_plain(path) as file:
        hash_file(file, digest.update)
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Matches:
    """The findings of a part for some of the requested keys.

    ``which``: the requested keys within the bounds of the part. ``is_near``: for which of these an entry begins with
    the same eight bytes. ``found``: positions, among all requested keys, of those in the part, with their ``values``
    and ``kinds``.
    """

    which: slice
    is_near: Bools
    found: Integers
    values: Packed
    kinds: npt.NDArray[np.uint8]


class ColumnFile:
    """A column file, mapped into memory while this object exists."""

    def __init__(self, path: Path) -> None:
        """Map the file. Raises FileNotFoundError, ValueError (damaged, or not a plain file)."""
        try:
            require_plain([path])
        except NotPlainFileError as problem:
            raise ValueError(str(problem)) from problem
        with pa.memory_map(str(path)) as file:
            self._content = file.read_buffer()
        self.path = path
        self._check()
        batches = pa.ipc.open_file(self._content)
        self._parts = [_Part(batches.get_batch(number)) for number in range(batches.num_record_batches)]

    def check_again(self) -> None:
        """Raise ValueError if the file is damaged by now, FileNotFoundError if it is gone.

        Mapped bytes may change with the disk. The checksum is verified if the file was written to, and from time to
        time: nothing else reveals a disk that returns other bytes than were written.
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
        """Yield the matches of keys that rise, for each part whose bounds include some of them.

        A key within the bounds of a part is in that part, or not in the table file.
        """
        begin = 0
        for part in self._parts:
            begin = bisect_left(asked, part.first, lo=begin)
            behind = bisect_left(asked, part.last + b"\0", lo=begin)
            if begin < behind:
                yield part.matches(asked.take(slice(begin, behind)), slice(begin, behind))
            begin = behind


class _Part:
    """Consecutive entries of a column file."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        words, keys, values, kinds = batch.columns
        self._words = words.to_numpy()
        self._kinds = kinds.to_numpy()
        self._keys, self._values = _Strings(keys), _Strings(values)
        self.first, self.last = keys[0].as_py(), keys[-1].as_py()

    def matches(self, asked: Packed, which: slice) -> Matches:
        at, is_near = search_sorted(self._words, asked.words(0))
        found = np.flatnonzero(is_near)
        found = found[are_equal(asked.take(found), self._keys.take(at[found]))]
        return Matches(which, is_near, found + which.start, self._values.take(at[found]), self._kinds[at[found]])


class _Strings:
    """A column of strings, from which some can be copied."""

    def __init__(self, column: pa.Array) -> None:
        _, ends, data = column.buffers()
        self._ends = np.frombuffer(ends, np.int32)
        self._data = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)

    def take(self, which: Integers) -> Packed:
        at = self._ends[which].astype(np.int64)
        return Packed(self._data, at, self._ends[which + 1] - at).dense()


class OpenColumnFiles:
    """The column files of a folder. Each is mapped until it is removed from the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: dict[str, Path] = {}
        self._open: dict[Path, ColumnFile] = {}
        self._unchecked: set[Path] = set()

    def check_again(self) -> None:
        """Have each file checked before its next use: a task that begins does not rely on checks of earlier tasks."""
        self._unchecked = set(self._open)

    def have_most_of(self, tables: Sequence[TableFile]) -> bool:
        """List the folder, and return whether only a small part of the table files is without a column file."""
        self._paths = column_files_in(self._folder)
        there = set(self._paths.values())
        self._open = {path: file for path, file in self._open.items() if path in there}
        beside = sum(table.size_bytes for table in tables if table.name not in self._paths)
        return bool(there) and MAX_BESIDE * beside < sum(table.size_bytes for table in tables)

    def of(self, table: str) -> ColumnFile | None:
        """Return the column file of a table file, if there is one. A damaged one is removed, to be rewritten."""
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
            _log.warning("%s The file is removed, and RocksDB answers instead.", problem)
            self._open.pop(path, None)
            with suppress(OSError):
                path.unlink()
            return None
        self._unchecked.discard(path)
        return self._open[path]
