"""A value that is converted on its own comes to the same as one that goes through a column."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row

from pyspark_ckpt.operators.stateful.values import Tuples
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.state_store.errors import InvalidInputError

AT = datetime(2024, 3, 31, 2, 30, 0, 7)  # noqa: DTZ001 - as Spark gives instants of states
LONDON = timezone(timedelta(hours=1))
INSTANT = pa.timestamp("us", "UTC")
NUMBER = pa.struct([("n", pa.int32()), ("t", pa.string())])
VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, np.bool_(1), 1, "x"],
    pa.int8(): [127, -128, 128, True, 1.0, np.int64(5)],
    pa.int32(): [0, 2**31 - 1, -(2**31), 2**31, 2.5, Decimal(3)],
    pa.int64(): [2**63 - 1, -(2**63), 2**63, "5"],
    pa.float32(): [0.1, 1e300, float("inf"), 5, np.float32(0.1)],
    pa.float64(): [0.1, 5, -0.0, np.float64(2)],
    pa.decimal128(9, 2): [
        Decimal("1.25"),
        Decimal("-0.00"),
        Decimal(1),
        Decimal("1.255"),
        5,
        Decimal("12345678.90"),
        0.5,
    ],
    pa.string(): ["é", "", 5, 1.5, b"x", np.str_("a")],
    pa.binary(): [b"", bytearray(b"x"), "x", memoryview(b"y")],
    pa.date32(): [date(2024, 1, 1), AT],
    INSTANT: [AT, AT.replace(tzinfo=LONDON), AT.replace(tzinfo=timezone.utc), AT.replace(fold=1), datetime(1, 1, 2), 5],  # noqa: DTZ001
    pa.timestamp("us"): [AT, AT.replace(tzinfo=LONDON), AT.replace(fold=1)],
    NUMBER: [
        (1, "a"),
        Row(n=1, t=None),
        Row(t="a", n=1),
        Row(t="a", m=1),
        {"n": 1},
        [2, "b"],
        {"n": 1, "t": "x"},
        (1,),
        (2**31, "a"),
        5,
    ],
    pa.list_(pa.int32()): [[1, None], [], (1, 2), [2**31], np.array([1, 2]), "ab"],
    pa.list_(NUMBER): [[(1, "a"), None], [Row(n=None, t="x")]],
    pa.map_(pa.string(), pa.int32()): [{"a": 1, "b": None}, {}, {None: 1}, {"a": "x"}, [("a", 1)]],
    pa.map_(NUMBER, INSTANT): [{(1, "a"): AT}],
    pa.struct([("at", INSTANT), ("deep", pa.struct([("at", INSTANT)]))]): [(AT, (AT,)), (AT, None)],
}


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, of_kind in VALUES.items() for value in of_kind])
def test_a_value_alone_is_that_of_a_column(kind: pa.DataType, value: Any) -> None:  # noqa: ANN401
    tuples = Tuples("it", pa.struct([("it", kind), ("no", kind)]))
    given = (value, None)
    try:
        column = tuples.column([given])
    except InvalidInputError:
        for convert in (tuples.take, tuples.store):
            with pytest.raises(InvalidInputError):
                convert(given)
    else:
        for _ in range(2):  # the second time, its types are known
            assert repr(tuples.take(given)) == repr(tuples.of_column(column)[0])
        assert tuples.store(given) == python_values(column)[0]
        assert repr(tuples.show(tuples.store(given))) == repr(tuples.of_column(column)[0])


def test_a_value_is_converted_after_one_that_needed_no_conversion() -> None:
    tuples = Tuples("it", pa.struct([("single", pa.float32()), ("small", pa.int8())]))
    assert tuples.take((0.5, 1)) == (0.5, 1)
    assert tuples.take((0.1, 1)) == (float(np.float32(0.1)), 1)
    with pytest.raises(InvalidInputError):
        tuples.take((0.5, 128))


def test_null_is_refused_where_a_field_is_not_null() -> None:
    tuples = Tuples("it", pa.struct([pa.field("it", pa.int64(), nullable=False)]))
    assert tuples.take((5,)) == (5,)
    for convert in (tuples.take, tuples.store):
        with pytest.raises(InvalidInputError):
            convert((None,))


def test_what_is_given_may_be_changed_afterwards() -> None:
    tuples = Tuples("it", pa.struct([("it", pa.list_(pa.int64()))]))
    given = [1, 2]
    taken, stored = tuples.take((given,)), tuples.store((given,))
    given.append(3)
    assert taken == stored == ([1, 2],)


def test_a_nested_row_goes_by_its_names_when_they_are_in_another_order() -> None:
    tuples = Tuples("it", pa.struct([("it", NUMBER)]))
    for convert in (tuples.take, tuples.store):
        assert convert((Row(t="a", n=1),)) == ((1, "a"),)


@pytest.mark.parametrize("given", [Row(t="a", n=1), Row(t="a", m=1)])
def test_names_in_another_order_are_refused_where_spark_takes_positions(given: Row) -> None:
    tuples = Tuples("it", NUMBER)
    for convert in (tuples.take, tuples.store):
        with pytest.raises(InvalidInputError, match="another order than"):
            convert(given)
        assert convert(Row(n=1, t="a")) == convert(Row(a=1, b="a")) == (1, "a")
