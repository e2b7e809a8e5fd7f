"""Types, and the calls that take a value of one: of states of every kind, and output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark

from pyspark_ckpt.operators import Context, KeyedProcessor, ListState, MapState, ReducingState, ValueState
from pyspark_ckpt.operators.declarations.operator import Input, KeyedOperator
from pyspark_ckpt.operators.rows.base import Position
from pyspark_ckpt.operators.task.processor_calls import ProcessorCalls
from pyspark_ckpt.operators.types.value_types import resolve_type

NAN = float("nan")
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


class Pages(KeyedProcessor):
    """Has a name for messages."""

    def process(self, _ctx: Context, _key: Any, _rows: Any) -> Iterator[Any]:  # noqa: ANN401
        """Outputs nothing."""
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

NESTED = {
    "number": (spark.LongType(), 1),
    "text": (spark.StringType(), "x"),
    "numbers": (spark.StructType([spark.StructField("n", spark.LongType())]), (1,)),
    "texts": (spark.StructType([spark.StructField("t", spark.StringType())]), ("x",)),
    "array": (spark.ArrayType(spark.LongType()), [1]),
    "map": (spark.MapType(spark.StringType(), spark.LongType()), {"x": 1}),
}
"""Types within types, and a value of each."""
