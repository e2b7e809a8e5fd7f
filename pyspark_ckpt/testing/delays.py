"""The delay of a watermark, as ``withWatermark`` reads it: text of an interval."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from fractions import Fraction

from pyspark_ckpt.state_store.errors import InvalidInputError

_UNITS_US: Mapping[str, int] = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 7 * 86_400_000_000,
    "month": 31 * 86_400_000_000,
    "year": 12 * 31 * 86_400_000_000,
}
"""A month has 31 days here, as in Spark (EventTimeWatermark.getDelayMs)."""
_PART = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s+([a-z]+)\s*")


def read_delay_ms(delay: object, what: str) -> int:
    """Return a delay in milliseconds. Raises InvalidInputError that names ``what``."""
    if isinstance(delay, timedelta):
        found = Fraction(delay // timedelta(microseconds=1))
    else:
        parts = _read_parts(delay) if isinstance(delay, str) else []
        if not parts:
            raise InvalidInputError(
                f"{what} is {delay!r}, which Spark does not read as an interval.", hint="Write it like '10 minutes'."
            )
        found = sum((number * unit_us for number, unit_us in parts), Fraction(0))
    if found < 0:
        raise InvalidInputError(f"{what} is {delay!r}, and must not be negative.")
    return int(found // 1000)


def _read_parts(text: str) -> list[tuple[Fraction, int]]:
    """Return numbers with their units in microseconds; nothing if the text is not an interval."""
    rest = re.sub(r"\A\s*interval\s", "", text.lower())
    found: list[tuple[Fraction, int]] = []
    while rest:
        part = _PART.match(rest)
        unit_us = None if part is None else _UNITS_US.get(part[2].removesuffix("s"))
        if part is None or unit_us is None or ("." in part[1] and not part[2].startswith("second")):
            return []
        found.append((Fraction(part[1]), unit_us))
        rest = rest[part.end() :]
    return found
