"""Stored types are read without PySpark, as PySpark reads them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.testing import objects

from pyspark_ckpt.operators.types.stored_types import arrow_type
from pyspark_ckpt.operators.types.type_names import spark_name
from pyspark_ckpt.state_store.errors import FormatError

PLAIN = [
    spark.NullType(),
    spark.BooleanType(),
    spark.ByteType(),
    spark.ShortType(),
    spark.IntegerType(),
    spark.LongType(),
    spark.FloatType(),
    spark.DoubleType(),
    spark.DecimalType(),
    spark.DecimalType(38, 18),
    spark.StringType(),
    spark.StringType("UTF8_LCASE"),
    spark.BinaryType(),
    spark.DateType(),
    spark.TimeType(),
    spark.TimestampType(),
    spark.TimestampNTZType(),
    spark.DayTimeIntervalType(),
    spark.DayTimeIntervalType(1, 2),
    spark.VariantType(),
]
NESTED = [
    spark.ArrayType(spark.LongType(), containsNull=False),
    spark.MapType(spark.StringType(), spark.ArrayType(spark.DateType()), valueContainsNull=False),
    spark.StructType(
        [
            spark.StructField("a", spark.LongType(), nullable=False),
            spark.StructField("b", spark.StructType([spark.StructField("a", spark.VariantType())])),
            spark.StructField("b", spark.StringType(), metadata={"comment": "twice"}),
        ]
    ),
    spark.StructType(),
]
UNSHOWN = [
    spark.CalendarIntervalType(),
    spark.GeometryType(4326),
    spark.GeographyType(4326),
    spark.CharType(3),
    spark.VarcharType(3),
]


@pytest.mark.parametrize("kind", PLAIN + NESTED, ids=str)
def test_a_type_is_read_and_named_as_pyspark_does(kind: spark.DataType) -> None:
    found = arrow_type(json.loads(kind.json()))
    expected = to_arrow_type(kind, timezone="UTC")
    assert found.equals(expected, check_metadata=True)
    assert spark_name(found) == from_arrow_type(expected).simpleString()


def test_an_interval_of_months_is_a_number() -> None:
    assert arrow_type(json.loads(spark.YearMonthIntervalType().json())) == pa.int32()


def test_a_user_defined_type_is_the_one_it_is_stored_as() -> None:
    point = objects.ExamplePointUDT()
    assert arrow_type(json.loads(point.json())) == to_arrow_type(point, timezone="UTC")


@pytest.mark.parametrize("kind", UNSHOWN, ids=str)
def test_a_type_without_arrow_values_is_named(kind: spark.DataType) -> None:
    with pytest.raises(FormatError, match="cannot be shown"):
        arrow_type({"type": "array", "elementType": json.loads(kind.json()), "containsNull": True})


@pytest.mark.parametrize(
    "kind", ["", "text", "decimal(9,2) ", "decimal(99,1)", "string collate", "int", "interval week"]
)
def test_a_name_of_no_type_is_refused(kind: str) -> None:
    with pytest.raises(FormatError, match="is not a type of Spark"):
        arrow_type(kind)
