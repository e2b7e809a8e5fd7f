"""Output rows in a form that can be counted and compared, whatever values they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

MAX_SHOWN = 20


def count_rows(rows: Sequence[Any]) -> dict[Any, int]:
    """Return how often each row is there."""
    return dict(Counter(map(freeze, rows)))


def last_by_key(rows: Sequence[Sequence[Any]], names: Sequence[str], key: Sequence[str]) -> dict[Any, Any]:
    """Return the last of the ``rows`` for each key. ``names``: of their columns; ``key``: some of these."""
    places = [names.index(name) for name in key]
    return {tuple(freeze(row[place]) for place in places): freeze(row) for row in rows}


def describe_differences(what: str, expected: Any, found: Any, where: tuple[str, str]) -> list[str]:  # noqa: ANN401
    """Return lines that say how the two results differ. ``where``: how each of them came about."""
    if isinstance(expected, dict) and isinstance(found, dict):
        places = [place for place in {**expected, **found} if expected.get(place) != found.get(place)]
        shown = [f"    {at}: {expected.get(at)} {where[0]}, {found.get(at)} {where[1]}" for at in places[:MAX_SHOWN]]
        more = [f"    and {len(places) - MAX_SHOWN} more"] if len(places) > MAX_SHOWN else []
        return [f"  {what}:", *shown, *more]
    return [f"  {what}: {expected} {where[0]}, {found} {where[1]}"]


def freeze(value: Any) -> Any:  # noqa: ANN401 - any value
    """Return the value in a form that can be a key of a dict: tuples for lists, sets of entries for maps, one NaN."""
    if isinstance(value, Mapping):
        return frozenset((freeze(key), freeze(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(freeze, value))
    return NAN if value != value else value  # noqa: PLR0124 - NaN is not equal to itself


class _Nan:
    """NaN, which is equal to itself, as it is for Spark."""

    def __repr__(self) -> str:
        return "nan"


NAN = _Nan()
