"""What a keyed operator asks of Spark's frames: that they are some, their columns, the types of its output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_ckpt.operators.types.value_types import resolve_type
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.extras import require_extra

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def require_frame(
    frame: object, who: str, hint: str = "Give a streaming DataFrame, such as spark.readStream...load()."
) -> None:
    """Raise InvalidInputError unless ``frame`` is a Spark DataFrame."""
    require_extra("pyspark", who)
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame):
        raise InvalidInputError(
            f"{who}: {type(frame).__name__} is not a DataFrame of Spark.",
            hint=hint,
        )


def find_names(frame: DataFrame, given: Any, who: str, what_for: str) -> tuple[str, ...]:
    """Return the column names as the frame spells them. Raises InvalidInputError."""
    from pyspark.sql import Column

    names = (given,) if isinstance(given, (str, Column)) or not isinstance(given, Iterable) else tuple(given)
    if others := [name for name in names if not isinstance(name, str)]:
        raise InvalidInputError(
            f"{who}: {others[0]!r} is not the name of a column {what_for}.",
            hint="Give names as text; make an expression a column with withColumn() first.",
        )
    fold = str if frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else str.lower
    found = {name: [column for column in frame.columns if fold(column) == fold(name)] for name in names}
    if missing := [name for name, columns in found.items() if not columns]:
        meant = suggest(missing[0], frame.columns)
        raise InvalidInputError(f"{who}: there are no columns {missing} {what_for}, only {frame.columns}.{meant}")
    if several := [columns for columns in found.values() if len(columns) > 1]:
        raise InvalidInputError(
            f"{who}: there are several columns {several[0]} {what_for}.", hint="Rename all but one of them."
        )
    return tuple(found[name][0] for name in names)


def quote(name: str) -> str:
    """Return the name of a column as Spark's SQL reads it, whatever characters it has."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def require_jar(frame: DataFrame) -> None:
    """Raise InvalidInputError if the session, or the server of a Spark Connect session, does not have the jar."""
    if not frame.sparkSession.catalog.functionExists("ckpt_row"):
        raise InvalidInputError(
            "The session does not have the jar of pyspark-ckpt on its class path.",
            hint="Call pyspark_ckpt.configure(builder) before you create the session. Start a Spark Connect server "
            "with the settings of pyspark_ckpt.spark_conf().",
        )


def resolve_columns(ddl: StructType | str, what: str) -> StructType:
    """Return the columns of ``what``, declared as a StructType or as Spark DDL. Raises InvalidInputError."""
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
