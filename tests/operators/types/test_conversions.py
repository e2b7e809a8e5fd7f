"""One table of conversions: what a type takes is the same for states, keys and output, one by one and as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from pyspark_ckpt.operators import (
    Context,
    KeyedProcessor,
    ListState,
    MapState,
    MetricCounter,
    ReducingState,
    ValueState,
)
from pyspark_ckpt.operators.declarations.operator import Input, KeyedOperator
from pyspark_ckpt.operators.rows.base import Position
from pyspark_ckpt.operators.task.processor_calls import ProcessorCalls
from pyspark_ckpt.operators.types.value_types import resolve_type
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from tests.labs.program_lab import ProgramLab
from tests.labs.session_lab import keys_of

NAN = float("nan")
AT = datetime(2020, 1, 2, 3, 4, 5, 678901, timezone.utc)
FAR_ZONE = timezone(timedelta(hours=1, seconds=17, microseconds=500_000))

TYPES: dict[str, spark.DataType] = {
    "boolean": spark.BooleanType(),
    "tinyint": spark.ByteType(),
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "decimal": spark.DecimalType(12, 2),
    "string": spark.StringType(),
    "binary": spark.BinaryType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampType(),
    "timestamp_ntz": spark.TimestampNTZType(),
    "interval": spark.DayTimeIntervalType(),
    "months": spark.YearMonthIntervalType(),
}
TAKEN: dict[str, list[tuple[Any, Any]]] = {
    "boolean": [(True, True), (np.bool_(False), False)],
    "tinyint": [(127, 127), (np.int64(-128), -128), (np.uint8(3), 3)],
    "int": [(5, 5)],
    "bigint": [(2**63 - 1, 2**63 - 1), (np.int64(5), 5), (np.uint64(5), 5)],
    "float": [(0.5, 0.5), (1, 1.0), (np.float64(0.25), 0.25), (float("inf"), float("inf")), (np.float16(0.5), 0.5)],
    "double": [(0.1, 0.1), (2**53, 2.0**53), (2**60, 2.0**60), (np.float32(0.5), 0.5), (np.int64(3), 3.0)],
    "decimal": [(5, Decimal("5.00")), (Decimal("1.5"), Decimal("1.50")), (Decimal("-1E+3"), Decimal("-1000.00"))],
    "string": [("a", "a"), (np.str_("b"), "b"), ("", "")],
    "binary": [(b"a", b"a"), (bytearray(b"b"), b"b"), (np.bytes_(b"c"), b"c")],
    "date": [(date(2020, 1, 2), date(2020, 1, 2)), (np.datetime64("2020-01-02"), date(2020, 1, 2))],
    "timestamp": [
        (AT, AT),
        (AT.replace(tzinfo=None), AT),
        (AT.astimezone(FAR_ZONE), AT),
        (pd.Timestamp(AT), AT),
        (np.datetime64("2020-01-02T03:04:05.678901"), AT),
    ],
    "timestamp_ntz": [(AT.replace(tzinfo=None), AT.replace(tzinfo=None))],
    "interval": [(timedelta(days=-1, microseconds=1),) * 2, (np.timedelta64(1, "s"), timedelta(seconds=1))],
    "months": [(14, 14)],
}
REFUSED: dict[str, list[Any]] = {
    "boolean": [2, 0, 1.0, "true", b"", np.int64(1)],
    "tinyint": [128, -129, 1.0, True, "1", np.int16(300), NAN],
    "int": [2**31, 2.0, np.float32(2), Decimal(2), False],
    "bigint": [2.5, 2.0, 2**63, "5", True, NAN, Decimal(5), np.uint64(2**63), np.bool_(True)],
    "float": [1e300, -1e300, 2**24 + 1, "1.5", True, Decimal("0.5")],
    "double": ["1.5", 2**53 + 1, 10**400, Decimal("0.5"), True],
    "decimal": [
        "n/a",
        "1.5",
        0.5,
        1.0,
        True,
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("Infinity"),
        Decimal("1.005"),
        10**10,
        Decimal("1E+400"),
        Decimal("1E-400"),
    ],
    "string": [5, b"a", True, 1.5, "\ud800", ["a"]],
    "binary": ["a", 5, [1]],
    "date": [AT, AT.replace(tzinfo=None), "2020-01-01", 5, pd.Timestamp(AT), np.datetime64("2020-01-02T00:00")],
    "timestamp": [
        5,
        5.0,
        date(2020, 1, 1),
        "2020-01-01",
        pd.Timestamp("2020-01-01 00:00:00.000000001"),
        np.datetime64("2020-01-01T00:00:00.000000001"),
        np.datetime64("2020-01-01"),
    ],
    "timestamp_ntz": [AT, 5, date(2020, 1, 1), pd.Timestamp(AT)],
    "interval": [5, 1.0, "1 day", time(1), timedelta.max, pd.Timedelta(1, "ns"), np.timedelta64(1, "ns")],
    "months": [1.5, timedelta(1), 2**31],
}
NO_VALUES = [pd.NA, pd.NaT, np.datetime64("NaT"), np.timedelta64("NaT"), object(), 5j, {1}, {}]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ProgramLab]:
    made = ProgramLab(tmp_path)
    yield made
    made.close()


class Pages(KeyedProcessor):
    def process(self, _ctx: Context, _key: Any, _rows: Any) -> Iterator[Any]:  # noqa: ANN401
        return iter(())


def work(*columns: tuple[str, spark.DataType], nullable: bool = True) -> ProcessorCalls:
    """What makes output of these columns."""
    fields = [pa.field(name, resolve_type(kind, name).arrow, nullable) for name, kind in columns]
    schema = pa.schema(fields)
    return ProcessorCalls(
        KeyedOperator("visits", (Input("", ("n",), schema),), schema, (), 1, 1, "", False, 1 << 20),
        Pages(),
        Context(0, 0, 0, -1),
        Position(),
    )


def states(kind: spark.DataType, *, has_keys: bool = True) -> list[Any]:
    """A state of each kind; also one whose keys are of the type, if it can be one of keys."""
    keys = [MapState("keys", kind, spark.StringType())] if has_keys else []
    return [
        *keys,
        ValueState("value", kind),
        ListState("list", kind),
        MapState("map", spark.StringType(), kind),
        ReducingState("last", kind, lambda _kept, value: value),
        ValueState(
            "nested", spark.StructType([spark.StructField("in", spark.ArrayType(kind)), spark.StructField("n", kind)])
        ),
    ]


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda bound, value: bound["value"].update(value),
    "add": lambda bound, value: bound["list"].add(value),
    "add_all": lambda bound, value: bound["list"].add_all([value]),
    "update of a list": lambda bound, value: bound["list"].update([value]),
    "put": lambda bound, value: bound["map"].put("x", value),
    "put_all": lambda bound, value: bound["map"].put_all({"x": value}),
    "key": lambda bound, value: bound["keys"].put(value, "x"),
    "get": lambda bound, value: bound["keys"].get(value),
    "reduce": lambda bound, value: bound["last"].add(value),
    "array": lambda bound, value: bound["nested"].update(([value], None)),
    "field": lambda bound, value: bound["nested"].update({"in": None, "n": value}),
}


@pytest.mark.parametrize("name", TYPES)
def test_what_a_type_takes_comes_back_from_every_call_and_as_output(name: str, lab: ProgramLab) -> None:
    kind = TYPES[name]

    def use(bound: Any) -> None:  # noqa: ANN401
        bound.at("a")
        for given, expected in TAKEN[name]:
            for call in CALLS.values():
                call(bound, given)
            shown = [bound["value"].value(), *bound["list"].get(), bound["map"].get("x"), bound["last"].get()]
            assert [(type(each), each) for each in shown] == [(type(expected), expected)] * 4
            assert bound["keys"].get(expected) == "x"
            assert [type(each) for each in bound["keys"].keys()] == [type(expected)]  # noqa: SIM118 - it is no dict
            bound["keys"].clear()
            rows = work(("n", kind))._batch("process", [(given,), (None,)])
            assert rows.column("n").to_pylist() == [expected, None]

    lab.look(states(kind), use)


@pytest.mark.parametrize("name", TYPES)
def test_what_a_type_does_not_take_is_refused_by_name_in_every_call_and_as_output(name: str, lab: ProgramLab) -> None:
    kind = TYPES[name]

    def use(bound: Any) -> None:  # noqa: ANN401
        bound.at("a")
        for given in REFUSED[name] + NO_VALUES:
            for call in CALLS.values():
                with pytest.raises(InvalidInputError, match=r"State '\w+' of operator 'it': its \w+ is of type"):
                    call(bound, given)
            with pytest.raises(InvalidInputError, match=r"Pages.process\(\) of keyed operator 'visits' .* column 'n'"):
                work(("n", kind))._batch("process", [(None,), (given,)])
        assert [bound["value"].exists(), bound["list"].exists(), bound["map"].is_empty()] == [False, False, True]

    lab.look(states(kind), use)


COLUMNS: dict[str, tuple[list[pa.Array], list[pa.Array]]] = {
    "boolean": ([], [pa.array([1]), pa.array(["true"])]),
    "tinyint": (
        [pa.array([1, None]), pa.array([1], pa.uint64()), pa.array([1]).dictionary_encode()],
        [pa.array([300]), pa.array([1.0]), pa.array([True]), pa.array(["1"]), pa.array([Decimal(1)])],
    ),
    "bigint": ([pa.array([1], pa.int8())], [pa.array([2**63], pa.uint64()), pa.array([2.5]), pa.array([2.0])]),
    "float": ([pa.array([0.1, None]), pa.array([1])], [pa.array([1e300]), pa.array([2**24 + 1]), pa.array(["1"])]),
    "double": (
        [pa.array([0.5], pa.float32()), pa.array([2**60, None])],
        [pa.array([2**53 + 1]), pa.array([2**63 - 1]), pa.array(["1.5"]), pa.array([True])],
    ),
    "decimal": (
        [pa.array([5, None]), pa.array([Decimal("1.5")])],
        [pa.array([10**10]), pa.array([0.5]), pa.array([Decimal("1.005")]), pa.array(["1"])],
    ),
    "string": (
        [pa.array(["a"], pa.large_string()), pa.array(["a"]).dictionary_encode()],
        [pa.array([1]), pa.array([b"a"])],
    ),
    "binary": ([pa.array([b"a"], pa.large_binary())], [pa.array(["a"])]),
    "date": ([], [pa.array([AT]), pa.array([5]), pa.array(["2020-01-01"])]),
    "timestamp": (
        [pa.array([AT.replace(tzinfo=None)]), pa.array([AT], pa.timestamp("ns", "Europe/Berlin"))],
        [pa.array([5]), pa.array([date(2020, 1, 1)]), pa.array([1], pa.timestamp("ns", "UTC"))],
    ),
    "timestamp_ntz": ([pa.array([1], pa.timestamp("s"))], [pa.array([AT]), pa.array([1], pa.timestamp("ns"))]),
    "interval": ([pa.array([1], pa.duration("s"))], [pa.array([1]), pa.array([1], pa.duration("ns"))]),
    "months": ([pa.array([1])], [pa.array([1.5])]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_taken_and_refused_by_the_same_table(name: str, lab: ProgramLab) -> None:
    kind = TYPES[name]
    taken, refused = COLUMNS[name]

    def wrapped(column: pa.Array) -> pa.Array:
        """The column as the elements of arrays, sliced."""
        ends = pa.array(range(len(column) + 1), pa.int32())
        return pa.concat_arrays([pa.nulls(1, pa.list_(column.type)), pa.ListArray.from_arrays(ends, column)]).slice(1)

    def use(bound: Any) -> None:  # noqa: ANN401
        for column in [*taken, pa.nulls(1)]:
            keys = keys_of(list("ab")[: len(column)])
            bound["value"].put(keys, column)
            stored = bound["value"].get(keys)
            (batch,) = work(("n", kind), ("l", spark.ArrayType(kind)))._shape(
                "process_batch", pa.table({"n": column, "l": wrapped(column)})
            )
            assert batch.column("n").equals(stored)
            assert batch.column("l").flatten().equals(stored)
            assert stored.null_count == column.null_count
        for column in refused:
            keys = keys_of(["a"])
            with pytest.raises(InvalidInputError, match=r"State 'value' of operator 'it': its value is of type"):
                bound["value"].put(keys, column)
            for table in ({"n": column, "l": pa.nulls(1)}, {"n": pa.nulls(1), "l": wrapped(column)}):
                with pytest.raises(InvalidInputError, match=r"of keyed operator 'visits' returned a column '[nl]'"):
                    work(("n", kind), ("l", spark.ArrayType(kind)))._shape("process_batch", pa.table(table))

    lab.run(states(kind), use, many_keys=True)


@pytest.mark.parametrize("row", [None, 5, "ab", (1,), (1, 2, 3), {"n": 1, "x": 2}, object()])
def test_what_is_no_row_is_refused(row: Any) -> None:  # noqa: ANN401
    two = work(("n", spark.LongType()), ("t", spark.LongType()))
    with pytest.raises(InvalidInputError, match=r"Pages.process\(\) of keyed operator 'visits'"):
        two._batch("process", [(1, 2), row])


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


@pytest.mark.parametrize("values", ["abc", b"abc", {"a": 1}, 5, None])
def test_what_is_no_list_is_not_taken_as_one(values: Any, lab: ProgramLab) -> None:  # noqa: ANN401
    def use(bound: Any) -> None:  # noqa: ANN401
        bound.at("a")["list"].add("x")
        for call in ("add_all", "update"):
            with pytest.raises(InvalidInputError, match="State 'list'"):
                getattr(bound["list"], call)(values)
        assert list(bound["list"].get()) == ["x"]

    lab.look([ListState("list", spark.StringType())], use)


NESTED = {
    "number": (spark.LongType(), 1),
    "text": (spark.StringType(), "x"),
    "numbers": (spark.StructType([spark.StructField("n", spark.LongType())]), (1,)),
    "texts": (spark.StructType([spark.StructField("t", spark.StringType())]), ("x",)),
    "array": (spark.ArrayType(spark.LongType()), [1]),
    "map": (spark.MapType(spark.StringType(), spark.LongType()), {"x": 1}),
}


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


@pytest.mark.parametrize("kind", ["double", "float"])
@pytest.mark.parametrize("how", ["min", "max"])
def test_nan_is_the_greatest_in_whatever_order_form_and_batches(kind: str, how: Any, lab: ProgramLab) -> None:  # noqa: ANN401
    rng = np.random.default_rng(7)
    program = [ReducingState("it", TYPES[kind], how)]
    pool = [NAN, -NAN, 0.0, -0.0, 1.5, -2.5, float("inf"), float("-inf")]
    users = [f"u{n}" for n in range(40)]
    given = {user: [pool[n] for n in rng.integers(0, len(pool), rng.integers(1, 7))] for user in users}
    given |= {"only NaN": [NAN], "zeros": [0.0, -0.0], "ones": [-0.0, 0.0], "last": [NAN, 1.0], "first": [1.0, NAN]}

    def expected(values: list[float]) -> float:
        in_order = sorted(values, key=lambda value: (value != value, value, np.copysign(1, value)))  # noqa: PLR0124
        return in_order[0] if how == "min" else in_order[-1]

    def alike(one: float, other: float) -> bool:
        return (one != one and other != other) or (one, np.copysign(1, one)) == (other, np.copysign(1, other))  # noqa: PLR0124

    def one_by_one(bound: Any) -> None:  # noqa: ANN401
        for user, values in given.items():
            for value in values:
                bound.at(f"one {user}")["it"].add(value)
            assert alike(bound["it"].get(), expected(values)), (values, bound["it"].get())

    def at_once(part: int) -> Callable[[Any], None]:
        def use(bound: Any) -> None:  # noqa: ANN401
            keys = keys_of(list(given))
            names = keys.column("user").to_pylist()
            rows = [(at, value) for at, name in enumerate(names) for value in given[name][part::2]]
            index, values = zip(*rows, strict=True)
            bound["it"].add_rows(keys, np.array(index), pa.array(values, resolve_type(TYPES[kind], "it").arrow))
            if part:
                for name, found in zip(names, bound["it"].get_values(keys).to_pylist(), strict=True):
                    assert alike(found, expected(given[name])), (given[name], found)

        return use

    lab.run(program, one_by_one)
    lab.run(program, at_once(0), many_keys=True)
    lab.run(program, at_once(1), many_keys=True)


def test_structs_and_arrays_are_reduced_in_sparks_order(lab: ProgramLab) -> None:
    pair = spark.StructType([spark.StructField("f", spark.DoubleType()), spark.StructField("t", spark.StringType())])
    program = [
        ReducingState("least", pair, "min"),
        ReducingState("most", pair, "max"),
        ReducingState("long", spark.ArrayType(spark.DoubleType()), "max"),
    ]

    def use(bound: Any) -> None:  # noqa: ANN401
        bound.at("a")
        for given in ((NAN, "a"), (1.0, None), {"f": 1.0, "t": "b"}, (None, "z")):
            bound["least"].add(given)
            bound["most"].add(given)
        for elements in ([1.0], [1.0, None], [NAN], [float("inf"), 5.0]):
            bound["long"].add(elements)
        assert bound["least"].get() == (None, "z")
        assert np.isnan(bound["most"].get().f)
        assert np.isnan(bound["long"].get()).tolist() == [True]

    lab.look(program, use)
    with pytest.raises(InvalidInputError, match=r"'it' keeps the min of values of type map<.*>, which have no order"):
        lab.look([ReducingState("m", NESTED["map"][0], "min")], use)


@pytest.mark.parametrize("value", [2.5, "3", True, None, NAN])
def test_a_value_that_is_none_of_the_type_is_refused_also_where_it_would_lose(value: Any, lab: ProgramLab) -> None:  # noqa: ANN401
    def use(bound: Any) -> None:  # noqa: ANN401
        bound.at("a")["most"].add(5)
        if value is None:
            bound["most"].add(value)
        else:
            with pytest.raises(InvalidInputError, match="State 'most' of operator 'it': its value is of type int64"):
                bound["most"].add(value)
        assert bound["most"].get() == 5

    lab.look([ReducingState("most", spark.LongType(), "max")], use)


def test_a_counter_counts_integers_and_nothing_else(lab: ProgramLab) -> None:
    def use(bound: Any) -> None:  # noqa: ANN401
        skipped = bound["skipped"]
        skipped.add()
        skipped.add(np.int64(2))
        skipped.add(-1)
        for wrong in (2.5, 2.0, NAN, "1", True, None, np.float64(1), Decimal(1), 2**63, pd.NA):
            with pytest.raises(InvalidInputError, match="MetricCounter 'skipped'"):
                skipped.add(wrong)
        assert bound.session.counts["it/skipped"] == 2
        assert type(bound.session.counts["it/skipped"]) is int

    lab.run([MetricCounter("skipped"), ValueState("value", spark.LongType())], use)
    assert lab.metrics["it/skipped"] == 2


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
