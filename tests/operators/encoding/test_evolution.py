"""Values that were written by an earlier schema: what can be read, and what is refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ckpt.operators.encoding.evolution import EvolvedCodec, Schemas, adaptation, evolve, former_names
from pyspark_ckpt.operators.encoding.value_codec import make_value_codec
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.operators.types.field_names import require_exact
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.meta import Descriptor

LONG, TEXT = pa.int64(), pa.string()


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        (pa.int8(), LONG, -5, -5),
        (pa.int32(), pa.float64(), 7, 7.0),
        (pa.float32(), pa.float64(), 0.5, 0.5),
        (LONG, pa.decimal128(19, 0), 2**63 - 1, Decimal(2**63 - 1)),
        (pa.decimal128(5, 2), pa.decimal128(38, 10), Decimal("1.50"), Decimal("1.5000000000")),
        (struct(a=LONG), struct(a=LONG, b=TEXT), (1,), (1, None)),
        (struct(a=LONG, b=TEXT), struct(b=TEXT), (1, "x"), ("x",)),
        (struct(a=pa.int32(), b=TEXT), struct(b=TEXT, a=LONG), (1, "x"), ("x", 1)),
        (struct(old=LONG), struct(new=LONG), (1,), (1,)),
        (struct(old=pa.int16()), struct(new=LONG), (None,), (None,)),
        (pa.list_(struct(a=LONG)), pa.list_(struct(a=LONG, b=TEXT)), [(1,), None], [(1, None), None]),
        (pa.map_(TEXT, pa.int32()), pa.map_(TEXT, LONG), {"a": 1, "b": None}, {"a": 1, "b": None}),
    ],
)
def test_a_value_is_read_as_the_new_type(old: pa.DataType, new: pa.DataType, value: Any, expected: Any) -> None:  # noqa: ANN401
    stored = make_value_codec(old, 1).encode(value)
    codec = EvolvedCodec([old, new], 2, {"new": "old"})
    assert codec.decode(stored) == expected
    fresh = codec.encode(expected)
    assert fresh[0] == 2
    assert codec.decode(fresh) == expected
    column = codec.decode_column([stored, None, fresh])
    assert column.type == new
    assert column.null_count == 1
    assert codec.decode_column([fresh]).equals(codec.decode_column([stored]))


def test_numbers_that_become_decimals_have_the_digits_of_the_new_type() -> None:
    for old, value in ((pa.int32(), 5), (pa.decimal128(5, 1), Decimal("5.0"))):
        stored = make_value_codec(old, 1).encode(value)
        codec = EvolvedCodec([old, pa.decimal128(12, 2)], 2, {})
        assert str(codec.decode(stored)) == "5.00"
        assert codec.decode_column([stored]).to_pylist() == [Decimal("5.00")]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (struct(A=LONG), struct(a=LONG), (5,)),
        (struct(userName=LONG), struct(username=pa.decimal128(20, 0)), (5,)),
        (struct(A=LONG, b=TEXT), struct(B=TEXT, a=LONG), ("x", 5)),
        (struct(A=LONG, a=TEXT), struct(a=TEXT), ("x",)),
        (struct(a=LONG), struct(A=TEXT, a=LONG), (None, 5)),
        (struct(OLD=LONG), struct(new=LONG), (5,)),
        (struct(old=LONG), struct(NEW=LONG), (5,)),
        (struct(FRESH=LONG), struct(fresh=LONG), (None,)),
    ],
)
def test_fields_are_found_in_any_case_as_in_spark(old: pa.StructType, new: pa.StructType, expected: Any) -> None:  # noqa: ANN401
    given = {LONG: 5, TEXT: "x"}
    stored = make_value_codec(old, 1).encode(tuple(given[field.type] for field in old))
    for kinds, shown in (([old, new], expected), ([pa.list_(old), pa.list_(new)], [expected])):
        codec = EvolvedCodec(kinds, 2, {"new": "old", "fresh": "fresh"})
        written = (
            stored
            if kinds[0] == old
            else make_value_codec(kinds[0], 1).encode([make_value_codec(old, 1).decode(stored)])
        )
        assert codec.decode(written) == shown
        assert python_values(codec.decode_column([written])) == [shown]


def test_a_field_that_may_be_several_but_for_its_case_is_refused_until_an_alias_says_which() -> None:
    old, new = struct(Ab=LONG, aB=LONG), struct(ab=LONG)
    for kinds in ((old, new), (struct(ab=LONG), old)):
        with pytest.raises(InvalidInputError, match=r"may be any of \[.*they differ by case alone"):
            adaptation(*kinds, {})
    assert adaptation(old, new, {"ab": "aB"})((1, 2)) == (2,)


CHAIN = {"c": "b", "b": "a"}


@pytest.mark.parametrize("aliases", [CHAIN, {**CHAIN, "a": "c"}, {**CHAIN, "a": "a"}, {**CHAIN, "x": "x"}])
def test_a_field_that_was_renamed_twice_is_read_in_values_of_each_schema(aliases: dict[str, str]) -> None:
    kinds = [pa.list_(struct(x=TEXT, **{name: LONG})) for name in "abc"]
    stored = [make_value_codec(kind, schema).encode([(str(schema), schema)]) for schema, kind in enumerate(kinds, 1)]
    codec = EvolvedCodec(kinds, 3, aliases)
    expected: list[Any] = [[(str(schema), schema)] for schema in (1, 2, 3)]
    assert [codec.decode(value) for value in stored] == expected
    assert python_values(codec.decode_column(stored)) == expected


def test_a_renamed_field_without_its_first_name_is_refused_when_an_old_field_would_be_lost() -> None:
    kinds = [struct(x=TEXT, **{name: LONG}) for name in "abc"]
    with pytest.raises(
        InvalidInputError, match=r"field 'c', formerly 'b', .* nothing reads its fields \['a'\]"
    ) as found:
        EvolvedCodec(kinds, 3, {"c": "b"})
    assert "{'b': 'a'}" in str(found.value.hint)
    value = make_value_codec(kinds[0], 1).encode(("x", 5))
    assert EvolvedCodec(kinds, 3, {"c": "b", "b": "b"}).decode(value) == ("x", None)
    assert EvolvedCodec(kinds, 3, {}).decode(value) == ("x", None)
    added_later = EvolvedCodec([struct(x=TEXT), *kinds[1:]], 3, {"c": "b"})
    assert added_later.decode(make_value_codec(struct(x=TEXT), 1).encode(("x",))) == ("x", None)
    dropped = EvolvedCodec([struct(x=TEXT, day=pa.date32()), *kinds[1:]], 3, {"c": "b"})
    assert dropped.kind == kinds[2]


def test_former_names_stay_known() -> None:
    known = Descriptor(aliases={"b": "a", "n": "count"})
    assert former_names(known, {"c": "b"}) == {"c": "b", "b": "a", "n": "count"}
    assert former_names(known, {"b": "b"}) == {"b": "b", "n": "count"}
    assert former_names(known, {}) == {"b": "a", "n": "count"}
    assert former_names(None, {"c": "b"}) == {"c": "b"}
    assert former_names(Descriptor(), {}) == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LONG, pa.int32()),
        (LONG, pa.float64()),
        (LONG, TEXT),
        (LONG, pa.decimal128(18, 0)),
        (pa.float64(), pa.float32()),
        (pa.decimal128(5, 2), pa.decimal128(5, 1)),
        (pa.decimal128(5, 2), pa.decimal128(5, 3)),
        (struct(a=LONG), LONG),
        (struct(a=LONG), struct(a=TEXT)),
        (pa.map_(TEXT, LONG), pa.map_(LONG, LONG)),
        (pa.list_(LONG), pa.map_(TEXT, LONG)),
        (pa.timestamp("us", "UTC"), pa.date32()),
    ],
)
def test_a_change_that_loses_something_is_refused_by_both_types(old: pa.DataType, new: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read as"):
        adaptation(old, new, {})


def test_what_may_be_null_in_stored_values_does_not_become_not_null() -> None:
    def field(name: str, *, nullable: bool) -> pa.Field:
        return pa.field(name, LONG, nullable)

    def kinds(*, nullable: bool) -> list[pa.DataType]:
        return [
            pa.struct([field("a", nullable=nullable)]),
            pa.list_(field("element", nullable=nullable)),
            pa.map_(TEXT, field("value", nullable=nullable)),
            struct(inner=pa.list_(pa.struct([field("a", nullable=nullable)]))),
        ]

    names = ["a", "element", "value", "inner.element.a"]
    for name, may_be, is_not in zip(names, kinds(nullable=True), kinds(nullable=False), strict=True):
        with pytest.raises(InvalidInputError, match=f"field '{name}' may be null .*, but is declared NOT NULL"):
            require_exact(may_be, is_not, {})
        require_exact(is_not, may_be, {})
        value = make_value_codec(is_not, 1).encode(_one(is_not))
        assert EvolvedCodec([is_not, may_be], 2, {}).decode(value) == make_value_codec(is_not, 1).decode(value)
    with pytest.raises(InvalidInputError, match="field 'b' may be null"):
        require_exact(struct(a=LONG), pa.struct([("a", LONG), field("b", nullable=False)]), {})


def _one(kind: pa.DataType) -> Any:  # noqa: ANN401
    """A value of a type with one part."""
    if pa.types.is_list(kind):
        return [_one(kind.value_type)]
    if pa.types.is_map(kind):
        return {"x": 5}
    return (_one(kind[0].type),) if pa.types.is_struct(kind) else 5


def test_a_field_that_cannot_be_read_is_named_by_its_path_and_sparks_names_of_its_types() -> None:
    def kind(leaf: pa.DataType) -> pa.DataType:
        return struct(all=pa.list_(struct(by=pa.map_(TEXT, struct(at=leaf)))))

    words = r"field 'all\.element\.by\.value\.at': values of type timestamp cannot be read as bigint"
    with pytest.raises(InvalidInputError, match=words) as found:
        adaptation(kind(pa.timestamp("us", "UTC")), kind(LONG), {})
    assert "allowNonRestoredState" in str(found.value.hint)


def test_schemas_keep_their_numbers_when_a_program_goes_back_and_on() -> None:
    first = evolve(None, "long")
    second = evolve(first, "double")
    assert evolve(second, "long") == Schemas(["long", "double"], 1)
    assert evolve(evolve(second, "long"), "double") == second
    many = Schemas(list(range(127)), 1)
    assert evolve(many, 5).current == 6
    with pytest.raises(InvalidInputError, match="127 types"):
        evolve(many, "one more")


def test_booleans_of_an_old_schema_are_read_in_columns() -> None:
    old, new = (pa.struct([("a", pa.bool_()), *more]) for more in ([], [("n", pa.int64())]))
    stored = make_value_codec(old).encode((True,)), make_value_codec(new, 2).encode((False, 7)), None
    column = EvolvedCodec([old, new], 2, {}).decode_column(stored)
    assert python_values(column) == [(True, None), (False, 7), None]


def test_a_value_of_an_unknown_schema_is_damage() -> None:
    with pytest.raises(FormatError, match="schema 9"):
        EvolvedCodec([LONG], 1, {}).decode(make_value_codec(LONG, 9).encode(1))


def test_values_are_read_though_an_earlier_release_took_aliases_that_are_not_clear() -> None:
    old, new = struct(b=LONG), pa.struct([("a", LONG), pa.field("c", LONG, nullable=False)])
    codec = EvolvedCodec([old, new], 2, {"a": "b", "c": "b"})
    assert codec.decode(make_value_codec(old, 1).encode((5,))) == (5, 5)
    codec = EvolvedCodec([old, new], 2, {})
    assert codec.decode(make_value_codec(old, 1).encode((5,))) == (None, None)
