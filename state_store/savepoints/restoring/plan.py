"""The plan of a restore: which stores of which source go into how many partitions, under which uids."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.display import count_text, suggest
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.meta import check_uid
from pyspark_ckpt.state_store.format.partition_states import Scope, find_scope
from pyspark_ckpt.state_store.format.remote import folder_of_query
from pyspark_ckpt.state_store.json_objects import MAX_PARTITIONS
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.merged_states import require_equal_states, require_mergeable
from pyspark_ckpt.state_store.redistribution.strategies.base import Strategy
from pyspark_ckpt.state_store.savepoints.restoring.request import RestoreRequest
from pyspark_ckpt.state_store.savepoints.restoring.source import RestoreSource

MIN_PARTITIONS = 1


class OtherTarget(Protocol):
    """Stores of another kind than ours, made from a checkpoint's stores."""

    @property
    def provider_class(self) -> str:
        """The class by which Spark knows the kind."""
        ...

    def strategy(self, operator: OperatorVersion) -> Strategy:
        """Return how the stores of an operator are moved."""
        ...


@dataclass(frozen=True)
class RestorePlan:
    """One restore: the source, the request and the target. ``partitions``: how many the target will have."""

    source: RestoreSource
    request: RestoreRequest
    options: Options
    workplace: Workplace
    place: BlobPlace
    """The target."""
    query_id: str
    """The id of the query that will continue there."""
    old_partitions: int
    partitions: int
    target: OtherTarget | None = None
    """Set if the target will not have stores of this kind."""

    @classmethod
    def of(
        cls,
        source: RestoreSource,
        target: str,
        request: RestoreRequest,
        options: Options,
        other_target: OtherTarget | None = None,
    ) -> RestorePlan:
        """Plan a restore of ``source`` into the folder ``target``. Raises FormatError, StorageError."""
        workplace, partitions = Workplace(replace(options, remote="")), source.count_partitions()
        return cls(
            source,
            request,
            options,
            workplace,
            workplace.resolve(target),
            source.checkpoint.query_id if request.query_id == "keep" else str(uuid.uuid4()),
            partitions,
            partitions if request.partitions is None else request.partitions,
            other_target,
        )

    @property
    def act(self) -> str:
        """What a user calls this restore."""
        if self.source.others is not None:
            return "adoption"
        return "restore" if self.target is None else "hand-back"

    def folder_of_query(self, query_id: str) -> BlobPlace | None:
        """Return the folder below ``remote`` for the state of the query; None if its checkpoint holds the state."""
        if not self.options.remote:
            return None
        return self.workplace.place(folder_of_query(self.options.remote, query_id))

    def describe_operators(self) -> Mapping[str, bytes]:
        """Return files of operators that the target gets in addition to those of the source, by name."""
        return {} if self.source.others is None else self.source.others.describe_operators(self.partitions)

    def count_partitions(self, operator: OperatorVersion) -> int:
        """Return how many partitions of the operator will have state."""
        return 1 if operator.layout is Layout.SINGLE else self.partitions

    def is_copied(self, operator: OperatorVersion) -> bool:
        """Return whether the operator's stores are copied as they are."""
        if self.source.others is not None or self.target is not None:
            return False
        is_renamed = any(uid in self.request.uid_map for uid in operator.uids)
        is_same = self.partitions == self.old_partitions and not is_renamed and not self.source.saved_rows
        return is_same and not has_unions(operator)

    def require_restorable(self) -> None:
        """Raise InvalidInputError for a number of partitions, a uid or an operator that rules this restore out.

        Raises FormatError if copies of a state differ.
        """
        if self.request.query_id not in ("keep", "new"):
            raise InvalidInputError(f"`query_id` must be 'keep' or 'new', got {self.request.query_id!r}.")
        self._check_partitions()
        require_mergeable(each for each in self.source.operators if not self.is_copied(each))
        for operator in () if self.source.saved_rows else self.source.operators:
            require_equal_states(operator)
        self._check_uids()
        self._check_key_groups()

    def _check_partitions(self) -> None:
        given: object = self.partitions  # from Python, which does not check types
        if not isinstance(given, int) or isinstance(given, bool):
            raise InvalidInputError(f"`parallelism` must be a whole number, got {given!r}.")
        if self.partitions < MIN_PARTITIONS:
            raise InvalidInputError(f"`parallelism` must be at least {MIN_PARTITIONS}, got {self.partitions}.")
        if self.partitions > MAX_PARTITIONS:
            raise InvalidInputError(f"`parallelism` must be at most {MAX_PARTITIONS}, got {self.partitions}.")

    def _check_uids(self) -> None:
        """Raise InvalidInputError for a uid that is unknown or invalid, or that several states would get."""
        for old, new in self.request.uid_map.items():
            check_uid(new, f"`uid_map` renames {old!r} to {new!r}")
        for operator in self.source.operators:
            for new in self.request.uid_map.values():
                theirs = [uid for uid in operator.uids if self.request.uid_map.get(uid, uid) == new]
                if len(theirs) > 1:
                    raise InvalidInputError(
                        f"`uid_map` would give the uid {new!r} to the states of {theirs}.",
                        hint="Give each of them its own uid.",
                    )
        known = sorted({uid for operator in self.source.operators for uid in operator.uids})
        unknown = sorted(set(self.request.uid_map) - set(known))
        if unknown and not self.request.allow_non_restored_state:
            raise InvalidInputError(
                f"`uid_map` renames {unknown}, but the only uids with state are {known}.{suggest(unknown[0], known)}",
                hint="Correct `uid_map`, or pass `allow_non_restored_state`.",
            )

    def _check_key_groups(self) -> None:
        for operator in self.source.operators:
            if operator.layout is Layout.KEY_GROUPS and self.partitions > (most := operator.key_groups):
                raise InvalidInputError(
                    f"Keyed operator {', '.join(map(repr, operator.uids))} has max_parallelism {most}: "
                    f"it cannot have {count_text(self.partitions, 'partition')}.",
                    hint=f"Restore it with {most} or fewer partitions. The first batch fixes max_parallelism.",
                )


def has_unions(operator: OperatorVersion) -> bool:
    """Return whether the operator has lists that give each partition the items of all partitions on a restore."""
    states = (state for stores in operator.stores.values() for store in stores for state in store.meta.states)
    return any(find_scope(state) is Scope.UNION for state in states)
