"""The sources of state rows: the stores of a checkpoint, or the Parquet files of a canonical savepoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from pyspark_ckpt.offline.reading.kept_folders import KeptFolders
from pyspark_ckpt.offline.reading.row_location import find_partition, find_range
from pyspark_ckpt.offline.reading.rows.state_codec import Wanted
from pyspark_ckpt.offline.reading.stored_state import StoredState
from pyspark_ckpt.state_store.arguments import Location, location_text, read_mapping
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.checkpoints.store_contents import count_objects
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.keys import state_range
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta, is_keyed
from pyspark_ckpt.state_store.format.names import ROWS_FOLDER
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import Options, parse
from pyspark_ckpt.state_store.redistribution.canonical import SavedRows, WantedRows, fetch_rows, find_file, rows_in
from pyspark_ckpt.state_store.restore.range_restorer import RangeReader
from pyspark_ckpt.state_store.restore.touched_keys import list_touched_keys
from pyspark_ckpt.state_store.savepoints.savepoint import Savepoint

Values: TypeAlias = list["bytes | None"]
Rows: TypeAlias = Iterator[tuple[bytes, bytes]]
"""Stored keys and values, in the order of the keys."""


class Source(Protocol):
    """One version of all states. A *split*, a partition or a file, is read on its own."""

    @property
    def operators(self) -> list[Operator]:
        """All operators that have state."""
        ...

    def count_metas(self, operator: Operator) -> int:
        """Return how many partitions have metadata of their own."""
        ...

    def meta(self, identity: Identity) -> StoreMeta:
        """Return the metadata of a store. Raises NotFoundError, FormatError, StorageError."""
        ...

    def require_version(self) -> None:
        """Raise InvalidInputError if the version is not there; the message names the existing ones."""
        ...

    def count_splits(self, state: StoredState) -> int:
        """Return how many splits hold the state's rows."""
        ...

    def find_split(self, state: StoredState, key_hash: int) -> int:
        """Return the split that has the rows of a hash. Raises FormatError."""
        ...

    def find_digest(self, state: StoredState) -> Digest | None:
        """Return the digest of all rows of a state, if a savepoint has recorded it."""
        ...

    def find_checksum(self, state: StoredState, split: int) -> str | None:
        """Return the checksum of the bytes of a split, if they are in one file."""
        ...

    def rows(
        self, state: StoredState, split: int, own: StateMeta, wanted: Wanted | None = None
    ) -> AbstractContextManager[Rows]:
        """Give the rows of a split; with ``wanted``, those of this key and perhaps a few others.

        What is fetched for a key is kept for the next ones. ``own``: the state as the split's store describes it.
        Raises NotFoundError, FormatError, StorageError, both at the start and while rows are read.
        """
        ...


class StoresSource:
    """The stores of a checkpoint. A native savepoint is a checkpoint, too."""

    def __init__(self, checkpoint: Checkpoint, version: int, pool: Executor, kept: KeptFolders) -> None:
        """Read ``version`` with the threads of ``pool``. Raises FormatError, StorageError."""
        self._checkpoint, self._version, self._pool, self._kept = checkpoint, version, pool, kept
        self._tuning = checkpoint.workplace.tuning()
        self.operators = checkpoint.operators() if version else []
        self._partitions = {each.number: checkpoint.partitions_in_use(each) for each in self.operators}

    def count_metas(self, operator: Operator) -> int:
        """See Source."""
        return self._partitions[operator.number]

    def meta(self, identity: Identity) -> StoreMeta:
        """See Source."""
        return self._checkpoint.meta(identity, self._version)

    def require_version(self) -> None:
        """See Source. Looks at the first store only; uncommitted objects there do not count as a version.

        Raises NotFoundError, too, if there is no version at all.
        """
        operators = self._checkpoint.operators()
        if not operators:
            return
        first = Identity(operators[0].number, 0, operators[0].stores[0])
        stored = count_objects(self._checkpoint, first)
        if not stored.last_version:
            self._checkpoint.find_commit(first, self._version)  # its error says where the state may be
        last = min(stored.last_version, self._checkpoint.newest_version)
        if not stored.first_version <= self._version <= last or self._version < 1:
            there = f"there are {stored.first_version} to {last}" if last else "there are none"
            raise InvalidInputError(
                f"{self._checkpoint.place.url} has no version {self._version}: {there}. Batch N made version N + 1.",
                hint="Retention keeps the newest version and spark.sql.streaming.minBatchesToRetain versions below it.",
            )

    def count_splits(self, state: StoredState) -> int:
        """See Source: its partitions."""
        return self._partitions[state.operator.number]

    def find_split(self, state: StoredState, key_hash: int) -> int:
        """See Source."""
        return find_partition(state, key_hash, self.count_splits(state))

    def find_digest(self, state: StoredState) -> Digest | None:
        """See Source."""
        return _find_digest(self._checkpoint, state)

    def find_checksum(self, state: StoredState, split: int) -> str | None:  # noqa: ARG002 - see Source
        """See Source: a store has many files."""
        return None

    @contextmanager
    def rows(self, state: StoredState, split: int, own: StateMeta, wanted: Wanted | None = None) -> Iterator[Rows]:
        """See Source."""
        identity = Identity(state.operator.number, split, state.store)
        keys = state_range(own.number) if wanted is None else find_range(own, wanted)

        def begin(folder: Path) -> AbstractContextManager[RangeReader]:
            place, commit = self._checkpoint.find_place(identity), self._checkpoint.find_commit(identity, self._version)
            return closing(RangeReader(place, commit, self._tuning, self._pool, str(identity), folder))

        def list_rows(reader: RangeReader) -> Rows:
            with _naming(what):
                yield from reader.open(keys).rows_in(*keys)

        what = f"{own.name!r} in version {self._version} of {identity}"
        with ExitStack() as stack:
            with _naming(what):
                reader = stack.enter_context(_choose_folders(wanted, self._kept).use(identity, begin))
            yield list_rows(reader)

    @contextmanager
    def look_up(self, state: StoredState, split: int, own: StateMeta) -> Iterator[Callable[[list[bytes]], Values]]:
        """Give what returns the values of stored keys of a split, None where absent. Raises as ``rows``."""
        identity = Identity(state.operator.number, split, state.store)
        place, commit = self._checkpoint.find_place(identity), self._checkpoint.find_commit(identity, self._version)
        with (
            self._checkpoint.workplace.folder() as folder,
            closing(RangeReader(place, commit, self._tuning, self._pool, str(identity), folder)) as reader,
        ):
            with _naming(f"{own.name!r} in version {self._version} of {identity}"):
                database = reader.open(state_range(own.number))
            yield database.get_many

    def find_touched(self, state: StoredState, split: int, own: StateMeta, since: int) -> list[bytes] | None:
        """Return the stored keys of a split that versions after ``since`` name; see ``list_touched_keys``."""
        identity = Identity(state.operator.number, split, state.store)
        place, commits = self._checkpoint.find_place(identity), [since, self._version]
        older, newer = (self._checkpoint.find_commit(identity, each) for each in commits)
        with self._checkpoint.workplace.folder() as folder:
            return list_touched_keys(place, older, newer, state_range(own.number), folder / "delta")


class FilesSource:
    """The files of a canonical savepoint, one for each range of hashes. It has one version."""

    def __init__(self, savepoint: Savepoint, version: int, kept: KeptFolders) -> None:
        """Read ``savepoint``; see ``require_version``."""
        self._savepoint, self._version, self._kept = savepoint, version, kept
        self._saved = {(rows.operator, rows.name): rows for rows in savepoint.info.rows}
        partitions = savepoint.info.partitions
        self.operators = [
            Operator(each.number, each.name, each.stores, partitions) for each in savepoint.info.operators
        ]

    def count_metas(self, _operator: Operator) -> int:
        """See Source: one, for all rows together."""
        return 1

    def meta(self, identity: Identity) -> StoreMeta:
        """See Source. Leaves out the rows that Spark keeps per partition of a keyed operator: they are in no file."""
        return _describe_files(self._saved[identity.operator, identity.name])

    def require_version(self) -> None:
        """See Source."""
        info = self._savepoint.info
        if self._version != info.version:
            raise InvalidInputError(
                f"{self._savepoint.place.url} has no version {self._version}: it is a savepoint of {info.version}.",
                hint=f"Batch N made version N + 1, and this savepoint is of batch {info.version - 1}.",
            )

    def count_splits(self, state: StoredState) -> int:
        """See Source: its files."""
        return len(self._find_rows(state).files)

    def find_split(self, state: StoredState, key_hash: int) -> int:
        """See Source."""
        return find_file(key_hash, self.count_splits(state))

    def find_digest(self, state: StoredState) -> Digest | None:
        """See Source."""
        return _find_digest(self._savepoint, state)

    def find_checksum(self, state: StoredState, split: int) -> str | None:
        """See Source."""
        return self._find_rows(state).files[split].xxh3

    @contextmanager
    def rows(self, state: StoredState, split: int, own: StateMeta, wanted: Wanted | None = None) -> Iterator[Rows]:
        """See Source. The file is verified, then only row groups that can have the state and the hash are read."""
        saved, workplace, url = self._find_rows(state), self._savepoint.workplace, self._savepoint.place.url

        def fetch(folder: Path) -> AbstractContextManager[Path]:
            return nullcontext(fetch_rows(workplace, url, saved, split, folder))

        identity = Identity(state.operator.number, split, state.store)
        with _choose_folders(wanted, self._kept).use(identity, fetch) as path:
            held = WantedRows(own.number, None if wanted is None else wanted.hash)
            found = rows_in(path, url, saved, split, held)
            yield (row for each, portion in found if each.number == own.number for row in portion.rows())

    def _find_rows(self, state: StoredState) -> SavedRows:
        return self._saved[state.operator.number, state.store]


def open_location(path: Location, options: Mapping[str, str] | None) -> Checkpoint:
    """Open what a user names; ``options``: those of docs/options.md without their prefix. Raises as ``state_at``."""
    given = read_mapping(options, "options", "{'s3Region': 'eu-north-1'}")
    return state_at(location_text(path, "path"), parse(given))


def state_at(location: str, options: Options) -> Checkpoint:
    """Open ``location``: a checkpoint, or a savepoint of either kind, which is read as a checkpoint.

    Raises InvalidInputError (neither of them, or an unfinished savepoint), FormatError, StorageError.
    """
    if Workplace(options).resolve(location).walk(ROWS_FOLDER):
        return Savepoint(location, options)
    return Checkpoint(location, options)


def open_source(checkpoint: Checkpoint, version: int, pool: Executor, kept: KeptFolders) -> Source:
    """Return the source of a version, read with the threads of ``pool``. Raises FormatError, StorageError.

    What is fetched to look up a key stays in ``kept``.
    """
    if isinstance(checkpoint, Savepoint) and checkpoint.info.kind == "canonical":
        return FilesSource(checkpoint, version, kept)
    return StoresSource(checkpoint, version, pool, kept)


def _find_digest(checkpoint: Checkpoint, state: StoredState) -> Digest | None:
    if not isinstance(checkpoint, Savepoint):
        return None
    found = checkpoint.info.digests_of(state.operator.number, state.store).get(state.stored_name)
    return None if found is None or found.sum is None else found


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Name ``what`` in a FormatError that is raised within."""
    try:
        yield
    except FormatError as problem:
        raise FormatError(f"{what}: {problem.message}", hint=problem.hint) from problem


def _choose_folders(wanted: Wanted | None, kept: KeptFolders) -> KeptFolders:
    """Return ``kept`` for the look-up of a key. A split that is read as a whole is not kept."""
    return KeptFolders(0) if wanted is None else kept


def _describe_files(saved: SavedRows) -> StoreMeta:
    if saved.layout != Layout.KEY_GROUPS.value:
        return saved.meta
    return msgspec.structs.replace(saved.meta, states=tuple(filter(is_keyed, saved.meta.states)))
