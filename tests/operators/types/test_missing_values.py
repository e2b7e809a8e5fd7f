"""None in states and output: it is no element of a list, no key of a map, and nothing that is declared NOT NULL."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from pyspark_ckpt.operators import ListState, MapState, ValueState
from pyspark_ckpt.operators.types.value_types import resolve_type
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from tests.labs.program_lab import ProgramLab
from tests.labs.session_lab import keys_of
from tests.operators.types.typed_calls import CALLS, NESTED, states, work


def test_none_is_refused_where_a_column_or_a_part_of_it_is_declared_not_null() -> None:
    required = spark.StructType([spark.StructField("in", spark.LongType(), nullable=False)])
    kinds = {
        "struct": (required, (None,)),
        "array": (spark.ArrayType(spark.LongType(), containsNull=False), [1, None]),
        "map": (spark.MapType(spark.StringType(), spark.LongType(), valueContainsNull=False), {"x": None}),
    }
    for kind, wrong in kinds.values():
        with pytest.raises(InvalidInputError, match=r"column 'n' .* is None, but is declared NOT NULL"):
            work(("n", kind))._batch("process", [(None,), (wrong,)])
    with pytest.raises(InvalidInputError, match=r"column 'n' .* 'n' is None, but is declared NOT NULL"):
        work(("n", spark.LongType()), nullable=False)._batch("process", [(1,), (None,)])
    with pytest.raises(InvalidInputError, match="'n' is None, but is declared NOT NULL"):
        work(("n", spark.LongType()), nullable=False)._shape("process_batch", pa.table({"n": [1, None]}))
    nested = pa.table({"n": pa.array([{"in": None}], pa.struct([("in", pa.int64())]))})
    with pytest.raises(InvalidInputError, match="'in' is None, but is declared NOT NULL"):
        work(("n", required))._shape("process_batch", nested)


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("ttl", [None, "1 hour"])
def test_none_is_no_element_of_a_list_and_removes_the_entry_of_a_map_for_every_type(
    name: str, ttl: str | None, lab: ProgramLab
) -> None:
    kind, value = NESTED[name]
    declared = [ListState("list", kind, ttl=ttl), MapState("map", spark.StringType(), kind, ttl=ttl)]
    arrow = resolve_type(kind, "it").arrow

    def one_by_one(bound: Any) -> None:  # noqa: ANN401
        bound.at("a")
        for call, given in (("add", None), ("add_all", [value, None]), ("update", [None])):
            with pytest.raises(InvalidInputError, match="State 'list' of operator 'it': a list element must not"):
                getattr(bound["list"], call)(given)
        assert not bound["list"].exists()
        bound["map"].put_all({"a": value, "b": value, "c": None})
        bound["map"].put("a", None)
        assert dict(bound["map"].items()) == {"b": value}
        assert not bound["map"].contains("a")

    def at_once(bound: Any) -> None:  # noqa: ANN401
        keys, index = keys_of(["x"]), np.array([0, 0])
        nulls = pa.nulls(2, arrow)
        with pytest.raises(InvalidInputError, match="State 'list' of operator 'it': a list element must not"):
            bound["list"].add_rows(keys, index, nulls)
        with pytest.raises(InvalidInputError, match="State 'list' of operator 'it': a list element must not"):
            bound["list"].put_lists(keys, pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), nulls))
        bound["map"].put_entries(keys, index, pa.array(["a", "b"]), nulls)
        assert bound["map"].get_range(keys).to_pylist() == [[]]

    lab.run(declared, one_by_one)
    lab.run(declared, at_once, many_keys=True)


@pytest.mark.parametrize("name", ["map", "list of maps", "struct of a map", "map of maps"])
def test_none_is_no_key_of_a_map_wherever_that_is(name: str, lab: ProgramLab) -> None:
    inner = NESTED["map"][0]
    kind, wrong = {
        "map": (inner, {None: 1}),
        "list of maps": (spark.ArrayType(inner), [{"x": 1}, {None: 1}]),
        "struct of a map": (spark.StructType().add("m", inner), ({None: 1},)),
        "map of maps": (spark.MapType(spark.StringType(), inner), {"x": {None: 1}}),
    }[name]

    def use(bound: Any) -> None:  # noqa: ANN401
        bound.at("a")
        for call in ("update", "add", "add_all", "put", "put_all", "reduce", "array", "field"):
            with pytest.raises(InvalidInputError, match=r"State '.*' of operator 'it': .* map has a key that is None"):
                CALLS[call](bound, wrong)
        with pytest.raises(InvalidInputError, match=r"column 'n' .* a map has a key that is None"):
            work(("n", kind))._batch("process", [(None,), (wrong,)])

    lab.look(states(kind, has_keys=False), use)


def test_a_null_key_that_an_earlier_release_has_stored_is_shown_or_named_and_can_be_replaced(lab: ProgramLab) -> None:
    program = [ValueState("m", NESTED["map"][0])]
    keys = keys_of(["a", "b"])

    def as_before(bound: Any) -> None:  # noqa: ANN401
        suffix = bound.at("a").session.position.suffix
        bound["m"].rows.put(suffix, b"\x01" + msgspec.msgpack.encode([[None, 1], ["x", 2]]))
        bound.at("b")["m"].update({"y": 3})

    def named(bound: Any) -> None:  # noqa: ANN401
        with pytest.raises(FormatError, match=r"A stored value of state 'm', '01.*a map has a key that is None"):
            bound["m"].get(keys)

    lab.run(program, as_before)
    assert lab.look(program, lambda bound: bound.at("a")["m"].value()) == {None: 1, "x": 2}
    lab.run(program, named, many_keys=True, commits=False)
    lab.run(program, lambda bound: bound.at("a")["m"].update({"x": 4}))
    shown = lab.run(program, lambda bound: bound["m"].get(keys), many_keys=True).to_pylist()
    assert sorted(shown) == [[("x", 4)], [("y", 3)]]
