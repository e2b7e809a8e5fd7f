"""The states of the new stores of an operator when its number of partitions changes.

The partition of a row follows from the hash in its key:

- Spark's own operators use the remainder of the hash: in general, all old partitions have rows for all new ones.
- Keyed operators use ranges of the hash, the key groups: a new partition takes ranges of few old ones.
- Operators that need all rows in one place (global aggregation, limit) stay in partition 0.

The stores of one operator may have given their states different numbers, because a store learns of a state when its
partition first needs it. States are therefore matched by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from pyspark_ckpt.state_store.attempts.agreement import find_differences, select_copies
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.keys import EMPTY_ID
from pyspark_ckpt.state_store.format.meta import (
    Descriptor,
    StateMeta,
    StoreMeta,
    have_same_keys,
    is_keyed,
    longer_history,
    longer_schemas,
)


@dataclass(frozen=True)
class Merged:
    """The merged states of all stores of an operator, and the new numbers of each store's states."""

    states: tuple[StateMeta, ...]
    counter: int
    keyed_counter: int
    numbers: tuple[Mapping[int, int], ...]
    names: Mapping[str, str] = field(default_factory=dict)
    """The new names of renamed states, by the names in the stores."""

    def rename(self, uid_map: Mapping[str, str]) -> Merged:
        """Return the same with other uids of keyed operators, whose states are named after them."""
        states = tuple(rename_uid(state, uid_map) for state in self.states)
        names = {old.name: new.name for old, new in zip(self.states, states, strict=True) if new.name != old.name}
        return replace(self, states=states, names=names)

    def meta(self, version: int, commit_id: str, partitions: int, rows: Mapping[str, int]) -> StoreMeta:
        """Return the metadata of a new store with that many ``rows`` of each state."""
        states = tuple(
            msgspec.structs.replace(state, rows=rows.get(state.name, 0) if state.is_counted else 0)
            for state in self.states
        )
        return StoreMeta(
            version=version,
            id=commit_id,
            parent=EMPTY_ID,
            num_partitions=partitions,
            counter=self.counter,
            states=states,
            keyed_counter=self.keyed_counter,
        )


def require_mergeable(operators: Iterable[OperatorVersion]) -> None:
    """Raise InvalidInputError if the stores of an operator cannot become one."""
    for operator in operators:
        for name, stores in operator.stores.items():
            merge_states([store.meta for store in stores], f"operator {operator.operator.number}, store {name!r}")


def require_equal_states(operator: OperatorVersion) -> None:
    """Raise FormatError if the copies of a broadcast state differ, as their commits say."""
    for stores in operator.stores.values():
        first, *others = [(store.identity, select_copies(store.meta)) for store in stores]
        for other in others:
            for difference in find_differences(other, first):
                raise FormatError(
                    f"Operator {operator.operator.number}: {difference}",
                    hint="Use an earlier savepoint, or roll the query back to a batch before the one that made them "
                    "differ: see docs/broadcast.md.",
                )


def merge_states(metas: Sequence[StoreMeta], what: str) -> Merged:
    """Merge the states of the stores of ``what``. Raises InvalidInputError if the stores cannot become one."""
    largest = max(metas, key=lambda meta: (len(meta.states), meta.counter + meta.keyed_counter))
    counters = max(meta.counter for meta in metas), max(meta.keyed_counter for meta in metas)
    whole = msgspec.structs.replace(largest, counter=counters[0], keyed_counter=counters[1])
    for meta in metas:
        for state in meta.states:
            known = whole.state(state.name)
            descriptor = state.descriptor if known is None else _one(known, state, what)
            whole, _ = whole.with_state(state.name, descriptor, keyed=is_keyed(state))
    whole = msgspec.structs.replace(whole, states=tuple(_with_life(state, metas, what) for state in whole.states))
    number_of = {state.name: state.number for state in whole.states}
    numbers = tuple({state.number: number_of[state.name] for state in meta.states} for meta in metas)
    return Merged(whole.states, whole.counter, whole.keyed_counter, numbers)


def rename_uid(state: StateMeta, uid_map: Mapping[str, str]) -> StateMeta:
    """Return the state with the new uid of its keyed operator, if it gets one. Its name contains the uid."""
    uid = state.uid
    if uid is None or uid not in uid_map:
        return state
    name = f"{uid_map[uid]}/{state.name.removeprefix(f'{uid}/')}"
    encoder = {**state.descriptor.encoder, "keyed": uid_map[uid]}
    return msgspec.structs.replace(
        state, name=name, descriptor=msgspec.structs.replace(state.descriptor, key_encoder=encoder)
    )


def _one(known: StateMeta, other: StateMeta, what: str) -> Descriptor:
    """Return the descriptor that reads the rows of both."""
    if is_keyed(known) and not have_same_keys(known.descriptor, other.descriptor):
        one, another = (json.dumps(each.descriptor.key_schema) for each in (known, other))
        raise InvalidInputError(
            f"{what}: the key columns of state {known.name!r} are {one} in one partition and {another} in another.",
            hint="Redistribute an older version, in which all partitions have these columns in the same order.",
        )
    if known.descriptor == other.descriptor:
        return known.descriptor
    if known.descriptor.value_schemas is not msgspec.UNSET:
        more = longer_schemas(known.descriptor, other.descriptor)
        if more is not None:
            return more
    values = known.descriptor.value_schema, other.descriptor.value_schema
    longer = longer_history(*values)
    if longer is None:
        raise InvalidInputError(
            f"{what}: the types of state {known.name!r} did not change in the same order in all partitions.",
            hint="Redistribute an older version, in which all partitions have the same types.",
        )
    newer = other.descriptor if longer == values[1] and longer != values[0] else known.descriptor
    return msgspec.structs.replace(newer, value_schema=longer)


def _with_life(state: StateMeta, metas: Sequence[StoreMeta], what: str) -> StateMeta:
    """Return the state with the time to live of the stores that have rows of it.

    Rows record when they were written; only the descriptor says by which clock. A store without rows may not know that
    a program has changed the clock since.
    """
    same = [found for meta in metas if (found := meta.state(state.name)) is not None]
    lives = [each.descriptor.ttl for each in sorted(same, key=lambda each: each.rows == 0)]
    known = [ttl for ttl in lives if ttl is not msgspec.UNSET]
    clocks = {each.descriptor.ttl.clock for each in same if each.rows and each.descriptor.ttl is not msgspec.UNSET}
    if len(clocks) > 1:
        raise InvalidInputError(
            f"{what}: rows of state {state.name!r} have a time to live by the clocks {sorted(clocks)} in different "
            "partitions.",
            hint="Redistribute an older version, in which they have one clock.",
        )
    if not known:
        return state
    # The program's latest setting is in one of them: the merged descriptor's, if its clock is the right one.
    own = state.descriptor.ttl
    ttl = own if own is not msgspec.UNSET and own.clock == known[0].clock else known[0]
    return msgspec.structs.replace(state, descriptor=msgspec.structs.replace(state.descriptor, ttl=ttl))
