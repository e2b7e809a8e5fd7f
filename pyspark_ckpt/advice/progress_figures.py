"""What the progress of a query says: where the time of its batches goes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

MAX_BATCHES = 50
"""The figures are medians over the newest batches, at most so many."""

_STATE_TIMES = ("allUpdatesTimeMs", "allRemovalsTimeMs", "commitTimeMs")
_LOAD_TIME, _FORECAST = "ckptLoadTimeMs", "ckptRestoreForecastMs."
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class OperatorFigures:
    """One operator, in the median batch. ``task_ms`` and ``commit_ms``: summed over its partitions.

    ``task_ms`` is the time in which its tasks updated, removed, loaded and committed state; with keyed operators, that
    of the user's functions, too. ``forecast_ms``: the longest restore of a store in the newest batch; None if unknown.
    """

    number: int
    name: str
    partitions: int
    task_ms: float
    commit_ms: float
    rows: int
    forecast_ms: int | None


@dataclass(frozen=True)
class BatchFigures:
    """The median of ``batches`` batches with data. ``keeps_up``: whether rows are processed as fast as they come.

    ``batch_ms``: the whole trigger. ``run_ms``: running the batch (``addBatch``), without planning and logs.
    ``keeps_up`` is None if the source does not tell.
    """

    batches: int
    batch_ms: float
    run_ms: float
    keeps_up: bool | None
    operators: tuple[OperatorFigures, ...]


def find_progress(text: str) -> Iterator[dict[str, Any]]:
    """Yield every progress of a query in a text: lines of JSON, or a log, in which JSON may be over several lines."""
    at = text.find("{")
    while at >= 0:
        try:
            found, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if is_progress(found):
                yield found
        at = text.find("{", end)


def is_progress(found: object) -> bool:
    """Return whether a value of JSON is the progress of a query."""
    return isinstance(found, dict) and {"id", "batchId", "durationMs", "stateOperators"} <= found.keys()


def read_figures(progress: Iterable[Mapping[str, Any]]) -> BatchFigures | None:
    """Return the figures of the newest batches with data; None if there are none.

    The first batch of a run is left out if others are there: it restores state and warms up. So are batches in which
    stores were restored.
    """
    found = {(each["runId"], each["batchId"]): each for each in progress if "addBatch" in each["durationMs"]}
    first = {run: min(batch for other, batch in found if other == run) for run, _ in found}
    warm = [
        each
        for (run, batch), each in sorted(found.items(), key=lambda item: item[0][1])
        if batch != first[run] and each.get("numInputRows", 0) > 0 and not _restores(each)
    ]
    newest = warm[-MAX_BATCHES:]
    if not newest:
        return None
    numbers = range(len(newest[-1]["stateOperators"]))
    return BatchFigures(
        len(newest),
        median(float(each["durationMs"].get("triggerExecution", 0)) for each in newest),
        median(float(each["durationMs"]["addBatch"]) for each in newest),
        _keeps_up(newest),
        tuple(_read_operator(number, newest) for number in numbers),
    )


def _read_operator(number: int, batches: Sequence[Mapping[str, Any]]) -> OperatorFigures:
    seen = [each["stateOperators"][number] for each in batches if len(each["stateOperators"]) > number]
    newest = seen[-1]
    forecasts = [value for name, value in newest.get("customMetrics", {}).items() if name.startswith(_FORECAST)]
    return OperatorFigures(
        number,
        str(newest.get("operatorName", "")),
        int(newest.get("numShufflePartitions", 0)),
        median(_task_ms(each) for each in seen),
        median(float(each.get("commitTimeMs", 0)) for each in seen),
        int(newest.get("numRowsTotal", 0)),
        max(forecasts, default=None),
    )


def _task_ms(operator: Mapping[str, Any]) -> float:
    load_ms = operator.get("customMetrics", {}).get(_LOAD_TIME, 0)
    return float(sum(operator.get(name, 0) for name in _STATE_TIMES) + load_ms)


def _restores(progress: Mapping[str, Any]) -> bool:
    return any(each.get("customMetrics", {}).get("ckptRestores", 0) > 0 for each in progress["stateOperators"])


def _keeps_up(batches: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether rows are processed as fast as they come in most batches; None if the rates are missing."""
    pairs = [
        (float(each["inputRowsPerSecond"]), float(each["processedRowsPerSecond"]))
        for each in batches
        if each.get("inputRowsPerSecond") and each.get("processedRowsPerSecond")
    ]
    if not pairs:
        return None
    return 2 * sum(came <= processed for came, processed in pairs) > len(pairs)
