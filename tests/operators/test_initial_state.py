"""Which columns an initial state may have: those that it may not are refused by name, before the query starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pyspark_ckpt.operators import Context, KeyedProcessor, ListState, MapState, Timers, ValueState, VectorProcessor
from pyspark_ckpt.operators.bound.declared_states import with_types
from pyspark_ckpt.operators.declarations.operator import HASH, Input, KeyedOperator
from pyspark_ckpt.operators.declarations.processors import find_states
from pyspark_ckpt.operators.initial_state import make_initial_schema
from pyspark_ckpt.operators.types.value_types import make_handed_schema
from pyspark_ckpt.state_store.errors import InvalidInputError

_USER = StructField("user", StringType())
_STREAM = StructType([_USER, StructField("at", types.TimestampType())])
_PAIR = StructType([StructField("n", LongType()), StructField("text", StringType())])


class Kinds(KeyedProcessor):
    """A state of each kind."""

    total = ValueState("total", LongType())
    pair = ValueState("pair", _PAIR)
    seen = ListState("seen", LongType())
    words = MapState("words", StringType(), LongType())
    due = Timers("due", clock="processing")

    def process(self, _ctx: Context, _key: Any, _rows: Any) -> None:  # noqa: ANN401
        """Not called."""

    def on_timer(self, _ctx: Context, _key: Any, _timer: Any) -> None:  # noqa: ANN401
        """Not called."""


class ByHand(Kinds):
    """Takes any columns."""

    def process_initial(self, _ctx: Context, _key: Any, _rows: Any) -> None:  # noqa: ANN401
        """Not called."""


class Columns(VectorProcessor):
    """One state."""

    total = ValueState("total", LongType())

    def process_batch(self, _ctx: Any, _batch: Any) -> None:  # noqa: ANN401
        """Not called."""


def _schema_of(processor: Any, *fields: StructField) -> pa.Schema:  # noqa: ANN401
    operator = KeyedOperator(
        uid="it",
        inputs=(Input("", ("user",), make_handed_schema(_STREAM)),),
        output=pa.schema([]),
        states=with_types(find_states(processor), "the operator"),
        partitions=1,
        max_parallelism=8,
        local_dir="",
        has_watermark=False,
        memory_bytes=1,
    )
    schema = make_initial_schema(
        StructType(list(fields)), _STREAM, operator, processor, "keyed(uid='it'): the initial state"
    )
    return replace(operator, initial=schema).initial


def test_columns_are_states_of_types_that_lose_nothing() -> None:
    found = _schema_of(
        Kinds(),
        StructField("words", types.MapType(StringType(), types.ShortType())),
        StructField("seen", types.ArrayType(types.IntegerType())),
        _USER,
        StructField("pair", StructType(list(reversed(_PAIR.fields)))),
        StructField("total", types.ByteType()),
    )
    assert found.names == ["words", "seen", "user", "pair", "total"]


def test_a_method_takes_any_columns() -> None:
    found = _schema_of(ByHand(), _USER, StructField("whatever", types.DoubleType()))
    assert found.names == ["user", "whatever"]
    assert _schema_of(ByHand(), _USER).names == ["user"]


@pytest.mark.parametrize(
    ("processor", "fields", "problem"),
    [
        (Kinds(), [("totl", LongType())], r"column 'totl', but Kinds declares the states .*'total'.* Did you mean"),
        (Kinds(), [("due", LongType())], "column 'due', but Kinds declares .*write a method process_initial"),
        (Columns(), [("seen", LongType())], "but Columns declares .*write a method process_initial_batch"),
        (Kinds(), [], "only the key columns"),
        (Kinds(), [("total", StringType())], "'total' of type string cannot fill the state .* of type int64"),
        (Kinds(), [("total", types.DoubleType())], "'total' of type double cannot fill the state"),
        (Kinds(), [("seen", LongType())], "'seen' of type int64 cannot fill the state"),
        (Kinds(), [("seen", types.ArrayType(StringType()))], "'seen' of type list.* cannot fill the state"),
        (Kinds(), [("words", types.MapType(LongType(), LongType()))], "'words' of type map.* cannot fill the state"),
        (Kinds(), [("pair", StructType([StructField("n", LongType())]))], "the fields must be"),
        (Kinds(), [("total", LongType()), ("total", LongType())], "several columns 'total'"),
        (ByHand(), [(HASH, LongType())], "is reserved"),
        (ByHand(), [("odd", types.CalendarIntervalType())], "cannot be passed to Python"),
    ],
)
def test_other_columns_are_refused_by_name(processor: Any, fields: Any, problem: str) -> None:  # noqa: ANN401
    with pytest.raises(InvalidInputError, match=problem) as refused:
        _schema_of(processor, _USER, *(StructField(*field) for field in fields))
    assert "keyed(uid='it'): the initial state" in str(refused.value)


@pytest.mark.parametrize("kind", [types.VarcharType(3), LongType(), StructType([_USER])])
def test_a_key_of_another_type_is_refused(kind: types.DataType) -> None:
    with pytest.raises(InvalidInputError, match=r"has the key 'user' of type .*, but in the stream its type is string"):
        _schema_of(Kinds(), StructField("user", kind), StructField("total", LongType()))
