"""The metadata of a store at one version: its states, their row counts, its partitions.

It is in every delta (``meta.json``), in every snapshot manifest, and next to every local copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.keys import (
    EMPTY,
    EMPTY_ID,
    FIRST_KEYED_COUNTER,
    LAST_COUNTER,
    LAST_KEYED_COUNTER,
    ORDERED_BIT,
    Marker,
    state_number,
)
from pyspark_ckpt.state_store.json_objects import (
    MAX_LONG,
    CommitId,
    Count,
    Counter,
    Name,
    Partitions,
    StateNumber,
    Xxh3,
)

FORMAT_VERSION = 1


ENDED = "ended"
"""The value of ``refresh`` for a state that no longer has a time to live."""


class TimeToLive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long rows of a keyed state live, for readers without the program; see ``operators/declarations/ttl.py``."""

    duration_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_LONG)]
    refresh: Name
    clock: Name

    @property
    def has_ended(self) -> bool:
        """Whether rows now live for ever. Some may still hold the start of their lives, by ``clock``."""
        return self.refresh == ENDED

    def end(self) -> TimeToLive:
        """Return the time to live of the same state after a program declares it without one."""
        return msgspec.structs.replace(self, refresh=ENDED)


class Descriptor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the rows of one state are laid out. Schemas and encoder are kept as the shim gave them.

    ``ttl`` comes from the latest program of a keyed operator, ``aliases`` from all of its programs. Both may change.
    They are not stored for states that have none. ``value_schemas``: the schemas by the id with which each value
    begins; only for Spark's states that may evolve.
    """

    ordered: bool = False
    multiple_values: bool = False
    internal: bool = False
    key_schema: Any = None
    value_schema: Any = None
    key_encoder: Any = None
    ttl: TimeToLive | msgspec.UnsetType = msgspec.UNSET
    aliases: dict[Name, Name] | msgspec.UnsetType = msgspec.UNSET
    value_schemas: list[Any] | msgspec.UnsetType = msgspec.UNSET

    @property
    def encoder(self) -> Mapping[str, Any]:
        """The fields of the key encoder; empty if there is none."""
        return self.key_encoder if isinstance(self.key_encoder, dict) else {}


def is_text(value: str) -> bool:
    """Return whether a string can be stored as UTF-8: one with half of a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_uid(uid: object, who: str) -> None:
    """Raise InvalidInputError about ``who`` unless ``uid`` can name a keyed operator in a checkpoint."""
    if not isinstance(uid, str) or not uid or "/" in uid or not is_text(uid):
        raise InvalidInputError(f"{who}: give a uid without '/' that stays the same when the program changes.")


def have_same_keys(one: Descriptor, other: Descriptor) -> bool:
    """Return whether two states have the same key columns in the same order, and so the same bytes for a key."""
    first, second = one.key_schema, other.key_schema
    if isinstance(first, dict) and isinstance(second, dict):
        return list(first.items()) == list(second.items())
    return bool(first == second)


class StateMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One state of a store: its number in the keys, its name, its number of rows.

    ``digest``: of the rows of a broadcast state, which are the same in all partitions. Other states have none.
    """

    number: StateNumber
    name: Name
    rows: Count
    descriptor: Descriptor
    digest: Xxh3 | msgspec.UnsetType = msgspec.UNSET

    @property
    def uid(self) -> str | None:
        """The uid of the state's keyed operator; None for Spark's own operators."""
        uid = self.descriptor.encoder.get("keyed")
        return uid if isinstance(uid, str) else None

    @property
    def is_counted(self) -> bool:
        """Whether ``rows`` is the number of rows. The rows of an expiry index are not counted."""
        return self.descriptor.encoder.get("kind") != "expiry"


def is_keyed(state: StateMeta) -> bool:
    """Return whether a state is one of a keyed operator, not one of Spark's own."""
    return state.number & ~ORDERED_BIT >= FIRST_KEYED_COUNTER


class StoreMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metadata of a store at one commit.

    ``counter`` counts all states that Spark's operators have ever had, ``keyed_counter`` those of keyed operators:
    numbers are never reused.
    """

    version: Count
    id: CommitId
    parent: CommitId
    num_partitions: Partitions | None
    counter: Counter
    states: tuple[StateMeta, ...]
    keyed_counter: Counter = 0

    def __post_init__(self) -> None:
        """Raise ValueError if two states have the same name or number, or one has a number that was never assigned."""
        numbers = {state.number & ~ORDERED_BIT for state in self.states}
        if len(numbers) < len(self.states) or len({state.name for state in self.states}) < len(self.states):
            raise ValueError(f"states share a name or number: {[(state.name, state.number) for state in self.states]}")
        for state in self.states:
            counted = state.number & ~ORDERED_BIT
            last = self.counter if counted < FIRST_KEYED_COUNTER else self.keyed_counter + FIRST_KEYED_COUNTER - 1
            is_ordered = state.number == counted | ORDERED_BIT
            if not 0 < counted <= last or state.number < 0 or is_ordered != state.descriptor.ordered:
                raise ValueError(f"state {state.name!r} cannot have the number {state.number}")

    @property
    def marker(self) -> Marker:
        """The version and the id of the commit."""
        return Marker(self.version, self.id)

    @property
    def rows(self) -> int:
        """The number of rows of all states together."""
        return sum(state.rows for state in self.states)

    def state(self, name: str) -> StateMeta | None:
        """Return the state with this name, if there is one."""
        return next((state for state in self.states if state.name == name), None)

    def with_state(self, name: str, descriptor: Descriptor, *, keyed: bool = False) -> tuple[StoreMeta, int]:
        """Return this store with the state ``name`` in it, and the number of the state.

        An existing state keeps its number and rows, and gets the given schemas. The numbers of ``keyed`` states depend
        only on the order of the calls. Raises InvalidInputError if the layout of the rows would change, or if all state
        numbers are used up.
        """
        known = self.state(name)
        if known is None:
            used, most = (self.keyed_counter, LAST_KEYED_COUNTER) if keyed else (self.counter, LAST_COUNTER)
            if used + FIRST_KEYED_COUNTER * keyed > most - 1:
                raise InvalidInputError(f"State {name!r}: this store has had {used} states and cannot have more.")
            number = state_number(used + 1 + (FIRST_KEYED_COUNTER - 1) * keyed, ordered=descriptor.ordered)
            states = (*self.states, StateMeta(number, name, 0, descriptor))
            counter = {"keyed_counter" if keyed else "counter": used + 1}
            return msgspec.structs.replace(self, states=states, **counter), number
        for field in ("ordered", "multiple_values"):
            if getattr(known.descriptor, field) != getattr(descriptor, field):
                raise InvalidInputError(
                    f"State {name!r} was created with {field}={getattr(known.descriptor, field)}, but is now requested "
                    f"with {field}={getattr(descriptor, field)}.",
                    hint="Give the changed state another name, or start the query with a new checkpoint.",
                )
        if longer_schemas(known.descriptor, descriptor) is not descriptor:
            raise InvalidInputError(
                f"State {name!r}: its values were written with schemas that are missing in the folder _stateSchema.",
                hint="Restore the checkpoint as a whole: the parts of its folder 'state' belong together.",
            )
        changed = msgspec.structs.replace(known, descriptor=descriptor)
        states = tuple(changed if state is known else state for state in self.states)
        return msgspec.structs.replace(self, states=states), known.number

    def without_state(self, name: str) -> StoreMeta:
        """Return this store without the state ``name``. It is no error if there is no such state."""
        return msgspec.structs.replace(self, states=tuple(state for state in self.states if state.name != name))

    def commit(
        self,
        commit_id: str,
        row_changes: Mapping[int, int],
        num_partitions: int | None,
        digests: Mapping[int, str] = MappingProxyType({}),
    ) -> StoreMeta:
        """Return the next version: the same states, with row counts changed by ``row_changes`` (by state number).

        ``digests``: the new ones, by state number. Raises InvalidInputError for an unknown state number and for a count
        below zero or above MAX_LONG.
        """
        unknown = {*row_changes, *digests} - {state.number for state in self.states}
        if unknown:
            raise InvalidInputError(f"Row counts name state numbers {sorted(unknown)}, which this store does not have.")
        states = []
        for state in self.states:
            rows = state.rows + row_changes.get(state.number, 0)
            if not 0 <= rows <= MAX_LONG:
                raise InvalidInputError(f"State {state.name!r} would have {rows} rows: the writer's counts are wrong.")
            digest = digests.get(state.number, state.digest)
            states.append(msgspec.structs.replace(state, rows=rows, digest=digest))
        return StoreMeta(
            version=self.version + 1,
            id=commit_id,
            parent=self.id,
            num_partitions=self.num_partitions if num_partitions is None else num_partitions,
            counter=self.counter,
            states=tuple(states),
            keyed_counter=self.keyed_counter,
        )


EMPTY_META = StoreMeta(version=EMPTY.version, id=EMPTY_ID, parent=EMPTY_ID, num_partitions=None, counter=0, states=())
"""Version 0 of every store."""


def longer_schemas(one: Descriptor, other: Descriptor) -> Descriptor | None:
    """Return the one with more schemas of values, or ``other`` if both have as many; None if they begin differently."""
    first, second = one.value_schemas, other.value_schemas
    if first is msgspec.UNSET or second is msgspec.UNSET:
        return other if first is second else None
    same = min(len(first), len(second))
    if first[:same] != second[:same]:
        return None
    return one if len(first) > len(second) else other


def longer_history(first: Any, second: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the longer of two histories of types, which must begin with the other one; None if they differ."""
    if first == second:
        return first
    if not (isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys()):
        return None
    found = {}
    for what, one in first.items():
        other = second[what]
        histories = [each.get("schemas") if isinstance(each, dict) else None for each in (one, other)]
        if not all(isinstance(each, list) for each in histories):
            return None
        short, long = sorted((one, other), key=lambda each: len(each["schemas"]))
        if long["schemas"][: len(short["schemas"])] != short["schemas"]:
            return None
        found[what] = long
    return found
