"""``open_state``: the state of a checkpoint as Arrow, without Spark.

The path of a row: catalog (which states there are) > source (table files, or Parquet files of a canonical savepoint) >
StoredRow > codec (columns) > place columns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

from pyspark_ckpt.offline.reading.catalog import Catalog, without_internal
from pyspark_ckpt.offline.reading.closeable import Closeable
from pyspark_ckpt.offline.reading.decoding import Decoder, make_schema
from pyspark_ckpt.offline.reading.kept_folders import KeptFolders
from pyspark_ckpt.offline.reading.keys.wanted_keys import Convert, find_wanted
from pyspark_ckpt.offline.reading.rows.state_codec import StateCodec, Wanted
from pyspark_ckpt.offline.reading.sources import Source, open_location, open_source
from pyspark_ckpt.offline.reading.splits import Splits
from pyspark_ckpt.offline.reading.stored_state import Selection, StoredState, states_as_html
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.state_store.arguments import Location, require_truth
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.workplace import THREADS
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.format.keys import read_hash

if TYPE_CHECKING:
    import pandas as pd

IsEnough: TypeAlias = Callable[[Sequence[pa.RecordBatch]], bool]


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
    require_truth(include_expired, "include_expired")
    wanted = Selection.of(uid, operator, store, state)
    return StateReader(open_location(path, options), wanted, version, include_expired=include_expired)


class StateReader(Closeable):
    """The selected states of one version, and, if there is exactly one, its rows. Close it, or use a ``with`` block.

    Later commits do not change what it shows. It does not keep its version from being deleted: a call may raise
    NotFoundError once the query's retention has reached the version.

    The columns are ``key`` (a struct), those that tell rows of one key apart (``index``, ``map_key``, ``at``),
    ``value``, ``written_at`` and ``expires_at`` of states with a time to live, ``partition``, ``key_group`` and
    ``hash``. The key of an operator list is its partition. The key of an entry of a broadcast state is its map key,
    and only one of the copies is shown. Neither has key groups or hashes. For one caller at a time.
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
        self._include_expired = include_expired
        self._decoder = Decoder(checkpoint.place, self.version, include_expired=include_expired)
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
        return tuple(self._open_catalog().all(self._wanted))

    @cached_property
    def state(self) -> StoredState:
        """The only selected state. Raises InvalidInputError (lists what is there), FormatError, StorageError."""
        return self._known or self._open_catalog().one(self._wanted, of_all_partitions=True)

    @property
    def has_state(self) -> bool:
        """Whether the version has a state that is selected. Raises FormatError, StorageError."""
        found = self.states
        return bool(found if self._wanted.state is not None else without_internal(found))

    @property
    def schema(self) -> pa.Schema:
        """The columns of the state. Raises as ``state`` does."""
        return make_schema(self.state.codec())

    @property
    def partitions(self) -> int:
        """The number of partitions of the state, or of files in a canonical savepoint. Raises as ``state`` does."""
        return self.splits.count()

    @property
    def shown_partitions(self) -> Sequence[int]:
        """The partitions whose rows are shown: of a broadcast state, one of many equal copies. Raises as ``state``."""
        return self.splits.shown

    @property
    def splits(self) -> Splits:
        """The splits of the state: what the package reads besides batches. Raises as ``state`` does."""
        return Splits(self.checkpoint, self.version, self._source, self._open_catalog(), self.state)

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
            splits = self.splits  # each time: the reader may be closed meanwhile
            own = splits.find_meta(each)
            if own is not None:
                with splits.open_rows(each) as rows:
                    yield from self._decoder.decode(state, each, own, rows)

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
        found = self.find(key)
        return found.codec.build_value(found.rows, found.wanted)

    def rows_of(self, key: Any) -> pa.Table:  # noqa: ANN401 - as get
        """Return the rows of one key as a table with all columns, empty if it has none. Raises as ``get`` does."""
        return self.find(key).rows

    def find(self, key: Any, convert: Convert | None = None, is_enough: IsEnough | None = None) -> Found:  # noqa: ANN401
        """Return what the state has of a key, for callers inside the package. Raises as ``get`` does.

        ``convert`` converts a key's values from another form, such as JSON. ``is_enough`` gets the batches that were
        read, and may end the reading early.
        """
        catalog = self._open_catalog()
        state = catalog.one(self._wanted, of_all_partitions=False)
        if state.uid is not None:  # any partition may be the one that knows the newest type of the values
            state = self.state
        codec = state.codec()
        wanted = find_wanted(codec, key, state.whose, convert)
        partition = self._source.find_split(state, wanted.hash)
        own = catalog.find_meta(state, partition)
        if own is None or not own.rows:
            return Found(codec, wanted, make_schema(codec).empty_table())
        with self._source.rows(state, partition, own, wanted) as rows:
            of_hash = (row for row in rows if read_hash(row[0]) == wanted.hash)
            found: list[pa.RecordBatch] = []
            for batch in self._decoder.decode(state, partition, own, of_hash):
                is_wanted = [codec.has_key(row, wanted) for row in python_values(batch["key"])]
                found.append(batch.filter(pa.array(is_wanted, pa.bool_())))
                if is_enough is not None and is_enough(found):
                    return Found(codec, wanted, pa.Table.from_batches(found, make_schema(codec)), is_all=False)
        return Found(codec, wanted, pa.Table.from_batches(found, make_schema(codec)))

    def _open_catalog(self) -> Catalog:
        if self._pool is None:
            raise LifecycleError("This reader of state is closed.", hint="Call open_state again.")
        return self._catalog


class Found(NamedTuple):
    """A key that was looked up, and its rows."""

    codec: StateCodec
    wanted: Wanted
    rows: pa.Table
    is_all: bool = True
