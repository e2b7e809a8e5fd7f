"""Durations as users write them."""

from __future__ import annotations

import re
from datetime import timedelta

from pyspark_ckpt.state_store.errors import InvalidInputError

_UNITS_MS = {
    "millisecond": 1,
    "ms": 1,
    "second": 1000,
    "s": 1000,
    "minute": 60_000,
    "min": 60_000,
    "hour": 3_600_000,
    "h": 3_600_000,
    "day": 86_400_000,
    "d": 86_400_000,
    "week": 604_800_000,
}
_PART = re.compile(r"\s*(\d+)\s*([a-zA-Z]+)\s*")


def milliseconds(duration: object) -> int:
    """Return a duration like ``"7 days"`` or ``"1 hour 30 minutes"`` in milliseconds. Raises InvalidInputError."""
    if isinstance(duration, timedelta):
        return duration // timedelta(milliseconds=1)
    parts = list(_PART.finditer(duration)) if isinstance(duration, str) else []
    units = [
        _UNITS_MS.get(word) or _UNITS_MS.get(word.removesuffix("s")) for _, word in (part.groups() for part in parts)
    ]
    if not parts or None in units or "".join(part.group() for part in parts) != duration:
        raise InvalidInputError(
            f"{duration!r} is not a duration.", hint="Write it like '7 days' or '1 hour 30 minutes'."
        )
    return sum(int(part.group(1)) * (unit or 0) for part, unit in zip(parts, units, strict=True))
