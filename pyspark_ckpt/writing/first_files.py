"""The files of a query that has never run, as if its first batch had read nothing and had made the given state."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_ckpt.state_store.checkpoints.query.entries import PARTITIONS_CONF
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.names import PROVIDER_CLASS, PROVIDER_CONF
from pyspark_ckpt.writing.draft import StoreDraft

NO_OFFSET = "-"
"""What Spark's offset log has for a source that has not been read: it then starts where the program says."""


def make_first_files(
    stores: Sequence[StoreDraft], partitions: int, offsets: Sequence[object], checkpoint_format: int
) -> dict[str, bytes]:
    """Return the files by name. ``offsets``: of each source, None for where the program starts it.

    Raises InvalidInputError.
    """
    if checkpoint_format not in (1, 2):
        raise InvalidInputError(f"`checkpoint_format` must be 1 or 2, got {checkpoint_format!r}.")
    conf = {PARTITIONS_CONF: str(partitions), PROVIDER_CONF: PROVIDER_CLASS}
    times = {"batchWatermarkMs": 0, "batchTimestampMs": round(time.time() * 1000), "conf": conf}
    commit: dict[str, Any] = {"nextBatchWatermarkMs": 0}
    if checkpoint_format > 1:
        commit["stateUniqueIds"] = {str(each.operator.number): [[each.meta.id]] * partitions for each in stores}
    files = {
        QUERY: json.dumps({"id": str(uuid.uuid4())}),
        "offsets/0": "\n".join(["v1", json.dumps(times), *map(_write_offset, offsets)]),
        "commits/0": f"v{checkpoint_format}\n{json.dumps(commit)}",
    }
    for store in stores:
        files[f"state/{store.operator.number}/_metadata/metadata"] = _describe(store, partitions)
    return {name: text.encode() for name, text in files.items()}


def _write_offset(offset: object) -> str:
    """Return the line of a source in the offset log. Raises InvalidInputError."""
    if offset is None:
        return NO_OFFSET
    if isinstance(offset, Mapping):
        return json.dumps(offset)
    if isinstance(offset, str) and offset and "\n" not in offset:
        return offset
    raise InvalidInputError(
        f"An offset must be JSON as Spark writes it, a dict of it, or None, got {repr(offset)[:200]}.",
        hint="None starts a source where its options say, such as startingOffsets.",
    )


def _describe(store: StoreDraft, partitions: int) -> str:
    operator = store.operator
    info = {
        "operatorInfo": {"operatorId": operator.number, "operatorName": operator.name},
        "stateStoreInfo": [{"storeName": store.name, "numColsPrefixKey": 0, "numPartitions": partitions}],
    }
    return f"v1\n{json.dumps(info)}"
