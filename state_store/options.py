"""Options of the engine: one table, ``options.json``, read by Python, by the JVM and by the documentation.

A key of the table is what follows ``spark.sql.streaming.stateStore.ckpt.`` in a Spark conf.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec

from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.json_objects import MAX_LONG
from pyspark_ckpt.state_store.s3_settings import S3Settings
from pyspark_ckpt.state_store.s3a_settings import S3aSettings

PREFIX = "spark.sql.streaming.stateStore.ckpt."

_BYTE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_BYTES = re.compile(r"([0-9]{1,15})\s*([kmgt]?)b?", re.IGNORECASE)
_TIME_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(ms|s|min|m|h|d)?", re.IGNORECASE)


class OptionRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table, as ``options.json`` holds it."""

    type: str
    default: str | int
    doc: str
    unit: str = ""
    values: tuple[str, ...] = ()
    min: int | None = None
    max: int | None = None


@dataclass(frozen=True)
class Options:
    """All options with their units; what travels through the engine instead of a map of strings.

    ``s3a``: what is set for S3A where the work is done; it is no option of ours, and has secrets.
    """

    python: str
    memory_limit_bytes: int
    worker_memory_bytes: int
    local_dir: str
    remote: str
    s3: S3Settings
    place_timeout_s: float
    full_snapshots: bool
    snapshot_every_versions: int
    snapshot_every_bytes: int
    snapshot_interval_s: float
    restore_target_s: float
    local_checkpoints: int
    compression: str
    column_files_bytes: int
    start_timeout_s: float
    log_level: str
    retention_grace_period_s: float
    scrub_interval_s: float
    allow_non_restored_state: bool
    fail_points: str
    s3a: S3aSettings = field(default=S3aSettings({}), repr=False)


@cache
def table() -> Mapping[str, OptionRow]:
    """Every option by its key without the prefix, in the order of the file."""
    text = Path(__file__).with_name("options.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, OptionRow])


def settings_of(get: Callable[[str], str | None]) -> dict[str, str]:
    """The options that are set, by their keys without the prefix; ``get`` is asked for each Spark conf."""
    return {name: value for name in table() if (value := get(PREFIX + name)) is not None}


def parse(settings: Mapping[str, str]) -> Options:
    """Options from ``settings``; what is not set has the default of the table.

    Keys may carry the full Spark prefix. Raises InvalidInputError that names the key and the value,
    for a key that the table does not know as for a value it does not allow.
    """
    given = {key.removeprefix(PREFIX): value for key, value in settings.items()}
    for key in given:
        if key not in table():
            raise _unknown(key)
    if "@" in str(given.get("s3Endpoint", "")):  # what is in front of it may be a secret: it is not shown
        raise InvalidInputError(
            f"Option {PREFIX}s3Endpoint holds credentials.",
            hint="Give them to the executors in a way that boto3 finds: docs/deploying.md.",
        )
    values = {key: _value(key, row, given.get(key)) for key, row in table().items()}
    return Options(
        python=cast("str", values["python"]),
        memory_limit_bytes=cast("int", values["memoryLimit"]),
        worker_memory_bytes=cast("int", values["workerMemory"]),
        local_dir=cast("str", values["localDir"]),
        remote=cast("str", values["remote"]),
        s3=S3Settings(
            endpoint=cast("str", values["s3Endpoint"]),
            region=cast("str", values["s3Region"]),
            addressing=cast("str", values["s3Addressing"]),
            encryption=cast("str", values["s3Encryption"]),
            kms_key_id=cast("str", values["s3KmsKeyId"]),
        ),
        place_timeout_s=cast("float", values["placeTimeout"]),
        full_snapshots=values["snapshotMode"] == "full",
        snapshot_every_versions=cast("int", values["snapshotEveryVersions"]),
        snapshot_every_bytes=cast("int", values["snapshotEveryBytes"]),
        snapshot_interval_s=cast("float", values["snapshotInterval"]),
        restore_target_s=cast("float", values["restoreTarget"]),
        local_checkpoints=cast("int", values["localCheckpoints"]),
        compression=cast("str", values["compression"]),
        column_files_bytes=cast("int", values["columnFiles"]),
        start_timeout_s=cast("float", values["startTimeout"]),
        log_level=cast("str", values["logLevel"]),
        retention_grace_period_s=cast("float", values["retentionGracePeriod"]),
        scrub_interval_s=cast("float", values["scrubInterval"]),
        allow_non_restored_state=values["allowNonRestoredState"] == "true",
        fail_points=cast("str", values["failPoints"]),
    )


def jvm_text(key: str, text: str) -> str:
    """A value that ``parse`` takes, as the JVM reads it: without spaces, and values of a list in their own case.

    Raises InvalidInputError for a fraction of a unit, which the JVM does not read.
    """
    row = table()[key]
    if row.values:
        return next(allowed for allowed in row.values if allowed.lower() == text.strip().lower())
    if row.type == "string":
        return text
    written = re.sub(r"\.0+(?=\D|$)", "", "".join(text.split()))
    if "." in written:
        raise _bad(key, text, "it must be a whole number of units, such as 90s instead of 1.5m")
    return written


def _unknown(key: str) -> InvalidInputError:
    near = difflib.get_close_matches(key, list(table()), n=1)
    meant = f" Did you mean {PREFIX}{near[0]}?" if near else ""
    return InvalidInputError(
        f"There is no option {PREFIX}{key}.{meant}",
        hint="Known options: " + ", ".join(PREFIX + known for known in table()),
    )


def _value(key: str, row: OptionRow, given: str | None) -> object:
    text = str(row.default) if given is None else str(given)
    parser = _PARSERS[row.type]
    try:
        value = parser(text.strip())
    except ValueError as problem:
        raise _bad(key, text, str(problem)) from problem
    if row.values:
        matching = [allowed for allowed in row.values if allowed.lower() == text.strip().lower()]
        if not matching:
            raise _bad(key, text, "it must be one of " + ", ".join(row.values))
        value = matching[0]
    if row.min is not None and value < row.min:
        raise _bad(key, text, f"it must be at least {row.min} {row.unit}".rstrip())
    if row.max is not None and value > row.max:
        raise _bad(key, text, f"it must be at most {row.max} {row.unit}".rstrip())
    return value


def _bad(key: str, text: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"Option {PREFIX}{key} has the value {text!r}: {why}.",
        hint=f"{table()[key].doc} Default: {table()[key].default!r}.",
    )


def _bytes(text: str) -> int:
    match = _BYTES.fullmatch(text)
    if match is None:
        problem = "it must be a number of bytes such as 268435456, 256m or 1g"
        raise ValueError(problem)
    number = int(match[1]) * _BYTE_UNITS[match[2].lower()]
    if number > MAX_LONG:
        problem = "it is more than any machine has"
        raise ValueError(problem)
    return number


def _seconds(text: str) -> float:
    match = _TIME.fullmatch(text)
    if match is None:
        problem = "it must be a time such as 60, 60s, 10m or 1h"
        raise ValueError(problem)
    return float(match[1]) * _TIME_UNITS[(match[2] or "").lower()]


def _int(text: str) -> int:
    if re.fullmatch(r"-?[0-9]{1,18}", text) is None:
        problem = "it must be a whole number"
        raise ValueError(problem)
    return int(text)


_PARSERS: Mapping[str, Any] = {"bytes": _bytes, "int": _int, "seconds": _seconds, "string": str, "enum": str}
