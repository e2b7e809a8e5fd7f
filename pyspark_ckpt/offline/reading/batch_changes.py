"""``change_feed``: what each batch did to the rows of a state, read from the deltas of its commits.

The path of a change: deltas of the batches > table files of a delta > stored key, and the last thing that the commit
did to it > columns, as a reader of state shows them.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_ckpt.offline.reading.closeable import Closeable
from pyspark_ckpt.offline.reading.decoding import BATCH_BYTES, BATCH_ROWS
from pyspark_ckpt.offline.reading.reader import StateReader
from pyspark_ckpt.offline.reading.row_location import PLACE, place_columns, read_stored_row
from pyspark_ckpt.offline.reading.rows.partition_rows import OPERATOR_LISTS
from pyspark_ckpt.offline.reading.rows.state_codec import Decoded, StateCodec, StoredRow
from pyspark_ckpt.offline.reading.sources import open_location
from pyspark_ckpt.offline.reading.stored_state import Selection, StoredState
from pyspark_ckpt.state_store.arguments import Location
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.chunks import take_portion
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError, LifecycleError, NotFoundError
from pyspark_ckpt.state_store.format.delta import Delta
from pyspark_ckpt.state_store.format.keys import EMPTY, state_range
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.meta import StateMeta
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.restore.changes import ChangeFeed, DeltaStep, list_steps
from pyspark_ckpt.state_store.savepoints.savepoint import Savepoint
from pyspark_ckpt.state_store.sst.blocks import DELETION
from pyspark_ckpt.state_store.sst.table import SortedTable

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

WHAT = [pa.field("batch_id", pa.int64()), pa.field("change_type", pa.string())]
UPDATE, DELETE = "update", "delete"


def change_feed(
    path: Location,
    *,
    uid: str | None = None,
    operator: int | None = None,
    state: str | None = None,
    store: str | None = None,
    first_batch: int | None = None,
    last_batch: int | None = None,
    options: Mapping[str, str] | None = None,
) -> StateChangeFeed:
    """Open the changes that the batches of a query made to one state, from ``first_batch`` to ``last_batch``.

    By default, from the oldest batch whose changes are stored to the last committed one. The other arguments are as in
    ``open_state``. Close the result, or use a ``with`` block. Nothing is written to the checkpoint, and a query may
    run on it.

    Raises InvalidInputError (no checkpoint, no such batch or state, a savepoint), NotFoundError (retention has deleted
    the changes of a batch; the message names the batches that are left), FormatError, StorageError.
    """
    batches = Batches(first_batch, last_batch)
    wanted = Selection.of(uid, operator, store, state)
    return open_changes(open_location(path, options), wanted, batches)


@dataclass(frozen=True)
class Batches:
    """The batches from ``first`` to ``last``, both included. None: the oldest one stored, and the last one."""

    first: int | None
    last: int | None

    def __post_init__(self) -> None:
        """Raises InvalidInputError."""
        given: dict[str, object] = vars(self)  # from Python, which does not check types
        for name, batch in given.items():
            if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 0):
                raise InvalidInputError(f"The {name} batch must be a number, 0 or more, got {batch!r}.")
        if self.first is not None and self.last is not None and self.last < self.first:
            raise InvalidInputError(f"The first batch, {self.first}, must not come after the last one, {self.last}.")


def open_changes(
    checkpoint: Checkpoint,
    wanted: Selection,
    batches: Batches,
    *,
    known: StoredState | None = None,
    partition: int | None = None,
) -> StateChangeFeed:
    """Open changes; see ``change_feed``. ``known``: see StateReader. ``partition``: the only one to read."""
    if isinstance(checkpoint, Savepoint):
        raise InvalidInputError(
            f"{checkpoint.place.url} is a savepoint, which has one version and no changes.",
            hint="Read the changes from the checkpoint of the query, or compare two savepoints with diff().",
        )
    newest = checkpoint.newest_version - 1
    asked = max(each for each in (batches.first, batches.last, -1) if each is not None)
    if asked > newest:
        there = f"the last committed one is {newest}" if newest >= 0 else "none is committed yet"
        raise InvalidInputError(f"{checkpoint.place.url} has no batch {asked}: {there}.")
    version = None if batches.last is None else batches.last + 1
    with ExitStack() as stack:
        reader = stack.enter_context(StateReader(checkpoint, wanted, version, known=known))
        found = StateChangeFeed(reader, batches.first, reader.shown_partitions if partition is None else [partition])
        stack.pop_all()
    return found


class _Change(NamedTuple):
    """A stored key, and the value that a commit gave it; None: the commit deleted it."""

    key: bytes
    value: bytes | None

    def count_bytes(self) -> int:
        """Return the bytes of key and value."""
        return len(self.key) + len(self.value or b"")


class StateChangeFeed(Closeable):
    """The changes of one state, batch by batch.

    The columns are ``batch_id``, ``change_type`` ("update": the batch wrote this value, to a new or an existing
    row; "delete": it deleted the row, whose value is null) and those of ``open_state``. A row has one change for each
    batch: what the batch left, not the writes that led to it. A key of Spark's with several values is shown with all
    values that it has after the batch. The ``index`` of operator lists is null.

    Batches are in order; the rows of a batch and partition are in the order of their stored keys. For one caller at a
    time.
    """

    def __init__(self, reader: StateReader, first_batch: int | None, partitions: Sequence[int]) -> None:
        """See ``change_feed``. ``reader``: of the state after the last batch; closed at the end."""
        self._reader = reader
        first = None if first_batch is None else first_batch + 1
        self._is_closed = False
        self._lineages: dict[int, Lineage] = {}
        self._steps = {each: self._list_steps(each, first) for each in partitions}
        begins = [steps[0].version if steps else reader.version + 1 for steps in self._steps.values()]
        self.first_batch = (max(begins, default=reader.version + 1) if first is None else first) - 1
        self.last_batch = reader.version - 1

    def __repr__(self) -> str:
        return f"StateChangeFeed(batches {self.first_batch} to {self.last_batch} of {self._reader!r})"

    def close(self) -> None:
        """End the threads. May be called twice."""
        self._is_closed = True
        self._reader.close()

    @property
    def state(self) -> StoredState:
        """The state, as it is after the last batch. Raises FormatError."""
        return self._reader.state

    @property
    def schema(self) -> pa.Schema:
        """The columns. Raises FormatError."""
        return pa.schema([*WHAT, *self.state.codec().fields, *PLACE])

    @property
    def shown_partitions(self) -> Sequence[int]:
        """The partitions whose changes are shown: of a broadcast state, one of many equal copies."""
        return list(self._steps) if self.first_batch <= self.last_batch else []

    def batches(self, partition: int | None = None) -> Generator[pa.RecordBatch, None, None]:
        """Yield the changes of all partitions, or of one, lazily and in a bounded amount of memory.

        At most two deltas are on local disk at a time. Raises InvalidInputError (the state had other types before it
        was dropped and created again), NotFoundError (retention has deleted a delta meanwhile), LifecycleError
        (closed), FormatError, StorageError.
        """
        if self._is_closed:
            raise LifecycleError("This change feed is closed.", hint="Call change_feed again.")
        if partition is not None and partition not in self._steps:
            last = max(self._steps, default=0)
            raise InvalidInputError(f"{self.state.whose} has changes in partitions 0 to {last}, not in {partition}.")
        shown = self._steps if partition is None else {partition: self._steps[partition]}
        steps = sorted(
            (step.version, number, step)
            for number, of_partition in shown.items()
            for step in of_partition
            if step.version > self.first_batch
        )
        schema, formers = self.schema, dict[int, StateMeta | None]()
        with self._reader.checkpoint.workplace.folder() as folder, ThreadPoolExecutor(1) as pool:
            feed = ChangeFeed([step for _, _, step in steps], folder / "deltas", pool)
            with closing(feed):
                for version, number, step in steps:
                    delta = feed.next()
                    if delta is None:
                        raise InternalError(f"The feed ended before version {version} of partition {number}.")
                    own = delta.store.state(self.state.stored_name)
                    if number not in formers:
                        formers[number] = self._find_former(number, step)
                    for each in _list_numbers(own, formers[number]):
                        for columns in self._decode(delta, each, number):
                            yield pa.RecordBatch.from_arrays(columns, schema=schema)
                    if own is not None:
                        formers[number] = own

    def to_arrow(self) -> pa.Table:
        """Return all changes, in memory. Raises as ``batches`` does."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """Return all changes, in memory, as a pandas frame. Raises as ``batches`` does."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def _list_steps(self, partition: int, first: int | None) -> list[DeltaStep]:
        """Return the deltas of a partition, from version ``first`` or the oldest that is there."""
        state, checkpoint = self.state, self._reader.checkpoint
        identity = Identity(state.operator.number, partition, state.store)
        place = checkpoint.find_place(identity)
        lineage = self._lineages[partition] = Lineage.read(place)
        commit = checkpoint.find_commit(identity, self._reader.version, lineage)
        return list_steps(place, commit, first, lineage, str(identity))

    def _find_former(self, partition: int, step: DeltaStep) -> StateMeta | None:
        """Return the state before a delta; None if it did not exist, or if retention has deleted what shows it."""
        parent, state = step.name.parent, self.state
        if parent == EMPTY:
            return None
        identity = Identity(state.operator.number, partition, state.store)
        with suppress(NotFoundError):
            meta = self._reader.checkpoint.read_meta(identity, parent, self._lineages[partition])
            return meta.state(state.stored_name)
        return None

    def _decode(self, delta: Delta, own: StateMeta, partition: int) -> Iterator[list[pa.Array]]:
        """Yield the columns of the changes that a commit made to the rows of a state with the number of ``own``."""
        state, batch = self.state, delta.store.version - 1
        codec = state.codec(own.descriptor)
        self._require_types(codec, batch)
        changes = _read_changes(delta.files, state_range(own.number))
        while portion := take_portion(changes, BATCH_ROWS, BATCH_BYTES, _Change.count_bytes):
            rows = [read_stored_row(each.key, each.value or b"", is_ordered=own.descriptor.ordered) for each in portion]
            is_deleted = np.array([each.value is None or _is_empty(own, each.value) for each in portion], np.bool_)
            decoded = _decode_both(codec, rows, is_deleted)
            positions = decoded.rows.tolist()
            if positions:
                kinds = [DELETE if is_deleted[position] else UPDATE for position in positions]
                what = [pa.array([batch] * len(kinds), pa.int64()), pa.array(kinds, pa.string())]
                places = place_columns(state, partition, [rows[each] for each in positions])
                yield [*what, *_without_index(state, decoded.columns), *places]

    def _require_types(self, codec: StateCodec, batch: int) -> None:
        """Raise InvalidInputError if the state has other types after a batch than after the last one."""
        known, found = (
            [(each.name, each.type) for each in fields] for fields in (self.state.codec().fields, codec.fields)
        )
        if known != found:
            raise InvalidInputError(
                f"{self.state.whose} has the columns {_show(found)} after batch {batch}, and {_show(known)} after "
                f"batch {self.last_batch}: it was dropped and created again.",
                hint=f"Read up to batch {batch}, or from a later one.",
            )


def _show(columns: Sequence[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def _list_numbers(own: StateMeta | None, former: StateMeta | None) -> list[StateMeta]:
    """Return the state as a commit has it, after the former state if that has another number.

    A commit that drops a state, or drops and creates it again, deletes its rows under the former number.
    """
    found = [each for each in (former, own) if each is not None]
    return found[-1:] if own is not None and former is not None and own.number == former.number else found


def _without_index(state: StoredState, columns: list[pa.Array]) -> list[pa.Array]:
    """Return the columns of a state; the index in an operator list is null, because only the whole list shows it."""
    if state.kind != OPERATOR_LISTS:
        return columns
    key, index, *others = columns
    return [key, pa.nulls(len(index), index.type), *others]


def _is_empty(own: StateMeta, value: bytes) -> bool:
    """Return whether a key that may have several values has none left."""
    return bool(own.descriptor.multiple_values) and not value


def _read_changes(files: Sequence[Path], wanted: tuple[bytes, bytes]) -> Iterator[_Change]:
    """Yield the last change of each key in a range, in key order. Of two files with a key, the later one counts.

    Raises FormatError, StorageError.
    """
    with ExitStack() as stack:
        tables = [stack.enter_context(closing(SortedTable(path, wanted))) for path in files]
        runs = [_read_table(table, -number, wanted) for number, table in enumerate(tables)]
        merged = runs[0] if len(runs) == 1 else heapq.merge(*runs, key=itemgetter(0, 1))
        for key, entries in groupby(merged, key=itemgetter(0)):
            _, _, value = next(entries)
            yield _Change(key, value)


def _read_table(table: SortedTable, age: int, wanted: tuple[bytes, bytes]) -> Iterator[tuple[bytes, int, bytes | None]]:
    begin, end = wanted
    if table.hidden:
        raise table.make_damage_error("it has range deletions, which no commit writes")
    for found in table.span(begin, end).entries():
        keys, values = found.keys.strings(), found.values.strings()  # noqa: PD011 - of Entries
        for key, value, kind in zip(keys, values, found.kinds.tolist(), strict=True):
            if begin <= key < end:
                yield key, age, None if kind == DELETION else value


def _decode_both(codec: StateCodec, rows: Sequence[StoredRow], is_deleted: NDArray[np.bool_]) -> Decoded:
    """Decode rows, of which some have keys alone, and bring the columns into the order of ``rows``."""
    written, deleted = np.flatnonzero(~is_deleted), np.flatnonzero(is_deleted)
    kept = codec.decode([rows[each] for each in written.tolist()])
    gone = codec.decode_keys([rows[each] for each in deleted.tolist()])
    positions = np.concatenate([written[kept.rows], deleted[gone.rows]])
    order = pa.array(np.argsort(positions, kind="stable"))
    nulls = len(gone.rows)
    columns = []
    for number, column in enumerate(kept.columns):
        other = gone.columns[number] if number < len(gone.columns) else pa.nulls(nulls, column.type)
        columns.append(pa.concat_arrays([column, other]).take(order))
    return Decoded(columns, np.sort(positions, kind="stable"))
