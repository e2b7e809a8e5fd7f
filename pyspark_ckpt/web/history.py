"""What the query has written, batch by batch, from the names, sizes and times of the objects that are kept."""

from __future__ import annotations

import math

from pyspark_ckpt.offline.descriptions.json_forms import Fields
from pyspark_ckpt.web.overview import describe_times, describe_waiting
from pyspark_ckpt.web.subjects import Facts, Subject
from pyspark_ckpt.web.survey import Survey, VersionSurvey

DAY_S = 86400.0
SHOWN = 200


def tell_history(subject: Subject, facts: Facts, wait_s: float) -> Fields:
    """Return all versions whose objects are kept, the newest first, and what they add up to in a day.

    Raises CkptError.
    """
    whole = subject.count_all(facts, wait_s)
    survey = whole.value or subject.glance(facts, wait_s).value
    versions = [] if survey is None else list(survey.versions.values())
    return {
        "versions": [_describe_version(each, facts) for each in versions[:SHOWN]],
        "all_versions": len(versions),
        "day": None if survey is None else _sum_day(survey, facts),
        "kept": None if whole.value is None else _sum_kept(whole.value),
        "is_whole": survey is not None and survey.is_whole,
        **describe_waiting(whole),
    }


def _describe_version(each: VersionSurvey, facts: Facts) -> Fields:
    batch = each.version - 1
    times = describe_times(facts, batch)
    return {
        "version": each.version,
        "batch": batch,
        **times,
        "committed_s": times["committed_s"] or (each.last_s if each.deltas else None),
        "commits": each.deltas,
        "commit_s": each.last_s - each.first_s if each.deltas else None,
        "delta_bytes": each.delta_bytes,
        "snapshots": each.snapshots,
        "snapshot_bytes": each.manifest_bytes + each.table_bytes,
        "table_files": each.tables,
        "snapshot_s": each.snapshot_s if each.tables else None,
        "write_requests": each.objects,
        "uploaded_bytes": each.size_bytes,
    }


def _sum_day(survey: Survey, facts: Facts) -> Fields | None:
    """Return the totals of a day at the pace of the kept versions; None if there are too few."""
    newest = [each for each in survey.versions.values() if each.deltas and each.version <= facts.version]
    begun_s, ended_s = min((e.first_s for e in newest), default=math.inf), max((e.last_s for e in newest), default=0.0)
    span_s = ended_s - begun_s
    if len(newest) < 2 or span_s <= 0:  # noqa: PLR2004 - no pace without two
        return None
    counted = newest[:-1]  # the oldest one begins the span
    days = DAY_S / span_s
    requests, size = sum(each.objects for each in counted) * days, sum(each.size_bytes for each in counted) * days
    return {
        "span_s": span_s,
        "batches": len(counted) * days,
        "write_requests": requests,
        "uploaded_bytes": size,
        "snapshots": sum(each.snapshots for each in counted) * days,
    }


def _sum_kept(survey: Survey) -> Fields:
    """Return what is kept now."""
    size = sum(each.size_bytes for each in survey.stores)
    return {
        "objects": sum(each.objects for each in survey.stores),
        "size_bytes": size,
        "table_files": sum(each.tables for each in survey.stores),
        "table_bytes": sum(each.table_bytes for each in survey.stores),
        "first_version": min((each.first_version for each in survey.stores if each.first_version), default=None),
        "rivals": sum(each.rivals for each in survey.stores),
    }
