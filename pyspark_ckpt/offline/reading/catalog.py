"""The states that a version of a checkpoint has, over all partitions."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import UNSET

from pyspark_ckpt.offline.reading.rows.keyed_rows import has_ended
from pyspark_ckpt.offline.reading.rows.partition_rows import BROADCASTS
from pyspark_ckpt.offline.reading.stored_state import SPARKS, Selection, StoredState
from pyspark_ckpt.operators.rows.expiry import index_name
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.meta import Descriptor, StateMeta, StoreMeta
from pyspark_ckpt.state_store.identity import Identity

if TYPE_CHECKING:
    from pyspark_ckpt.offline.reading.sources import Source


class Catalog:
    """The states of one version. The metadata of each store is read once."""

    def __init__(self, source: Source, where: str, pool: Executor, why_empty: str) -> None:
        """Use the threads of ``pool`` to read ``source``; messages call it ``where``, and say why it has no state."""
        self._source, self._where, self._pool, self._why_empty = source, where, pool, why_empty
        self._metas: dict[Identity, StoreMeta] = {}
        self._partitions = {each.number: source.count_metas(each) for each in source.operators}

    def meta(self, identity: Identity) -> StoreMeta:
        """Return the metadata of a store. Raises NotFoundError, FormatError, StorageError."""
        if identity not in self._metas:
            self._metas[identity] = self._source.meta(identity)
        return self._metas[identity]

    def find_meta(self, state: StoredState, partition: int) -> StateMeta | None:
        """Return a state as a partition describes it; None if the partition does not have it. Raises as ``meta``."""
        return self.meta(Identity(state.operator.number, partition, state.store)).state(state.stored_name)

    def all(self, wanted: Selection) -> list[StoredState]:
        """Return the selected states, sorted by operator, store and name, with the rows of all partitions."""
        most = max(self._partitions.values(), default=0)
        return self._in_partitions(wanted, range(most))

    def one(self, wanted: Selection, *, of_all_partitions: bool) -> StoredState:
        """Return the only selected state, of all partitions or of the first that has it. Raises InvalidInputError."""
        if not of_all_partitions:
            most = max(self._partitions.values(), default=0)
            found = next((states for n in range(most) if (states := self._in_partitions(wanted, [n]))), [])
        else:
            found = self.all(wanted)
        if wanted.state is None:
            found = without_internal(found)
        if len(found) == 1:
            return found[0]
        raise self._not_one(wanted, found)

    def _in_partitions(self, wanted: Selection, partitions: Sequence[int]) -> list[StoredState]:
        asked = [
            (each, Identity(each.number, partition, store))
            for each in self._source.operators
            if wanted.operator in {None, each.number}
            for partition in partitions
            if partition < self._partitions[each.number]
            for store in each.stores
            if wanted.store in {None, store}
        ]
        metas = self._pool.map(self.meta, [identity for _, identity in asked])
        found: dict[tuple[int, str, str], StoredState] = {}
        for state in chain.from_iterable(
            _states_in(each, identity.name, meta) for (each, identity), meta in zip(asked, metas, strict=True)
        ):
            if wanted.includes(state):
                place = state.operator.number, state.store, state.stored_name
                found[place] = _join(found[place], state) if place in found else state
        return [found[place] for place in sorted(found)]

    def _not_one(self, wanted: Selection, found: Sequence[StoredState]) -> InvalidInputError:
        there = found or without_internal(self.all(Selection()))
        names = "; ".join(each.whose for each in there)
        of = "" if wanted == Selection() else f" for {wanted}"
        if found:
            return InvalidInputError(
                f"{self._where} has {len(found)} states{of}: {names}.",
                hint="Select one by `uid` and `state`, or by `operator`, `store` and `state`.",
            )
        if not there:
            return InvalidInputError(f"{self._where} has no state: {self._why_empty}.")
        return InvalidInputError(f"{self._where} has no state{of}; there are: {names}.{_suggest(wanted, there)}")


def _states_in(operator: Operator, store: str, meta: StoreMeta) -> list[StoredState]:
    """Return all states of a store, without the indexes of rows with a time to live."""
    states = []
    for state in meta.states:
        if not state.is_counted:
            continue
        uid, kind = state.uid, str(state.descriptor.encoder.get("kind", SPARKS))
        name = state.name if uid is None else state.name.removeprefix(f"{uid}/")
        has_life = meta.state(index_name(state.name)) is not None and not has_ended(state.descriptor)
        states.append(StoredState(operator, store, name, uid, kind, state.rows, state.descriptor, has_life))
    return states


def _suggest(wanted: Selection, there: Sequence[StoredState]) -> str:
    """Return a suggestion for the first name of a selection that no state has."""
    uids = {each.uid for each in there if each.uid is not None}
    for name, known in (
        (wanted.uid, uids),
        (wanted.store, {each.store for each in there}),
        (wanted.state, {each.name for each in there if wanted.uid in {None, each.uid}}),
    ):
        if name is not None and name not in known:
            return suggest(name, known)
    return ""


def without_internal(found: Sequence[StoredState]) -> list[StoredState]:
    """Leave out the state that Spark keeps for a keyed operator: one row per partition, of no use to a program."""
    keyed = {each.operator.number for each in found if "max_parallelism" in each.descriptor.encoder}
    return [each for each in found if each.uid is not None or each.operator.number not in keyed]


def _join(first: StoredState, other: StoredState) -> StoredState:
    """Combine one state of two stores. The store that knows more types was written last, so its descriptor counts."""
    newest = max(first.descriptor, other.descriptor, key=_how_new)
    has_life = first.has_life or other.has_life
    rows = max(first.rows, other.rows) if first.kind == BROADCASTS else first.rows + other.rows
    return replace(first, rows=rows, descriptor=newest, has_life=has_life)


def _how_new(descriptor: Descriptor) -> tuple[int, bool]:
    values = descriptor.value_schema.values() if isinstance(descriptor.value_schema, dict) else ()
    types = sum(len(each.get("schemas", ())) for each in values if isinstance(each, dict))
    return types, descriptor.ttl is not UNSET
