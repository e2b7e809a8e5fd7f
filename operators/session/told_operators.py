"""What the plan of a batch tells the workers of a task: which operators on groups its query has.

One task can run several of these operators if Spark needs no exchange between them: with one partition after
``coalesce``, or behind a source with one partition. Each has a worker and a ticket of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

OPERATORS_CONF = "ckpt.operators"
"""The local property of a task with one line for each operator of its query that is a Python function on groups.

A line has the operator's number, the event time, in ms, up to which a row is late for it (``-`` without a watermark),
and the function's name.
"""


@dataclass(frozen=True)
class ToldOperator:
    """One operator of a query, as its plan has it. ``late_ms``: up to this event time a row is late, in this batch."""

    number: int
    late_ms: int | None
    name: str


def read_told(get_property: Callable[[str], str | None]) -> tuple[ToldOperator, ...]:
    """Return the operators on groups of a task's query; none if the query's session lacks the rules of the jar."""
    told = get_property(OPERATORS_CONF)
    return tuple(_read(*line.split(" ", 2)) for line in told.split("\n")) if told else ()


def find_own(told: tuple[ToldOperator, ...], name: str) -> ToldOperator | None:
    """Return the operator whose function has this ``name``, None if there is none."""
    return next((each for each in told if each.name == name), None)


def _read(number: str, late: str, name: str) -> ToldOperator:
    return ToldOperator(int(number), None if late == "-" else int(late), name)
