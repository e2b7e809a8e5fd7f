"""What the state of an unchanged function takes and gives: as Spark, or not at all."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import Row, TimestampType

from pyspark_ckpt.operators.groups.values import GroupValues
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.state_store.errors import InvalidInputError

DAY = datetime(2024, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001 - Spark gives and takes local times
ELSEWHERE = DAY.replace(tzinfo=timezone(timedelta(hours=3)))
INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
NESTED = pa.struct([("at", INSTANT), ("n", pa.int32())])


class Level(IntEnum):
    """A number with a name."""

    HIGH = 2


def stored(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401
    """What a value is in the state, among others of its type."""
    column = GroupValues("state", pa.struct([("a", kind)])).column([(value,), None, (None,)])
    assert column.is_valid().to_pylist() == [True, False, True]
    assert column.field(0)[2].as_py() is None
    return python_values(column.field(0))[0]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (5, pa.string(), "5"),
        (True, pa.string(), "true"),
        (2.0, pa.string(), "2.0"),
        (0.001, pa.string(), "0.001"),
        (0.00025, pa.string(), "2.5E-4"),
        (9999999.0, pa.string(), "9999999.0"),
        (1e7, pa.string(), "1.0E7"),
        (-1.5e300, pa.string(), "-1.5E300"),
        (-0.0, pa.string(), "-0.0"),
        (math.nan, pa.string(), "NaN"),
        (-math.inf, pa.string(), "-Infinity"),
        (Decimal("1E+3"), pa.string(), "1E+3"),
        (Decimal("-0.00"), pa.string(), "0.00"),
        (Level.HIGH, pa.string(), "2"),
        (np.str_("x"), pa.string(), "x"),
        ("é", pa.binary(), "é".encode()),
        (bytearray(b"x"), pa.binary(), b"x"),
        (Decimal("1.235"), pa.decimal128(5, 2), Decimal("1.24")),
        (Decimal("-1.235"), pa.decimal128(5, 2), Decimal("-1.24")),
        (1e300, pa.float32(), math.inf),
        (DAY, pa.date32(), DAY.date()),
        (ELSEWHERE, pa.date32(), DAY.date()),
        (ELSEWHERE, LOCAL, DAY),
        (ELSEWHERE, INSTANT, ELSEWHERE),
        (pd.Timestamp(ELSEWHERE), INSTANT, ELSEWHERE),
        (pd.Timedelta(seconds=1), pa.duration("us"), timedelta(seconds=1)),
        ({"n": True, "at": ELSEWHERE}, NESTED, (ELSEWHERE, 1)),
        ([5, np.int64(6)], pa.list_(pa.string()), ["5", "6"]),
    ],
)
def test_a_value_is_converted_as_spark_converts_it(value: Any, kind: pa.DataType, expected: Any) -> None:  # noqa: ANN401
    found = stored(value, kind)
    assert (found, str(found)) == (expected, str(found)) or (math.isnan(found) and math.isnan(expected))


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (True, pa.int32(), 1),
        (2.0, pa.int32(), 2),
        (Decimal(2), pa.int64(), 2),
        (5, pa.float64(), 5.0),
        (Decimal("0.5"), pa.float32(), 0.5),
        (5, pa.decimal128(5, 2), Decimal("5.00")),
        (2.5, pa.decimal128(5, 2), Decimal("2.50")),
    ],
)
def test_a_number_of_another_type_is_kept_where_nothing_is_lost(
    value: Any,  # noqa: ANN401
    kind: pa.DataType,
    expected: Any,  # noqa: ANN401
) -> None:
    found = stored(value, kind)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2.5, pa.int32()),
        (math.nan, pa.int32()),
        ("7", pa.int32()),
        (1 << 40, pa.int32()),
        (1 << 70, pa.int64()),
        (Decimal("1.5"), pa.int64()),
        ("7", pa.float64()),
        ((1 << 53) + 1, pa.float64()),
        ((1 << 24) + 1, pa.float32()),
        (Decimal("0.1"), pa.float64()),
        (0.1, pa.decimal128(5, 2)),
        (Decimal(1000), pa.decimal128(5, 2)),
        (Decimal("NaN"), pa.decimal128(5, 2)),
        (1, pa.bool_()),
        (b"x", pa.string()),
        (["x"], pa.string()),
        (Decimal("NaN"), pa.string()),
        (5, pa.binary()),
        (5, pa.date32()),
        (date(2024, 1, 2), INSTANT),
        (5, INSTANT),
        (pd.NaT, INSTANT),
        (5, LOCAL),
        (5, pa.duration("us")),
        ("ab", pa.list_(pa.string())),
        ((ELSEWHERE,), NESTED),
        ({"nobody": 1}, NESTED),
        (5, NESTED),
    ],
)
def test_all_else_is_refused_with_the_state_its_type_and_the_value(value: Any, kind: pa.DataType) -> None:  # noqa: ANN401
    with pytest.raises(InvalidInputError) as problem:
        stored(value, kind)
    said = problem.value.message
    assert said.startswith(f"State 'state': its field 'a' of type {kind} cannot hold {value!r} of type ")
    assert type(value).__name__ in said


@pytest.mark.parametrize("value", [(1,), (1, 2, 3), ()])
def test_a_tuple_of_another_length_is_refused_with_the_fields(value: tuple[int, ...]) -> None:
    values = GroupValues("state", pa.struct([("a", INSTANT), ("b", pa.int32())]))
    with pytest.raises(InvalidInputError, match=r"State 'state' has the fields \['a', 'b'\], but .* values"):
        values.column([(DAY, 1), None, value])


def test_times_are_local_and_structs_are_rows_at_every_depth() -> None:
    kind = pa.struct(
        [
            ("one", NESTED),
            ("many", pa.list_(INSTANT)),
            ("named", pa.map_(NESTED, pa.struct([("at", LOCAL)]))),
            ("plain", pa.map_(pa.string(), pa.list_(pa.int32()))),
        ]
    )
    values = GroupValues("state", kind)
    state = ((DAY, 5), [DAY, None], {(DAY, None): (DAY,)}, {"a": [1]})
    column = values.column([state, None, (None, None, None, None)])
    assert column.field("many")[0].as_py()[0].timestamp() * 1e6 == TimestampType().toInternal(DAY)
    row = Row("at", "n")
    shown = (row(DAY, 5), [DAY, None], {row(DAY, None): Row("at")(DAY)}, {"a": [1]})
    found = values.of(column)
    assert repr(found) == repr([shown, None, (None, None, None, None)])
    assert found[0][0]["at"] == DAY
