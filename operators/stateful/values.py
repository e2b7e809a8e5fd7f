"""The tuples of a state variable: what a program gives and gets, and how they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pyspark_ckpt.operators.groups.values import GroupValues
from pyspark_ckpt.operators.stateful.plain_values import NotPlainError, convert_fields, copy_value, make_converter
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.operators.types.conversions import Convert
from pyspark_ckpt.operators.types.struct_values import field_names, require_order
from pyspark_ckpt.state_store.errors import InvalidInputError

_PYTHON_BITS = 64
_UNCHANGED = frozenset({int, bool, float, str, bytes, type(None)})


class Tuples:
    """Converts tuples of one type, as Spark's state variables do, one at a time or as a column."""

    def __init__(self, name: str, kind: pa.StructType) -> None:
        """``name``: the name of the state variable, for errors."""
        self._name = name
        self._kind = kind
        values = GroupValues(name, kind)
        self.column, self.of_column, self.show = values.column, values.of, values.show
        self._names = field_names(kind)
        self._can_change = any(pa.types.is_nested(field.type) for field in kind)
        self._read, self._stored = (
            [make_converter(field.type, is_nullable=field.nullable, as_read=as_read) for field in kind]
            for as_read in (True, False)
        )
        numbers = [each.type for each in kind if pa.types.is_integer(each.type) or pa.types.is_floating(each.type)]
        self._has_known = all(each.bit_width == _PYTHON_BITS for each in numbers)
        self._known: set[tuple[type, ...]] = set()
        """Python types of tuples that are kept unchanged, whatever their values are."""

    def copy(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a tuple for a program that may change its parts, such as lists."""
        return tuple(map(copy_value, value)) if self._can_change else value

    def take(self, given: Any) -> tuple[Any, ...]:
        """Return a tuple that a program gives, as it will read it back. Raises InvalidInputError."""
        if type(given) is tuple and tuple(map(type, given)) in self._known:
            return given
        taken = self._convert_alone(given, self._read)
        if taken is None:
            taken = self.of_column(self._convert(given))[0]
        return taken

    def store(self, given: Any) -> Any:
        """Return a tuple that a program gives, as a state takes it. Raises InvalidInputError."""
        if type(given) is tuple and tuple(map(type, given)) in self._known:
            return given
        stored = self._convert_alone(given, self._stored)
        return python_values(self._convert(given))[0] if stored is None else stored

    def _convert_alone(self, given: Any, fields: Sequence[Convert]) -> tuple[Any, ...] | None:
        """Return a converted tuple, None if it has to go through a column."""
        if not isinstance(given, (tuple, list)) or len(given) != len(fields):
            return None
        require_order(given, self._names, f"State variable {self._name!r}")
        try:
            converted = convert_fields(fields, given)
        except NotPlainError:
            return None
        types = tuple(map(type, given))
        if self._has_known and _UNCHANGED.issuperset(types) and converted == given:
            self._known.add(types)
        return converted

    def _convert(self, given: Any) -> pa.StructArray:
        if not isinstance(given, (tuple, list)):
            raise InvalidInputError(
                f"State variable {self._name!r} is given {repr(given)[:200]} of type {type(given).__name__}.",
                hint="Give a tuple with a value for each field of its schema.",
            )
        for field, value in zip(self._kind, given, strict=False):
            if value is None and not field.nullable:
                raise InvalidInputError(
                    f"State variable {self._name!r}: its field {field.name!r} is NOT NULL, but {repr(given)[:200]} is "
                    "given."
                )
        return self.column([tuple(given)])
