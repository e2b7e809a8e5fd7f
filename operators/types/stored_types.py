"""Types as they are stored, in Spark's JSON, and the Arrow types in which their values are shown.

PySpark is not needed. Source of the format: ``DataType.json`` of Spark 4.3. The Arrow types are those of PySpark's
``to_arrow_type``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pyspark_ckpt.state_store.errors import FormatError

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
PLAIN: Mapping[str, pa.DataType] = {
    "void": pa.null(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 0),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "variant": VARIANT,
}
"""Types without parameters, by their names in Spark's JSON."""
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(-?\d{1,2})\s*\)")
_WITH_PARAMETERS = (
    (re.compile(r"string\s+collate\s+\w+"), pa.string()),
    (re.compile(r"time\(\s*\d+\s*\)"), pa.time64("ns")),
    (re.compile(r"interval (day|hour|minute|second)( to (day|hour|minute|second))?"), pa.duration("us")),
    (re.compile(r"interval (year|month)( to (year|month))?"), pa.int32()),  # Spark holds a number of months
)
_NOT_SHOWN = re.compile(r"interval|geometry(\(.*\))?|geography(\(.*\))?|(var)?char\(\s*\d+\s*\)")
"""Types that Arrow has no type for, or only a struct that does not match Spark's rows."""
_FIELD_METADATA = b"SPARK::metadata::json"
_COLLATIONS = "__COLLATIONS"


def is_variant(kind: pa.DataType) -> bool:
    """Whether this is a VARIANT: a struct of value and metadata, whose metadata field PySpark has marked."""
    return pa.types.is_struct(kind) and any((field.metadata or {}).get(b"variant") == b"true" for field in kind)


class _NotShownError(Exception):
    """A part of a type has values that cannot be shown."""


def arrow_type(schema: Any) -> pa.DataType:
    """Return the Arrow type of a stored type in Spark's JSON. Raises FormatError (not a type, or cannot be shown).

    A user-defined type becomes the type it is stored as: its class is not imported.
    """
    try:
        return _type_of(schema)
    except _NotShownError as problem:
        raise FormatError(
            f"Values of type {problem} cannot be shown, but the stored type {repr(schema)[:200]} has some.",
            hint="Use Spark's own reader of state, which shows them: spark.read.format('statestore').",
        ) from problem
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, pa.ArrowException) as problem:
        raise FormatError(f"The stored type {repr(schema)[:200]} is not a type of Spark: {problem!r}") from problem


def _type_of(schema: Any) -> pa.DataType:
    if isinstance(schema, str):
        return _type_named(schema)
    kind = schema["type"]
    if kind == "struct":
        return pa.struct([_field_of(each) for each in schema["fields"]])
    if kind == "array":
        return pa.list_(pa.field("element", _type_of(schema["elementType"]), nullable=schema["containsNull"]))
    if kind == "map":
        keys = pa.field("key", _type_of(schema["keyType"]), nullable=False)
        return pa.map_(keys, pa.field("value", _type_of(schema["valueType"]), nullable=schema["valueContainsNull"]))
    if kind == "udt":
        return _type_of(schema["sqlType"])
    raise ValueError(f"there is no type {kind!r}")


def _type_named(name: str) -> pa.DataType:
    if name in PLAIN:
        return PLAIN[name]
    decimal = _DECIMAL.fullmatch(name)
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    for pattern, kind in _WITH_PARAMETERS:
        if pattern.fullmatch(name):
            return kind
    if _NOT_SHOWN.fullmatch(name):
        raise _NotShownError(name)
    raise ValueError(f"there is no type {name[:200]!r}")


def _field_of(field: Mapping[str, Any]) -> pa.Field:
    metadata = {what: each for what, each in (field.get("metadata") or {}).items() if what != _COLLATIONS}
    kept = {_FIELD_METADATA: json.dumps(metadata).encode()} if metadata else None
    return pa.field(field["name"], _type_of(field["type"]), nullable=field.get("nullable", True), metadata=kept)
