"""The states that an operator declares: their types, their descriptors in the store, and how a task binds them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from msgspec import UNSET
from msgspec.structs import asdict

from pyspark_ckpt.operators.bound.base import Binding, Kept
from pyspark_ckpt.operators.bound.binding import bind, find_kind
from pyspark_ckpt.operators.bound.one_key_calls import refuse_many_key_calls, refuse_one_key_calls
from pyspark_ckpt.operators.bound.program_changes import check_change, merge_knowledge
from pyspark_ckpt.operators.declarations.counters import BoundMetricCounter, MetricCounter, metric_name
from pyspark_ckpt.operators.declarations.operator import ProcessorState
from pyspark_ckpt.operators.declarations.partition_states import PartitionState
from pyspark_ckpt.operators.declarations.processors import AdaptingProcessor, KeyedProcessor, VectorProcessor
from pyspark_ckpt.operators.declarations.reducing_states import ReducingState
from pyspark_ckpt.operators.declarations.states import Declared, ValueState
from pyspark_ckpt.operators.declarations.timers import Timers
from pyspark_ckpt.operators.encoding.evolution import evolve, former_names, read_schemas
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.encoding.value_codec import make_value_codec
from pyspark_ckpt.operators.rows.expiry import index_name
from pyspark_ckpt.operators.session.worker import WorkerSession
from pyspark_ckpt.operators.types.conversions import CONVERT, WRONG_VALUE
from pyspark_ckpt.operators.types.field_names import require_clear_aliases
from pyspark_ckpt.operators.types.value_types import ValueType, resolve_type
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.meta import Descriptor, StateMeta, TimeToLive, is_keyed
from pyspark_ckpt.state_store.format.partition_states import SCOPE
from pyspark_ckpt.state_store.options import PREFIX
from pyspark_ckpt.state_store.transactions.ticket import Ticket

Holder = TypeVar("Holder")


def with_types(declared: Mapping[str, Declared], who: str) -> tuple[ProcessorState, ...]:
    """Return what is declared, with its types; runs on the driver. Raises InvalidInputError about ``who``."""
    states = []
    for attribute, state in declared.items():
        types = {
            what: resolve_type(kind, f"{who}: the {what} of state {state.name!r}") for what, kind in state.types.items()
        }
        for what, kind in types.items():
            _require_codec(kind, what, f"{who}: the {what} of state {state.name!r}")
            _require_clear_aliases(kind, state.aliases, f"{who}: the {what} of state {state.name!r}")
        if isinstance(state, ValueState):
            _require_default(state, types["value"], who)
        if isinstance(state, ReducingState) and state.reduce == "sum":
            _require_sum(state, types["value"], who)
        states.append(ProcessorState(attribute, state, types))
    return tuple(states)


def require_no_event_time(states: Iterable[ProcessorState], whose: Callable[[ProcessorState], str]) -> None:
    """Raise InvalidInputError if a state has a time to live in event time. ``whose`` names the state."""
    for each in states:
        if each.state.ttl is not None and each.state.ttl.clock == "event":
            raise InvalidInputError(
                f"{whose(each)} has a time to live in event time, but the frame has no watermark.",
                hint="Call withWatermark on the frame, or declare the time to live with clock='processing'.",
            )


def _require_codec(kind: ValueType, what: str, whose: str) -> None:
    """Raise InvalidInputError about ``whose`` if values of its type cannot be stored."""
    try:
        if what == "key":
            KeyCodec([kind.arrow])
        make_value_codec(kind.arrow)
    except InvalidInputError as problem:
        raise InvalidInputError(
            f"{whose} has the type {str(kind.schema)[:200]}: {problem.message}", hint=problem.hint
        ) from problem


def _require_clear_aliases(kind: ValueType, aliases: Mapping[str, str], whose: str) -> None:
    """Raise InvalidInputError about ``whose`` for ambiguous aliases."""
    try:
        require_clear_aliases(kind.arrow, aliases)
    except InvalidInputError as problem:
        raise InvalidInputError(f"{whose}: {problem.message}", hint=problem.hint) from problem


def _require_sum(state: ReducingState, kind: ValueType, who: str) -> None:
    """Raise InvalidInputError about ``who`` for a sum of values that cannot be added."""
    if not _can_be_added(kind.arrow):
        raise InvalidInputError(
            f"{who}: state {state.name!r} keeps a sum, but values of type {str(kind.schema)[:200]} cannot be added.",
            hint="Reduce them with a function of your own, or keep a number or an interval.",
        )


def _can_be_added(kind: pa.DataType) -> bool:
    """Return whether two values have a sum: numbers and intervals; text, bytes and arrays are joined end to end."""
    is_time = pa.types.is_temporal(kind) and not pa.types.is_duration(kind)
    return not (is_time or any(matches(kind) for matches in (pa.types.is_boolean, pa.types.is_struct, pa.types.is_map)))


def _require_default(state: ValueState, kind: ValueType, who: str) -> None:
    """Raise InvalidInputError about ``who`` if the default is not a value of the state's type."""
    if state.default is None:
        return
    try:
        make_value_codec(kind.arrow).encode(state.default)
    except WRONG_VALUE as problem:
        raise InvalidInputError(
            f"{who}: the default of state {state.name!r} is {repr(state.default)[:200]} "
            f"({type(state.default).__name__}), but its values are of type {kind.arrow}: {problem}.",
            hint=CONVERT,
        ) from problem


@dataclass(frozen=True)
class DeclaredStates:
    """The states of the operator ``uid``. Their names in the store begin with the uid.

    ``operators``: the names of all operators of the query, as Spark's plans have them, if they are known.
    """

    uid: str
    states: tuple[ProcessorState, ...]
    allow_non_restored_state: bool = False
    operators: tuple[str, ...] = ()

    def descriptors(
        self, ticket: Ticket, key_schema: Mapping[str, str], placement: Mapping[str, Any]
    ) -> list[tuple[str, Descriptor]]:
        """Return the names and descriptors of the states for the store. ``placement``: what places keys.

        Raises InvalidInputError if any partition of the operator has state that this program cannot continue with.
        """
        partitions = (ticket.meta.states, *ticket.operator_states)
        for states in partitions:
            self._require_all(states, ticket)
        declared = self._describe_states(partitions, key_schema, {"keyed": self.uid, **placement})
        described, kept = dict(declared), {self._name(each): each for each in self._list_kept_states()}
        for state in chain.from_iterable(partitions):
            if state.name in described:
                check_change(state, described[state.name], kept.get(state.name))
        return declared

    def describe_new(self, key_schema: Mapping[str, str], placement: Mapping[str, Any]) -> list[tuple[str, Descriptor]]:
        """Return the same for states that are not in the store yet."""
        return self._describe_states([()], key_schema, {"keyed": self.uid, **placement})

    def _describe_states(
        self, partitions: Sequence[Sequence[StateMeta]], key_schema: Mapping[str, str], encoder: Mapping[str, Any]
    ) -> list[tuple[str, Descriptor]]:
        own, *others = ({state.name: state.descriptor for state in states} for states in partitions)
        declared = []
        for each in self._list_kept_states():
            name = self._name(each)
            same = [state for states in partitions for state in states if state.name == name]
            known = merge_knowledge(own.get(name), [states[name] for states in others if name in states])
            values = {
                what: asdict(evolve(read_schemas(known, what, f"state {name!r}"), kind.schema))
                for what, kind in each.types.items()
            }
            kind = {**encoder, "kind": find_kind(each.state).__name__}
            timers = each.state if isinstance(each.state, Timers) else None
            if timers is not None:
                kind["clock"] = timers.clock
            if isinstance(each.state, PartitionState):
                kind[SCOPE] = each.state.scope.value
            ordered = timers is not None
            descriptor = Descriptor(
                ordered=ordered,
                key_schema=key_schema,
                value_schema=values,
                key_encoder=kind,
                ttl=_describe_ttl(each.state, same),
                aliases=former_names(known, each.state.aliases) or UNSET,
            )
            declared.append((name, descriptor))
            if each.state.ttl is not None or index_name(name) in own:  # it finds rows with stamps of earlier programs
                index = Descriptor(
                    ordered=True, internal=True, key_schema=key_schema, key_encoder={**encoder, "kind": "expiry"}
                )
                declared.append((index_name(name), index))
        return declared

    def require_no_event_time(self) -> None:
        """Raise InvalidInputError if a state has a time to live in event time. The frame has no watermark."""
        require_no_event_time(self.states, lambda each: f"State {self._name(each)!r}")

    def bind(self, holder: Holder, session: WorkerSession) -> tuple[Holder, list[Kept]]:
        """Return a copy of ``holder`` whose states are bound to the session's task, and the bound states."""
        holder = copy.copy(holder)
        if isinstance(holder, AdaptingProcessor):
            holder.position = session.position
        bound = []
        for each in self.states:
            if isinstance(each.state, MetricCounter):
                metric = metric_name(self.uid, each.state)
                vars(holder)[each.attribute] = BoundMetricCounter(each.state.name, metric, session.counts)
        for each in self._list_kept_states():
            kinds = {what: kind.arrow for what, kind in each.types.items()}
            name = self._name(each)
            index = session.numbers.get(index_name(name))
            state = bind(Binding(each.state, kinds, session.numbers[name], index, session))
            if isinstance(holder, AdaptingProcessor):
                pass  # it makes calls of both kinds
            elif isinstance(holder, VectorProcessor):
                refuse_one_key_calls(state, self.uid)
            elif isinstance(holder, KeyedProcessor):
                refuse_many_key_calls(state, self.uid)
            vars(holder)[each.attribute] = state  # declarations and frozen classes refuse assignment
            bound.append(state)
        return holder, bound

    def _require_all(self, states: Iterable[StateMeta], ticket: Ticket) -> None:
        """Raise InvalidInputError if a partition has state of keyed operators that this one does not declare.

        A changed program therefore does not lose state by accident, although a new name begins without state. State of
        another operator of the query is never left alone, since that operator would begin without it.
        """
        names = {self._name(each) for each in self._list_kept_states()}
        known = names | {index_name(name) for name in names}
        left = [state for state in states if is_keyed(state) and state.name not in known]
        others = sorted({str(state.uid) for state in left} - {self.uid})
        is_allowed = self.allow_non_restored_state or ticket.allow_non_restored_state
        is_swapped = any(name.endswith(f"(uid={uid!r})") for name in self.operators for uid in others)
        if left and (not is_allowed or is_swapped):
            raise InvalidInputError(
                f"Keyed operator {self.uid!r}, operator {ticket.operator} of the query, declares {sorted(names)}, but "
                f"the checkpoint has state {sorted(state.name for state in left)} of operator {ticket.operator}.",
                hint=_advise_on_place(others, is_swapped=is_swapped) if others else _ADVICE,
            )

    def _list_kept_states(self) -> list[ProcessorState]:
        """Return the declarations that have rows in the store: all except counters."""
        return [each for each in self.states if not isinstance(each.state, MetricCounter)]

    def _name(self, declared: ProcessorState) -> str:
        return f"{self.uid}/{declared.state.name}"


_ADVICE = f"Declare them, or set {PREFIX}allowNonRestoredState to true to leave that state alone."


def _advise_on_place(uids: Sequence[str], *, is_swapped: bool) -> str:
    """Say what to do about state of other operators in this one's place."""
    found = (
        f"That state is of uid {' and '.join(map(repr, uids))}. Spark numbers stateful operators by their place in the "
        "query: if some were added, removed or swapped, restore their order."
    )
    if is_swapped:
        return found
    return (
        f"{found} If the uid has changed, restore a savepoint with uid_map. {PREFIX}allowNonRestoredState leaves that "
        "state alone, and the operator begins without state."
    )


def _describe_ttl(declared: Declared, stored: Iterable[StateMeta]) -> TimeToLive | msgspec.UnsetType:
    """Return the time to live for a descriptor. One that is no longer declared is kept and marked as ended.

    ``stored``: the state in all partitions, this one first. Partitions with rows take precedence: one without rows may
    not have seen a later change of the clock.
    """
    if declared.ttl is not None:
        return declared.ttl.describe()
    known = next((each.descriptor.ttl for each in sorted(stored, key=lambda each: each.rows == 0)), UNSET)
    return UNSET if known is UNSET else known.end()
