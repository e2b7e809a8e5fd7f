"""Values that became others without a word, or could not be read any more: refused by name, in both forms."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from pyspark_ckpt.operators import MapState, ReducingState, Timers, ValueState
from pyspark_ckpt.operators.bound.declared_states import with_types
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.labs.program_lab import Bound, ProgramLab
from tests.labs.session_lab import keys_of
from tests.operators.types.typed_calls import work

AT = datetime(2020, 1, 1, tzinfo=timezone.utc)
DAY_NS = 24 * 60 * 60 * 10**9
LONG, TEXT = spark.LongType(), spark.StringType()
PAIR_OF_ONE_NAME = spark.StructType([spark.StructField("a", LONG), spark.StructField("a", LONG)])
DATED = spark.StructType([spark.StructField("d", spark.DateType()), spark.StructField("t", TEXT)])

VALUES: dict[str, tuple[spark.DataType, Any]] = {
    "seconds beyond 64 bits": (spark.TimestampType(), np.datetime64(2**62, "s")),
    "hours beyond 64 bits": (spark.TimestampType(), np.datetime64("300000-01-01T00", "h")),
    "years beyond 64 bits": (spark.DateType(), np.datetime64(2**62, "Y")),
    "interval beyond 64 bits": (spark.DayTimeIntervalType(), np.timedelta64(2**62, "s")),
    "interval of no unit": (spark.DayTimeIntervalType(), np.timedelta64(5)),
    "days beyond 32 bits": (DATED, (np.datetime64(2**31, "D"), "x")),
    "one instant twice": (spark.MapType(spark.TimestampType(), LONG), {AT: 1, AT.replace(tzinfo=None): 2}),
    "one float twice": (spark.MapType(spark.FloatType(), LONG), {0.1: 1, np.float32(0.1): 2}),
    "one date twice": (spark.MapType(spark.DateType(), LONG), {date(2020, 1, 1): 1, np.datetime64("2020-01-01"): 2}),
    "a Series for a map": (spark.MapType(TEXT, LONG), pd.Series([1, 2], index=["a", "a"], dtype=object)),
    "a name that is two fields": (PAIR_OF_ONE_NAME, {"a": 7}),
    "a number for a struct of no fields": (spark.StructType([]), 5),
}
TIMES = [
    pa.array([1], pa.int64()).view(pa.time64("ns")),
    pa.array([DAY_NS], pa.int64()).view(pa.time64("ns")),
    pa.array([-1000], pa.int64()).view(pa.time64("ns")),
    pa.array([DAY_NS // 10**9], pa.int32()).view(pa.time32("s")),
]
COLUMNS: list[tuple[spark.DataType, pa.Array]] = [
    *((spark.TimeType(6), column) for column in TIMES),
    *((spark.ArrayType(spark.TimeType(6)), pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), c)) for c in TIMES),
    (spark.MapType(TEXT, LONG), pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))),
    (
        spark.MapType(spark.ArrayType(LONG), LONG),
        pa.array([[([1], 1), ([1], 2)]], pa.map_(pa.list_(pa.int64()), pa.int64())),
    ),
]
ADDS_NOTHING = [
    spark.DateType(),
    spark.TimestampType(),
    spark.TimeType(6),
    spark.BooleanType(),
    DATED,
    spark.MapType(TEXT, LONG),
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ProgramLab]:
    made = ProgramLab(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_would_become_another_is_refused_in_both_forms_and_as_output(name: str, lab: ProgramLab) -> None:
    kind, value = VALUES[name]

    def one_by_one(bound: Any) -> None:  # noqa: ANN401
        with pytest.raises(InvalidInputError, match=r"(?s)State 'it' of operator 'it': its value is of type"):
            bound.at("a")["it"].update(value)

    def at_once(bound: Any) -> None:  # noqa: ANN401
        with pytest.raises(InvalidInputError, match=r"(?s)State 'it' of operator 'it': its value is of type"):
            bound["it"].put(keys_of(["a"]), [value])

    lab.look([ValueState("it", kind)], one_by_one)
    lab.run([ValueState("it", kind)], at_once, many_keys=True, commits=False)
    with pytest.raises(InvalidInputError, match=r"(?s)keyed operator 'visits' .* column 'n'"):
        work(("n", kind))._batch("process", [(value,)])


@pytest.mark.parametrize(("kind", "column"), COLUMNS)
def test_a_column_that_could_not_be_read_again_is_refused(
    kind: spark.DataType, column: pa.Array, lab: ProgramLab
) -> None:
    def use(bound: Any) -> None:  # noqa: ANN401
        with pytest.raises(InvalidInputError, match=r"(?s)State 'it' of operator 'it': its value is of type"):
            bound["it"].put(keys_of(["a"]), column)

    lab.run([ValueState("it", kind)], use, many_keys=True, commits=False)
    with pytest.raises(InvalidInputError, match="keyed operator 'visits' returned a column 'n'"):
        work(("n", kind))._shape("process_batch", pa.table({"n": column}))


def test_maps_may_have_the_same_keys_as_other_maps(lab: ProgramLab) -> None:
    kind = spark.MapType(TEXT, LONG)
    given = pa.array([None, [("a", 1), ("b", 2)], [], [("a", 3), ("b", None)]], pa.map_(pa.string(), pa.int64()))[1:]

    def use(bound: Any) -> None:  # noqa: ANN401
        bound["it"].put(keys_of(["a", "b", "c"]), given)
        assert bound["it"].get(keys_of(["a", "b", "c"])).to_pylist() == given.to_pylist()

    lab.run([ValueState("it", kind)], use, many_keys=True)
    (batch,) = work(("n", kind))._shape("process_batch", pa.table({"n": given}))
    assert batch.column("n").to_pylist() == given.to_pylist()


def test_fields_of_one_name_keep_their_places(lab: ProgramLab) -> None:
    given = pa.StructArray.from_arrays([pa.array([1], pa.int32()), pa.array([2], pa.int32())], ["a", "a"])

    def use(bound: Any) -> None:  # noqa: ANN401
        bound["it"].put(keys_of(["a"]), given)
        assert [field.to_pylist() for field in bound["it"].get(keys_of(["a"])).flatten()] == [[1], [2]]

    lab.run([ValueState("it", PAIR_OF_ONE_NAME)], use, many_keys=True)


def test_a_sum_of_floats_that_is_too_large_is_refused_in_both_forms(lab: ProgramLab) -> None:
    program = [ReducingState("it", spark.FloatType(), "sum")]

    def one_by_one(bound: Any) -> None:  # noqa: ANN401
        bound.at("a")["it"].add(3e38)
        with pytest.raises(InvalidInputError, match="State 'it'"):
            bound["it"].add(3e38)

    def at_once(bound: Any) -> None:  # noqa: ANN401
        column = pa.array([3e38, 3e38], pa.float32())
        with pytest.raises(InvalidInputError, match="State 'it': the sum of its values is not a value of type float"):
            bound["it"].add_rows(keys_of(["a"]), np.array([0, 0]), column)
        bound["it"].add_rows(keys_of(["a"]), np.array([0]), pa.array([float("inf")], pa.float32()))
        assert bound["it"].get_values(keys_of(["a"])).to_pylist() == [float("inf")]

    lab.look(program, one_by_one)
    lab.run(program, at_once, many_keys=True, commits=False)


@pytest.mark.parametrize("kind", ADDS_NOTHING, ids=str)
def test_a_sum_of_what_cannot_be_added_is_refused_before_the_query(kind: spark.DataType) -> None:
    declared = {"it": ReducingState("it", kind, "sum")}
    with pytest.raises(InvalidInputError, match=r"visits: state 'it' keeps a sum, but values .* cannot be added"):
        with_types(declared, "visits")


def test_a_decimal_has_one_zero(lab: ProgramLab) -> None:
    def use(bound: Any) -> None:  # noqa: ANN401
        bound.at("a")["it"].update(Decimal("-0"))
        assert str(bound["it"].value()) == "0.00"

    lab.look([ValueState("it", spark.DecimalType(12, 2))], use)


@pytest.mark.parametrize("namespace", ["\ud800", 5, None, b"x"])
def test_a_namespace_that_is_no_text_is_refused_by_name(namespace: Any, lab: ProgramLab) -> None:  # noqa: ANN401
    def use(bound: Any) -> None:  # noqa: ANN401
        for call in ("register", "delete"):
            with pytest.raises(InvalidInputError, match="A timer has the namespace"):
                getattr(bound.at("a")["it"], call)(AT, namespace)

    lab.look([Timers("it", clock="event")], use)


def test_an_instant_that_is_none_is_not_told_to_be_rounded(lab: ProgramLab) -> None:
    def use(bound: Any) -> None:  # noqa: ANN401
        with pytest.raises(InvalidInputError, match="A timer is set to NaT of type NaTType"):
            bound.at("a")["it"].register(pd.NaT)

    lab.look([Timers("it", clock="event")], use)


@pytest.mark.parametrize("wrong", [{1: 1, 2: "x", 3: 3}, {1: 1, "x": 2}, {1: 1, None: 2}, [(1, 1)], pd.Series([1])])
def test_entries_of_which_one_is_refused_are_not_put_at_all(wrong: Any, tmp_path: Path) -> None:  # noqa: ANN401
    lab, declared = ProgramLab(tmp_path), [MapState("m", LONG, LONG)]

    def catch(states: Bound) -> None:
        entries = states.at("k")["m"]
        entries.put_all({0: 0, 4: 4})
        with pytest.raises(InvalidInputError, match="'m'"):
            entries.put_all(wrong)
        entries.put_all({4: None})

    lab.run(declared, catch)
    assert lab.look(declared, lambda states: dict(states.at("k")["m"].items())) == {0: 0}
    lab.close()
