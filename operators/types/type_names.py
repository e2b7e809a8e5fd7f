"""Names of types: Arrow's, by which types of a keyed operator's key columns are stored, and Spark's, for users."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pyarrow as pa

from pyspark_ckpt.operators.types.stored_types import is_variant
from pyspark_ckpt.state_store.errors import FormatError

_PLAIN: Mapping[str, pa.DataType] = {
    str(kind): kind
    for kind in (
        pa.null(),
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
        pa.duration("us"),
        pa.time64("ns"),
        pa.string(),
        pa.binary(),
    )
}
_SPARK: Mapping[pa.DataType, str] = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.duration("us"): "interval day to second",
    pa.time64("ns"): "time(6)",
    pa.string(): "string",
    pa.binary(): "binary",
}
_DECIMAL = re.compile(r"decimal(?:128)?\((\d{1,2}), (\d{1,2})\)")
_PLAIN_NAME = re.compile(r"[a-z0-9]+(\[[A-Za-z, =]+\])?")
_NOT_NULL = " not null"


def arrow_type_named(name: str) -> pa.DataType:
    """Return the type of a key whose Arrow name is ``name``. Raises FormatError."""
    try:
        kind, end = _type_at(name, 0)
    except (ValueError, LookupError, RecursionError, pa.ArrowException) as problem:
        raise _unknown(name, problem) from problem
    if end != len(name):
        raise _unknown(name, f"it ends with the unexpected text {name[end : end + 32]!r}")
    return kind


def spark_name(kind: pa.DataType) -> str:
    """Return the name of a type in Spark's DDL, as ``simpleString`` of PySpark, which is not needed."""
    if is_variant(kind):
        return "variant"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{spark_name(field.type)}' for field in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{spark_name(kind.key_type)},{spark_name(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{spark_name(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _SPARK[kind]


def _unknown(name: str, why: object) -> FormatError:
    return FormatError(f"The stored type {name[:200]!r} is not the type of a key: {why}.")


def _type_at(text: str, at: int) -> tuple[pa.DataType, int]:
    """Return the type whose name begins at ``at``, and where the name ends. Raises ValueError, LookupError."""
    for head, read in _NESTED.items():
        if text.startswith(head, at):
            return read(text, at + len(head))
    decimal = _DECIMAL.match(text, at)
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2])), decimal.end()
    plain = _PLAIN_NAME.match(text, at)
    if plain is None:
        raise ValueError(f"there is no type at {text[at : at + 32]!r}")
    return _PLAIN[plain[0]], plain.end()


def _list_at(text: str, at: int) -> tuple[pa.DataType, int]:
    field, at = _field_at(text, at)
    return pa.list_(field), _after(text, at, ">")


def _struct_at(text: str, at: int) -> tuple[pa.DataType, int]:
    fields: list[pa.Field] = []
    while not text.startswith(">", at):
        field, at = _field_at(text, _after(text, at, ", ") if fields else at)
        fields.append(field)
    return pa.struct(fields), at + 1


def _field_at(text: str, at: int) -> tuple[pa.Field, int]:
    colon = text.index(": ", at)
    kind, end = _type_at(text, colon + 2)
    is_required = text.startswith(_NOT_NULL, end)
    return pa.field(text[at:colon], kind, nullable=not is_required), end + len(_NOT_NULL) * is_required


def _after(text: str, at: int, expected: str) -> int:
    if not text.startswith(expected, at):
        raise ValueError(f"{expected!r} is missing at {text[at : at + 32]!r}")
    return at + len(expected)


_NESTED: Mapping[str, Callable[[str, int], tuple[pa.DataType, int]]] = {"list<": _list_at, "struct<": _struct_at}
