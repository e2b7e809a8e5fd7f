"""Canonical savepoints: rows sorted by hash in Parquet files, independent of partitions and RocksDB's files.

::

    <savepoint>/rows/<operator>/<store>/<range:05d>.parquet
        state int32, hash uint32, key binary, value binary

A file has the rows of one range of hashes; ranges are equal parts of the 32,768 key groups. Its rows are ordered by
state. Within a hashed state they are ordered by hash and key; within a state that is scanned in key order, by key.
``key`` is the stored key without the state's number and the hash: see docs/stored-format.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import lt
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.blobs.transfers import StoredFile, fetch, send
from pyspark_ckpt.state_store.checkpoints.digests import Digest, combine, require_equal
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.state_rows import Tally, digest_tallies, scan_state
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.database import Database
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.key_groups import HASHES, MAX_PARALLELISM
from pyspark_ckpt.state_store.format.keys import HASH_BYTES, ORDERED_BIT, STATE_BYTES, state_head
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta, is_keyed
from pyspark_ckpt.state_store.format.names import ROWS_FOLDER
from pyspark_ckpt.state_store.format.partition_states import find_scope
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import Name, OperatorNumber, StoreName
from pyspark_ckpt.state_store.redistribution.assembly import run_files
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.redistribution.merged_states import merge_states, require_equal_states
from pyspark_ckpt.state_store.redistribution.splitting import PartitionWriters, Split, SplitTask, send_all

RANGE_BYTES = 64 << 20
"""The approximate amount of state in one file."""
BATCH_ROWS = 16_384
BATCH_BYTES = 4 << 20
GROUP_ROWS = 65_536
MAX_ARRAY_BYTES = (1 << 31) - 1


class SavedRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All rows of one store of an operator: its states as in partition 0, its files by range, digests of its states.

    ``spark_rows``: see ``Split``.
    """

    operator: OperatorNumber
    name: StoreName
    layout: Name
    meta: StoreMeta
    files: tuple[StoredFile, ...]
    digests: dict[Name, Digest]
    spark_rows: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError if its parts do not belong together."""
        what = f"operator {self.operator}, store {self.name!r}"
        counted = {state.name: state.rows for state in self.meta.states if state.is_counted}
        proven = {name: each.rows for name, each in self.digests.items() if each.sum is not None}
        names = {state.name for state in self.meta.states}
        if not self.digests.keys() <= names or any(rows != proven.get(name, 0) for name, rows in counted.items()):
            raise ValueError(f"{what}: its digests do not match the states {sorted(names)} and their row counts")
        spark_states = [state.name for state in self.meta.states if not is_keyed(state)]
        if self.spark_rows and (self.layout != Layout.KEY_GROUPS.value or len(spark_states) != 1):
            raise ValueError(f"{what}: Spark's rows must be of one state of a keyed operator, got {spark_states}")


class Exported(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file, and digests of the states that have rows in it.

    ``added``: of rows that were in no run. ``joined``: of rows of runs that were joined into others.
    """

    file: StoredFile
    digests: dict[Name, Digest]
    added: dict[Name, Digest] = {}
    joined: dict[Name, Digest] = {}


@dataclass(frozen=True)
class ExportTask:
    """Writes the file of one range, from the runs of all partitions."""

    workplace: Workplace
    identity: Identity
    states: tuple[StateMeta, ...]
    target: str
    runs: tuple[tuple[StoredFile, ...], ...]

    @property
    def key(self) -> str:
        """The name of the task, unique in its job."""
        return f"export-{self.identity.key}"

    def __call__(self) -> Exported:
        """Write the file. Raises StorageError, FormatError, NotFoundError."""
        place = self.workplace.place(self.target)
        with self.workplace.folder() as folder:
            files = [file for run in self.runs for file in run]
            paths = [fetch(place, file, folder / f"{number}.sst") for number, file in enumerate(files)]
            database = Database(folder / "db", self.workplace.tuning())
            try:
                if paths:
                    database.ingest(paths)
                added = self.complete(database, folder)
                joined = dict[str, Digest]()
                digests = self._write(database, folder / "rows.parquet", joined)
            finally:
                database.close()
            name = f"{ROWS_FOLDER}/{self.identity.operator}/{self.identity.name}/{self.identity.partition:05d}.parquet"
            return Exported(send(place, name, folder / "rows.parquet"), digests, added, joined)

    def complete(self, _database: Database, _folder: Path) -> dict[str, Digest]:
        """Add rows that follow from those of the runs. Return their digests by state: there are none here."""
        return {}

    def read(self, database: Database, state: StateMeta, _joined: dict[str, Digest]) -> Iterator[PackedRows]:
        """Yield the rows of a state in order. If the rows in the runs are others, ``_joined`` gets the digest of those.

        It has the digest when all rows have been read.
        """
        return scan_state(database, state.number)

    def _write(self, database: Database, path: Path, joined: dict[str, Digest]) -> dict[str, Digest]:
        import pyarrow.parquet as pq  # noqa: PLC0415 - the state server never needs it, and it is slow to import

        digests: dict[str, Digest] = {}
        schema = _schema()
        with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
            for state in sorted(self.states, key=lambda state: state.number):
                tally = Tally()
                for rows in self.read(database, state, joined):
                    tally.count(rows)
                    writer.write_batch(_batch(rows, state, schema), row_group_size=GROUP_ROWS)
                digests[state.name] = tally.digest
        return digests


@dataclass(frozen=True)
class ImportTask:
    """Splits the rows of one file for the new ``partitions``: see SplitTask.

    ``writes_placed``: also rows that belong to partitions rather than to keys, which others redistribute: see
    ``partition_states``. ``left_out``: the names of states that are not read.
    """

    workplace: Workplace
    source: str
    rows: SavedRows
    number: int
    target: str
    partitions: int
    key_groups: int = 0
    writes_placed: bool = False
    left_out: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """The name of the task, unique in its job."""
        return f"import-{self.identity.key}"

    @property
    def identity(self) -> Identity:
        """The file as a separate store, whose partition is the range."""
        return Identity(self.rows.operator, self.number, self.rows.name)

    def __call__(self) -> Split:
        """Write the runs of all new partitions. Raises StorageError, FormatError, NotFoundError."""
        with self.workplace.folder() as folder:
            path = fetch_rows(self.workplace, self.source, self.rows, self.number, folder)
            writers = PartitionWriters(folder, self.workplace.tuning(), self.partitions, self.key_groups)
            for _ in writers.passes():
                tallies = defaultdict[str, Tally](Tally)  # the same in each pass
                for state, portion in rows_in(path, self.source, self.rows, self.number):
                    if state.name in self.left_out:
                        continue
                    tallies[state.name].count(portion)
                    if self.writes_placed or find_scope(state) is None:
                        writers.write(portion)
            sent = send_all(self.workplace.place(self.target), self.identity, writers.files)
            return Split(digest_tallies(tallies), sent)


def fetch_rows(workplace: Workplace, source: str, saved: SavedRows, number: int, folder: Path) -> Path:
    """Download one file into ``folder``. Raises NotFoundError, FormatError, StorageError."""
    return fetch(workplace.place(source), saved.files[number], folder / "rows.parquet")


def find_file(row_hash: int, files: int) -> int:
    """Return which of ``files`` files has the rows with an unsigned hash."""
    return (row_hash * MAX_PARALLELISM // HASHES) * files // MAX_PARALLELISM


class WantedRows(NamedTuple):
    """The rows to look for in a file: those of a state, or of one hash in it. Row groups without any are skipped.

    Row groups are checked by their two columns of numbers: Arrow ends the process on damaged statistics.
    """

    state: int
    hash: int | None

    def is_in(self, parquet: Any, group: int) -> bool:  # noqa: ANN401 - see _schema
        """Return whether a row group has such a row."""
        for batch in parquet.iter_batches(GROUP_ROWS, [group], columns=["state", "hash"]):
            found = batch.column("state").to_numpy() == self.state
            if self.hash is not None:
                found &= batch.column("hash").to_numpy() == self.hash
            if found.any():
                return True
        return False


def rows_in(
    path: Path, source: str, saved: SavedRows, number: int, wanted: WantedRows | None = None
) -> Iterator[tuple[StateMeta, PackedRows]]:
    """Yield the rows of the file at ``path``, in the order of their stored keys, in portions of one state each.

    With ``wanted``, skip row groups that have no such row. Raises FormatError.
    """
    name = f"{source}/{saved.files[number].name}"
    states = {state.number: state for state in saved.meta.states}
    last = b""
    with _open(path, name) as parquet:
        for batch in _batches(parquet, wanted):
            for begin, end in _group_equal(batch.column("state").to_numpy()):
                part = batch.slice(begin, end - begin)
                state = states.get(part.column("state")[0].as_py())
                if state is None:
                    raise FormatError(f"{name} has rows of a state that the savepoint does not list.")
                keys = _encode_keys(part, state)
                if not all(map(lt, [last, *keys], keys)):
                    raise FormatError(f"{name} is damaged: its rows are not in order.")
                last = keys[-1]
                yield state, PackedRows(Packed.of(keys), Packed.of(part.column("value").to_pylist()))


def hashes_in(path: Path, source: str, saved: SavedRows, number: int) -> Iterator[Any]:
    """Yield the unsigned hashes of all rows of one file that belong to keys, in numpy arrays. Raises FormatError."""
    with _open(path, f"{source}/{saved.files[number].name}") as parquet:
        of_keys = [state.number for state in saved.meta.states if find_scope(state) is None]
        for batch in parquet.iter_batches(GROUP_ROWS, columns=["state", "hash"]):
            hashes, states = (batch.column(name).to_numpy() for name in ("hash", "state"))
            yield hashes[np.isin(states, of_keys)]


@contextmanager
def _open(path: Path, name: str) -> Iterator[Any]:
    """Open a file of rows. Its errors name ``name``."""
    import pyarrow as pa  # noqa: PLC0415 - see ExportTask
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with pq.ParquetFile(path) as parquet:
            if not parquet.schema_arrow.equals(_schema()):
                raise FormatError(f"{name} has other columns than a canonical savepoint: {parquet.schema_arrow.names}.")
            yield parquet
    except (pa.ArrowException, OSError, UnicodeError) as problem:  # Parquet has another error for each kind of damage
        raise FormatError(f"{name} is damaged: {problem}") from problem


def _batches(parquet: Any, wanted: WantedRows | None) -> Iterator[Any]:  # noqa: ANN401 - see _schema
    """Yield rows in batches of about ``BATCH_BYTES``, by the file's own figures, and at most ``BATCH_ROWS`` rows."""
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        if wanted is not None and not wanted.is_in(parquet, number):
            continue
        row_bytes = group.total_byte_size // max(1, group.num_rows)
        yield from parquet.iter_batches(max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row_bytes))), [number])


def digest_file(workplace: Workplace, source: str, saved: SavedRows, number: int) -> dict[str, Digest]:
    """Return the digests of the states that have rows in a file. Raises FormatError, StorageError."""
    with workplace.folder() as folder:
        path = fetch_rows(workplace, source, saved, number, folder)
        tallies = defaultdict[str, Tally](Tally)
        for state, rows in rows_in(path, source, saved, number):
            tallies[state.name].count(rows)
        return digest_tallies(tallies)


def export(
    workplace: Workplace, operators: list[OperatorVersion], target: str, runner: Runner, progress: Progress
) -> list[SavedRows]:
    """Write the rows of all stores below ``target``. Raises StorageError, FormatError (also if digests differ)."""
    return [
        _export(workplace, operator, name, target, runner, progress)
        for operator in operators
        for name in operator.stores
    ]


def _export(
    workplace: Workplace, operator: OperatorVersion, name: str, target: str, runner: Runner, progress: Progress
) -> SavedRows:
    stores, number = operator.stores[name], operator.operator.number
    what = f"operator {number}, store {name!r}"
    whole = merge_states([store.meta for store in stores], what)
    require_equal_states(operator)
    is_keyed = operator.layout is Layout.KEY_GROUPS
    ranges = max(1, min(MAX_PARALLELISM, sum(store.size_bytes for store in stores) // RANGE_BYTES))
    splits: list[Split] = runner(
        [
            SplitTask(workplace, store, target, ranges, numbers, MAX_PARALLELISM, is_keyed, store is stores[0])
            for store, numbers in zip(stores, whole.numbers, strict=True)
        ],
        progress,
    )
    runs = [split.runs for split in splits]
    tasks = [
        ExportTask(workplace, Identity(number, each, name), whole.states, target, run_files(runs, each))
        for each in range(ranges)
    ]
    exported: list[Exported] = runner(tasks, progress)
    before, after = combine(split.digests for split in splits), combine(each.digests for each in exported)
    require_equal(before, after, what)
    rows = {state: each.rows for state, each in before.items()}
    first = stores[0].meta
    return SavedRows(
        number,
        name,
        operator.layout.value,
        whole.meta(first.version, first.id, len(stores), rows),
        tuple(each.file for each in exported),
        before,
        tuple(value for split in splits for value in split.spark_rows),
    )


def _schema() -> Any:  # noqa: ANN401 - of Arrow, which is imported late
    import pyarrow as pa  # noqa: PLC0415 - see ExportTask

    return pa.schema(
        [
            pa.field("state", pa.int32(), nullable=False),
            pa.field("hash", pa.uint32(), nullable=False),
            pa.field("key", pa.binary(), nullable=False),
            pa.field("value", pa.binary(), nullable=False),
        ]
    )


def _batch(rows: PackedRows, state: StateMeta, schema: Any) -> Any:  # noqa: ANN401 - see _schema
    import pyarrow as pa  # noqa: PLC0415 - see ExportTask

    if rows.is_ordered:
        keys = rows.keys.behind(STATE_BYTES).before(HASH_BYTES)
    else:
        keys = rows.keys.behind(STATE_BYTES + HASH_BYTES)
    numbers = pa.array(np.full(len(rows), state.number, np.int32))
    return pa.record_batch([numbers, pa.array(rows.hashes()), _binary(keys), _binary(rows.values)], schema)


def _binary(strings: Packed) -> Any:  # noqa: ANN401 - see _schema
    """Return byte strings as an array of Arrow, without a Python object for each."""
    import pyarrow as pa  # noqa: PLC0415 - see ExportTask

    size = int(strings.size.sum())
    if size > MAX_ARRAY_BYTES:  # Arrow's limit
        return pa.array(strings.strings(), pa.binary())
    ends = np.zeros(len(strings) + 1, np.int32)
    np.cumsum(strings.size, out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(strings.dense().data))]
    return pa.Array.from_buffers(pa.binary(), len(strings), buffers)


def _encode_keys(batch: Any, state: StateMeta) -> list[bytes]:  # noqa: ANN401 - see _schema
    head = state_head(state.number)
    hashes = [each.to_bytes(HASH_BYTES, "big") for each in batch.column("hash").to_pylist()]
    keys = batch.column("key").to_pylist()
    if state.number & ORDERED_BIT:
        return [head + key + at for at, key in zip(hashes, keys, strict=True)]
    return [head + at + key for at, key in zip(hashes, keys, strict=True)]


def _group_equal(numbers: Any) -> Iterable[tuple[int, int]]:  # noqa: ANN401 - an array of numpy
    """Return where runs of equal numbers begin and end."""
    ends = [*((numbers[1:] != numbers[:-1]).nonzero()[0] + 1).tolist(), len(numbers)]
    return zip([0, *ends[:-1]], ends, strict=True)
