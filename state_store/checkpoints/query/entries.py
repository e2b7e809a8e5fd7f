"""Entries of Spark's logs: a line with the version, a line of JSON, and perhaps more lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from pyspark_ckpt.state_store.attempts.damaged_logs import naming_repair
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.query.carried_plans import CARRIED_FILE
from pyspark_ckpt.state_store.checkpoints.query.files import LOGS
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.names import PROVIDER_CLASS, PROVIDER_CONF, REPLAY_FOLDER, WATERMARKS_FOLDER

PARTITIONS_CONF = "spark.sql.shuffle.partitions"
"""The conf in the offset log that holds the number of partitions of stateful operators."""

_LOGS = tuple(f"{log}/" for log in (*LOGS, WATERMARKS_FOLDER, REPLAY_FOLDER))
_PARTITIONS = re.compile(r"[0-9]{1,9}")


def read_partitions(checkpoint: BlobPlace, batch: int) -> int:
    """Return the number of partitions with which ``batch`` ran. Raises NotFoundError, FormatError, StorageError."""
    name = f"offsets/{batch}"
    with naming_repair(checkpoint):
        return require_partitions(checkpoint.get(name), f"{checkpoint.url}/{name}")


def require_partitions(content: bytes, where: str) -> int:
    """Return the number of partitions in an entry of the offset log. Raises FormatError that names ``where``."""
    found = _confs(split_lines(content, where)[1], where)[PARTITIONS_CONF]
    if _PARTITIONS.fullmatch(str(found)) is None:
        raise FormatError(f"{where} has {found!r} as {PARTITIONS_CONF}, which must be a whole number.")
    return int(found)


def refuse_other_provider(checkpoint: BlobPlace, batch: int) -> None:
    """Raise InvalidInputError if ``batch`` ran with another state store provider; FormatError, StorageError."""
    try:
        found = read_confs(checkpoint, batch).get(PROVIDER_CONF, PROVIDER_CLASS)
    except NotFoundError:  # the query has deleted the log meanwhile: its batch no longer matters
        return
    if found != PROVIDER_CLASS:
        raise InvalidInputError(
            f"{checkpoint.url}: the query keeps its state in {found}, not in pyspark-ckpt.",
            hint="To move it, stop the query and use `pyspark-ckpt checkpoint adopt`: see docs/moving-in.md.",
        )


def read_confs(checkpoint: BlobPlace, batch: int) -> dict[str, Any]:
    """Return the confs with which a batch ran, as logged. Raises NotFoundError, FormatError, StorageError."""
    name = f"offsets/{batch}"
    where = f"{checkpoint.url}/{name}"
    with naming_repair(checkpoint):
        return _confs(split_lines(checkpoint.get(name), where)[1], where)


def change_entry(content: bytes, where: str, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return the entry of a log with its JSON changed. Raises FormatError that names ``where``, the old location."""
    lines = split_lines(content, where)
    entry = decode_json(lines[1], where)
    try:
        change(entry)
    except (LookupError, TypeError, AttributeError) as problem:
        raise FormatError(f"{where} is not as Spark writes it: an entry is missing or wrong: {problem!r}.") from problem
    lines[1] = msgspec.json.encode(entry)
    return b"\n".join(lines)


def split_lines(content: bytes, where: str) -> list[bytes]:
    """Return the lines of an entry: the version, the JSON and the rest. Raises FormatError."""
    lines = content.split(b"\n")
    if len(lines) < 2 or not re.fullmatch(rb"v[0-9]{1,9}", lines[0]):  # noqa: PLR2004 - version and JSON
        is_empty = "is empty: it" if not content else "is damaged: it"
        raise FormatError(f"{where} {is_empty} does not begin with a version and a line of JSON.")
    return lines


def decode_json(line: bytes, where: str) -> dict[str, Any]:
    """Return an object of JSON. Raises FormatError that names ``where``."""
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise FormatError(f"{where} is damaged: {problem}.") from problem


def _confs(line: bytes, where: str) -> dict[str, Any]:
    return find_confs(decode_json(line, where), where)


def find_confs(entry: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the confs in the JSON of an entry of the offset log. Raises FormatError that names ``where``."""
    confs = entry.get("conf")
    if not isinstance(confs, dict) or PARTITIONS_CONF not in confs:
        raise FormatError(f"{where} does not say with how many partitions the batch ran ({PARTITIONS_CONF}).")
    return confs


def is_log(name: str) -> bool:
    """Return whether an object is an entry of a log, or says how many entries there were."""
    return name.startswith(_LOGS) or name == CARRIED_FILE
