"""How far a batch ends behind its sources, counted in offsets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

MAX_DEPTH = 4
"""Kafka's entries have two levels: topics and their partitions."""


def count_backlog(sources: Iterable[Mapping[str, Any]]) -> int | None:
    """Return how many offsets the sources of a batch have beyond its end; None if no source reports them.

    An offset of Kafka is a record; other sources have units of their own.
    """
    found = [distance for each in sources if (distance := _find_distance(each)) is not None]
    return sum(found) if found else None


def _find_distance(source: Mapping[str, Any]) -> int | None:
    latest, end = source.get("latestOffset"), source.get("endOffset")
    return None if latest is None or end is None else count_between(end, latest)


def count_between(begin: Any, end: Any) -> int | None:  # noqa: ANN401 - JSON
    """Return how many offsets lie between two entries of one source; None if they cannot be compared as numbers.

    An entry is a number, or an object that has a number, or further objects, for each part of the source. A
    part that ``begin`` lacks is new, and counts from its first offset. A part that went back counts nothing.
    """
    return _measure(_decode(begin), _decode(end), MAX_DEPTH)


def _measure(begin: Any, end: Any, depth: int) -> int | None:  # noqa: ANN401 - JSON
    if _is_number(begin) and _is_number(end):
        return int(max(0, end - begin))
    if not isinstance(begin, dict) or not isinstance(end, dict) or depth == 0:
        return None
    total = 0
    for name, value in end.items():
        one = _measure(begin.get(name, {} if isinstance(value, dict) else 0), value, depth - 1)
        if one is None:
            return None
        total += one
    return total


def _decode(entry: Any) -> Any:  # noqa: ANN401 - JSON
    """Decode an entry that may be JSON in a string."""
    if not isinstance(entry, str):
        return entry
    try:
        return json.loads(entry)
    except (ValueError, RecursionError):
        return entry


def _is_number(entry: object) -> bool:
    return isinstance(entry, int) and not isinstance(entry, bool)
