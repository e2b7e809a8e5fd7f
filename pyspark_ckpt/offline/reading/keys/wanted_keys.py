"""Which rows a user means by a key: a value for each column, or for those that place it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from pyspark_ckpt.offline.reading.rows.state_codec import StateCodec, Wanted
from pyspark_ckpt.operators.types.conversions import WRONG_VALUE
from pyspark_ckpt.operators.types.struct_values import get_fields
from pyspark_ckpt.state_store.errors import InvalidInputError

Convert: TypeAlias = Callable[[Any, pa.DataType], Any]
"""Converts what a user gives, such as JSON, to a value of a type."""


def find_wanted(codec: StateCodec, key: Any, whose: str, convert: Convert | None) -> Wanted:  # noqa: ANN401 - any value
    """Return what to look up for a user's ``key``. Raises InvalidInputError."""
    fields, values = _choose_columns(codec, key, whose)
    if convert is not None:
        values = [convert(value, field.type) for value, field in zip(values, fields, strict=True)]
    try:
        return codec.find_wanted(values)
    except WRONG_VALUE as problem:
        kinds = ", ".join(f"{field.name} {field.type}" for field in codec.key_fields)
        raise InvalidInputError(
            f"{whose} has keys of {kinds}, but {key!r} does not fit: {problem}.",
            hint="Give a tuple with a value for each column. An array is one value: ([...],)."
            if isinstance(key, list)
            else "",
        ) from problem


def _choose_columns(codec: StateCodec, key: Any, whose: str) -> tuple[Sequence[pa.Field], Sequence[Any]]:  # noqa: ANN401
    """Return which columns a user gives, all or those that place a key, and their values. Raises InvalidInputError."""
    values = key if isinstance(key, (tuple, list, Mapping)) else (key,)
    for fields in (codec.key_fields, codec.placing_fields):
        names = [field.name for field in fields]
        if isinstance(values, Mapping):
            if values.keys() == set(names):
                return fields, [values[name] for name in names]
        elif len(values) == len(names):
            try:
                return fields, get_fields(values, tuple(names))
            except ValueError as problem:
                raise InvalidInputError(f"{whose} has keys of the columns {names}: {problem}.") from problem
    names, placing = ([field.name for field in fields] for fields in (codec.key_fields, codec.placing_fields))
    shown = f"{list(values)} are given" if isinstance(values, Mapping) else f"{len(values)} values are given"
    arrays = [field.name for field in codec.key_fields if pa.types.is_list(field.type)]
    one = f" An array is one of them: for {arrays[0]!r}, give a tuple with the array in it, ([...],)." if arrays else ""
    raise InvalidInputError(
        f"{whose} has keys of the columns {names}, but {shown}.",
        hint="Give all of them" + ("." if names == placing else f", or those that place a key: {placing}.") + one,
    )
