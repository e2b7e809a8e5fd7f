"""One table of conversions: what a type takes is the same for states, keys and output, one by one and as columns."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from pyspark_ckpt.operators import ListState, MetricCounter, ValueState
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.labs.program_lab import ProgramLab
from tests.labs.session_lab import keys_of
from tests.operators.types.typed_calls import CALLS, NAN, TYPES, states, work

AT = datetime(2020, 1, 2, 3, 4, 5, 678901, timezone.utc)
FAR_ZONE = timezone(timedelta(hours=1, seconds=17, microseconds=500_000))

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


@pytest.mark.parametrize("values", ["abc", b"abc", {"a": 1}, 5, None])
def test_what_is_no_list_is_not_taken_as_one(values: Any, lab: ProgramLab) -> None:  # noqa: ANN401
    def use(bound: Any) -> None:  # noqa: ANN401
        bound.at("a")["list"].add("x")
        for call in ("add_all", "update"):
            with pytest.raises(InvalidInputError, match="State 'list'"):
                getattr(bound["list"], call)(values)
        assert list(bound["list"].get()) == ["x"]

    lab.look([ListState("list", spark.StringType())], use)


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
