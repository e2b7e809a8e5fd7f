"""What the first page says of each checkpoint: where it is, how far its query is, and whether it looks healthy."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from statistics import median
from typing import Any

from pyspark_ckpt.offline.descriptions.json_forms import Fields, describe_store
from pyspark_ckpt.state_store.display import count_text
from pyspark_ckpt.state_store.errors import CkptError
from pyspark_ckpt.state_store.format.meta import FORMAT_VERSION
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.web.recollection import Recalled
from pyspark_ckpt.web.subjects import Facts, QueryRun, Subject
from pyspark_ckpt.web.survey import NEWEST_VERSIONS, Survey

LATE_BATCHES, LATE_S = 10, 600.0
"""A query is late after this many of its usual intervals without a commit, and this many seconds."""
MANY_DELTAS = 50
"""Deltas on top of a snapshot. With default options there are about ten at most."""
SHOWN_STORES = 5
MIN_WAIT_S, FACTS_WAIT_S = 0.1, 3.0

GOOD, NOTICE, BAD, UNREAD = "good", "notice", "bad", "unread"
WORST_FIRST = (BAD, NOTICE, UNREAD, GOOD)


def summarize(subject: Subject, wait_s: float) -> Fields:
    """Return what is known of a checkpoint, or ``error``, the reason why nothing is. Waits ``wait_s`` for its stores.

    A place that does not answer delays the others by a few seconds at most, and then counts as ``is_opening``.
    """
    until_s = time.monotonic() + wait_s
    try:
        facts = subject.recall_facts(max(wait_s, FACTS_WAIT_S))
    except CkptError as problem:
        return {**name_subject(subject), "error": describe_error(problem), "level": BAD}
    if facts is None:
        return {**name_subject(subject), "is_opening": True, "level": UNREAD}
    told = describe_facts(subject, facts)
    look: Recalled[Survey] | None = None
    notes: list[Fields] = [*_judge_run(subject.read_run()), *_judge_logs(facts)]
    if facts.version and facts.saved is None:
        try:
            look = subject.glance(facts, max(MIN_WAIT_S, until_s - time.monotonic()))
        except CkptError as problem:
            notes.append({"level": BAD, "text": str(problem)})
        else:
            if look.value is not None:
                notes += _judge_stores(look.value)
        if damaged := subject.count_damaged(facts):
            notes.append({"level": BAD, "text": f"{count_text(damaged, 'store')} cannot be read: see States"})
    told["look"] = None if look is None or look.value is None else _describe_look(look.value)
    told["is_under_way"] = look is not None and look.is_under_way
    told["health"] = notes or [_tell_nothing_wrong(facts, look)]
    told["level"] = next(level for level in WORST_FIRST if any(each["level"] == level for each in told["health"]))
    return told


def _tell_nothing_wrong(facts: Facts, look: Recalled[Survey] | None) -> Fields:
    if facts.saved is not None:
        text = "its files were listed, not read: `pyspark-ckpt savepoint verify` reads them"
        return {"level": UNREAD, "text": text}
    if look is not None and look.value is None:
        return {"level": UNREAD, "text": "no problem found so far; its stores are still being listed"}
    return {"level": GOOD, "text": "no problem found"}


def sum_levels(told: Iterable[Fields]) -> dict[str, int]:
    """Return the number of checkpoints of each level, the worst first, without levels that have none."""
    levels = [each["level"] for each in told]
    return {level: levels.count(level) for level in WORST_FIRST if level in levels}


def name_subject(subject: Subject) -> Fields:
    """Return which checkpoint something is about."""
    return {"number": subject.number, "location": subject.location}


def describe_error(problem: CkptError) -> Fields:
    """Return a failure as a page or a program shows it."""
    return {"kind": problem.kind, "message": problem.message, "hint": problem.hint}


def describe_damage(damaged: Mapping[Identity, CkptError]) -> list[Fields]:
    """Return the errors of stores that cannot be read."""
    return [{**describe_store(each, ""), **describe_error(problem)} for each, problem in sorted(damaged.items())]


def describe_facts(subject: Subject, facts: Facts) -> Fields:
    """Return what the head of every page of a checkpoint says."""
    batch = facts.version - 1 if facts.version else None
    run = subject.read_run()
    return {
        **name_subject(subject),
        "place": facts.checkpoint.place.url,
        "kind": facts.kind,
        "query_id": facts.checkpoint.query_id,
        "query_name": None if run is None else run.name or None,
        "version": facts.version,
        "batch": batch,
        "committed_s": None if batch is None else describe_times(facts, batch)["committed_s"],
        "is_copied": facts.is_copied,
        "interval_s": None if facts.is_copied else find_interval(facts.commits),
        "planned_batch": max(facts.offsets, default=None),
        "watermark_ms": facts.watermark_ms or None,
        "operators": [
            {
                "operator": each.number,
                "operator_name": facts.names[each.number],
                "partitions": facts.partitions[each.number],
                "stores": list(each.stores),
            }
            for each in facts.operators
        ],
        "stores": sum(facts.partitions[each.number] * len(each.stores) for each in facts.operators),
        "checkpoint_format": None if not facts.version else 2 if facts.names_ids else 1,
        "commit_log": facts.log_format or None,
        "stored_format": FORMAT_VERSION,
        "run": facts.run[0] or None,
        "driver": facts.run[1] or None,
        "shuffle_partitions": facts.conf.get("spark.sql.shuffle.partitions"),
        "written_by": None if facts.saved is None else facts.saved.written_by,
        "pins": len(facts.pins),
        "is_running": run is not None and run.is_active,
        "read_s": facts.read_s,
    }


def describe_times(facts: Facts, batch: int) -> Fields:
    """Return when a batch was committed, and how long it took by its entries in both logs.

    Both are unknown in a copy, whose entries have the times of copying.
    """
    planned_s, committed_s = facts.offsets.get(batch), facts.commits.get(batch)
    if facts.is_copied or committed_s is None:
        return {"committed_s": None, "batch_s": None}
    return {"committed_s": committed_s, "batch_s": None if planned_s is None else max(0.0, committed_s - planned_s)}


def find_interval(commits: Mapping[int, float]) -> float | None:
    """Return the usual time between two commits; None if there are too few."""
    times = [commits[batch] for batch in sorted(commits)[-20:]]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return median(gaps) if gaps else None


def _judge_run(run: QueryRun | None) -> Iterator[Fields]:
    """Yield problems that a query in this process reports."""
    if run is not None and run.problem:
        yield {"level": BAD, "text": f"the query in this process: {run.problem}"}
    elif run is not None and not run.is_active:
        yield {"level": NOTICE, "text": "the query in this process has stopped"}
    elif run is not None and run.verdict.get("keeps_up") is False:
        yield {"level": NOTICE, "text": "the query does not keep up: see Progress"}


def _judge_logs(facts: Facts) -> Iterator[Fields]:
    """Yield problems in the logs of the query."""
    if facts.saved is not None:
        return
    if not facts.version:
        level = BAD if max(facts.offsets, default=0) > 0 else NOTICE
        yield {"level": level, "text": "no batch is committed yet" if level == NOTICE else "the commit log is lost"}
        return
    batch, planned = facts.version - 1, max(facts.offsets, default=-1)
    if batch not in facts.offsets:
        yield {"level": BAD, "text": f"offsets/{batch} is missing, although batch {batch} is committed"}
    elif planned > batch + 1:
        yield {"level": BAD, "text": f"batch {planned} is planned, but batch {planned - 1} is not in the commit log"}
    committed_s, interval_s = describe_times(facts, batch)["committed_s"], find_interval(facts.commits)
    since_s = 0.0 if committed_s is None else time.time() - committed_s
    if since_s > max(LATE_S, LATE_BATCHES * (interval_s or 0)):
        began = f" Batch {planned} has begun and was not committed." if planned > batch else ""
        yield {"level": NOTICE, "text": f"no batch was committed for longer than usual.{began}"}


def _judge_stores(look: Survey) -> Iterator[Fields]:
    """Yield problems that the names of objects show."""
    missing = look.missing
    if missing:
        named = ", ".join(map(str, missing[:SHOWN_STORES])) + (", ..." if len(missing) > SHOWN_STORES else "")
        lack = count_text(len(missing), "store")
        yield {"level": BAD, "text": f"version {look.version} is missing in {lack} of {len(look.stores)}: {named}"}
    broken = look.broken
    if broken:
        named = ", ".join(f"{each.identity} (version {each.lost})" for each in broken[:SHOWN_STORES])
        lack = f"version {look.version} cannot be restored in {count_text(len(broken), 'store')} of {len(look.stores)}"
        text = f"{lack}, because an earlier version is lost: {named}{', ...' if len(broken) > SHOWN_STORES else ''}"
        yield {"level": BAD, "text": text}
    behind = [each for each in look.stores if each.deltas >= MANY_DELTAS]
    if behind:
        most = f"up to {look.most_deltas}" if look.most_deltas < NEWEST_VERSIONS else f"{NEWEST_VERSIONS} or more"
        text = f"snapshots lag: a restore of {count_text(len(behind), 'store')} applies {most} deltas"
        yield {"level": NOTICE, "text": text}


def _describe_look(look: Survey) -> Fields:
    newest = look.versions.get(look.version)
    return {
        "version": look.version,
        "stores": len(look.stores),
        "missing": [describe_store(each, "") for each in look.missing],
        "most_deltas": look.most_deltas,
        "rivals": sum(each.rivals for each in look.stores),
        "delta_bytes": None if newest is None else newest.delta_bytes,
        "commit_s": None if newest is None or not newest.deltas else newest.last_s - newest.first_s,
    }


NOT_WAITING: Fields = {"done": 0, "total": 0, "is_under_way": False}
"""What ``describe_waiting`` returns if nothing is being computed."""


def describe_waiting(recalled: Recalled[Any]) -> Fields:
    """Return the progress of an answer that is still computed."""
    return {"done": recalled.done, "total": recalled.total, "is_under_way": recalled.is_under_way}
