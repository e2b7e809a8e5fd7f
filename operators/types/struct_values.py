"""Structs and rows in Python: the named tuples that programs get, and the fields of what they give."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import pyarrow as pa

from pyspark_ckpt.state_store.errors import InvalidInputError

_ORDERS = 1024
"""How many pairs of orders of fields are remembered: a program has few."""


def field_names(kind: pa.StructType) -> tuple[str, ...]:
    """Return the names of a struct's fields, for ``get_fields``."""
    return tuple([field.name for field in kind])


def struct_maker(kind: pa.StructType) -> Callable[[Iterable[Any]], Any]:
    """Return a function that makes the named tuple of a struct or a row of as many values as it has fields.

    It takes a third of the time of the class itself, because it does not count them. ``row["n"]`` is a field, too, also
    one whose name is not an identifier.
    """
    return partial(tuple.__new__, struct_class(field_names(kind)))


@cache
def struct_class(names: tuple[str, ...]) -> type[Any]:
    """Return the class of the named tuples with fields of these names."""
    places = {name: place for place, name in enumerate(names) if names.count(name) == 1}
    at = tuple.__getitem__

    def get_item(row: tuple[Any, ...], which: Any) -> Any:
        if type(which) is str:
            if which not in places:
                found = "are several fields" if which in names else "is no field"
                raise KeyError(f"there {found} {which!r} in {list(names)}")
            return at(row, places[which])
        return at(row, which)

    # namedtuple gives another name to one that is not an identifier
    own = {"__slots__": (), "__getitem__": get_item, "_fields": names}
    return type("Row", (namedtuple("Row", names, rename=True),), own)  # noqa: PYI024


def get_fields(value: Any, names: tuple[str, ...]) -> Sequence[Any]:
    """Return the fields of a struct that a user gives as a sequence, a mapping or an object with these attributes.

    Values with names are taken by name: those of a mapping or an object, and those of a named tuple or a ``Row`` that
    has exactly ``names``. Other sequences are taken by position.

    Raises TypeError, ValueError (also for a field that is missing, or that has the name of one elsewhere),
    AttributeError.
    """
    kind = type(value)
    if kind is not tuple and kind is not list:
        if not isinstance(value, (tuple, list)):
            return _get_named(value, names)
        own = getattr(value, "__fields__", None) or getattr(value, "_fields", None)
        if own is not None and own != names and (order := _find_order(tuple(own), names)) is not None:
            return [value[place] for place in order]
    if len(value) != len(names):
        raise ValueError(f"{len(value)} values are given for the fields {list(names)}")
    found: Sequence[Any] = value
    return found


def require_order(value: tuple[Any, ...] | list[Any], names: tuple[str, ...], whose: str) -> None:
    """Raise InvalidInputError for values with the names of ``whose`` fields in another order.

    For calls in which Spark takes any sequence by position, so that a program may count on either.
    """
    if type(value) is tuple or len(value) != len(names):
        return
    try:
        is_in_order = get_fields(value, names) is value
    except ValueError:
        is_in_order = False
    if not is_in_order:
        raise InvalidInputError(
            f"{whose} is given {repr(value)[:200]}, whose fields are in another order than {list(names)}.",
            hint="Give a tuple in this order: Spark would take the values by position.",
        )


def _get_named(value: Any, names: tuple[str, ...]) -> Sequence[Any]:
    is_mapping = isinstance(value, Mapping)
    if not names and not is_mapping:  # every object has all of no fields
        raise TypeError(f"{repr(value)[:200]} of type {type(value).__name__} is not a struct")
    if len(set(names)) < len(names):
        raise ValueError(f"several of the fields {list(names)} share a name, so give a tuple of all of them")
    if not is_mapping:
        return [getattr(value, name) for name in names]
    if unknown := [name for name in value if name not in names]:
        raise ValueError(f"there is no field {unknown[0]!r} in {list(names)}")
    if missing := [name for name in names if name not in value]:
        raise ValueError(f"the field {missing[0]!r} is missing. Give None for null")
    return [value[name] for name in names]


@lru_cache(maxsize=_ORDERS)
def _find_order(own: tuple[str, ...], names: tuple[str, ...]) -> Sequence[int] | None:
    """Return where the values of ``names`` are among those named ``own``; None if they are taken by position.

    Raises ValueError (some names stand at another place, so that a position may be a mistake).
    """
    if len(own) != len(names) or own == names:
        return None
    if len(set(names)) == len(names) and set(own) == set(names):
        return tuple([own.index(name) for name in names])
    for place, (mine, name) in enumerate(zip(own, names, strict=True)):
        if mine.lower() != name.lower() and mine.lower() in [each.lower() for each in names]:
            raise ValueError(
                f"it has the fields {list(own)} for {list(names)}: {mine!r} is number {place + 1}, where {name!r} "
                "belongs. Give exactly these names, or a tuple to go by position"
            )
    return None
