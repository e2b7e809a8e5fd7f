"""Durations as users write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pyspark_ckpt.operators import Ttl
from pyspark_ckpt.operators.declarations.durations import milliseconds
from pyspark_ckpt.state_store.errors import InvalidInputError


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ("7 days", 604_800_000),
        ("1 hour 30 minutes", 5_400_000),
        ("250ms", 250),
        ("1 week", 604_800_000),
        (timedelta(seconds=1.5), 1500),
    ],
)
def test_durations_are_read(duration: str | timedelta, expected: int) -> None:
    assert milliseconds(duration) == expected


@pytest.mark.parametrize("duration", ["", "7", "days", "7 dayz", "-1 day", "1 day and 2 hours", 7])
def test_what_is_no_duration_is_refused_by_its_value(duration: object) -> None:
    with pytest.raises(InvalidInputError, match="not a duration"):
        milliseconds(duration)


def test_a_time_to_live_says_what_is_wrong_with_it() -> None:
    with pytest.raises(InvalidInputError, match="too short"):
        Ttl("0 days")
    assert Ttl("50000000000 days").duration_ms < 1 << 62
    with pytest.raises(InvalidInputError, match=r"'99999999999999999999 days' is too long"):
        Ttl("99999999999999999999 days")
    with pytest.raises(InvalidInputError, match="show_expired must be True or False, got 'no'"):
        Ttl("1 day", show_expired="no")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="clock is 'wall'"):
        Ttl("1 day", clock="wall")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="refresh is 'never'"):
        Ttl("1 day", refresh="never")  # type: ignore[arg-type]
