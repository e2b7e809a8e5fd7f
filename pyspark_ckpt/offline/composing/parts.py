"""What a composed query is made of: operators and sources of savepoints and checkpoints, in an order of its own."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec

from pyspark_ckpt.offline.writing.drafts.draft import draft_store
from pyspark_ckpt.offline.writing.drafts.store_draft import StoreDraft
from pyspark_ckpt.offline.writing.held_state import HeldState
from pyspark_ckpt.operators.declarations.operator import SPARKS_NAME
from pyspark_ckpt.state_store.arguments import Location, location_text
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.meta import EMPTY_META
from pyspark_ckpt.state_store.format.partition_states import Scope, find_scope
from pyspark_ckpt.state_store.format.remote import DEFAULT_STORE

GivenPart: TypeAlias = "tuple[Location, str | int] | None"


@dataclass(frozen=True)
class Part:
    """An operator or a source of the savepoint or checkpoint at ``location``: its uid, name or number there."""

    location: str
    name: str | int


@dataclass(frozen=True)
class PlacedOperator:
    """An operator with its new number. ``held`` and ``former``: where it was, None if it is new."""

    number: int
    held: HeldState | None
    former: OperatorVersion | None
    stores: Sequence[StoreDraft]


def read_part(given: object, what: str) -> Part:
    """Return a part as the user gives it. Raises InvalidInputError."""
    if not isinstance(given, tuple) or len(given) != 2:  # noqa: PLR2004 - a pair
        raise InvalidInputError(
            f"{what} is {repr(given)[:200]}.",
            hint="Give a pair of a savepoint and the operator or source there: ('/saved/views', 'views').",
        )
    location, name = given
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        raise InvalidInputError(f"{what} names {repr(name)[:200]}, which is neither a name nor a number.")
    return Part(location_text(location, what), name)


def place_operators(
    parts: Sequence[Part | None], held: Mapping[str, HeldState], version: int, partitions: int
) -> list[PlacedOperator]:
    """Return the operators with their new numbers, from 0. ``held``: by location.

    Raises InvalidInputError (an operator that is not there, a uid that two have, lists of partitions of another number
    of partitions).
    """
    placed: list[PlacedOperator] = []
    for number, part in enumerate(parts):
        if part is None:
            operator = Operator(number, SPARKS_NAME, (DEFAULT_STORE,), partitions)
            meta = msgspec.structs.replace(EMPTY_META, version=version, id=uuid.uuid4().hex)
            store = StoreDraft(operator, DEFAULT_STORE, Layout.REMAINDERS, meta)
            placed.append(PlacedOperator(number, None, None, (store,)))
            continue
        state = held[part.location]
        former = _find_operator(part, state)
        stores = [_place_store(former, name, number, version, partitions) for name in former.stores]
        if state.count_partitions() != partitions:
            _refuse_lists(part, stores, state.count_partitions(), partitions)
        placed.append(PlacedOperator(number, state, former, stores))
    _require_different_uids(placed, parts)
    return placed


def _place_store(former: OperatorVersion, name: str, number: int, version: int, partitions: int) -> StoreDraft:
    store = draft_store(former, name)
    store.operator = replace(former.operator, number=number, partitions=partitions)
    store.meta = msgspec.structs.replace(store.meta, version=version)
    return store


def _find_operator(part: Part, state: HeldState) -> OperatorVersion:
    for each in state.operators:
        if part.name == each.operator.number or part.name in each.uids:
            return each
    known: dict[Any, str] = {each.operator.number: each.operator.name for each in state.operators}
    uids = sorted({uid for each in state.operators for uid in each.uids})
    more = suggest(part.name, uids) if isinstance(part.name, str) else ""
    raise InvalidInputError(
        f"{state.source.place.url} has no operator {part.name!r}. It has the operators {known}, with the uids "
        f"{uids}.{more}"
    )


def _refuse_lists(part: Part, stores: Sequence[StoreDraft], before: int, after: int) -> None:
    """Raise InvalidInputError if an operator has lists of partitions, whose number changes."""
    for state in (state for store in stores for state in store.meta.states):
        if find_scope(state) in (Scope.SPLIT, Scope.UNION):
            raise InvalidInputError(
                f"State {state.name!r} of {part.location} has a list in each of {before} partitions, but the new "
                f"savepoint has {after} partitions.",
                hint=f"Restore {part.location} with parallelism={after} first, and compose that checkpoint.",
            )


def _require_different_uids(placed: Sequence[PlacedOperator], parts: Sequence[Part | None]) -> None:
    seen: dict[str, int] = {}
    for operator, part in zip(placed, parts, strict=True):
        for uid in operator.former.uids if operator.former is not None else ():
            if uid in seen:
                raise InvalidInputError(
                    f"`operators` has the uid {uid!r} twice, at {seen[uid]} and at {operator.number}.",
                    hint=f"Rename one: ckpt.writing.write_state({getattr(part, 'location', '')!r}, ..., "
                    f"[ckpt.writing.Rename({uid!r}, 'another')]).",
                )
            seen[uid] = operator.number
