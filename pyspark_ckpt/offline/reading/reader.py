"""``open_state``: the state of a checkpoint as Arrow, without Spark.

The path of a row: catalog (which states there are) > source (table files, or Parquet files of a canonical savepoint) >
StoredRow > codec (columns) > place columns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.offline.reading.batch_clocks import clock_ms
from pyspark_ckpt.offline.reading.catalog import Catalog, without_internal
from pyspark_ckpt.offline.reading.closeable import Closeable
from pyspark_ckpt.offline.reading.json_values import from_json
from pyspark_ckpt.offline.reading.kept_folders import KeptFolders
from pyspark_ckpt.offline.reading.row_location import PLACE, place_columns, prove_copy, read_stored_row
from pyspark_ckpt.offline.reading.rows.keyed_rows import INSTANTS, find_ttl, has_ended
from pyspark_ckpt.offline.reading.rows.partition_rows import BROADCASTS
from pyspark_ckpt.offline.reading.rows.state_codec import StateCodec, StoredRow, Wanted
from pyspark_ckpt.offline.reading.sources import Source, StoresSource, Values, open_location, open_source
from pyspark_ckpt.offline.reading.stored_state import Selection, StoredState, states_as_html
from pyspark_ckpt.offline.reading.wanted_keys import Convert, find_wanted
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.workplace import THREADS
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.format.key_groups import read_max_parallelism
from pyspark_ckpt.state_store.format.keys import read_hash, state_head
from pyspark_ckpt.state_store.format.meta import StateMeta
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.location import Location

if TYPE_CHECKING:
    import pandas as pd

IsEnough: TypeAlias = Callable[[Sequence[pa.RecordBatch]], bool]

BATCH_ROWS = 8192
BATCH_BYTES = 4 << 20


def open_state(
    path: Location,
    *,
    uid: str | None = None,
    operator: int | None = None,
    state: str | None = None,
    store: str | None = None,
    version: int | None = None,
    include_expired: bool = True,
    options: Mapping[str, str] | None = None,
) -> StateReader:
    """Open the state of one version of a checkpoint or savepoint, by default the newest committed version.

    Nothing is written to the checkpoint, and a query may run on it. Neither Spark nor a JVM is needed.

    ``path``: a checkpointLocation, or the folder of a savepoint of either kind, in any place. ``uid`` and ``state``
    select a keyed operator's state; ``operator`` (its number), ``store`` (of a join) and ``state`` select one of
    Spark's. If several states match, ``states`` lists them. ``version``: batch N makes version N + 1.
    ``include_expired``: also show rows that are past their time to live and not yet freed. ``options``: those of
    docs/options.md without their prefix, such as ``{"s3Endpoint": "..."}``.

    Raises InvalidInputError (no checkpoint, or no such version: the message names the existing ones), StorageError.
    """
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise InvalidInputError(
            f"version must be an integer, got {version!r} of type {type(version).__name__}.",
            hint="Give a version, or None for the newest one.",
        )
    wanted = Selection.of(uid, operator, store, state)
    return StateReader(open_location(path, options), wanted, version, include_expired=include_expired)


class StateReader(Closeable):
    """The selected states of one version, and, if there is exactly one, its rows. Close it, or use a ``with`` block.

    Later commits do not change what it shows. It does not keep its version from being deleted: a call may raise
    NotFoundError once the query's retention has reached the version.

    The columns are ``key`` (a struct), those that tell rows of one key apart (``index``, ``map_key``, ``at``),
    ``value``, ``written_at`` and ``expires_at`` of states with a time to live, ``partition``, ``key_group`` and
    ``hash``. The key of an operator list is its partition; that of an entry of a broadcast state, its map key, and only
    one of the copies is shown. These two have neither key groups nor hashes. For one caller at a time.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        wanted: Selection,
        version: int | None = None,
        *,
        include_expired: bool = True,
        known: StoredState | None = None,
        source: Source | None = None,
    ) -> None:
        """See ``open_state``. ``known``: the selected state, if another reader of this version has found it.

        ``source``: where rows are read, if not in the stored objects of ``checkpoint``.
        """
        self.checkpoint = checkpoint
        self.version = checkpoint.newest_version if version is None else version
        self._wanted = wanted
        self._known = known
        self._clocks_ms: dict[str, int] = {}
        self._include_expired = include_expired
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(THREADS)
        self._kept = KeptFolders()
        try:
            self._source = source or open_source(checkpoint, self.version, self._pool, self._kept)
            where = f"Version {self.version} of {checkpoint.place.url}"
            why_empty = "no operator of the query keeps any" if self.version else "no batch is committed yet"
            self._catalog = Catalog(self._source, where, self._pool, why_empty)
            if version is not None and known is None:
                self._source.require_version()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        closed = "" if self._pool else ", closed"
        return f"StateReader({self.checkpoint.place.url}, version {self.version}, {self._wanted}{closed})"

    def _repr_html_(self) -> str:
        """Return a table of the selected states, if they were read before: to show a reader reads nothing."""
        return states_as_html(repr(self), self.__dict__.get("states", ()))

    def close(self) -> None:
        """End the threads, and remove what look-ups of keys have left on the local disk. May be called twice.

        Calls that read whole partitions remove their own temporary folders.
        """
        self._kept.close()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    @cached_property
    def states(self) -> tuple[StoredState, ...]:
        """All selected states, with their numbers of rows. Raises FormatError, StorageError."""
        self._threads()
        return tuple(self._catalog.all(self._wanted))

    @cached_property
    def state(self) -> StoredState:
        """The only selected state. Raises InvalidInputError (lists what is there), FormatError, StorageError."""
        self._threads()
        return self._known or self._catalog.one(self._wanted, of_all_partitions=True)

    @property
    def has_state(self) -> bool:
        """Whether the version has a state that is selected. Raises FormatError, StorageError."""
        found = self.states
        return bool(found if self._wanted.state is not None else without_internal(found))

    @property
    def schema(self) -> pa.Schema:
        """The columns of the state. Raises as ``state`` does."""
        return pa.schema([*self.state.codec().fields, *PLACE])

    @property
    def partitions(self) -> int:
        """The number of partitions of the state, or of files in a canonical savepoint. Raises as ``state`` does."""
        state = self.state
        return self._source.count_splits(state)

    @property
    def shown_partitions(self) -> Sequence[int]:
        """The partitions whose rows are shown: of a broadcast state, one of many equal copies. Raises as ``state``."""
        return range(1 if self.state.kind == BROADCASTS else self.partitions)

    def batches(self, partition: int | None = None) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of all partitions, or of one, lazily and in a bounded amount of memory.

        A partition lies in a temporary folder, private to the user, while its rows are read. The next one is fetched
        when it is reached; close the generator to remove the folder early. Rows are in the order of their stored keys,
        so rows of one key are adjacent, except for timers. Raises as ``state`` does, and NotFoundError.
        """
        state = self.state
        if partition is not None and not 0 <= partition < self.partitions:
            raise InvalidInputError(f"{state.whose} has partitions 0 to {self.partitions - 1}, not {partition}.")
        for each in self.shown_partitions if partition is None else [partition]:
            own = self._own(state, each)
            if own is not None and own.rows:
                with self._source.rows(state, each, own) as rows:
                    yield from self._batches(state, each, own, prove_copy(own, state.whose, rows))

    @contextmanager
    def open_rows(self, partition: int) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        """Give the stored keys and values of a partition, in key order. Raises as ``batches`` does."""
        own = self._own(self.state, partition)
        if own is None or not own.rows:
            yield iter(())
            return
        with self._source.rows(self.state, partition, own) as rows:
            yield prove_copy(own, self.state.whose, rows)

    def describe_split(self, partition: int) -> tuple[StateCodec, bool, bytes]:
        """Return the codec of the rows of a partition, whether they are in key order, and how their keys begin.

        The partition must have the state. Raises as ``batches`` does.
        """
        own = self._own(self.state, partition)
        if own is None:
            raise InternalError(f"{self.state.whose} has no rows in partition {partition}.")
        return self.state.codec(own.descriptor), own.descriptor.ordered, state_head(own.number)

    def find_touched(self, older: StateReader, partition: int) -> list[bytes] | None:
        """Return the stored keys that commits have named since ``older``, an older version of the same checkpoint.

        None if that is not known without reading all rows. Raises as ``batches`` does.
        """
        own, known = self._own(self.state, partition), older._own(older.state, partition)
        is_same = self.checkpoint.place.url == older.checkpoint.place.url and self.version >= older.version
        if not is_same or own is None or known is None or own.number != known.number:
            return None
        if not isinstance(self._source, StoresSource):
            return None
        return self._source.find_touched(self.state, partition, own, older.version)

    @contextmanager
    def look_up(self, partition: int) -> Iterator[Callable[[list[bytes]], Values]]:
        """Give what returns the values of stored keys of a partition of a checkpoint. Raises as ``batches`` does."""
        own = self._own(self.state, partition)
        if own is None or not isinstance(self._source, StoresSource):
            raise InternalError(f"Partition {partition} of {self.state.whose} has no store to look up rows in.")
        with self._source.look_up(self.state, partition, own) as get_many:
            yield get_many

    def is_split_as(self, other: StateReader) -> bool:
        """Return whether both have each key in the partition of the same number."""
        mine, theirs = self.state, other.state
        are_alike = type(self._source) is type(other._source) and self.partitions == other.partitions
        groups, their_groups = (read_max_parallelism(each.descriptor, each.whose) for each in (mine, theirs))
        return are_alike and groups == their_groups

    def is_proven_equal(self, other: StateReader) -> bool:
        """Return whether both are of savepoints that have recorded equal digests of all rows, of equal types."""
        mine, theirs = self._source.find_digest(self.state), other._source.find_digest(other.state)
        return mine is not None and mine == theirs and self.state.descriptor == other.state.descriptor

    def is_proven_equal_in(self, split: int, other: StateReader) -> bool:
        """Return whether a split of both is a file of the same bytes. They must be split alike."""
        mine = self._source.find_checksum(self.state, split)
        if mine is None or mine != other._source.find_checksum(other.state, split):
            return False
        own, known = self._own(self.state, split), other._own(other.state, split)
        return (
            own is not None and known is not None and (own.number, own.descriptor) == (known.number, known.descriptor)
        )

    def to_arrow(self) -> pa.Table:
        """Return all rows, in memory, as an Arrow table. Raises as ``batches`` does."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows, in memory, as a pandas frame. Raises as ``batches`` does."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def count(self) -> int:
        """Return the number of rows, without reading them if the commits have it. Raises as ``batches`` does."""
        state = self.state
        if state.codec().is_one_to_one and (self._include_expired or not state.has_life):
            return state.rows
        return sum(batch.num_rows for batch in self.batches())

    def get(self, key: Any) -> Any:  # noqa: ANN401 - values of any type
        """Return the state of one key as the program sees it: a value or None, a list, a dict, timers.

        ``key`` is a value, or a tuple or a dict of the key's columns. For Spark's own operators it may also be the
        columns that place rows (for a join, its key without the index); the result is then a list of values. Only the
        key's partition is fetched, and of its snapshot only table files that can have the key. What was fetched stays
        on the local disk, up to 1 GiB, until the reader is closed: later calls do not fetch it again. The first call on
        a keyed state also reads the metadata of all partitions, to find the newest type.

        Raises InvalidInputError (not a key of this state), and as ``batches`` does.
        """
        found = self._find(key)
        return found.codec.build_value(found.rows, found.wanted)

    def rows_of(self, key: Any) -> pa.Table:  # noqa: ANN401 - as get
        """Return the rows of one key as a table with all columns, empty if it has none. Raises as ``get`` does."""
        return self._find(key).rows

    def rows_of_json(self, key: Any) -> pa.Table:  # noqa: ANN401 - as get
        """Return ``rows_of`` a key whose values are given as in JSON; see ``json_values``."""
        return self._find(key, from_json).rows

    def first_rows_of_json(self, key: Any, rows: int, size_bytes: int) -> tuple[pa.Table, bool]:  # noqa: ANN401
        """Return ``rows_of_json`` up to a number of rows and about a size in memory, and whether these are all."""

        def is_enough(found: Sequence[pa.RecordBatch]) -> bool:
            return bool(sum(each.num_rows for each in found) > rows or sum(each.nbytes for each in found) >= size_bytes)

        found = self._find(key, from_json, is_enough)
        return found.rows.slice(0, rows), found.is_all

    def _find(self, key: Any, convert: Convert | None = None, is_enough: IsEnough | None = None) -> _Found:  # noqa: ANN401
        self._threads()
        state = self._catalog.one(self._wanted, of_all_partitions=False)
        if state.uid is not None:  # any partition may be the one that knows the newest type of the values
            state = self.state
        codec = state.codec()
        wanted = find_wanted(codec, key, state.whose, convert)
        partition = self._source.find_split(state, wanted.hash)
        schema = pa.schema([*codec.fields, *PLACE])
        own = self._own(state, partition)
        if own is None or not own.rows:
            return _Found(codec, wanted, schema.empty_table())
        with self._source.rows(state, partition, own, wanted) as rows:
            of_hash = (row for row in rows if read_hash(row[0]) == wanted.hash)
            found: list[pa.RecordBatch] = []
            for batch in self._batches(state, partition, own, of_hash):
                is_wanted = [codec.has_key(row, wanted) for row in python_values(batch["key"])]
                found.append(batch.filter(pa.array(is_wanted, pa.bool_())))
                if is_enough is not None and is_enough(found):
                    return _Found(codec, wanted, pa.Table.from_batches(found, schema), is_all=False)
        return _Found(codec, wanted, pa.Table.from_batches(found, schema))

    def _own(self, state: StoredState, partition: int) -> StateMeta | None:
        """Return the state as a partition describes it; None if the partition does not have it."""
        self._threads()
        identity = Identity(state.operator.number, partition, state.store)
        return self._catalog.meta(identity).state(state.stored_name)

    def _batches(
        self, state: StoredState, partition: int, own: StateMeta, rows: Iterator[tuple[bytes, bytes]]
    ) -> Iterator[pa.RecordBatch]:
        codec = state.codec(own.descriptor)
        schema = pa.schema([*codec.fields, *PLACE])
        stored = (read_stored_row(key, value, is_ordered=own.descriptor.ordered) for key, value in rows)
        while portion := _portion(stored):
            decoded = codec.decode(portion)
            place = place_columns(state, partition, [portion[position] for position in decoded.rows.tolist()])
            batch = pa.RecordBatch.from_arrays([*decoded.columns, *place], schema=schema)
            batch = batch if self._include_expired else self._without_expired(state, own, batch)
            if batch.num_rows:
                yield batch

    def _without_expired(self, state: StoredState, own: StateMeta, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not state.has_life or has_ended(own.descriptor):
            return batch
        alive = pc.greater(batch["expires_at"], pa.scalar(self._now_ms(state, own) * 1000, pa.int64()).cast(INSTANTS))
        return batch.filter(pc.fill_null(alive, True))

    def _now_ms(self, state: StoredState, own: StateMeta) -> int:
        """Return what the clock of the state's time to live said when the version was made."""
        ttl = find_ttl(own.descriptor, state.descriptor)
        if ttl is None:
            raise InvalidInputError(
                f"{state.whose} was last written by a release that does not say which time to live its rows have.",
                hint="Read expired rows as well, and compare written_at with a time of your choice.",
            )
        if ttl.clock not in self._clocks_ms:
            self._clocks_ms[ttl.clock] = clock_ms(self.checkpoint.place, self.version, ttl.clock)
        return self._clocks_ms[ttl.clock]

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            raise LifecycleError("This reader of state is closed.", hint="Call open_state again.")
        return self._pool


class _Found(NamedTuple):
    """A key that was looked up, and its rows."""

    codec: StateCodec
    wanted: Wanted
    rows: pa.Table
    is_all: bool = True


def _portion(rows: Iterator[StoredRow]) -> list[StoredRow]:
    """Take rows until their columns would take much memory."""
    taken, size = [], 0
    for row in islice(rows, BATCH_ROWS):
        taken.append(row)
        size += len(row.key) + len(row.value)
        if size >= BATCH_BYTES:
            break
    return taken
