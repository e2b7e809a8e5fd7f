"""Hypothesis strategies for the rows of a stream, and for how they are cut into batches. Needs Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from hypothesis import strategies as st

from pyspark_ckpt.operators.frames import resolve_columns
from pyspark_ckpt.operators.types.struct_values import struct_maker
from pyspark_ckpt.operators.types.value_types import hashable, make_handed_schema
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy
    from pyspark.sql.types import StructType

Matches: TypeAlias = Callable[[pa.DataType], bool]

FIRST, LAST = datetime.fromisoformat("2020-01-01"), datetime.fromisoformat("2029-12-31")
_PLAIN: Sequence[tuple[Matches, Callable[[Any], SearchStrategy[Any]]]] = (
    (pa.types.is_null, lambda _: st.none()),
    (pa.types.is_boolean, lambda _: st.booleans()),
    (pa.types.is_integer, lambda kind: st.integers(-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)),
    (pa.types.is_floating, lambda kind: st.floats(width=kind.bit_width)),
    (pa.types.is_string, lambda _: st.text(st.characters(exclude_categories=["Cs"]))),
    (pa.types.is_binary, lambda _: st.binary()),
    (pa.types.is_date, lambda _: st.dates(date(1900, 1, 1), date(2100, 1, 1))),
    (pa.types.is_duration, lambda _: st.timedeltas(-timedelta(days=10_000), timedelta(days=10_000))),
    (pa.types.is_time, lambda _: st.times()),
)


def rows(columns: StructType | str, **values: SearchStrategy[Any]) -> SearchStrategy[list[Any]]:
    """Return a strategy for lists of rows: named tuples with these ``columns``, a StructType or Spark DDL.

    ``values``: strategies for columns by name, such as ``user=st.sampled_from(["ada", "bob"])``. The others take any
    value of their type, and null; timestamps lie in the years 2020 to 2029. Raises InvalidInputError.
    """
    schema = make_handed_schema(resolve_columns(columns, "The rows"))
    if unknown := [name for name in values if name not in schema.names]:
        meant = suggest(unknown[0], schema.names)
        raise InvalidInputError(f"There is no column {unknown[0]!r}, only {schema.names}.{meant}")
    return st.lists(_struct(pa.struct(list(schema)), values))


def batches(columns: StructType | str, **values: SearchStrategy[Any]) -> SearchStrategy[list[list[Any]]]:
    """Return a strategy for the batches of a stream: lists of ``rows``, some of them empty."""
    return st.lists(rows(columns, **values))


def cuts(of: SearchStrategy[list[Any]]) -> SearchStrategy[list[list[Any]]]:
    """Return a strategy for the rows of another one, cut into batches."""

    @st.composite
    def cut(draw: st.DrawFn) -> list[list[Any]]:
        some = draw(of)
        ends = sorted(draw(st.sets(st.integers(0, len(some))))) if some else []
        return [some[begin:end] for begin, end in zip([0, *ends], [*ends, len(some)], strict=True)]

    return cut()


def _strategy(field: pa.Field) -> SearchStrategy[Any]:
    kind = _of_type(field.type)
    return st.none() | kind if field.nullable else kind


def _of_type(kind: pa.DataType) -> SearchStrategy[Any]:
    for matches, make in (*_NESTED, *_PLAIN):
        if matches(kind):
            return make(kind)
    raise InvalidInputError(f"There is no strategy for values of type {kind}.", hint="Give one for the column.")


def _decimal(kind: pa.Decimal128Type) -> SearchStrategy[Any]:
    most = Decimal((0, (9,) * kind.precision, -kind.scale))
    return st.decimals(most.copy_negate(), most, places=kind.scale)  # unary minus would round


def _timestamp(kind: pa.TimestampType) -> SearchStrategy[Any]:
    return st.datetimes(FIRST, LAST, timezones=st.just(timezone.utc) if kind.tz else st.none())


def _struct(kind: pa.StructType, values: Mapping[str, SearchStrategy[Any]]) -> SearchStrategy[Any]:
    make: Callable[[tuple[Any, ...]], Any] = struct_maker(kind)
    return st.tuples(*(values.get(field.name, _strategy(field)) for field in kind)).map(make)


_NESTED: Sequence[tuple[Matches, Callable[[Any], SearchStrategy[Any]]]] = (
    (pa.types.is_struct, lambda kind: _struct(kind, {})),
    (pa.types.is_map, lambda kind: st.dictionaries(_of_type(kind.key_type).map(hashable), _strategy(kind.item_field))),
    (pa.types.is_list, lambda kind: st.lists(_strategy(kind.value_field))),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_timestamp, _timestamp),
)
