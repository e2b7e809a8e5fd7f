"""A checkpoint as a whole, read without Spark: its operators, their stores, and the stored objects of each store.

Spark writes ``metadata`` (the query's id), ``commits/<batch>`` and, for each operator,
``state/<id>/_metadata/metadata`` (name, stores, number of partitions). For an operator with column families that is
``_metadata/v2/<batch>``. Batch N makes version N + 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import ClassVar

from pyspark_ckpt.state_store.attempts.commit_log import read_ids
from pyspark_ckpt.state_store.attempts.winners import Evidence, resolve
from pyspark_ckpt.state_store.blobs import find_options
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_savepoint_kind, make_refusal
from pyspark_ckpt.state_store.checkpoints.layout import keeps_one_partition
from pyspark_ckpt.state_store.checkpoints.missing_state import explain_missing
from pyspark_ckpt.state_store.checkpoints.query.entries import refuse_other_provider
from pyspark_ckpt.state_store.checkpoints.query.files import list_batches
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator, read_operators
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.display import write_command
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.meta import StoreMeta
from pyspark_ckpt.state_store.format.names import ROWS_FOLDER, SAVEPOINT_NAME
from pyspark_ckpt.state_store.format.remote import find_place, query_id
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.packs.catalog import Catalog
from pyspark_ckpt.state_store.packs.slots import split_id
from pyspark_ckpt.state_store.packs.store_place import StorePlace
from pyspark_ckpt.state_store.restore.commit_meta import read_meta_at

_OPERATOR_NUMBER = re.compile(r"[0-9]{1,9}")


class Checkpoint:
    """A query's checkpoint, read-only."""

    has_stores: ClassVar[bool] = True
    """Whether there must be stores: a canonical savepoint has none."""

    def __init__(self, location: str, options: Options) -> None:
        """Open ``location``. Raises InvalidInputError (it is not the checkpoint of a query), StorageError."""
        self.workplace = Workplace(options)
        self._places: dict[Identity, StorePlace] = {}
        self._shown: set[Identity] = set()
        self._catalogs: dict[str, Catalog] = {}
        self._newest_version: int | None = None
        self._earlier: int | None = None
        self._ids: dict[str, list[list[str]]] | None = None
        self._operators: list[Operator] | None = None
        self.place = self.workplace.resolve(location)
        self.query_id = self._read_query_id()
        if self.has_stores:
            self._require_stores()

    def _require_stores(self) -> None:
        """Raise InvalidInputError if this is an unfinished savepoint, or a canonical one."""
        kind = find_savepoint_kind(self.place)
        if kind is FolderKind.UNFINISHED_SAVEPOINT:
            raise make_refusal(self.place)
        if not self.place.walk(ROWS_FOLDER):
            return
        if kind is None:
            raise InvalidInputError(
                f"{self.place.url} is a canonical savepoint that has lost its {SAVEPOINT_NAME}.",
                hint="Put the file back from a copy of the savepoint, or use another savepoint.",
            )
        inspect, read = self.write_command("savepoint", "inspect"), self.write_command("state", "read")
        raise InvalidInputError(
            f"{self.place.url} is a canonical savepoint: its rows are in the Parquet files below {ROWS_FOLDER}.",
            hint=f"Use {inspect}, or {read} for its rows. For anything else, restore it first.",
        )

    def _read_query_id(self) -> str:
        """Return the query's id. Raises InvalidInputError (there is none), StorageError."""
        try:
            return query_id(self.place)
        except (NotFoundError, FormatError) as problem:
            raise make_refusal(self.place, self.workplace.place) from problem

    @property
    def newest_version(self) -> int:
        """The newest version whose batch was committed when this was first read; 0 if no batch is committed."""
        if self._newest_version is None:
            self._newest_version = self._find_newest_version()
        return self._newest_version

    def _find_newest_version(self) -> int:
        return max(list_batches(self.place, "commits"), default=-1) + 1

    def go_back(self, version: int) -> None:
        """From now on, treat an earlier committed ``version`` as the newest one.

        Raises InvalidInputError (it is not committed), StorageError.
        """
        self.require_committed(version)
        self.look_again()
        self._newest_version = self._earlier = version

    def refuse_other_provider(self) -> None:
        """Raise InvalidInputError if the query keeps state in another provider's store. Raises StorageError."""
        if self.operators() or self.place.walk("state/0"):  # Spark 3.5 does not record which operators there are
            with suppress(FormatError):  # a damaged offset log does not name the provider, and is not needed here
                refuse_other_provider(self.place, max(self.newest_version - 1, 0))

    def write_command(self, *words: str) -> str:
        """Return a command on this place, with the options that reach it and the state found so far."""
        return write_command(*words, self.place.url, **find_options(self.place, *self._places.values()))

    def look_again(self) -> None:
        """Forget the newest version, its commits and the operators: they are read again when needed."""
        self._earlier = None
        self._newest_version = self._ids = self._operators = None
        self._shown.clear()
        for catalog in self._catalogs.values():
            catalog.look_again()

    def require_committed(self, version: int) -> None:
        """Raise InvalidInputError unless ``version`` is committed: the objects of other versions may still change."""
        if not 1 <= version <= self.newest_version:
            newest = self.newest_version
            there = f"the newest committed one is {newest}" if newest else "no batch is committed yet"
            raise InvalidInputError(
                f"{self.place.url} has no version {version}: {there}.",
                hint="Batch N makes version N + 1 when it is committed.",
            )

    def operators(self) -> list[Operator]:
        """Return all stateful operators, ordered by number. They are read once."""
        if self._operators is None:
            self._operators = list(self._read_operators())
        return self._operators

    def _read_operators(self) -> Iterator[Operator]:
        return read_operators(self.place, self._earlier)

    def stores(self) -> Iterator[tuple[Operator, Identity]]:
        """Yield every store in use, operator by operator and partition by partition."""
        for operator in self.operators():
            for partition in range(self.partitions_in_use(operator)):
                for store in operator.stores:
                    yield operator, Identity(operator.number, partition, store)

    def partitions_in_use(self, operator: Operator) -> int:
        """Return how many partitions have state: 1 for an operator that needs all rows in one place.

        An operator with keys has state in all of them, whether it is there or lost. Raises FormatError, StorageError.
        """
        ids = self.ids(operator.number)
        if ids:
            return len(ids)
        first, *others = (
            Identity(operator.number, number, operator.stores[0]) for number in range(operator.partitions)
        )
        if any(self.find_place(each).list() for each in others):
            return operator.partitions
        with suppress(NotFoundError):  # whoever reads the first partition is told so
            states = self.meta(first, self.newest_version).states if self.newest_version else ()
            return 1 if keeps_one_partition(operator.name, states) else operator.partitions
        return 1

    def ids(self, operator: int) -> list[list[str]]:
        """Return the ids, by partition and store, that the commit log names for an operator at the newest version.

        They are plain ids, see ``packs.slots``. The list is empty if it names none.
        """
        return [[split_id(each)[0] for each in ids] for ids in self._read_ids().get(str(operator), [])]

    def list_logged_operators(self) -> set[int]:
        """Return the operators whose state the commit log names at the newest version: none in checkpoint format 1."""
        return {int(number) for number in self._read_ids() if _OPERATOR_NUMBER.fullmatch(number)}

    def keep_ids(self) -> None:
        """Read the ids that the commit log names at the newest version, before a running query deletes its entry."""
        self._read_ids()

    def _read_ids(self) -> dict[str, list[list[str]]]:
        """Return all ids that the commit log names at the newest version. They are read once."""
        if self._ids is None:
            self._ids = read_ids(self.place, self.newest_version)
        return self._ids

    def find_place(self, identity: Identity) -> StorePlace:
        """Return the place of a store's state, which also shows its commits in packs. Raises StorageError."""
        if identity not in self._places:
            self._places[identity] = find_place(
                self.place,
                identity,
                lambda url: self.workplace.store_place_at(url, identity),
                self.workplace.options.remote,
            )
        place = self._places[identity]
        if identity not in self._shown:
            self.catalog(place).show(place, identity)
            self._shown.add(identity)
        return place

    def catalog(self, place: StorePlace) -> Catalog:
        """Return what is known of the packs with commits of a store."""
        return self._catalogs.setdefault(place.packs.url, Catalog(place.packs))

    def find_damaged_packs(self) -> list[str]:
        """Return a message for each pack whose index cannot be read, of the stores that were looked at."""
        problems = [problem for each in self._catalogs.values() for problem in each.damaged.values()]
        return [problem.message for problem in problems]

    def meta(self, identity: Identity, version: int) -> StoreMeta:
        """Return the states and row counts of a store at a version. Raises NotFoundError, FormatError, StorageError."""
        lineage = Lineage.read(self.find_place(identity))
        return self.read_meta(identity, self.find_commit(identity, version, lineage), lineage)

    def read_meta(self, identity: Identity, commit: Marker, lineage: Lineage) -> StoreMeta:
        """Return the states and row counts of a store at a commit. Raises NotFoundError, FormatError, StorageError."""
        return read_meta_at(self.find_place(identity), commit, lineage)

    def find_commit(self, identity: Identity, version: int, lineage: Lineage | None = None) -> Marker:
        """Return the commit of a store that counts at a version. ``lineage``: the store's, if it is already known.

        Raises InvalidInputError (a version not committed), NotFoundError, ConflictError, FormatError, StorageError.
        """
        self.require_committed(version)
        place, named = self.find_place(identity), None
        if version == self.newest_version:
            ids = self._read_ids().get(str(identity.operator), [])
            named = ids[identity.partition] if identity.partition < len(ids) else []
        try:
            return resolve(identity, version, Evidence(place, self.place, named, lineage))
        except NotFoundError as problem:
            refuse_other_provider(self.place, version - 1)
            remote = self.workplace.options.remote
            raise explain_missing(problem, place, self.place, identity, remote) from problem
