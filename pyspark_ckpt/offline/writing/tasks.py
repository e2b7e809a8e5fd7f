"""The tasks of a write: encode given rows into sorted runs, and join these with others into files."""

from __future__ import annotations

import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import pyarrow as pa
from typing_extensions import override

from pyspark_ckpt.offline.reading.reader import StateReader
from pyspark_ckpt.offline.reading.stored_state import Selection, StoredState
from pyspark_ckpt.offline.writing.drafts.store_draft import GivenRows, StoredRows
from pyspark_ckpt.offline.writing.functions.key_pairs import AllKeyPairs, KeyChange, require_distinct
from pyspark_ckpt.offline.writing.given_columns import WrittenState
from pyspark_ckpt.offline.writing.given_rows import change_batches
from pyspark_ckpt.offline.writing.native.encoder import NativeEncoder
from pyspark_ckpt.offline.writing.native.followers import Follower
from pyspark_ckpt.offline.writing.native.value_lists import ValueLists
from pyspark_ckpt.offline.writing.row_encoders import RowEncoder
from pyspark_ckpt.operators.rows.list_layout import SEQUENCE, Head
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.blobs.transfers import StoredFile, fetch, send
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import Digest, combine
from pyspark_ckpt.state_store.checkpoints.state_rows import Tally, digest_tallies, scan_state
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.database import Database, write_table_file
from pyspark_ckpt.state_store.format.key_groups import MAX_PARALLELISM
from pyspark_ckpt.state_store.format.meta import StateMeta
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import Count
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.canonical import ExportTask
from pyspark_ckpt.state_store.redistribution.splitting import RUNS_FOLDER, PartitionWriters, Split, send_all

T = TypeVar("T")

RUN_BYTES = 32 << 20
"""About how many bytes of given rows are encoded and sorted together."""
RUN_ROWS = 1 << 19
"""The most rows of them: narrow rows take several times their bytes while they are encoded."""
MAX_PARTS = 256
"""Keys that change are compared in at most so many parts. A task has a file for each."""
PORTIONS_AT_ONCE = 2
"""Most of the time goes to numpy and RocksDB, which release the interpreter's lock."""


def make_encoder(state: WrittenState) -> RowEncoder | NativeEncoder:
    """Return what encodes rows of a state. Raises FormatError, InvalidInputError (it cannot be written)."""
    return NativeEncoder(state) if state.is_native else RowEncoder(state)


class Encoded(msgspec.Struct, frozen=True):
    """Rows that were given for a state: as runs, their number, and when the first of them is due if they are timers.

    ``pairs``: files of the keys that changes have made of others, by the id of the change and the part of the keys.
    """

    split: Split
    given: Count
    earliest_ms: int | None
    pairs: dict[str, dict[int, list[StoredFile]]] = {}


def join_encoded(done: Sequence[Encoded]) -> Encoded:
    """Return what several tasks have encoded, of one state."""
    due = [each.earliest_ms for each in done if each.earliest_ms is not None]
    split = Split(combine(each.split.digests for each in done), _join_files(each.split.runs for each in done))
    ids = {change for each in done for change in each.pairs}
    pairs = {change: _join_files(each.pairs.get(change, {}) for each in done) for change in ids}
    return Encoded(split, sum(each.given for each in done), min(due, default=None), pairs)


def _join_files(all_files: Iterable[Mapping[int, list[StoredFile]]]) -> dict[int, list[StoredFile]]:
    joined = defaultdict[int, list[StoredFile]](list)
    for each in all_files:
        for number, files in each.items():
            joined[number] += files
    return dict(joined)


@dataclass(frozen=True)
class EncodeRows:
    """Encodes rows of one state into runs, one for each of the ``ranges`` of hashes that has any, below ``target``."""

    workplace: Workplace
    state: WrittenState
    identity: Identity
    target: str
    ranges: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Encoded:
        """Write the runs. Raises InvalidInputError (rows that are not of the state), StorageError."""
        encoder = make_encoder(self.state)
        written = defaultdict[int, list[Path]](list)
        given, digests, due = 0, list[dict[str, Digest]](), list[int]()
        with self.workplace.folder() as folder:
            portions = enumerate(_portions(map(encoder.prepare, map(_as_table, batches))))
            tasks = (partial(self._encode, rows, folder / f"run-{number}") for number, rows in portions)
            for done in _run_ahead(tasks, PORTIONS_AT_ONCE):
                given += done.rows
                digests.append(done.digests)
                due += [] if done.earliest_ms is None else [done.earliest_ms]
                for each, paths in done.runs.items():
                    written[each] += paths
            sent = send_all(self.workplace.place(self.target), self.identity, written)
        return Encoded(Split(combine(digests), sent), given, min(due, default=None))

    def change(self, batches: Iterable[pa.RecordBatch], given: GivenRows | StoredRows) -> Encoded:
        """Write the runs of rows as the steps of ``given`` leave them, and which keys became others.

        Raises what a function raises, and as ``change_batches`` and a call.
        """
        parts = min(self.ranges, MAX_PARTS)
        with self.workplace.folder() as folder, AllKeyPairs.below(folder, parts) as pairs:
            encoded = self(change_batches(batches, given, self.state, pairs))
            pairs.close()
            place, begin = self.workplace.place(self.target), f"{RUNS_FOLDER}/{self.identity.key}-keys"
            sent = {
                each.change.id: {
                    part: [send(place, f"{begin}/{part}/{uuid.uuid4().hex}.arrow", path)]
                    for part, path in each.paths.items()
                }
                for each in pairs.found
            }
        return msgspec.structs.replace(encoded, pairs=sent)

    def _encode(self, prepared: pa.Table, folder: Path) -> _Portion:
        """Encode and sort some rows, and write the runs of all ranges below the new ``folder``."""
        encoder = make_encoder(self.state)
        tallies, runs = defaultdict[str, Tally](Tally), defaultdict[int, list[Path]](list)
        folder.mkdir(mode=0o700)
        for number, (name, encoded) in enumerate(encoder.encode(prepared)):
            tallies[name].count(encoded)
            below = folder / f"{number}"
            below.mkdir(mode=0o700)
            writers = PartitionWriters(below, self.workplace.tuning(), self.ranges, MAX_PARALLELISM)
            for _ in writers.passes():
                writers.write(encoded)
            for each, paths in writers.files.items():
                runs[each] += paths
        return _Portion(len(prepared), digest_tallies(tallies), runs, encoder.earliest_ms)


@dataclass(frozen=True)
class EncodeStored:
    """Encodes the rows of some splits of a state of the source, as the steps of ``given`` leave them.

    ``checkpoint``, ``location``, ``options``, ``version``: of the source. ``known``: the state there.
    """

    encode: EncodeRows
    given: StoredRows
    checkpoint: type[Checkpoint]
    location: str
    options: Options
    version: int
    known: StoredState
    splits: tuple[int, ...]

    @classmethod
    def list_all(cls, encode: EncodeRows, given: StoredRows, state: StateReader, most: int) -> list[EncodeStored]:
        """Return up to ``most`` tasks for all rows of a state. Raises as ``StateReader.state``."""
        source, splits = state.checkpoint, state.shown_partitions
        where = type(source), source.place.url, source.workplace.options, state.version, state.state
        return [cls(encode, given, *where, tuple(splits[n::most])) for n in range(min(most, len(splits)))]

    @property
    def key(self) -> str:
        """The name of the task, unique in its job."""
        return f"encode-{self.encode.identity.key}-{self.splits[0]}"

    def __call__(self) -> Encoded:
        """Write the runs. Raises what a function raises, and as EncodeRows and ``StateReader.batches``."""
        source, known = self.checkpoint(self.location, self.options), self.known
        selected = Selection(known.uid, known.operator.number, known.store, known.stored_name)
        with StateReader(source, selected, self.version, known=known) as state:
            return self.encode.change(chain.from_iterable(map(state.batches, self.splits)), self.given)


@dataclass(frozen=True)
class CompareKeys:
    """Proves that no two keys became one, by the files of one part of the keys of all states."""

    workplace: Workplace
    target: str
    change: KeyChange
    part: int
    files: tuple[StoredFile, ...]

    @classmethod
    def list_all(
        cls, workplace: Workplace, target: str, changes: Iterable[KeyChange], encoded: Encoded
    ) -> list[CompareKeys]:
        """Return the tasks for all parts of all changes."""
        return [
            cls(workplace, target, change, part, tuple(files))
            for change in changes
            for part, files in encoded.pairs.get(change.id, {}).items()
        ]

    @property
    def key(self) -> str:
        """The name of the task, unique in its job."""
        return f"keys-{self.change.id}-{self.part}"

    def __call__(self) -> None:
        """Raise InvalidInputError if two keys became one, StorageError, FormatError."""
        place = self.workplace.place(self.target)
        with self.workplace.folder() as folder:
            paths = [fetch(place, file, folder / f"{number}") for number, file in enumerate(self.files)]
            require_distinct(self.change, paths)


class _Portion(NamedTuple):
    """What was written of some rows: digests by state, and runs by range."""

    rows: int
    digests: dict[str, Digest]
    runs: Mapping[int, list[Path]]
    earliest_ms: int | None


@dataclass(frozen=True)
class JoinTask(ExportTask):
    """Writes the file of one range. The lists that are written, ``lists``, get their heads here.

    ``with_values``: the names of states that are written whose keys have several values, which are joined here.
    ``followers``: states that follow from others, and are made here.
    """

    lists: tuple[tuple[str, int], ...] = ()
    with_values: frozenset[str] = frozenset()
    followers: tuple[Follower, ...] = ()

    @override
    def complete(self, database: Database, folder: Path) -> dict[str, Digest]:
        """See ExportTask. A head comes before the elements of its list and counts up to the last one."""
        added = {}
        for name, number in self.lists:
            rows = [(key, Head(end).encode()) for key, end in _find_ends(database, number)]
            if rows:
                path = folder / f"heads-{number}.sst"
                write_table_file(path, rows, self.workplace.tuning())
                database.ingest([path])
                tally = Tally()
                tally.count(PackedRows.of(rows))
                added[name] = tally.digest
        for each in self.followers:
            added[each.state.state.name] = each.write(database, folder, self.workplace.tuning())
        return added

    @override
    def read(self, database: Database, state: StateMeta, joined: dict[str, Digest]) -> Iterator[PackedRows]:
        """See ExportTask."""
        rows = scan_state(database, state.number)
        if state.name not in self.with_values:
            yield from rows
            return
        lists = ValueLists(is_ordered=state.descriptor.ordered)
        yield from lists.join(rows)
        joined[state.name] = lists.values.digest


def _find_ends(database: Database, number: int) -> Iterator[tuple[bytes, int]]:
    """Yield the keys of lists, as those of heads, in order, and the number after the last element of each."""
    last, end = b"", 0
    for rows in scan_state(database, number):
        for key in rows.keys.strings():
            of_list = key[: -SEQUENCE.size]
            if last and of_list != last:
                yield last, end
            last, end = of_list, SEQUENCE.unpack_from(key, len(of_list))[0] + 1
    if last:
        yield last, end


def _run_ahead(tasks: Iterable[Callable[[], T]], most: int) -> Iterator[T]:
    """Yield the results of tasks in their order, while up to ``most`` run in threads. Raises what they raise."""
    running = deque[Future[T]]()
    with ThreadPoolExecutor(most) as pool:
        for task in tasks:
            if len(running) == most:
                yield running.popleft().result()
            running.append(pool.submit(task))
        while running:
            yield running.popleft().result()


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _portions(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield rows in tables of about RUN_BYTES, or RUN_ROWS rows."""
    some: list[pa.Table] = []
    size = rows = 0
    for table in tables:
        some.append(table)
        size, rows = size + table.nbytes, rows + len(table)
        if size >= RUN_BYTES or rows >= RUN_ROWS:
            yield pa.concat_tables(some)
            some, size, rows = [], 0, 0
    if some:
        yield pa.concat_tables(some)
