"""The files of a query that has never run, as if its first batch had read nothing and had made the given state."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_ckpt.offline.writing.drafts.store_draft import StoreDraft
from pyspark_ckpt.state_store.checkpoints.query.entries import PARTITIONS_CONF
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.key_groups import MAX_PARALLELISM
from pyspark_ckpt.state_store.format.names import PROVIDER_CLASS, PROVIDER_CONF

FIRST_CONFS: Mapping[str, str] = {
    "spark.sql.dropDuplicates.deterministicKeyOrder.enabled": "true",
    "spark.sql.function.protobufExtensions.enabled": "false",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "false",
    "spark.sql.streaming.aggregation.stateFormatVersion": "2",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "2",
    "spark.sql.streaming.join.stateFormatVersion": "2",
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false",
    "spark.sql.streaming.stateStore.compression.codec": "lz4",
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
    "spark.sql.streaming.stateStore.rocksdb.formatVersion": "5",
    "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion": "2",
    "spark.sql.streaming.stateStore.rowChecksum.enabled": "false",
    "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled": "true",
    "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
}
"""What Spark 4.3 logs with the first batch of a query, and keeps for it. For a conf that is not there, a query gets the
value that Spark had before the conf, such as an older layout of state. Others ignore those that they do not know.
Source: OffsetSeqMetadata."""
CHECKPOINT_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
NO_OFFSET = "-"
"""What Spark's offset log has for a source that has not been read: it then starts where the program says."""


@dataclass(frozen=True)
class NewQuery:
    """The content of the first files of a query that has never run.

    ``offsets``: of each source, None for where the program starts it. ``confs``: those that differ from FIRST_CONFS.
    """

    partitions: int
    offsets: Sequence[object]
    checkpoint_format: int
    confs: Mapping[str, str]

    def __post_init__(self) -> None:
        """Raises InvalidInputError."""
        given: Mapping[str, Any] = vars(self)  # from Python, which does not check types
        if type(given["partitions"]) is not int or not 1 <= self.partitions <= MAX_PARALLELISM:
            raise InvalidInputError(
                f"`parallelism` must be a whole number from 1 to {MAX_PARALLELISM}, got {self.partitions!r}."
            )
        if type(given["checkpoint_format"]) is not int or self.checkpoint_format not in (1, 2):
            raise InvalidInputError(f"`checkpoint_format` must be 1 or 2, got {self.checkpoint_format!r}.")
        if (
            isinstance(given["offsets"], (str, Mapping))
            or not isinstance(given["offsets"], Sequence)
            or not self.offsets
        ):
            raise InvalidInputError(
                f"`offsets` must be a list with an offset for each source, got {self.offsets!r}.",
                hint="None starts a source where the program says.",
            )
        list(map(write_offset, self.offsets))


def make_first_files(query: NewQuery, stores: Sequence[StoreDraft]) -> dict[str, bytes]:
    """Return the files by name, in the order in which they must be written.

    A batch in the offset log without its commit would count as begun. ``metadata`` makes the folder a checkpoint.
    Raises InvalidInputError (an invalid offset).
    """
    conf = {**FIRST_CONFS, **query.confs, PARTITIONS_CONF: str(query.partitions), PROVIDER_CONF: PROVIDER_CLASS}
    times = {"batchWatermarkMs": 0, "batchTimestampMs": round(time.time() * 1000), "conf": conf}
    commit: dict[str, Any] = {"nextBatchWatermarkMs": 0}
    if query.checkpoint_format > 1:
        commit["stateUniqueIds"] = {str(each.operator.number): [[each.meta.id]] * query.partitions for each in stores}
    files = {
        "commits/0": f"v{query.checkpoint_format}\n{json.dumps(commit)}",
        "offsets/0": "\n".join(["v1", json.dumps(times), *map(write_offset, query.offsets)]),
    }
    for store in stores:
        files[f"state/{store.operator.number}/_metadata/metadata"] = describe_operator(store.operator, query.partitions)
    files[QUERY] = json.dumps({"id": str(uuid.uuid4())})
    return {name: text.encode() for name, text in files.items()}


def write_offset(offset: object) -> str:
    """Return the line of a source in the offset log. Raises InvalidInputError."""
    if offset is None:
        return NO_OFFSET
    try:
        if isinstance(offset, Mapping):
            return json.dumps(offset, allow_nan=False)
        if isinstance(offset, str) and len(offset.splitlines()) == 1:
            offset.encode()  # a half of a character cannot be written
            json.loads(offset)
            return offset
    except (TypeError, ValueError, RecursionError):
        pass
    raise InvalidInputError(
        f"An offset must be JSON as Spark writes it, a dict of it, or None, got {repr(offset)[:200]}.",
        hint="None starts a source where its options say, such as startingOffsets.",
    )


def describe_operator(operator: Operator, partitions: int) -> str:
    """Return Spark's record of an operator whose stores have no key prefix."""
    stores = [{"storeName": name, "numColsPrefixKey": 0, "numPartitions": partitions} for name in operator.stores]
    info = {
        "operatorInfo": {"operatorId": operator.number, "operatorName": operator.name},
        "stateStoreInfo": stores,
    }
    return f"v1\n{json.dumps(info)}"
