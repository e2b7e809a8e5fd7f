"""The page Progress: whether the query keeps up, its rates, its backlog, its watermark, and its batches."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pyspark_ckpt.offline.descriptions.json_forms import Fields
from pyspark_ckpt.web.overview import describe_times
from pyspark_ckpt.web.pace.batches import sum_phases
from pyspark_ckpt.web.pace.logs import SHOWN_BATCHES
from pyspark_ckpt.web.pace.verdict import judge_logs
from pyspark_ckpt.web.subjects import Facts, Subject

SIZES_WAIT_S = 0.1


def tell_pace(subject: Subject, facts: Facts) -> Fields:
    """Return a query's progress: from the query if it is in this process, else from its logs. Raises StorageError."""
    run = subject.read_run()
    if run is not None and run.batches:
        batches, source = [*run.batches], "query"
        verdict = run.verdict
    else:
        batches, source = _read_batches(subject, facts), "logs"
        verdict = judge_logs(_list_times(facts) if facts.saved is None else [])
    newest = batches[0] if batches else None
    return {
        "source": source,
        "verdict": verdict,
        "newest": newest,
        "watermark_age_s": _find_age_s(newest),
        "late_rows": sum(each["late_rows"] for each in batches) if source == "query" else None,
        "phases": sum_phases(batches) if source == "query" else [],
        "sizes": _list_sizes(subject, facts, batches if source == "query" else []),
        "progress": batches[:SHOWN_BATCHES],
    }


def _read_batches(subject: Subject, facts: Facts) -> list[Fields]:
    """Return the newest batches from the logs, the newest first."""
    logged = subject.read_offset_log(facts)
    found: list[Fields] = []
    for batch, each in sorted(logged.items(), reverse=True):
        rows, times = each.count_input(logged.get(batch - 1)), describe_times(facts, batch)
        since_s = (each.clock_ms - logged[batch - 1].clock_ms) / 1000 if batch - 1 in logged else 0
        found.append(
            {
                "batch": batch,
                "at_s": each.clock_ms / 1000 or None,
                "input_rows": rows,
                "input_rows_per_s": rows / since_s if rows is not None and since_s > 0 else None,
                "processed_rows_per_s": rows / times["batch_s"] if rows is not None and times["batch_s"] else None,
                "backlog": None,
                "batch_ms": None if times["batch_s"] is None else times["batch_s"] * 1000,
                "is_committed": batch in facts.commits,
                "watermark_ms": each.watermark_ms or None,
                "watermark_lag_ms": each.clock_ms - each.watermark_ms if each.watermark_ms else None,
                "problem": each.problem,
            }
        )
    return found


def _list_times(facts: Facts) -> list[tuple[float, float]]:
    """Return when each batch of both logs was planned and committed; nothing in a copy, whose times are unknown."""
    if facts.is_copied:
        return []
    return [(facts.offsets[batch], facts.commits[batch]) for batch in sorted(facts.commits) if batch in facts.offsets]


def _find_age_s(newest: Fields | None) -> float | None:
    """Return how far the watermark is behind this machine's clock."""
    return None if newest is None or not newest["watermark_ms"] else time.time() - newest["watermark_ms"] / 1000


def _list_sizes(subject: Subject, facts: Facts, batches: Sequence[Fields]) -> list[Fields]:
    """Return rows and bytes of state over time, the newest first.

    They come from the batches of a query in this process. Otherwise they are what this page has seen since it was
    opened.
    """
    if batches:
        return [
            {"batch": each["batch"], "state_rows": each["state_rows"], "state_bytes": each["state_bytes"]}
            for each in batches
        ]
    if facts.version:
        subject.read_metas(facts, SIZES_WAIT_S)
    return [
        {"batch": version - 1, "state_rows": rows, "state_bytes": size}
        for version, (rows, size) in sorted(subject.list_sizes(facts).items(), reverse=True)
    ]
