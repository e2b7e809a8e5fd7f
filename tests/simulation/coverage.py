"""What worlds have met of all that they may meet."""

from __future__ import annotations

from collections import Counter

from pyspark_ckpt.state_store.failpoints import NAMES, REQUESTS
from tests.simulation.events import EVENTS
from tests.simulation.invariants import KINDS
from tests.simulation.plan import PLACES
from tests.simulation.tools import WHAT
from tests.simulation.world import LAST_OF_BEGIN

_POINTS = sorted({*NAMES, *REQUESTS})
_FAULTS = sorted({fault for faults in PLACES.values() for fault in faults})
POSSIBLE = (
    *(f"event: {kind}" for kind in EVENTS),
    *(f"fault: {fault}" for fault in _FAULTS),
    *(f"fail point: {point}" for point in _POINTS),
    *(f"failure: {point}" for point in _POINTS if point != LAST_OF_BEGIN),
    *(f"tool: {what} {end}" for what in WHAT for end in ("is done", "fails")),
    *(f"deleted: {kind}" for kind in sorted(KINDS)),
    "place: damaged table files",
    "query: moved to another checkpoint",
)
"""All that worlds may meet, as they count it."""


def describe(met: Counter[str]) -> list[str]:
    """Return how often each thing was met, and a line with those that never were."""
    lines = [f"{times:>9} {what}" for what, times in sorted(met.items())]
    return [*lines, f"never met: {', '.join(name_missing(met)) or 'nothing'}"]


def name_missing(met: Counter[str]) -> list[str]:
    """Return what was never met."""
    return [what for what in POSSIBLE if not met[what]]
