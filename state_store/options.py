"""Options of the engine: one table, ``options.json``, read by Python, by the JVM and by the documentation.

A key of the table is the name of a Spark conf without the prefix ``spark.sql.streaming.stateStore.ckpt.``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import cast

import msgspec

from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.json_objects import MAX_LONG
from pyspark_ckpt.state_store.s3_settings import S3Settings
from pyspark_ckpt.state_store.s3a_settings import S3aSettings
from pyspark_ckpt.state_store.suggestions import suggest

PREFIX = "spark.sql.streaming.stateStore.ckpt."

_NUMBER = re.compile(r"\s*([0-9]{1,18})\s*([a-zA-Z]*)\s*", re.ASCII)
"""How a number is written, here and in the JVM. The table has the units of each type."""
_FRACTION = re.compile(r"\s*[0-9]+\.[0-9]+\s*[a-zA-Z]*\s*", re.ASCII)


class NumberType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How numbers of one type are written: each unit's factor, and the factor of the unit in which values are kept."""

    units: dict[str, int]
    unit: int
    examples: str


class OptionRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table, as in ``options.json``."""

    type: str
    default: str | int
    doc: str
    unit: str = ""
    values: tuple[str, ...] = ()
    min: int | None = None
    max: int | None = None


class OptionTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of ``options.json``. ``options``: every option by its key without the prefix, in the order of the file."""

    types: dict[str, NumberType]
    options: dict[str, OptionRow]


@dataclass(frozen=True)
class Options:
    """All options as typed values, with units in their names. The engine passes these around, not a map of strings.

    ``s3a``: the settings of S3A where the work is done. They are not options of this package, and they hold secrets.
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


def table() -> Mapping[str, OptionRow]:
    """Return every option by its key without the prefix, in the order of the file."""
    return _table().options


@cache
def _table() -> OptionTable:
    return msgspec.json.decode(Path(__file__).with_name("options.json").read_bytes(), type=OptionTable)


def settings_of(get: Callable[[str], str | None]) -> dict[str, str]:
    """Return the options that are set, by their keys without the prefix. ``get`` looks up a Spark conf."""
    return {name: value for name in table() if (value := get(PREFIX + name)) is not None}


def parse(settings: Mapping[str, str]) -> Options:
    """Return the options from ``settings``. An option that is not set has the default of the table.

    Keys may carry the full Spark prefix. Raises InvalidInputError that names the key and the value
    (the table does not know the key, or does not allow the value).
    """
    given = {key.removeprefix(PREFIX): value for key, value in settings.items()}
    for key in given:
        if key not in table():
            raise _unknown(key)
    if "@" in str(given.get("s3Endpoint", "")):  # what precedes it may be a secret: it is not shown
        raise InvalidInputError(
            f"Option {PREFIX}s3Endpoint holds credentials.",
            hint="Remove them there, and give them to the executors in a way that boto3 finds: see docs/deploying.md.",
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


def canonical_text(key: str, text: str) -> str:
    """Return the canonical form of a value that ``parse`` accepts.

    A value of a list has the case of the table. A number has no spaces, and its unit is in lower case. Text stays as
    it is.
    """
    row = table()[key]
    if row.values:
        return _find_allowed(row, text) or text
    return text if row.type == "string" else "".join(text.split()).lower()


def _unknown(key: str) -> InvalidInputError:
    return InvalidInputError(
        f"There is no option {PREFIX}{key}.{suggest(key, table())}",
        hint=f"Known options, with this prefix: {', '.join(table())}.",
    )


def _value(key: str, row: OptionRow, given: str | None) -> object:
    text = str(row.default) if given is None else str(given)
    if row.values:
        if (allowed := _find_allowed(row, text)) is None:
            raise _bad(key, text, "it must be one of " + ", ".join(row.values))
        return allowed
    if row.type == "string":
        return text.strip()
    try:
        value = read_number(row.type, text)
    except ValueError as problem:
        raise _bad(key, text, str(problem)) from problem
    if row.min is not None and value < row.min:
        raise _bad(key, text, f"it must be at least {row.min} {row.unit}".rstrip())
    if row.max is not None and value > row.max:
        raise _bad(key, text, f"it must be at most {row.max} {row.unit}".rstrip())
    return int(value) if row.type != "seconds" else float(value)


def _find_allowed(row: OptionRow, text: str) -> str | None:
    """Return the value of the row's list that ``text`` means, in whatever case; None if there is none."""
    return next((each for each in row.values if each.lower() == text.strip().lower()), None)


def read_number(type_name: str, text: str) -> Fraction:
    """Return the number in ``text``, in the unit of the type. Raises ValueError that says how to write one."""
    known = _table().types[type_name]
    match = _NUMBER.fullmatch(text)
    if match is None or match[2].lower() not in known.units:
        if _FRACTION.fullmatch(text):
            problem = "it must be a whole number of units, such as 90s instead of 1.5m"
        else:
            problem = f"it must be {known.examples}"
        raise ValueError(problem)
    number = int(match[1]) * known.units[match[2].lower()]
    if number > MAX_LONG:
        problem = "it must be less than 2**63 of the smallest unit"
        raise ValueError(problem)
    return Fraction(number, known.unit)


def _bad(key: str, text: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"Option {PREFIX}{key} has the value {text!r}: {why}.",
        hint=f"{table()[key].doc} Default: {table()[key].default!r}.",
    )
