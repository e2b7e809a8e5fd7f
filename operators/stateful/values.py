"""The tuples of a state variable: what a program gives and gets, and how they are stored."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pyspark_ckpt.operators.groups.values import GroupValues
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.state_store.errors import InvalidInputError

_NONE = type(None)


class Tuples:
    """Converts tuples of one type, as Spark's state variables do, one at a time or as a column."""

    def __init__(self, name: str, kind: pa.StructType) -> None:
        """``name``: the name of the state variable, for errors."""
        self._name = name
        self._values = GroupValues(name, kind)
        self._plain = [_plain_types(field) for field in kind]
        self._known: set[tuple[type, ...]] = set()
        """Types of values, in the order of the fields, that are stored unchanged."""
        self.column = self._values.column
        self.of_column = self._values.of
        self.show = self._values.show

    def take(self, given: Any) -> tuple[Any, ...]:
        """Return a tuple that a program gives, as it will get it back. Raises InvalidInputError."""
        if type(given) is tuple and self._is_plain(given):
            return given
        shown: tuple[Any, ...] = self.of_column(self._convert(given))[0]
        return shown

    def store(self, given: Any) -> Any:
        """Return a tuple that a program gives, as a state takes it. Raises InvalidInputError."""
        if type(given) is tuple and self._is_plain(given):
            return given
        return python_values(self._convert(given))[0]

    def _is_plain(self, given: tuple[Any, ...]) -> bool:
        types = tuple(map(type, given))
        if types in self._known:
            return True
        is_plain = len(types) == len(self._plain) and all(
            each in plain for each, plain in zip(types, self._plain, strict=True)
        )
        if is_plain:
            self._known.add(types)
        return is_plain

    def _convert(self, given: Any) -> pa.StructArray:
        if not isinstance(given, (tuple, list)):
            raise InvalidInputError(
                f"State variable {self._name!r} is given {repr(given)[:200]} of type {type(given).__name__}.",
                hint="Give a tuple with a value for each field of its schema.",
            )
        return self.column([tuple(given)])


def _plain_types(field: pa.Field) -> frozenset[type]:
    """Return the Python types whose values are stored and read back unchanged; none if that depends on the value."""
    kind = field.type
    of_kind: frozenset[type] = frozenset()
    if pa.types.is_int64(kind):
        of_kind = frozenset({int})
    elif pa.types.is_boolean(kind):
        of_kind = frozenset({bool})
    elif pa.types.is_float64(kind):
        of_kind = frozenset({float})
    elif pa.types.is_string(kind):
        of_kind = frozenset({str})
    elif pa.types.is_binary(kind):
        of_kind = frozenset({bytes})
    return of_kind | {_NONE} if field.nullable else of_kind
