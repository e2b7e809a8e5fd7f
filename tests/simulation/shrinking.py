"""Find a shorter plan that goes wrong, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.plan import Plan
from tests.simulation.running import Outcome, simulate
from tests.simulation.weather import CALM

MAX_TRIES = 150


def shrink(outcome: Outcome) -> Outcome:
    """Return the outcome of the shortest plan that was found to go wrong, at the worst the one given."""
    shortest, tries = outcome, 0
    while tries < MAX_TRIES:
        for plan in _shorter(shortest.plan):
            tries += 1
            found = simulate(plan)
            if found.violation:
                shortest = found
                break
            if tries >= MAX_TRIES:
                break
        else:
            return shortest
    return shortest


def _shorter(plan: Plan) -> Iterator[Plan]:
    """Yield plans with less in them, those with much less first."""
    events = plan.events
    size = len(events)
    while size >= 1:
        for start in range(0, len(events), size):
            yield replace(plan, events=events[:start] + events[start + size :])
        size //= 2
    if plan.weather.kinds:
        yield replace(plan, weather=CALM)
        for kind in plan.weather.kinds:
            left = tuple(each for each in plan.weather.kinds if each != kind)
            yield replace(plan, weather=replace(plan.weather, kinds=left))
    if plan.partitions > 1:
        yield replace(plan, partitions=1)
    if plan.executors > 1:
        yield replace(plan, executors=plan.executors - 1)
    if plan.speculation:
        yield replace(plan, speculation=0.0)
    if plan.aborts:
        yield replace(plan, aborts=0.0)
