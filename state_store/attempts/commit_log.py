"""Read the ids of a batch's state from Spark's commit log.

``<checkpoint>/commits/<batch>`` is a line ``v1``, ``v2`` or ``v3`` and a JSON object. From v2 on it may
name, per operator and partition, the ids of every store: ``stateUniqueIds: {"0": [["id", ...], ...]}``.
Batch N makes version N + 1.
"""

from __future__ import annotations

import re

import msgspec

from pyspark_ckpt.state_store.attempts.damaged_logs import naming_repair
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.json_objects import Name, SparkId, decode_as

_VERSION_LINE = re.compile(rb"v[0-9]{1,9}")


class _Entry(msgspec.Struct):
    stateUniqueIds: dict[Name, list[list[SparkId]]] | None = None  # noqa: N815 - Spark's name


def read_ids(checkpoint: BlobPlace, version: int) -> dict[str, list[list[str]]]:
    """Return all ids that the commit log names for ``version``, by operator, partition and store.

    Empty if the log has no entry for the batch, or no longer, or names no ids, as in checkpoint format 1. Raises
    FormatError, StorageError.
    """
    name = f"commits/{version - 1}"
    try:
        content = checkpoint.get(name)
    except NotFoundError:
        return {}
    with naming_repair(checkpoint):
        return _decode_ids(content, f"{checkpoint.url}/{name}")


def _decode_ids(content: bytes, where: str) -> dict[str, list[list[str]]]:
    head, _, body = content.partition(b"\n")
    if _VERSION_LINE.fullmatch(head.strip()) is None:
        is_empty = "is empty: it" if not content else "is damaged: it"
        raise FormatError(f"{where} {is_empty} does not begin with the version line of a commit log entry.")
    return decode_as(body.partition(b"\n")[0] or b"{}", _Entry, where).stateUniqueIds or {}


def read_committed_ids(checkpoint: BlobPlace, version: int, operator: int, partition: int) -> set[str]:
    """Return the ids that the commit log names for one partition of an operator at ``version``, of all its stores.

    Empty if it names none. Raises FormatError, StorageError.
    """
    partitions = read_ids(checkpoint, version).get(str(operator), [])
    return set(partitions[partition]) if partition < len(partitions) else set()


def is_committed(checkpoint: BlobPlace, version: int) -> bool:
    """Return whether the commit log has the batch that makes ``version``. Makes one request. Raises StorageError."""
    try:
        checkpoint.get(f"commits/{version - 1}", 0, 1)
    except NotFoundError:
        return False
    return True
