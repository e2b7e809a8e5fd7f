"""Savepoints: a user's own complete, movable copy of a query at one batch, from which a query can continue anywhere.

A savepoint is laid out like a checkpoint with one version, so that every reader of checkpoints can read it::

    <savepoint>/savepoint.json     its content; written last: without it there is no savepoint
    <savepoint>/metadata, offsets/, commits/, sources/, state/...      as in a checkpoint

No path in it leads outside it. Nothing is ever added to it, and only its owner deletes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace, find_options
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import Digest, Digests, combine, require_equal
from pyspark_ckpt.state_store.checkpoints.folder_kind import (
    COPY_AGAIN,
    REPEAT_RESTORE,
    FolderKind,
    advise_on_unfinished,
    find_kind,
    is_missing,
    read_unfinished_request,
)
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion, list_operators
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.ownership import OWNER_NAME
from pyspark_ckpt.state_store.checkpoints.query.files import LOGS, QUERY, list_batches
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.checkpoints.query.proof import LogProof, QueryFile, find_damage
from pyspark_ckpt.state_store.checkpoints.verification import Verified, find_differing_copies, verify_version
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.display import count_text, html_table, size_text, write_command, write_rescale
from pyspark_ckpt.state_store.errors import ConflictError, FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.names import (
    RESTORE_REQUEST_NAME,
    SAVEPOINT_NAME,
    UNFINISHED_NAME,
)
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import (
    CommitId,
    Count,
    Location,
    Name,
    OperatorNumber,
    Partitions,
    QueryId,
    StoreName,
    UnixMs,
    Words,
)
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.canonical import SavedRows, digest_file
from pyspark_ckpt.state_store.redistribution.jobs import Progress
from pyspark_ckpt.state_store.redistribution.store_digests import find_differences

NAME, UNFINISHED = SAVEPOINT_NAME, UNFINISHED_NAME
SAVEPOINT_FORMAT = 1
Kind: TypeAlias = Literal["native", "canonical"]
"""Native: the files as they are. Canonical: rows sorted by hash in Parquet files."""
MAX_BYTES = 64 << 20
StoreKey: TypeAlias = tuple[int, str]
"""The number of the operator, and the name of the store."""


class SavedState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state of an operator: its rows, and its types as stored. ``is_counted``: False for expiry indexes.

    ``digest``: of all its rows, if they were read when the savepoint was taken.
    """

    store: StoreName
    name: Name
    rows: Count
    is_counted: bool
    key_schema: Any = None
    value_schema: Any = None
    key_encoder: Any = None
    digest: Digest | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the digest is of another number of rows."""
        if self.digest is not None and self.is_counted and self.digest.rows != self.rows:
            raise ValueError(f"state {self.name!r} has {self.rows} rows, and a digest of {self.digest.rows}")


class SavedOperator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stateful operator: Spark's name, the uids of keyed operators, and how its rows are spread."""

    number: OperatorNumber
    name: Name
    stores: tuple[StoreName, ...]
    partitions: Partitions
    layout: Name
    uids: tuple[Name, ...]
    states: tuple[SavedState, ...]


class SavedStore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A store: the number of its objects, and their bytes."""

    operator: OperatorNumber
    partition: Partitions
    name: StoreName
    commit_id: CommitId
    objects: Count
    size_bytes: Count


class SavepointInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a finished savepoint's ``savepoint.json``.

    ``created_ms``: ms since 1970. ``checkpoint``: the URL of the source. ``version``: of all its stores; batch N makes
    version N + 1. ``operators``: with their states, rows and recorded digests. ``stores``: of a native savepoint.
    ``rows``: of a canonical one. ``files``: Spark's files with checksums, because Spark stores none.
    """

    format: int
    kind: Name
    created_ms: UnixMs
    written_by: Words
    query_id: QueryId
    checkpoint: Location
    version: Count
    partitions: Partitions
    operators: tuple[SavedOperator, ...]
    stores: tuple[SavedStore, ...]
    files: tuple[QueryFile, ...]
    rows: tuple[SavedRows, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError if the kind is unknown, or the rows do not cover exactly all stores."""
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {get_args(Kind)}, got {self.kind!r}")
        stores = [(each.number, name, each.layout) for each in self.operators for name in each.stores]
        saved = [(each.operator, each.name, each.layout) for each in self.rows]
        if self.kind == "canonical" and sorted(stores) != sorted(saved):
            raise ValueError(f"it must have the rows of the stores {stores}, but has those of {saved}")
        if self.kind == "native" and self.rows:
            raise ValueError("a native savepoint cannot list files of rows")
        if len({each.number for each in self.operators}) < len(self.operators):
            raise ValueError("two of its operators have the same number")
        if any(each.layout not in {layout.value for layout in Layout} for each in self.operators):
            raise ValueError("the layout of an operator is unknown")

    def __repr__(self) -> str:
        states = sum(len(each.states) for each in self.operators)
        return (
            f"SavepointInfo({self.kind} savepoint of {self.checkpoint}, batch {self.version - 1}, "
            f"{count_text(self.partitions, 'partition')}, {count_text(states, 'state')}, {size_text(self.size_bytes)})"
        )

    def _repr_html_(self) -> str:
        header = ("operator", "uids", "store", "state", "stored rows")
        rows = (
            (f"{each.number} {each.name}", ", ".join(each.uids), state.store, state.name, state.rows)
            for each in self.operators
            for state in each.states
            if state.is_counted
        )
        return html_table(repr(self), header, rows)

    @property
    def size_bytes(self) -> int:
        """Bytes of all state."""
        files = sum(file.size_bytes for rows in self.rows for file in rows.files)
        return files + sum(store.size_bytes for store in self.stores)

    def digests_of(self, operator: int, store: str) -> dict[str, Digest]:
        """Return the recorded digests of a store's states, by name. A state that was not read has none."""
        found = {
            state.name: state.digest
            for each in self.operators
            for state in each.states
            if (each.number, state.store) == (operator, store) and state.digest is not None
        }
        rows = (each for each in self.rows if (each.operator, each.name) == (operator, store))
        return {**found, **{name: digest for each in rows for name, digest in each.digests.items()}}


class Savepoint(Checkpoint):
    """A finished savepoint, read-only."""

    has_stores = False

    def __init__(self, location: str, options: Options) -> None:
        """Open ``location``. Raises InvalidInputError (there is no finished savepoint), FormatError, StorageError."""
        self.info = read_info(Workplace(options).resolve(location))
        super().__init__(location, options)

    def _read_query_id(self) -> str:
        """Return the id that the savepoint records. ``versions`` and ``verify_files`` compare it with ``metadata``."""
        return self.info.query_id

    def _find_newest_version(self) -> int:
        """Return the savepoint's only version."""
        return self.info.version

    def versions(self, progress: Progress = lambda _done, _all: None) -> list[OperatorVersion]:
        """Return all operators with their stores. A canonical savepoint gives each store one entry, as partition 0.

        Raises InvalidInputError (a query was started in its folder), NotFoundError, FormatError, StorageError.
        """
        self._refuse_query()
        named = (file for file in self.info.files if file.name == QUERY)
        LogProof(named)(QUERY, self.place.get(QUERY), f"{self.place.url}/{QUERY}")
        if self.info.kind == "native":
            try:
                operators = list_operators(self, self.info.version, progress)
            except NotFoundError as problem:
                raise NotFoundError(problem.message, hint=COPY_AGAIN) from problem
            self.require_all(operators)
            return operators
        saved = {(rows.operator, rows.name): rows for rows in self.info.rows}
        return [
            OperatorVersion(
                Operator(each.number, each.name, each.stores, self.info.partitions),
                {name: (describe_rows(saved[each.number, name], self.place.url),) for name in each.stores},
                Layout(each.layout),
            )
            for each in self.info.operators
        ]

    def find_commit(self, identity: Identity, version: int, lineage: Lineage | None = None) -> Marker:
        """Return the commit of a store; see Checkpoint. If nothing else decides, it is the saved commit."""
        try:
            return super().find_commit(identity, version, lineage)
        except ConflictError:
            for each in self.info.stores:
                if Identity(each.operator, each.partition, each.name) == identity:
                    return Marker(version, each.commit_id)
            raise

    def verify_files(self) -> list[str]:
        """Return damage outside of rows that would make a restore refuse the savepoint. Raises StorageError."""
        try:
            self._refuse_query()
            problems = find_damage(self.place, self.info.version - 1, self.info.files)
            if not problems:
                self.versions()
        except (InvalidInputError, FormatError, NotFoundError) as problem:
            return [problem.message]
        return problems

    def _refuse_query(self) -> None:
        """Raise InvalidInputError if logs in the folder do not belong to the savepoint."""
        refuse_query(
            self.info, self.place.url, (f"{log}/{each}" for log in LOGS for each in list_batches(self.place, log))
        )

    def verify_rows(self, progress: Progress = lambda _done, _all: None) -> tuple[list[str], dict[StoreKey, Digests]]:
        """Read all row files of a canonical savepoint; return the damage in them, and the digests of their rows.

        Raises StorageError.
        """
        problems = []
        files = [(rows, number) for rows in self.info.rows for number in range(len(rows.files))]
        found: dict[StoreKey, list[Digests]] = {}
        for done, (rows, number) in enumerate(files, 1):
            try:
                each = digest_file(self.workplace, self.place.url, rows, number)
                found.setdefault((rows.operator, rows.name), []).append(each)
            except (FormatError, NotFoundError) as problem:
                problems.append(problem.message)
            progress(done, len(files))
        whole: dict[StoreKey, Digests] = {store: combine(each) for store, each in found.items()}
        for rows in self.info.rows:
            try:
                what = f"operator {rows.operator}, store {rows.name!r}"
                require_equal(rows.digests, whole.get((rows.operator, rows.name), {}), what)
            except FormatError as problem:
                problems.append(problem.message)
        return problems, whole

    def verify_stores(
        self, progress: Progress = lambda _done, _all: None
    ) -> tuple[list[Verified], list[str], dict[StoreKey, Digests]]:
        """Read all stores of a native savepoint; return each result, all problems, and the digests of the rows read.

        The digests are compared with the recorded ones. Raises StorageError.
        """
        stores = [Identity(store.operator, store.partition, store.name) for store in self.info.stores]
        verified: list[Verified] = []
        for done, identity in enumerate(stores, 1):
            verified.append(verify_version(self, identity, self.info.version))
            progress(done, len(stores))
        problems = [problem for each in verified for problem in each.problems] + find_differing_copies(verified)
        found: dict[StoreKey, list[Digests]] = {}
        for each in verified:
            found.setdefault((each.identity.operator, each.identity.name), []).append(each.digests)
        whole: dict[StoreKey, Digests] = {store: combine(parts) for store, parts in found.items()}
        if not problems:  # with problems, the digests may lack a store
            for (operator, store), digests in whole.items():
                what = f"operator {operator}, store {store!r}"
                problems += find_differences(self.info.digests_of(operator, store), digests, what)
        return verified, problems, whole

    def require_all(self, operators: Sequence[OperatorVersion]) -> None:
        """Raise FormatError unless ``operators`` have exactly the stores and commits of the savepoint."""
        saved = {Identity(each.operator, each.partition, each.name): each.commit_id for each in self.info.stores}
        found = {
            each.identity: each.meta.id
            for operator in operators
            for stores in operator.stores.values()
            for each in stores
        }
        for identity in sorted({*saved, *found}, key=lambda each: (each.operator, each.partition, each.name)):
            if saved.get(identity) != found.get(identity):
                raise FormatError(
                    f"{self.place.url} is damaged: it was taken with the commit {saved.get(identity)} of {identity}, "
                    f"but has the commit {found.get(identity)}.",
                    hint=COPY_AGAIN,
                )


def describe_rows(rows: SavedRows, url: str) -> StoreVersion:
    """Return a store of a canonical savepoint at ``url``, as its partition 0."""
    size_bytes = sum(file.size_bytes for file in rows.files)
    return StoreVersion(Identity(rows.operator, 0, rows.name), url, rows.meta, len(rows.files), size_bytes)


def refuse_query(info: SavepointInfo, url: str, logs: Iterable[str]) -> None:
    """Raise InvalidInputError if the folder ``url`` has ``logs`` that do not belong to its savepoint."""
    others = set(logs) - {file.name for file in info.files}
    if others:
        raise InvalidInputError(
            f"{url} has {max(others)}, which does not belong to the savepoint: a query was started here, so this is "
            "now that query's checkpoint.",
            hint="Keep it as a checkpoint. To continue from the savepoint, restore another copy of it.",
        )


def read_info(place: BlobPlace) -> SavepointInfo:
    """Return the content of ``savepoint.json``. Raises InvalidInputError (there is none), FormatError, StorageError."""
    try:
        return read_info_at(place, NAME)
    except NotFoundError as problem:
        if is_missing(place):
            raise InvalidInputError(f"{place.url} does not exist.", hint="Name the folder of a savepoint.") from problem
        kind = find_kind(place)
        rescale = write_rescale(place.url, **find_options(place))
        hint = f"Name the folder of a savepoint. To copy the checkpoint of a stopped query: {rescale}."
        if kind is FolderKind.CHECKPOINT:
            verify = write_command("checkpoint", "verify", place.url, **find_options(place))
            hint = f"It is the checkpoint of a query. To check it: {verify}. To copy it, stop the query: {rescale}."
        elif kind is FolderKind.UNFINISHED_SAVEPOINT:
            hint = f"It is unfinished or half deleted, and cannot be restored. {advise_on_unfinished(place)}"
        elif kind is FolderKind.UNFINISHED_RESTORE:
            hint = f"It is the target of an unfinished restore. {REPEAT_RESTORE}"
        raise InvalidInputError(f"{place.url} is not a savepoint: it has no {NAME}.", hint=hint) from problem


def read_info_at(place: BlobPlace, name: str) -> SavepointInfo:
    """Return the content of the ``savepoint.json`` at ``name``. Raises NotFoundError, FormatError, StorageError."""
    return read_sealed(place, name, SavepointInfo, MAX_BYTES, known=SAVEPOINT_FORMAT)


def open_target(target: str, options: Options) -> BlobPlace:
    """Return the place for a new savepoint. Raises InvalidInputError."""
    return Workplace(options).resolve(target)


def refuse_unless_empty(place: BlobPlace, what: str, but_for: str = "") -> None:
    """Raise InvalidInputError if the place for ``what`` holds anything except ``but_for``. Raises StorageError."""
    found = [blob.name for blob in place.walk() if blob.name != but_for]
    if not found:
        return
    if (inside := find_inside(place, found)) is not None:
        kind, folder = inside
        where = f"{place.url}/{folder}".rstrip("/")
        is_unfinished = kind is FolderKind.UNFINISHED_SAVEPOINT
        advice = f"{advise_on_unfinished(place, folder)} Or name" if is_unfinished else "Name"
        what_is_there = f"it has {kind.value} in {where}" if folder else f"it is {kind.value}"
        raise InvalidInputError(
            f"{place.url} is not empty: {what_is_there}.",
            hint=f"{advice} a new folder for {what}.",
        )
    raise InvalidInputError(
        f"{place.url} is not empty: it has {found[0]}" + (f" and {len(found) - 1} more." if found[1:] else "."),
        hint=f"Name a new folder for {what}.",
    )


def find_inside(place: BlobPlace, names: Iterable[str]) -> tuple[FolderKind, str] | None:
    """Return the first savepoint, checkpoint or state among the objects ``names`` of a place, and its folder.

    A checkpoint counts even if it has lost its ``metadata`` or has no batch yet. Raises StorageError.
    """
    objects, folders = set(names), dict[str, set[str]]()
    for name in sorted(objects):
        parts = name.split("/")
        for depth, part in enumerate(parts):
            child = part if depth == len(parts) - 1 else f"{part}/"
            folders.setdefault("/".join(parts[:depth]), set()).add(child)
    for folder, inside in folders.items():
        below = f"{folder}/".lstrip("/")
        if NAME in inside:
            return FolderKind.SAVEPOINT, folder
        if UNFINISHED in inside:
            return FolderKind.UNFINISHED_SAVEPOINT, folder
        is_unfinished = QUERY in inside and f"{below}{RESTORE_REQUEST_NAME}" in objects
        if is_unfinished and read_unfinished_request(place, folder):
            return FolderKind.UNFINISHED_RESTORE, folder
        if any(f"{log}/" in inside for log in LOGS) or (QUERY in inside and {"state/", "sources/"} & inside):
            return FolderKind.CHECKPOINT, folder
        if {OWNER_NAME, "state/"} <= inside:
            return FolderKind.STATE, folder
    return None
