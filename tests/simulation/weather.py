"""What may befall requests for a while, by chance."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Weather:
    """Which faults may meet a request, how probable one is, and how long a request takes."""

    chance: float = 0.0
    kinds: tuple[str, ...] = ()
    latency_s: float = 0.01


CALM = Weather()

LATE_S = 300.0
"""A request that was given up arrives within this time, if ever."""
SLOW_S = 20.0
