"""The progress of a batch as a listener gets it, read from its JSON into series."""

from __future__ import annotations

import ast
import gzip
import math
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from pyspark_ckpt.metrics import families
from pyspark_ckpt.metrics.families import Family

Labels: TypeAlias = tuple[str, ...]
"""The values of a family's labels after those of the query."""
Value: TypeAlias = "tuple[Family, Labels, float]"

UNKNOWN = -1
"""Spark's number for a metric of a store that is not known yet."""

_NAMED = re.compile(r"(keyed|with_states)\(uid=(.*)\)", re.DOTALL)
_INSTANT = re.compile(r"([+-]?[0-9]+)(-[0-9]{2}-[0-9]{2}T.*)Z")
_CYCLE_YEARS = 400
_CYCLE_MS = 146_097 * 86_400_000
"""The calendar repeats after 400 years."""

_OF_STORE = re.compile(r"(.+)\.partition_([0-9]+)_(.*)", re.DOTALL)


class Progress(msgspec.Struct, frozen=True, rename="camel"):
    """The parts of a progress that are read."""

    id: str
    run_id: str
    name: str | None = None
    batch_id: int = 0
    num_input_rows: int = 0
    duration_ms: dict[str, int] = {}
    event_time: dict[str, str] = {}
    state_operators: list[dict[str, Any]] = []


class _Event(msgspec.Struct, frozen=True):
    progress: Progress


def read_progress(text: str) -> Progress:
    """Return the progress in ``text``, which is JSON."""
    return msgspec.json.decode(text, type=Progress)


def read_event(text: str) -> Progress:
    """Return the progress in the JSON of a QueryProgressEvent."""
    return msgspec.json.decode(text, type=_Event).progress


def read_packed(text: str) -> Progress:
    """Return the progress in a text of ``EventTeller``: JSON, or JSON that is compressed by gzip, in Base64."""
    return msgspec.json.decode(text if text.startswith("{") else gzip.decompress(b64decode(text)), type=Progress)


def values_of(progress: Progress) -> Iterator[Value]:
    """Yield all values of a batch: for a counter, what the batch adds to it."""
    durations = progress.duration_ms
    yield families.BATCHES, (), 1
    yield families.LAST_BATCH_ID, (), progress.batch_id
    yield families.INPUT_ROWS, (), progress.num_input_rows
    if "triggerExecution" in durations:
        yield families.BATCH_TIME, (), durations["triggerExecution"]
        yield families.LAST_BATCH_TIME, (), durations["triggerExecution"]
    for phase, took_ms in durations.items():
        if phase != "triggerExecution":
            yield families.PHASE_TIME, (phase,), took_ms
    watermark_ms = instant_ms(progress.event_time.get("watermark", ""))
    if watermark_ms > 0:  # until rows have come, Spark shows the year 1970
        yield families.WATERMARK, (), watermark_ms
    for number, operator in enumerate(progress.state_operators):
        yield from _values_of_operator(str(number), operator)


def _values_of_operator(number: str, operator: Mapping[str, Any]) -> Iterator[Value]:
    name, uid = read_name(operator["operatorName"])
    labels = (number, name, uid)
    for key, family in families.STANDARD.items():
        if key in operator:
            yield family, labels, operator[key]
    own, custom = families.own_families(), operator.get("customMetrics", {})
    yield from _values_of_latency(custom, labels)
    for key, value in custom.items():
        if key in own:
            yield own[key], labels, value
        elif "/" in key:
            yield from _values_of_counter(key, value, labels, uid)
        elif key not in families.latency_limits_ms():
            yield from _values_of_others(key, value, labels)


def _values_of_latency(custom: Mapping[str, Any], labels: Labels) -> Iterator[Value]:
    """As Prometheus has them, the counts of a histogram include those before."""
    family, count = families.own_families()[families.LATENCY], 0
    for key, limit_ms in families.latency_limits_ms().items():
        if key in custom:
            count += custom[key]
            yield family, (*labels, "+Inf" if limit_ms == math.inf else f"{limit_ms / 1000:g}"), count


def _values_of_counter(key: str, value: float, labels: Labels, uid: str) -> Iterator[Value]:
    """Spark shows the counters of all operators that the session has planned with each operator of the store."""
    owner, _, counter = key.partition("/")
    if owner == uid:
        yield families.ADDED, (*labels, counter), max(value, 0)
        if value < 0:
            yield families.SUBTRACTED, (*labels, counter), -value


def _values_of_others(key: str, value: float, labels: Labels) -> Iterator[Value]:
    of_store = _OF_STORE.fullmatch(key)
    metric, partition, store = of_store.groups() if of_store else (key, "", "")
    family = families.own_families().get(metric)
    if family is None:
        yield families.OTHER, (*labels, metric, partition, store), value
    elif value != UNKNOWN:
        yield family, (*labels, partition, store), value


def read_name(name: str) -> tuple[str, str]:
    """Return the kind and the uid of an operator that Spark's progress has under ``name``.

    The uid is empty for Spark's own operators.
    """
    found = _NAMED.fullmatch(name)
    return (found[1], str(ast.literal_eval(found[2]))) if found else (name, "")


def instant_ms(text: str) -> float:
    """Return an instant in ms; 0 for no text. Its year may have more digits than those of Python's dates."""
    found = _INSTANT.fullmatch(text)
    if found is None:
        return 0
    cycles, year = divmod(int(found[1]), _CYCLE_YEARS)
    rest = datetime.fromisoformat(f"{year + _CYCLE_YEARS:04}{found[2]}+00:00")
    return rest.timestamp() * 1000 + (cycles - 1) * _CYCLE_MS
