"""The plan of a restore: which stores, of what source, into how many partitions, under which uids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import xxhash

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.query.files import LOGS
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.display import count_text, suggest
from pyspark_ckpt.state_store.errors import ConflictError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.meta import check_uid
from pyspark_ckpt.state_store.format.partition_states import Scope, find_scope
from pyspark_ckpt.state_store.json_objects import MAX_PARTITIONS
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.canonical import SavedRows
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.redistribution.merged_states import require_equal_states, require_mergeable
from pyspark_ckpt.state_store.redistribution.strategies.base import Strategy
from pyspark_ckpt.state_store.savepoints.savepoint import NAME, Savepoint, SavepointInfo

MIN_PARTITIONS = 1


class OtherStores(Protocol):
    """Stores of another kind than ours, from which a checkpoint is made."""

    def strategy(self, operator: OperatorVersion, url: str) -> Strategy:
        """Return how the stores of an operator are moved. ``url``: of the target."""
        ...

    def count_rows(
        self, operator: OperatorVersion, partitions: int, runner: Runner, progress: Progress
    ) -> Sequence[int]:
        """Count the rows of each new partition of an operator. Raises as ``Strategy.move``."""
        ...

    def describe_operators(self, partitions: int) -> Mapping[str, bytes]:
        """Return files of operators that the source lacks, by name: ``partitions`` is how many they have now."""
        ...


class OtherTarget(Protocol):
    """Stores of another kind than ours, which are made from those of a checkpoint."""

    @property
    def provider_class(self) -> str:
        """The class by which Spark knows the kind."""
        ...

    def strategy(self, operator: OperatorVersion) -> Strategy:
        """Return how the stores of an operator are moved."""
        ...


@dataclass(frozen=True)
class RestorePlan:
    """One restore. ``place``: the target; ``operators``: all operators that have state."""

    options: Options
    workplace: Workplace
    place: BlobPlace
    source_url: str
    operators: Sequence[OperatorVersion]
    old_partitions: int
    partitions: int
    uid_map: Mapping[str, str]
    saved_rows: Mapping[tuple[int, str], SavedRows]
    """By operator and store, if the source is a canonical savepoint; else empty."""
    info: SavepointInfo | None
    """The content of ``savepoint.json`` if the source is a savepoint."""
    others: OtherStores | None = None
    """If the source is not a checkpoint of this store."""
    target: OtherTarget | None = None
    """If the target will not be one."""
    shares: bool = False
    """Whether table files that are copied may be links to those of the source."""

    @property
    def act(self) -> str:
        """What a user calls this restore."""
        if self.others is not None:
            return "adoption"
        return "restore" if self.target is None else "hand-back"

    def get_saved(self, operator: OperatorVersion, name: str) -> SavedRows | None:
        """Return the rows of a store, if the source is a canonical savepoint."""
        return self.saved_rows.get((operator.operator.number, name))

    def get_recorded(self, operator: OperatorVersion, name: str) -> dict[str, Digest]:
        """Return the digests of a store's states that the source savepoint has recorded."""
        return {} if self.info is None else self.info.digests_of(operator.operator.number, name)

    def describe_operators(self) -> Mapping[str, bytes]:
        """Return files of operators that the target gets in addition to those of the source, by name."""
        return {} if self.others is None else self.others.describe_operators(self.partitions)

    def count_partitions(self, operator: OperatorVersion) -> int:
        """Return how many partitions of the operator will have state."""
        return 1 if operator.layout is Layout.SINGLE else self.partitions

    def is_copied(self, operator: OperatorVersion) -> bool:
        """Return whether the operator's stores are copied as they are."""
        if self.others is not None or self.target is not None:
            return False
        is_renamed = any(uid in self.uid_map for uid in operator.uids)
        is_same = self.partitions == self.old_partitions and not is_renamed and not self.saved_rows
        return is_same and not has_unions(operator)

    def require_restorable(self, *, allows_non_restored_state: bool) -> None:
        """Raise InvalidInputError for a number of partitions, a uid or an operator with which this cannot be done.

        Raises FormatError if copies of a state differ.
        """
        self._check_partitions()
        require_mergeable(each for each in self.operators if not self.is_copied(each))
        for operator in () if self.saved_rows else self.operators:
            require_equal_states(operator)
        self._check_uids(allows_non_restored_state=allows_non_restored_state)
        self._check_key_groups()

    def _check_partitions(self) -> None:
        given: object = self.partitions  # from Python, which does not check types
        if not isinstance(given, int) or isinstance(given, bool):
            raise InvalidInputError(f"`parallelism` must be a whole number, got {given!r}.")
        if self.partitions < MIN_PARTITIONS:
            raise InvalidInputError(f"`parallelism` must be at least {MIN_PARTITIONS}, got {self.partitions}.")
        if self.partitions > MAX_PARTITIONS:
            raise InvalidInputError(f"`parallelism` must be at most {MAX_PARTITIONS}, got {self.partitions}.")

    def _check_uids(self, *, allows_non_restored_state: bool) -> None:
        """Raise InvalidInputError for a uid that is unknown or invalid, or that the states of several would get."""
        for old, new in self.uid_map.items():
            check_uid(new, f"`uid_map` renames {old!r} to {new!r}")
        for operator in self.operators:
            for new in self.uid_map.values():
                theirs = [uid for uid in operator.uids if self.uid_map.get(uid, uid) == new]
                if len(theirs) > 1:
                    raise InvalidInputError(
                        f"`uid_map` would give the uid {new!r} to the states of {theirs}.",
                        hint="Give each of them a uid of its own.",
                    )
        known = sorted({uid for operator in self.operators for uid in operator.uids})
        unknown = sorted(set(self.uid_map) - set(known))
        if unknown and not allows_non_restored_state:
            raise InvalidInputError(
                f"`uid_map` renames {unknown}, but there is only state of the uids {known}."
                f"{suggest(unknown[0], known)}",
                hint="Correct `uid_map`, or pass `allow_non_restored_state`.",
            )

    def _check_key_groups(self) -> None:
        for operator in self.operators:
            if operator.layout is Layout.KEY_GROUPS and self.partitions > (most := operator.key_groups):
                raise InvalidInputError(
                    f"Keyed operator {', '.join(map(repr, operator.uids))} has max_parallelism {most}: "
                    f"it cannot have {count_text(self.partitions, 'partition')}.",
                    hint=f"Restore it with {most} or fewer partitions. The first batch fixes max_parallelism.",
                )


def has_unions(operator: OperatorVersion) -> bool:
    """Return whether the operator has lists of which each partition gets those of all whenever they are restored."""
    states = (state for stores in operator.stores.values() for store in stores for state in store.meta.states)
    return any(find_scope(state) is Scope.UNION for state in states)


class Origin:
    """A source as it was when it was opened: a savepoint, or a checkpoint at one version.

    Its URL and its version do not tell it from another. A savepoint may be deleted and another taken in its folder; a
    query may be rolled back, and run its batch again.
    """

    def __init__(self, source: Checkpoint, version: int, operators: Sequence[OperatorVersion]) -> None:
        """``operators``: those of the source. Raises NotFoundError (a log is missing), StorageError."""
        self._source, self._version = source, version
        self._commits = [
            f"{store.identity.short} {store.meta.id}"
            for operator in operators
            for stores in operator.stores.values()
            for store in stores
        ]
        self.digest = self._digest()
        """What tells it from another source at its URL."""

    def require_unchanged(self) -> None:
        """Raise ConflictError if something else is at the URL of the source now; StorageError."""
        try:
            digest = self._digest()
        except NotFoundError:
            if not isinstance(self._source, Savepoint):  # the query runs: it has deleted logs, which were copied before
                return
            digest = ""
        if digest != self.digest:
            raise ConflictError(
                f"{self._source.place.url} was deleted or replaced while it was being restored.",
                hint="To restore what is there now, name a new folder.",
            )

    def _digest(self) -> str:
        place, source = self._source.place, self._source
        if isinstance(source, Savepoint):
            return xxhash.xxh3_128_hexdigest(place.get(NAME))
        logs = [place.get(f"{log}/{self._version - 1}") for log in LOGS]
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode([source.query_id, self._commits, logs]))
