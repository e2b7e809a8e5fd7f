"""What a program declares, against what the partitions of its operator have."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from msgspec import UNSET

from pyspark_ckpt.operators.bound.declared_states import DeclaredStates
from pyspark_ckpt.operators.bound.program_changes import merge_knowledge
from pyspark_ckpt.operators.declarations.operator import ProcessorState
from pyspark_ckpt.operators.declarations.states import Declared, ListState, MapState, ValueState
from pyspark_ckpt.operators.declarations.timers import CLOCKS, Timers
from pyspark_ckpt.operators.declarations.ttl import Clock, Refresh, Ttl
from pyspark_ckpt.operators.types.value_types import ValueType
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.meta import EMPTY_META, Descriptor, StateMeta, StoreMeta
from pyspark_ckpt.state_store.redistribution.merged_states import merge_states
from pyspark_ckpt.state_store.transactions.parts import declare
from pyspark_ckpt.state_store.transactions.ticket import Ticket

INT, LONG, TEXT = (
    ValueType("integer", pa.int32()),
    ValueType("long", pa.int64()),
    ValueType("string", pa.string()),
)
GROUPS = {"max_parallelism": 8}


def _program(*declared: tuple[Declared, dict[str, ValueType]], uid: str = "it") -> DeclaredStates:
    return DeclaredStates(uid, tuple(ProcessorState(state.name, state, types) for state, types in declared))


def _ticket(own: StoreMeta, others: Sequence[Sequence[StateMeta]]) -> Ticket:
    states = tuple(tuple(each) for each in others)
    return Ticket(0, 0, "default", 1, own.id, "new", "", True, "", "lz4", own, operator_states=states)


def _run(
    program: DeclaredStates, own: StoreMeta = EMPTY_META, others: Sequence[StoreMeta] = (), **placement: int
) -> StoreMeta:
    """A partition's store after a batch of ``program``."""
    ticket = _ticket(own, [meta.states for meta in others])
    return declare(own, program.descriptors(ticket, {"user": "int32"}, placement or GROUPS))[0]


def _n(kind: ValueType) -> DeclaredStates:
    return _program((ValueState("n", "bigint"), {"value": kind}))


@pytest.mark.parametrize(
    ("changed", "placement", "problem"),
    [
        (_n(TEXT), GROUPS, "value of state 'it/n' is stored as bigint, but the program declares string: values of"),
        (_program((ListState("n", "bigint"), {"element": LONG})), GROUPS, "stored as ValueState, .* it as ListState"),
        (_program((Timers("n", clock="event"), {})), GROUPS, "stored as ValueState, .* it as Timers"),
        (_n(LONG), {"max_parallelism": 4}, "stored with max_parallelism 8, but the program has 4"),
        (_program((ValueState("m", "bigint"), {"value": LONG})), GROUPS, r"declares \['it/m'\], .* state \['it/n'\]"),
    ],
)
def test_what_another_partition_cannot_go_on_with_is_refused_when_this_one_has_nothing(
    changed: DeclaredStates, placement: dict[str, int], problem: str
) -> None:
    stored = _run(_n(LONG))
    for own, others in ((EMPTY_META, [stored]), (stored, [])):
        with pytest.raises(InvalidInputError, match=problem):
            _run(changed, own, others, **placement)


def test_keys_of_a_map_and_clocks_of_timers_are_refused_by_both() -> None:
    def program(key: ValueType, clock: Clock) -> DeclaredStates:
        return _program((MapState("m", "int", "int"), {"key": key, "value": INT}), (Timers("t", clock=clock), {}))

    stored = _run(program(INT, "event"))
    with pytest.raises(InvalidInputError, match=r"The key of state 'it/m' is stored as int, .* declares bigint"):
        _run(program(LONG, "event"), EMPTY_META, [stored])
    with pytest.raises(InvalidInputError, match=r"'it/t' is stored with clock='event', .* with clock='processing'"):
        _run(program(INT, "processing"), EMPTY_META, [stored])


def test_partitions_agree_on_the_order_of_types_when_each_has_seen_other_programs() -> None:
    first, second, third = _run(_n(INT)), EMPTY_META, EMPTY_META
    second = _run(_n(LONG), second, [first])
    third = _run(_n(LONG), third, [first, second])
    whole = merge_states([first, second, third], "operator 0")
    assert whole.states[0].descriptor.value_schema == {"value": {"schemas": ["integer", "long"], "current": 2}}
    back = _run(_n(LONG), first, [second, third])
    assert back.states[0].descriptor == second.states[0].descriptor


def _living(clock: Clock | None, refresh: Refresh = "on_create_and_write") -> DeclaredStates:
    ttl = None if clock is None else Ttl("1 hour", clock=clock, refresh=refresh)
    return _program((ValueState("n", "bigint", ttl=ttl), {"value": LONG}))


def _with_a_row(meta: StoreMeta) -> StoreMeta:
    (number,) = (state.number for state in meta.states if state.name == "it/n")
    return meta.commit("next", {number: 1}, 2)


@pytest.mark.parametrize("clock", CLOCKS)
def test_rows_keep_their_clock_beside_a_partition_that_has_none_and_knows_another(clock: Clock) -> None:
    (other,) = set(CLOCKS) - {clock}
    empty = _run(_living(other))
    filled = _with_a_row(_run(_living(clock), EMPTY_META, [empty]))
    for metas in ([empty, filled], [filled, empty]):
        whole = merge_states(metas, "operator 0").meta(9, "whole", 1, {"it/n": 1})
        _run(_living(clock), whole)
        with pytest.raises(InvalidInputError, match=f"by clock='{clock}', but the program declares clock='{other}'"):
            _run(_living(other), whole)
        # A program that takes the time to live away knows by which clock the rows of other partitions have one.
        own, rest = metas[0], metas[1:]
        ended = _with_a_row(_run(_living(None), own, rest))
        _run(_living(clock), ended, rest)
        with pytest.raises(InvalidInputError, match=f"by clock='{clock}', but the program declares clock='{other}'"):
            _run(_living(other), ended, rest)


def test_rows_of_two_clocks_are_not_put_together() -> None:
    metas = [_with_a_row(_run(_living(clock))) for clock in CLOCKS]
    with pytest.raises(InvalidInputError, match=r"'it/n' have a time to live by the clocks \['event', 'processing'\]"):
        merge_states(metas, "operator 0")


def test_what_a_program_has_said_last_stays_when_partitions_are_put_together() -> None:
    first = _with_a_row(_run(_living("event")))
    last = _with_a_row(_run(_living("event", "on_read_and_write"), first))
    (state, *_) = merge_states([last, _run(_living("event"))], "operator 0").states
    assert state.descriptor.ttl == last.states[0].descriptor.ttl


def test_former_names_are_known_in_all_partitions_and_what_has_parted_is_left() -> None:
    def descriptor(*schemas: str, **aliases: str) -> Descriptor:
        return Descriptor(value_schema={"value": {"schemas": list(schemas), "current": 1}}, aliases=aliases or UNSET)

    own, other = descriptor("int", b="a"), descriptor("int", "long", c="b")
    together = merge_knowledge(own, [other, descriptor("int", "double", d="c")])
    assert together is not None
    assert together.value_schema["value"]["schemas"] == ["int", "long"]
    assert together.aliases == {"b": "a", "c": "b"}
    assert merge_knowledge(None, []) is None
    assert merge_knowledge(None, [other]) == other


def test_a_name_of_an_index_is_refused_for_a_state() -> None:
    assert ValueState("n#1", "int").name == "n#1"
    for declare_one in (lambda: ListState("n#expiry", "int"), lambda: Timers("n#expiry", clock="event")):
        with pytest.raises(InvalidInputError, match="'n#expiry': names that end in '#expiry' are reserved"):
            declare_one()
