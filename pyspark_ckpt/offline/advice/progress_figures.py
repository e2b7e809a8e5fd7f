"""What the progress of a query says: where the time of its batches goes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

MAX_BATCHES = 50
"""The figures are medians over the newest batches, at most so many."""

MAX_BUSY_SHARE = 0.9
"""If batches run for a smaller share of the time, the query waits for rows."""

_STATE_TIMES = ("allUpdatesTimeMs", "allRemovalsTimeMs", "commitTimeMs")
_NUMBERS = (*_STATE_TIMES, "numShufflePartitions", "numRowsTotal")
_MEMBERS = {"id": str, "runId": str, "batchId": int, "durationMs": Mapping, "stateOperators": Sequence}
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
    ``keeps_up`` is True if the query waits between batches, and False if it does not and its sources have more rows
    than it takes. Else it is None: without a pause, the rates of a query say nothing about what is left in its sources.
    ``left_out``: how many batches with data do not count.
    """

    batches: int
    batch_ms: float
    run_ms: float
    keeps_up: bool | None
    operators: tuple[OperatorFigures, ...]
    left_out: int = 0


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
    """Return whether a value of JSON is the progress of a query: it has what is read of it here, as Spark writes it."""
    if not isinstance(found, Mapping) or not all(isinstance(found.get(name), kind) for name, kind in _MEMBERS.items()):
        return False
    rates = [found.get("numInputRows"), found.get("inputRowsPerSecond"), found.get("processedRowsPerSecond")]
    operators, sources = found["stateOperators"], found.get("sources", ())
    if not isinstance(sources, Sequence) or not all(isinstance(each, Mapping) for each in (*operators, *sources)):
        return False
    numbers = [*rates, *found["durationMs"].values()]
    for each in operators:
        metrics = each.get("customMetrics", {})
        if not isinstance(metrics, Mapping):
            return False
        numbers += [*metrics.values(), *(each.get(name) for name in _NUMBERS)]
    return all(each is None or (isinstance(each, (int, float)) and math.isfinite(each)) for each in numbers)


def read_figures(progress: Iterable[Mapping[str, Any]]) -> BatchFigures | None:
    """Return the figures of the newest batches with data; None if there are none.

    The first batch of a run is left out: it restores state and warms up. So are batches in which stores were restored,
    and those that ran with another number of partitions than the newest one.
    """
    progress = list(progress)
    found = {(each["runId"], each["batchId"]): each for each in progress if _has_run(each)}
    first = {run: min(batch for other, batch in found if other == run) for run, _ in found}
    ordered = sorted(found.items(), key=lambda item: item[0][1])
    with_data = [(run, each) for (run, _), each in ordered if each.get("numInputRows", 0) > 0]
    if not with_data:
        return None
    partitions = _list_partitions(with_data[-1][1])
    warm = [
        each
        for run, each in with_data
        if each["batchId"] != first[run] and not _restores(each) and _list_partitions(each) == partitions
    ]
    left_out, newest = len(with_data) - len(warm), warm[-MAX_BATCHES:]
    if not newest:
        return BatchFigures(0, 0.0, 0.0, None, (), left_out)
    return BatchFigures(
        len(newest),
        median(float(each["durationMs"].get("triggerExecution", 0)) for each in newest),
        median(float(each["durationMs"]["addBatch"]) for each in newest),
        _keeps_up(newest, find_busy_share(progress)),
        tuple(_read_operator(number, newest) for number in range(len(partitions))),
        left_out,
    )


def _list_partitions(progress: Mapping[str, Any]) -> list[int]:
    return [int(each.get("numShufflePartitions", 0)) for each in progress["stateOperators"]]


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


def find_busy_share(progress: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the share of the time in which the newest run of a query has run batches; None if too little is reported.

    Spark's own rates do not show it: its rate of input counts from the last look at the sources, which a query without
    a trigger interval takes between batches. The first batch of the run is left out: it restores state and warms up.
    """
    told = [(start_s, each) for each in progress if (start_s := _start_s(each)) is not None]
    if not told:
        return None
    newest_run = max(told, key=lambda item: item[0])[1]["runId"]
    ordered = sorted(((at, each) for at, each in told if each["runId"] == newest_run), key=lambda item: item[0])
    first = next((number for number, (_, each) in enumerate(ordered) if _has_run(each)), len(ordered))
    spans = [(at, _whole_s(each), _has_run(each)) for at, each in ordered[first + 1 :][-MAX_BATCHES:]]
    if len(spans) < 2:  # noqa: PLR2004 - no pause without two
        return None
    whole_s = spans[-1][0] + spans[-1][1] - spans[0][0]
    return min(1.0, sum(took_s for _, took_s, is_batch in spans if is_batch) / whole_s) if whole_s > 0 else None


def _has_run(progress: Mapping[str, Any]) -> bool:
    """Whether a progress is of a batch: Spark also tells, from time to time, that there was no data."""
    return "addBatch" in progress["durationMs"]


def _whole_s(progress: Mapping[str, Any]) -> float:
    return float(progress["durationMs"].get("triggerExecution", 0)) / 1000


def _start_s(progress: Mapping[str, Any]) -> float | None:
    """Return when a batch began, as Unix time; None if unknown."""
    try:
        return datetime.fromisoformat(str(progress.get("timestamp")).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _keeps_up(batches: Sequence[Mapping[str, Any]], busy_share: float | None) -> bool | None:
    """Whether rows are processed as fast as they come: see ``BatchFigures``."""
    if busy_share is not None and busy_share < MAX_BUSY_SHARE:
        return True
    behind = sum(any(map(_has_more, each.get("sources", ()))) for each in batches)
    return False if 2 * behind > len(batches) else None


def _has_more(source: Mapping[str, Any]) -> bool:
    """Whether a source had more rows than the batch took; not all sources report this."""
    latest = source.get("latestOffset")
    return latest is not None and latest != source.get("endOffset")
