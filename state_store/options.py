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

from pyspark_ckpt.state_store.arguments import remove_dots
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.hadoop_settings import HadoopSettings
from pyspark_ckpt.state_store.json_objects import MAX_LONG
from pyspark_ckpt.state_store.s3_settings import S3Settings

PREFIX = "spark.sql.streaming.stateStore.ckpt."

_NUMBER = re.compile(r"\s*([0-9]{1,18})\s*([a-zA-Z]*)\s*", re.ASCII)
"""How a number is written, here and in the JVM. The table has the units of each type."""
_FRACTION = re.compile(r"\s*([0-9]{1,9}\.[0-9]{1,9})\s*([a-zA-Z]*)\s*", re.ASCII)


class NumberType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How numbers of one type are written: the factor of each unit, and of the unit in which values are kept."""

    units: dict[str, int]
    unit: int
    examples: str


class OptionRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table, as in ``options.json``.

    ``process``: an executor's process keeps the value of the first query that uses the store there. ``group``: its part
    of docs/options.md; empty for an option that only tests set. ``rare``: its default fits nearly everybody.
    """

    type: str
    default: str | int
    doc: str
    unit: str = ""
    values: tuple[str, ...] = ()
    min: int | None = None
    max: int | None = None
    process: bool = False
    group: str = ""
    rare: bool = False


class MemoryShares(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The shares of ``memoryLimit``; together they are 1."""

    near_caches: float
    write_sets: float
    block_cache: float
    state_server: float


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How the memory of one executor is divided. The JVM reads the rest of it, see ``MemoryBudget`` there.

    ``min_cache_bytes``, ``min_write_set_bytes``: what one store may take, however many stores there are.
    ``server_at_rest_bytes``: the state server's process without state. ``max_heap_share``: a limit is warned of if its
    part on the heap is larger than this.
    """

    shares: MemoryShares
    min_cache_bytes: int
    min_write_set_bytes: int
    server_at_rest_bytes: int
    max_heap_share: float


class RunLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How many numbers of a query's runs are read, and how many older ones a run deletes: see ``attempts/runs.py``.

    Drivers in the JVM (``Runs.scala``) and state servers read and delete the same objects, so both read the limits
    here.
    """

    kept: int
    deleted_at_once: int


class OptionTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of ``options.json``. ``options``: every option by its key without the prefix, in the order of the file."""

    types: dict[str, NumberType]
    memory: Memory
    runs: RunLimits
    options: dict[str, OptionRow]


@dataclass(frozen=True)
class Options:
    """All options as typed values, with units in their names. The engine passes these around, not a map of strings.

    ``hadoop``: the settings of Hadoop's connectors on the working machine. They are not options of this package, and
    they hold secrets.
    """

    python: str
    memory_limit_bytes: int
    worker_memory_bytes: int
    local_dir: str
    remote: str
    s3: S3Settings
    place_timeout_s: float
    pack_commits: bool
    is_durable_by_batch: bool
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
    hadoop: HadoopSettings = field(default=HadoopSettings({}), repr=False)

    @property
    def server_memory_bytes(self) -> int:
        """The state server's part of the memory limit."""
        return int(self.memory_limit_bytes * memory().shares.state_server)


def table() -> Mapping[str, OptionRow]:
    """Return every option by its key without the prefix, in the order of the file."""
    return _table().options


def number_types() -> Mapping[str, NumberType]:
    """Return how numbers are written, by the name of their type."""
    return _table().types


def memory() -> Memory:
    """Return how the memory of one executor is divided."""
    return _table().memory


def runs() -> RunLimits:
    """Return how many numbers of a query's runs are kept."""
    return _table().runs


@cache
def _table() -> OptionTable:
    return msgspec.json.decode(Path(__file__).with_name("options.json").read_bytes(), type=OptionTable)


def read_settings(get: Callable[[str], str | None]) -> dict[str, str]:
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
    if "@" in str(given.get("s3Endpoint", "")):  # the part before it may be a secret: it is not shown
        raise InvalidInputError(
            f"Option {PREFIX}s3Endpoint holds credentials.",
            hint="Remove them there, and give them to the executors in a way that boto3 finds: see docs/storage.md.",
        )
    values = {key: _value(key, row, given.get(key)) for key, row in table().items()}
    return Options(
        python=cast("str", values["python"]),
        memory_limit_bytes=cast("int", values["memoryLimit"]),
        worker_memory_bytes=cast("int", values["workerMemory"]),
        local_dir=cast("str", values["localDir"]),
        remote=remove_dots(cast("str", values["remote"])),
        s3=S3Settings(
            endpoint=cast("str", values["s3Endpoint"]),
            region=cast("str", values["s3Region"]),
            addressing=cast("str", values["s3Addressing"]),
            checksums=cast("str", values["s3Checksums"]),
            encryption=cast("str", values["s3Encryption"]),
            kms_key_id=cast("str", values["s3KmsKeyId"]),
        ),
        place_timeout_s=cast("float", values["placeTimeout"]),
        pack_commits=values["packCommits"] == "true" or values["durability"] == "batch",
        is_durable_by_batch=values["durability"] == "batch",
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

    A value of a list gets the case of the table. A number has no spaces, and its unit is in lower case. Text stays
    unchanged.
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
    """Return the value in the row's list that ``text`` means, in any case; None if there is none."""
    return next((each for each in row.values if each.lower() == text.strip().lower()), None)


def read_number(type_name: str, text: str) -> Fraction:
    """Return the number in ``text``, in the unit of the type. Raises ValueError that says how to write one."""
    known = _table().types[type_name]
    match = _NUMBER.fullmatch(text)
    if match is None or match[2].lower() not in known.units:
        raise ValueError("it must be " + (_describe_whole(known, text) or known.examples))
    number = int(match[1]) * known.units[match[2].lower()]
    if number > MAX_LONG:
        problem = "it must be less than 2**63 of the smallest unit"
        raise ValueError(problem)
    return Fraction(number, known.unit)


def _describe_whole(known: NumberType, text: str) -> str | None:
    """Return what to write instead of a number with a decimal point, such as 90s for 1.5m; None for other text.

    The text is the same in the JVM: see ``tests/golden/options.json``.
    """
    match = _FRACTION.fullmatch(text)
    if match is None or match[2].lower() not in known.units:
        return None
    given = known.units[match[2].lower()]
    amount = Fraction(match[1]) * given
    names: dict[int, str] = {}
    for name, size in known.units.items():
        if size <= given and not names.get(size):
            names[size] = name
    sizes = sorted(names, reverse=True)
    exact = [size for size in sizes if amount % size == 0]
    near = [size for size in sizes if size < given and amount >= size]
    if exact or near:
        size = (exact or near)[0]
        instead = f'"{amount // size}{names[size]}"'
    else:
        instead = " or ".join(f'"{amount // sizes[-1] + more}{names[sizes[-1]]}"' for more in (0, 1))
    return f'a whole number: write {instead} instead of "{text.strip()}"'


def _bad(key: str, text: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"Option {PREFIX}{key} has the value {text!r}: {why}.",
        hint=f"{table()[key].doc} Default: {table()[key].default!r}.",
    )
