"""A program that gives a state another time to live, or takes it away: no row is lost for it, in whichever state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql.types import LongType, StringType

from pyspark_ckpt.operators import AggregatingState, ListState, MapState, ReducingState, Ttl, ValueState
from pyspark_ckpt.operators.bound.program_changes import require_all
from pyspark_ckpt.operators.declarations.states import Declared
from pyspark_ckpt.operators.declarations.ttl import Clock
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError
from pyspark_ckpt.state_store.format.meta import Descriptor, TimeToLive
from tests.labs.program_lab import Bound, ProgramLab
from tests.labs.session_lab import HOUR

LONG, TEXT = LongType(), StringType()
OLD_YEAR = 262_000 * HOUR
"""In 1999."""
NOW = 500_000 * HOUR
"""In 2027."""


def program(ttl: Any) -> list[Declared]:  # noqa: ANN401
    """One state of each kind."""
    return [
        ValueState("value", LONG, ttl=ttl),
        ListState("list", LONG, ttl=ttl),
        MapState("map", TEXT, TEXT, ttl=ttl),
        ReducingState("least", LONG, "min", ttl=ttl),
        AggregatingState("both", LONG, create=int, add=lambda kept, value: kept + value, result=str, ttl=ttl),
    ]


def write(key: str, value: int) -> Callable[[Bound], None]:
    def work(bound: Bound) -> None:
        bound.at(key)
        bound["value"].update(value)
        bound["list"].add(value)
        bound["map"].put(str(value), "x")
        bound["least"].add(value)
        bound["both"].add(value)

    return work


def shown(key: str) -> Callable[[Bound], list[Any]]:
    def look(bound: Bound) -> list[Any]:
        bound.at(key)
        lists, entries = list(bound["list"].get()), dict(bound["map"].items())
        return [bound["value"].value(), lists, entries, bound["least"].get(), bound["both"].get()]

    return look


def has(*values: int) -> list[Any]:
    """What ``shown`` shows of a key that has these values."""
    return [values[-1], list(values), dict.fromkeys(map(str, values), "x"), min(values), str(sum(values))]


NOTHING: list[Any] = [None, [], {}, None, None]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ProgramLab]:
    made = ProgramLab(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("clock", ["event", "processing"])
def test_another_clock_is_refused_before_anything_is_freed(clock: Clock, lab: ProgramLab) -> None:
    other: Clock = "event" if clock == "processing" else "processing"
    times: dict[Clock, int] = {"event": OLD_YEAR, "processing": NOW}
    lab.run(program(Ttl("30 days", clock=clock)), write("a", 1), times)
    for ttl in (Ttl("30 days", clock=other), Ttl("9999 days", clock=other)):
        with pytest.raises(InvalidInputError, match=f"by clock='{clock}', but the program declares clock='{other}'"):
            lab.run(program(ttl), write("a", 2), times)
    assert lab.look(program(Ttl("30 days", clock=clock)), shown("a"), times) == has(1)


def test_another_clock_is_refused_when_there_was_a_program_without_a_time_to_live_meanwhile(lab: ProgramLab) -> None:
    times: dict[Clock, int] = {"event": OLD_YEAR, "processing": NOW}
    lab.run(program(Ttl("30 days", clock="event")), write("a", 1), times)
    lab.run(program(None), write("b", 2), times)
    with pytest.raises(InvalidInputError, match="by clock='event', but the program declares clock='processing'"):
        lab.run(program("30 days"), write("a", 2), times)
    assert lab.run(program(Ttl("30 days", clock="event")), shown("a"), times) == has(1)


def test_another_clock_is_taken_when_there_are_no_rows(lab: ProgramLab) -> None:
    lab.run(program(Ttl("1 hour", clock="event")), write("a", 1), OLD_YEAR)
    lab.run(program(Ttl("1 hour", clock="event")), now_ms=OLD_YEAR + 9 * HOUR)
    lab.run(program("1 hour"), write("a", 2), NOW)
    assert lab.run(program("1 hour"), shown("a"), NOW) == has(2)


@pytest.mark.in_turn
@pytest.mark.parametrize("refresh", ["on_create_and_write", "on_read_and_write"])
@pytest.mark.parametrize("most_held_bytes", [None, 0])
def test_values_stay_and_stamps_go_when_a_time_to_live_is_taken_away(
    refresh: Any,  # noqa: ANN401
    most_held_bytes: int | None,
    lab: ProgramLab,
) -> None:
    timed, for_ever = program(Ttl("8 hours", refresh=refresh)), program(None)
    lab.most_held_bytes = most_held_bytes
    lab.run(timed, write("a", 1), NOW)
    lab.run(timed, lambda bound: (write("a", 2)(bound), write("b", 7)(bound), write("c", 8)(bound)), NOW + HOUR)
    assert lab.look(for_ever, shown("a"), NOW + HOUR) == has(1, 2)

    lab.run(for_ever, lambda bound: (write("a", 3)(bound), bound.at("c")["list"].clear()), NOW + 2 * HOUR)
    assert lab.metrics["expired_rows"] == 0
    later = NOW + 900 * HOUR
    assert lab.run(for_ever, shown("a"), later) == has(1, 2, 3)
    assert lab.run(for_ever, shown("b"), later) == has(7)
    assert lab.run(for_ever, shown("c"), later) == [8, [], {"8": "x"}, 8, "8"]
    for name in ("value", "list", "map", "least", "both"):
        assert not [value for _, value in lab.stored(name) if value[0] == 0x80], f"stamps of {name}"
        assert lab.stored(f"{name}#expiry") == []
        assert lab.states[f"it/{name}"]["rows"] == len(lab.stored(name))

    timed = program("8 hours")
    lab.run(timed, write("c", 9), later)
    assert lab.run(timed, shown("a"), later + 900 * HOUR) == has(1, 2, 3), "rows without a stamp live until written"
    assert lab.run(timed, shown("b"), later + 900 * HOUR) == has(7)
    assert lab.run(timed, shown("c"), later + 900 * HOUR) == [None, [], {"8": "x"}, None, None]
    lab.run(timed, write("a", 4), later + 901 * HOUR)
    assert lab.run(timed, shown("a"), later + 908 * HOUR) == has(1, 2, 3, 4)
    assert lab.run(timed, shown("a"), later + 920 * HOUR) == [None, [1, 2, 3], dict.fromkeys("123", "x"), None, None]


def test_what_is_added_without_a_time_to_live_is_in_no_index(lab: ProgramLab) -> None:
    lab.run(program("8 hours"), write("a", 1), NOW)
    assert len(lab.stored("list#expiry")) == 1
    lab.run(program(None), write("a", 2), NOW)
    for value in (3, 4):
        lab.run(program(None), write("a", value), NOW)
        assert lab.stored("list#expiry") == []


def test_what_is_written_before_there_was_a_watermark_stays_without_a_time_to_live(lab: ProgramLab) -> None:
    timed = program(Ttl("8 hours", clock="event"))
    lab.run(timed, write("a", 1), 0)
    assert lab.run(program(None), shown("a"), OLD_YEAR) == has(1)
    assert lab.run(program(None), shown("a"), OLD_YEAR + 900 * HOUR) == has(1)
    assert lab.stored("list#expiry") == lab.stored("map#expiry") == []


def test_stamps_go_in_portions_and_values_are_shown_meanwhile(lab: ProgramLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_ckpt.operators.task.staging.MIN_SWEPT", 10)
    users = [f"user {n}" for n in range(25)]
    lab.run(program("1 hour"), lambda bound: [write(user, 5)(bound) for user in users], NOW)
    left: list[list[int]] = []
    while not left or left[-1] != [0, 0, 0]:
        assert lab.run(program(None), lambda bound: [shown(user)(bound) for user in users], NOW) == [has(5)] * 25
        left.append([len(lab.stored(f"{name}#expiry")) for name in ("value", "list", "map")])
    assert left == [[15, 15, 15], [5, 5, 5], [0, 0, 0]]


@pytest.mark.parametrize("durations", [("8 hours", "2 hours"), ("2 hours", "8 hours")])
def test_another_duration_counts_from_when_rows_were_written(durations: tuple[str, str], lab: ProgramLab) -> None:
    lab.run(program(durations[0]), write("a", 1), NOW)
    hours = int(durations[1].split()[0])
    assert lab.look(program(durations[1]), shown("a"), NOW + hours * HOUR - 1) == has(1)
    assert lab.look(program(durations[1]), shown("a"), NOW + hours * HOUR) == NOTHING
    lab.run(program(durations[1]), now_ms=NOW + (hours + 5) * HOUR)
    assert [lab.stored(name) for name in ("value", "list", "map", "map#expiry", "list#expiry")] == [[]] * 5


def test_another_refresh_and_what_is_shown_may_change(lab: ProgramLab) -> None:
    lab.run(program("8 hours"), write("a", 1), NOW)
    read = program(Ttl(timedelta(hours=8), refresh="on_read_and_write"))
    assert lab.run(read, shown("a"), NOW + 7 * HOUR) == has(1)
    assert lab.run(read, shown("a"), NOW + 14 * HOUR) == has(1)
    assert lab.run(program("8 hours"), shown("a"), NOW + 21 * HOUR) == has(1)
    assert lab.look(program(Ttl("8 hours", show_expired=True)), shown("a"), NOW + 99 * HOUR) == NOTHING, "all was freed"


@pytest.mark.parametrize("kind", [Descriptor, TimeToLive])
def test_a_field_of_a_descriptor_that_nothing_compares_stops_the_import(kind: type[msgspec.Struct]) -> None:
    more = msgspec.defstruct("More", [("new", int, 0)], bases=(kind,), frozen=True)
    with pytest.raises(InternalError, match=r"\['new'\] of a More"):
        require_all(kind.__struct_fields__, more)


@pytest.mark.parametrize("refresh", ["on_create_and_write", "on_read_and_write"])
@pytest.mark.parametrize("most_held_bytes", [None, 0])
def test_lives_begin_with_the_first_watermark_however_near_to_1970_it_is(
    refresh: Any,  # noqa: ANN401
    most_held_bytes: int | None,
    lab: ProgramLab,
) -> None:
    lab.most_held_bytes = most_held_bytes
    declared = program(Ttl("10 seconds", clock="event", refresh=refresh))
    lab.run(declared, write("early", 1), 0)
    lab.run(declared, write("late", 2), 300)
    lab.run(declared, write("late", 3), 9_000)
    assert lab.look(declared, shown("early"), 10_299) == has(1)
    assert lab.look(declared, shown("early"), 10_300) == NOTHING
    assert lab.look(declared, shown("late"), 10_299) == has(2, 3)
    lab.run(declared, now_ms=18_999)
    assert lab.look(declared, lambda bound: list(bound.at("late")["list"].get()), 18_999) == [3]
    lab.run(declared, now_ms=40_000)
    lab.run(declared, now_ms=60_000)
    assert [state["rows"] for name, state in lab.states.items() if "#" not in name] == [0] * 5
