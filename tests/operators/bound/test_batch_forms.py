"""States of many keys in one call, against the same calls key by key."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_ckpt.operators import AggregatingState, ReducingState
from pyspark_ckpt.operators.encoding.distinct_keys import Keys
from pyspark_ckpt.operators.encoding.suffixes import Suffixes
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.labs.session_lab import LONG, USERS, Batch, SessionLab, keys_of, suffix_of


def test_values_of_many_keys_are_those_of_single_keys(lab: SessionLab) -> None:
    keys = keys_of(USERS)
    numbers = pa.array([1, None, 3, 4, None, 6], LONG)

    def write(_batch: Batch, states: dict[str, Any]) -> None:
        assert states["value"].get(keys).null_count == len(USERS)
        states["value"].put(keys, numbers)
        states["text"].put(keys, pa.array(["a", "b", None, "d", "e", "f"]))
        assert states["value"].get(keys).equals(numbers)

    answer = lab.run(write)
    assert [state["rows"] for state in answer["states"][:2]] == [4, 5]

    def read(batch: Batch, states: dict[str, Any]) -> None:
        some = keys_of(USERS[2:4])
        batch.at(str(keys.column("user")[0]))
        states["value"].update(100)
        assert states["value"].get(keys).to_pylist() == [100, None, 3, 4, None, 6]
        states["value"].put(some, pa.array([None, 7], LONG))
        for number, user in enumerate(keys.column("user").to_pylist()):
            batch.at(user)
            assert states["value"].value() == states["value"].get(keys)[number].as_py()

    answer = lab.run(read)
    batch, states = lab.begin()
    found = states["value"].get(keys)
    assert answer["states"][0]["rows"] == len(found) - found.null_count
    batch.abort()


def test_lists_and_maps_of_many_keys_are_those_of_single_keys(lab: SessionLab) -> None:
    keys = keys_of(USERS[:3])
    index = np.array([0, 2, 0, 2, 2])

    def write(_batch: Batch, states: dict[str, Any]) -> None:
        states["list"].add_rows(keys, index, pa.array([1, 2, 3, 4, 5], LONG))
        states["map"].put_entries(keys, index, pa.array(["a", "b", "a", "c", "d"]), pa.array([1, 2, 3, 4, None], LONG))
        assert states["list"].get_lists(keys).to_pylist() == [[1, 3], [], [2, 4, 5]]

    assert [state["rows"] for state in lab.run(write)["states"]] == [0, 0, 7, 3]

    def read(batch: Batch, states: dict[str, Any]) -> None:
        states["list"].add_rows(keys, np.array([1, 0]), pa.array([9, 8], LONG))
        assert states["list"].get_lists(keys).to_pylist() == [[1, 3, 8], [9], [2, 4, 5]]
        assert states["map"].get_range(keys).to_pylist() == [[("a", 3)], [], [("b", 2), ("c", 4)]]
        assert states["map"].get_range(keys, "b", "c").to_pylist() == [[], [], [("b", 2)]]
        found = states["map"].get_entries(keys, np.array([0, 1, 2, 2]), pa.array(["a", "a", "b", "d"]))
        assert found.to_pylist() == [3, None, 2, None]
        batch.at(keys.column("user")[2].as_py())
        assert dict(states["map"].items()) == {"b": 2, "c": 4}
        assert list(states["list"].get()) == [2, 4, 5]

    assert [state["rows"] for state in lab.run(read)["states"]] == [0, 0, 10, 3]


def test_a_map_has_no_entry_under_null_for_many_keys_either(lab: SessionLab) -> None:
    keys, index = keys_of(USERS), np.array([0, 1])
    map_keys = pa.array(["a", None])

    def work(_batch: Batch, states: dict[str, Any]) -> None:
        with pytest.raises(InvalidInputError, match="State 'map': a map key must not be None"):
            states["map"].put_entries(keys, index, map_keys, pa.array([1, 2], LONG))
        with pytest.raises(InvalidInputError, match="State 'map': a map key must not be None"):
            states["map"].get_entries(keys, index, map_keys)
        with pytest.raises(InvalidInputError, match="State 'map': 2 values are given for 6 keys"):
            states["map"].get_range(keys, begin=map_keys)

    assert [state["rows"] for state in lab.run(work)["states"]] == [0] * 4


def test_lists_that_are_none_replace_nothing(lab: SessionLab) -> None:
    keys = keys_of(USERS[:2])

    def work(_batch: Batch, states: dict[str, Any]) -> None:
        states["list"].put_lists(keys, [[1], [2, 3]])
        for wrong in (pa.array([["x"], ["y"]]), pa.array([1, 2])):
            with pytest.raises(InvalidInputError, match=r"State 'list' of operator '': its element is of type"):
                states["list"].put_lists(keys, wrong)
        with pytest.raises(InvalidInputError, match="State 'list': 1 values are given for 2 keys"):
            states["list"].put_lists(keys, pa.array([[1]]))
        assert states["list"].get_lists(keys).to_pylist() == [[1], [2, 3]]
        ints = pa.list_(pa.int32())
        states["list"].put_lists(keys, pa.chunked_array([pa.array([[7, 8]], ints), pa.array([[]], ints)]))
        assert states["list"].get_lists(keys).to_pylist() == [[7, 8], []]

    assert [state["rows"] for state in lab.run(work)["states"]] == [0, 0, 3, 0]


@pytest.mark.parametrize("how", ["sum", "min", "max", lambda kept, added: kept * 2 + added])
def test_reducing_states_of_many_keys_are_those_of_one_after_the_other(how: Any, tmp_path: Path) -> None:  # noqa: ANN401
    pair = {name: (ReducingState(name, "bigint", how), {"value": LONG}) for name in ("one", "many")}
    lab = SessionLab(tmp_path, pair)
    suffixes = sorted(map(suffix_of, USERS))
    keys = Keys(pa.table({"user": USERS}), Suffixes(suffixes))
    rng = np.random.default_rng(3)

    def work(batch: Batch, bound: dict[str, Any]) -> None:
        index = rng.integers(0, 4, 30)
        values = [None if value == 0 else value for value in rng.integers(-5, 5, 30).tolist()]
        for position, value in zip(index.tolist(), values, strict=True):
            batch.session.position.suffix = suffixes[position]
            bound["one"].add(value)
        bound["many"].add_rows(keys, index, pa.array(values, LONG))
        assert bound["many"].get_values(keys) == bound["one"].get_values(keys)
        assert bound["many"].get_values(keys)[4:] == pa.nulls(2, LONG)
        assert bound["many"].exists_keys(keys) == bound["many"].get_values(keys).is_valid()
        cleared = int(rng.integers(0, 4))
        batch.session.position.suffix = suffixes[cleared]
        bound["one"].clear()
        bound["many"].clear_keys(keys.at([cleared]))
        assert bound["many"].get_values(keys) == bound["one"].get_values(keys)
        assert not bound["many"].exists_keys(keys)[cleared].as_py()

    for _ in range(3):
        lab.run(work)
    batch, bound = lab.begin()
    with pytest.raises(InvalidInputError, match="State 'one': 1 values are given for 2"):
        bound["one"].add_rows(keys, np.array([0, 1]), pa.array([1]))
    batch.abort()
    lab.close()


_AT = pa.timestamp("us", "UTC")
REDUCED: list[tuple[str, pa.DataType, list[Any]]] = [
    ("max", pa.bool_(), [False, True, False]),
    ("min", pa.date32(), [2932897, -(1 << 31), 7]),
    ("max", _AT, [5, 1 << 62, None]),
    ("min", pa.timestamp("us"), [5, -(1 << 63), None]),
    ("sum", pa.duration("us"), [5, 1 << 40, -7]),
    ("max", pa.duration("us"), [5, 1 << 40, -7]),
    ("min", pa.time64("ns"), [5000, 1000, None]),
    ("max", pa.string(), ["a", "b", None]),
    ("max", pa.struct([("n", LONG)]), [(1,), (3,), (2,)]),
]


@pytest.mark.parametrize(("how", "kind", "values"), REDUCED, ids=str)
def test_values_of_every_type_are_reduced_in_several_batches(
    how: Any,  # noqa: ANN401
    kind: pa.DataType,
    values: list[Any],
    tmp_path: Path,
) -> None:
    lab = SessionLab(tmp_path, {"it": (ReducingState("it", "bigint", how), {"value": kind})})
    keys, column = keys_of(USERS[:2]), pa.array(values, kind)
    for begin in range(3):

        def add(_batch: Batch, bound: dict[str, Any], begin: int = begin) -> None:
            bound["it"].add_rows(keys, np.array([1]), column.slice(begin, 1))

        lab.run(add)
    batch, bound = lab.begin()
    there = [value for value in values if value is not None]
    expected = sum(there) if how == "sum" else {"min": min, "max": max}[how](there)
    assert bound["it"].get_values(keys).equals(pa.array([None, expected], kind))
    batch.abort()
    lab.close()


SUMS: dict[str, tuple[pa.DataType, Any]] = {
    "smallint": (pa.int16(), 1 << 14),
    "bigint": (LONG, 1 << 62),
    "decimal(38,0)": (pa.decimal128(38, 0), Decimal(5 * 10**37)),
}


@pytest.mark.parametrize("ddl", SUMS)
@pytest.mark.parametrize("rows", [[2], [1, 1], [1, -1, 1, 1], [4]])
def test_a_sum_beyond_its_type_is_refused_in_one_batch_and_in_several(
    ddl: str, rows: list[int], tmp_path: Path
) -> None:
    kind, most = SUMS[ddl]
    lab = SessionLab(tmp_path, {"sum": (ReducingState("sum", ddl, "sum"), {"value": kind})})
    keys = keys_of(USERS[:2])
    batch, bound = lab.begin()

    def add_all() -> None:
        for count in rows:
            values = pa.array([most if count > 0 else -most] * abs(count), kind)
            bound["sum"].add_rows(keys, np.zeros(len(values), int), values)

    with pytest.raises(InvalidInputError, match=r"State 'sum'.*: .* of type"):
        add_all()
    batch.abort()
    lab.close()


def test_large_numbers_of_many_keys_are_added_exactly(tmp_path: Path) -> None:
    decimals = pa.decimal128(38, 2)
    states = {
        "long": (ReducingState("long", "bigint", "sum"), {"value": LONG}),
        "decimal": (ReducingState("decimal", "decimal(38,2)", "sum"), {"value": decimals}),
    }
    lab = SessionLab(tmp_path, states)
    keys, index = keys_of(USERS[:3]), np.array([0, 1, 0, 2, 1])
    digits = Decimal("123456789012345678901234567890123456.78")

    def work(_batch: Batch, bound: dict[str, Any]) -> None:
        bound["long"].add_rows(keys, index, pa.array([1 << 62, 7, (1 << 62) - 1, None, -(1 << 63)], LONG))
        bound["decimal"].add_rows(keys, index, pa.array([digits, None, Decimal("0.01"), None, digits], decimals))

    lab.run(work)
    batch, bound = lab.begin()
    assert bound["long"].get_values(keys).to_pylist() == [(1 << 63) - 1, 7 - (1 << 63), None]
    bound["decimal"].add_rows(keys, np.array([0]), pa.array([Decimal("0.02")], decimals))
    batch.session.position.suffix = keys.suffixes[0]
    bound["decimal"].add(Decimal("0.01"))
    expected = [Decimal("123456789012345678901234567890123456.82"), digits, None]
    assert bound["decimal"].get_values(keys).to_pylist() == expected
    batch.abort()
    lab.close()


def test_accumulators_of_many_keys_are_those_of_one_after_the_other(tmp_path: Path) -> None:
    def declared(name: str) -> AggregatingState:
        return AggregatingState(
            name,
            "struct<n bigint, total bigint>",
            create=lambda: None,
            add=lambda kept, value: (1, value) if kept is None else (kept.n + 1, kept.total + value),
            result=lambda kept: kept.total / kept.n,
        )

    kinds = {"accumulator": pa.struct([("n", LONG), ("total", LONG)])}
    lab = SessionLab(tmp_path, {name: (declared(name), kinds) for name in ("one", "many")})
    suffixes = sorted(map(suffix_of, USERS))
    keys = Keys(pa.table({"user": USERS}), Suffixes(suffixes))

    def work(batch: Batch, bound: dict[str, Any]) -> None:
        index, values = np.array([3, 1, 3, 3]), [5, 6, 7, 8]
        for position, value in zip(index.tolist(), values, strict=True):
            batch.session.position.suffix = suffixes[position]
            bound["one"].add(value)
        bound["many"].add_rows(keys, index, pa.chunked_array([[5], [6, 7, 8]]))
        assert bound["many"].get_results(keys) == bound["one"].get_results(keys)
        assert bound["many"].exists_keys(keys).to_pylist() == [False, True, False, True, False, False]
        assert [result is None for result in bound["many"].get_results(keys)] == [True, False, True, False, True, True]
        for name in ("one", "many"):
            bound[name].clear_keys(keys.at([1]))
        assert bound["many"].get_results(keys) == bound["one"].get_results(keys)
        assert bound["many"].get_results(keys)[1] is None

    for _ in range(2):
        lab.run(work)
    lab.close()


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([0, 17], "no key at position 17: there are 6 keys"),
        ([-1, 0, 1, 2, 3, 4], "no key at position -1"),
        ([True, False], "must be integers, got type bool"),
        ([0.0, 1.5], "must be integers, got type float64"),
    ],
)
def test_positions_that_are_none_are_refused(lab: SessionLab, positions: list[Any], message: str) -> None:
    keys, index = keys_of(USERS), np.array(positions)
    numbers = pa.array(range(len(index)), LONG)

    def work(_batch: Batch, states: dict[str, Any]) -> None:
        with pytest.raises(InvalidInputError, match=message):
            keys.at(positions)
        with pytest.raises(InvalidInputError, match=message):
            states["list"].add_rows(keys, index, numbers)
        with pytest.raises(InvalidInputError, match=message):
            states["map"].put_entries(keys, index, pa.array(["a"] * len(index)), numbers)

    assert [state["rows"] for state in lab.run(work)["states"]] == [0] * 4


def test_some_keys_are_in_stored_order(lab: SessionLab) -> None:
    keys = keys_of(USERS)
    for positions in ([5, 4, 3, 2, 1, 0], [0] * 6, [1, 0]):
        with pytest.raises(InvalidInputError, match="must be strictly ascending"):
            keys.at(positions)
    assert len(keys.at([])) == 0

    def work(_batch: Batch, states: dict[str, Any]) -> None:
        states["value"].put(keys.at([1, 4]), pa.array([1, 4], LONG))
        assert states["value"].get(keys).to_pylist() == [None, 1, None, None, 4, None]
        assert states["value"].get(keys.at([])).to_pylist() == []

    lab.run(work)
