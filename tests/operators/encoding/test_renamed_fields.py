"""Fields that programs rename, there and back: a value is read by the field that it was written by, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from pyspark_ckpt.operators.declarations.states import ValueState
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.labs.program_lab import Bound, ProgramLab

Aliases = Mapping[str, str] | None


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ProgramLab]:
    found = ProgramLab(tmp_path)
    yield found
    found.close()


def program(fields: str, aliases: Aliases = None, *, nested: bool = False) -> list[ValueState]:
    """One state, a struct with a field for each letter."""
    kind: Any = StructType([StructField(name, LongType()) for name in fields])
    return [ValueState("v", ArrayType(kind) if nested else kind, aliases=aliases)]


def write(key: str, *values: int, nested: bool = False) -> Any:  # noqa: ANN401
    return lambda states: states.at(key)["v"].update([values] if nested else values)


def shown(states: Bound) -> dict[str, Any]:
    """The value of each key."""
    found = {key: states.at(key)["v"].value() for key in ("first", "second")}
    return {key: value[0] if isinstance(value, list) else value for key, value in found.items()}


@pytest.mark.parametrize("nested", [False, True])
def test_a_program_from_before_a_field_was_renamed_reads_what_was_written_since(
    lab: ProgramLab, *, nested: bool
) -> None:
    before, renamed = program("xa", nested=nested), program("xb", {"b": "a"}, nested=nested)
    again = program("xcd", {"c": "b", "d": "d"}, nested=nested)
    lab.run(before, write("first", 1, 2, nested=nested))
    lab.run(renamed, write("second", 3, 4, nested=nested))
    assert lab.run(before, shown) == {"first": (1, 2), "second": (3, 4)}
    lab.run(again, write("first", 5, 6, 7, nested=nested))
    assert lab.look(again, shown) == {"first": (5, 6, 7), "second": (3, 4, None)}
    for kept in (before, renamed, program("xA", nested=nested)):
        assert lab.run(kept, shown) == {"first": (5, 6), "second": (3, 4)}


@pytest.mark.parametrize(
    "aliases",
    [{"a": "b", "b": "a"}, {"a": "b"}, {"a": "B"}, {"a": "b", "b": "c", "c": "a"}, {"a": "x", "x": "b"}],
)
@pytest.mark.parametrize("fields", ["abc", "abcd"])
def test_fields_do_not_swap_names(aliases: Aliases, fields: str, lab: ProgramLab) -> None:
    lab.run(program("abc"), write("first", 1, 2, 3))
    for nested in (False, True):
        with pytest.raises(
            InvalidInputError, match=r"field '.' has the former name '.', but '.' is also a field"
        ) as no:
            lab.run(program(fields, aliases, nested=nested))
        assert "to the aliases" in str(no.value.hint)


def test_a_new_field_may_have_the_former_name_of_another_when_it_is_said_to_be_new(lab: ProgramLab) -> None:
    lab.run(program("a"), write("first", 1))
    lab.run(program("b", {"b": "a"}), write("second", 2))
    with pytest.raises(InvalidInputError, match=r"field 'a' .* may be any of \['a', 'b'\]") as found:
        lab.run(program("ab"))
    assert "{'b': 'b'}" in str(found.value.hint)
    assert lab.look(program("ab", {"a": "a"}), shown) == {"first": (None, 1), "second": (None, 2)}
    assert lab.look(program("ab", {"a": "a", "b": "a"}), shown) == {"first": (None, 1), "second": (None, 2)}
    assert lab.look(program("ab", {"b": "b"}), shown) == {"first": (1, None), "second": (None, 2)}


def test_one_stored_field_is_not_read_by_two(lab: ProgramLab) -> None:
    lab.run(program("b"), write("first", 1))
    with pytest.raises(InvalidInputError, match=r"field 'b' .* may be any of \['a', 'c'\]"):
        lab.run(program("ac", {"a": "b", "c": "b"}))
    assert lab.look(program("ac", {"a": "b", "c": "c"}), shown)["first"] == (1, None)


def test_a_field_that_has_become_two_is_refused_until_an_alias_says_which(lab: ProgramLab) -> None:
    lab.run(program("bc", {"b": "a", "c": "a"}), write("first", 1, 2))
    with pytest.raises(InvalidInputError, match=r"field 'a' .* may be any of \['b', 'c'\]") as found:
        lab.run(program("a"))
    assert "{'a': 'b'}" in str(found.value.hint)
    assert lab.look(program("a", {"a": "c"}), shown)["first"] == (2,)
    assert lab.look(program("a", {"a": "a"}), shown)["first"] == (None,)
