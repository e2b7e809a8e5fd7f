"""Output rows in a form that can be counted and compared, whatever values they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def count_rows(rows: Sequence[Any]) -> dict[Any, int]:
    """Return how often each row is there."""
    return dict(Counter(map(freeze, rows)))


def freeze(value: Any) -> Any:  # noqa: ANN401 - any value
    """Return an equal value that can be a key of a dict: with tuples for lists, and sets of entries for maps."""
    if isinstance(value, Mapping):
        return frozenset((freeze(key), freeze(each)) for key, each in value.items())
    return tuple(map(freeze, value)) if isinstance(value, (list, tuple)) else value
