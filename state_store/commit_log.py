"""What Spark's commit log says about the ids of a batch's state.

``<checkpoint>/commits/<batch>`` is a line ``v1``, ``v2`` or ``v3`` and a JSON object. From v2 on it may
name, per operator and partition, the ids of every store: ``stateUniqueIds: {"0": [["id", ...], ...]}``.
Batch N makes version N + 1.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError

_VERSION_LINE = re.compile(r"v\d{1,9}")


def committed_ids(checkpoint: BlobPlace, version: int, operator: int, partition: int) -> set[str]:
    """Ids that the commit log names for one partition of an operator at ``version``, of all its stores.

    Empty when the log has no entry for the batch (any more) or names no ids, as checkpoint format 1 does.
    Raises FormatError, StorageError.
    """
    name = f"commits/{version - 1}"
    try:
        content = checkpoint.get(name)
    except NotFoundError:
        return set()
    head, _, body = content.decode("utf-8", errors="replace").partition("\n")
    where = f"{checkpoint.url}/{name}"
    if _VERSION_LINE.fullmatch(head.strip()) is None:
        raise FormatError(f"{where} does not begin with the version line of a commit log entry.")
    try:
        entry = msgspec.json.decode(body.partition("\n")[0] or "{}", type=dict[str, Any])
        ids = msgspec.convert(entry.get("stateUniqueIds") or {}, dict[str, list[list[str]]])
    except msgspec.MsgspecError as problem:
        raise FormatError(f"{where} is damaged: {problem}.") from problem
    partitions = ids.get(str(operator), [])
    return set(partitions[partition]) if partition < len(partitions) else set()
