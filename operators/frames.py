"""Check what a user gives a keyed operator: frames, names of columns, types of keys, and the output's columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.types.columns import has_variant
from pyspark_ckpt.operators.types.value_types import resolve_type
from pyspark_ckpt.pyspark_releases import refuse_connect
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.extras import require_extra
from pyspark_ckpt.state_store.format.key_groups import MAX_PARALLELISM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Columns:
    """The columns of a frame. ``is_case_sensitive``: whether Spark tells their names apart by letter case."""

    schema: StructType
    is_case_sensitive: bool = False

    @classmethod
    def of(cls, frame: DataFrame) -> Columns:
        """Return the columns of a Spark frame."""
        return cls(frame.schema, frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true")


def require_frame(
    frame: object, who: str, hint: str = "Give a streaming DataFrame, such as spark.readStream...load()."
) -> None:
    """Raise InvalidInputError unless ``frame`` is a Spark DataFrame."""
    require_extra("pyspark", who)
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame):
        refuse_connect(frame, who)
        raise InvalidInputError(
            f"{who}: {type(frame).__name__} is not a Spark DataFrame.",
            hint=hint,
        )


def find_names(columns: Columns, given: Any, who: str, what_for: str) -> tuple[str, ...]:
    """Return the column names as the frame spells them. Raises InvalidInputError."""
    from pyspark.sql import Column

    known = columns.schema.names

    names = (given,) if isinstance(given, (str, Column)) or not isinstance(given, Iterable) else tuple(given)
    if others := [name for name in names if not isinstance(name, str)]:
        raise InvalidInputError(
            f"{who}: {others[0]!r} is not the name of a column {what_for}.",
            hint="Give names as text; make an expression a column with withColumn() first.",
        )
    fold = str if columns.is_case_sensitive else str.lower
    found = {name: [column for column in known if fold(column) == fold(name)] for name in names}
    if missing := [name for name, same in found.items() if not same]:
        meant = suggest(missing[0], known)
        raise InvalidInputError(f"{who}: there are no columns {missing} {what_for}, only {known}.{meant}")
    if several := [same for same in found.values() if len(same) > 1]:
        raise InvalidInputError(
            f"{who}: there are several columns {several[0]} {what_for}.", hint="Rename all but one of them."
        )
    return tuple(found[name][0] for name in names)


def find_keys(columns: Columns, given: Any, who: str) -> tuple[str, ...]:
    """Return the names of the key columns, at least one, each once. Raises InvalidInputError."""
    names = find_names(columns, given, who, "to key by")
    if not names:
        raise InvalidInputError(f"{who}: there are no columns to key by; the frame has {columns.schema.names}.")
    if len(set(names)) < len(names):  # stored keys name their columns
        raise InvalidInputError(f"{who}: a column is given twice to key by: {list(names)}.")
    return names


def quote(name: str) -> str:
    """Return the name of a column as Spark's SQL reads it, whatever characters it has."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def resolve_columns(ddl: StructType | str, what: str) -> StructType:
    """Return the columns of ``what``, declared as a StructType or as Spark DDL. Raises InvalidInputError."""
    require_extra("pyspark", f"The type of {what}")
    from pyspark.sql.types import StructType

    kind = resolve_type(ddl, what)
    if not pa.types.is_struct(kind.arrow):
        raise InvalidInputError(f"{what} has the type {ddl!r}: give columns, like 'user string, views long'.")
    found = StructType.fromJson(kind.schema)
    if not found.names:
        raise InvalidInputError(f"{what} has no columns: give some, like 'user string, views long'.")
    if twice := sorted({name for name in found.names if found.names.count(name) > 1}):
        raise InvalidInputError(f"{what} has several columns {twice[0]!r}.", hint="Give each column its own name.")
    return found


def check_key(schema: StructType, name: str, kind: pa.DataType, who: str) -> None:
    """Raise InvalidInputError for a type that Spark cannot group by, or text that is not compared by its bytes."""
    declared = schema[name].dataType
    refused = f"{who}: column {name!r} of type {declared.simpleString()} cannot be a key."
    try:
        KeyCodec([kind])
    except InvalidInputError as problem:
        raise InvalidInputError(refused, hint="Key by its parts, or by another form of it.") from problem
    if has_variant(kind):
        raise InvalidInputError(refused, hint="Key by a value that variant_get extracts from it.")
    if " collate " in declared.simpleString():
        hint = "Key by collation_key of the column, or by a column of type string."
        raise InvalidInputError(refused, hint=hint)


def check_order(schema: StructType, name: str, kind: pa.DataType, who: str) -> None:
    """Raise InvalidInputError for a type that Spark cannot order by, or text that is not ordered by its bytes."""
    declared = schema[name].dataType.simpleString()
    refused = f"{who}: rows cannot be ordered by column {name!r} of type {declared}."
    try:
        KeyCodec([kind])
    except InvalidInputError as problem:
        raise InvalidInputError(refused, hint="Order by its parts, or by another form of it.") from problem
    if has_variant(kind) or " collate " in declared:
        raise InvalidInputError(refused, hint="Order by another form of it, such as a column of type string.")


def read_groups(given: object, who: str, what: str = "max_parallelism") -> int:
    """Return the number of key groups, or of partitions: ``what``. Raises InvalidInputError."""
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or not 1 <= given <= MAX_PARALLELISM:
        raise InvalidInputError(f"{who}: {what} must be an integer, 1 to {MAX_PARALLELISM}, got {given!r}.")
    return int(given)
