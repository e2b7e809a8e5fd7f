"""Output rows in a form that can be counted and compared, whatever values they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def count_rows(rows: Sequence[Any]) -> dict[Any, int]:
    """Return how often each row is there."""
    return dict(Counter(map(freeze, rows)))


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
