"""What the plan of a batch tells the workers of a task: which operators on groups its query has.

One task can run several of these operators if Spark needs no exchange between them: with one partition after
``coalesce``, or behind a source with one partition. Each has a worker and a ticket of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

OPERATORS_CONF = "ckpt.operators"
"""The local property of a task with one line for each operator of its query that is a Python function on groups.

A line has the operator's number; the clocks of the batch, in ms: the watermark, the processing time, and the event time
up to which a row is late (``-`` without a watermark); ``live`` in real-time mode, else ``-``; and the function's name.
"""


NO_WATERMARK = -1


@dataclass(frozen=True)
class Clocks:
    """The clocks of a batch, in ms since 1970; NO_WATERMARK without one. Rows up to ``late_ms`` are late."""

    watermark_ms: int
    processing_ms: int
    late_ms: int


@dataclass(frozen=True)
class ToldOperator:
    """One operator of a query, as the plan of a batch has it."""

    number: int
    clocks: Clocks
    is_live: bool
    """Whether rows come as long as the batch lasts."""
    name: str


def read_told(get_property: Callable[[str], str | None]) -> tuple[ToldOperator, ...]:
    """Return the operators on groups of a task's query; none if the query's session lacks the rules of the jar."""
    told = get_property(OPERATORS_CONF)
    return tuple(_read(*line.split(" ", 5)) for line in told.split("\n")) if told else ()


def find_own(told: tuple[ToldOperator, ...], name: str) -> ToldOperator | None:
    """Return the operator whose function has this ``name``, None if there is none."""
    return next((each for each in told if each.name == name), None)


def _read(number: str, watermark: str, processing: str, late: str, pace: str, name: str) -> ToldOperator:
    clocks = (NO_WATERMARK if each == "-" else int(each) for each in (watermark, processing, late))
    return ToldOperator(int(number), Clocks(*clocks), pace == "live", name)
