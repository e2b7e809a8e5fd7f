"""Whether a query keeps up: judged by its reported progress, or by the times of its logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from pyspark_ckpt.offline.advice.progress_figures import MAX_BUSY_SHARE, find_busy_share, is_progress, read_figures
from pyspark_ckpt.offline.descriptions.json_forms import Fields

NOT_ASKED = "only the query itself knows its backlog: pass the running query to serve_web_page()"

_REASONS: Mapping[bool | None, str] = {
    True: "it waits between batches, or its backlog does not grow",
    False: "rows come faster than they are processed",
    None: "batches run without a pause, and the sources do not report a backlog",
}


def judge_progress(batches: Sequence[Mapping[str, Any]], described: Sequence[Fields]) -> Fields:
    """Return the verdict on a query in this process. ``batches``: their progress; ``described``: the newest first.

    ``keeps_up``: None if unknown. ``backlog_per_s``: by how much the backlog grows.
    """
    known = [each for each in batches if is_progress(each)]
    figures, busy = read_figures(known), find_busy_share(known)
    growth = _growth([(each["at_s"], each["backlog"]) for each in reversed(described)])
    if figures is None:
        return {"keeps_up": None, "busy_share": busy, "backlog_per_s": growth, "why": "no batch with rows has run yet"}
    if not figures.batches:
        why = "only first batches of a run have run yet, and these restore state"
        return {"keeps_up": None, "busy_share": busy, "backlog_per_s": growth, "why": why}
    keeps_up = figures.keeps_up
    if not keeps_up and growth is not None:
        keeps_up = growth <= 0 or not described[0]["backlog"]
    return {"keeps_up": keeps_up, "busy_share": busy, "backlog_per_s": growth, "why": _REASONS[keeps_up]}


def judge_logs(times: Sequence[tuple[float, float]]) -> Fields:
    """Return the verdict by the logs alone. ``times``: when each batch was planned and committed, the oldest first."""
    shares = [
        (committed_s - planned_s) / (next_s - planned_s)
        for (planned_s, committed_s), (next_s, _) in pairwise(times)
        if next_s > planned_s and committed_s > planned_s
    ]
    busy = min(1.0, median(shares)) if shares else None
    keeps_up = True if busy is not None and busy < MAX_BUSY_SHARE else None
    why = "it waits between batches" if keeps_up else NOT_ASKED if times else "no batch was committed yet"
    return {"keeps_up": keeps_up, "busy_share": busy, "backlog_per_s": None, "why": why}


def _growth(backlogs: Sequence[tuple[float | None, int | None]]) -> float | None:
    """Return how much a backlog grows in a second, from the first to the last batch that reports one."""
    known = [(at_s, backlog) for at_s, backlog in backlogs if at_s is not None and backlog is not None]
    if len(known) < 2 or known[-1][0] <= known[0][0]:  # noqa: PLR2004 - no growth without two
        return None
    return (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])
