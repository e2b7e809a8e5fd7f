"""The stateful operators of a query, as Spark describes them in its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import msgspec

from pyspark_ckpt.state_store.attempts.damaged_logs import naming_repair
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.query.files import BATCH
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.json_objects import (
    Count,
    Location,
    Name,
    OperatorNumber,
    Partitions,
    StoreName,
    decode_as,
)


@dataclass(frozen=True)
class Operator:
    """A stateful operator, as Spark names it, and its stores."""

    number: int
    name: str
    stores: tuple[str, ...]
    partitions: int
    prefix_columns: tuple[int, ...] = ()
    """For each store, how many columns of its keys Spark scans by, according to its metadata."""
    schema_files: tuple[tuple[str, ...], ...] = ()
    """For each store, Spark's paths of all files with the schemas of its states; the last one counts."""
    properties: str = ""
    """JSON of an operator with several states in a store; else empty."""


class _StoreInfo(msgspec.Struct):
    storeName: StoreName  # noqa: N815 - Spark's names, here and below
    numPartitions: Partitions  # noqa: N815
    numColsPrefixKey: Count = 0  # noqa: N815
    stateSchemaFilePaths: tuple[Location, ...] = ()  # noqa: N815


class _OperatorInfo(msgspec.Struct):
    operatorId: OperatorNumber  # noqa: N815
    operatorName: Name  # noqa: N815


class _OperatorMetadata(msgspec.Struct):
    operatorInfo: _OperatorInfo  # noqa: N815
    stateStoreInfo: list[_StoreInfo]  # noqa: N815
    operatorPropertiesJson: str = ""  # noqa: N815


def read_operator(content: bytes, number: int, where: str) -> Operator:
    """Return an operator as Spark has recorded it. Raises FormatError that names ``where``."""
    entry = decode_as(content.partition(b"\n")[2], _OperatorMetadata, where)
    stores = tuple(store.storeName for store in entry.stateStoreInfo)
    partitions = max((store.numPartitions for store in entry.stateStoreInfo), default=0)
    is_usable = partitions > 0
    if entry.operatorInfo.operatorId != number or not is_usable:
        raise FormatError(
            f"{where} is damaged: operator {entry.operatorInfo.operatorId} cannot have "
            f"{partitions} partitions of the stores {list(stores)}."
        )
    prefixes = tuple(store.numColsPrefixKey for store in entry.stateStoreInfo)
    schema_files = tuple(store.stateSchemaFilePaths for store in entry.stateStoreInfo)
    name, properties = entry.operatorInfo.operatorName, entry.operatorPropertiesJson
    return Operator(number, name, stores, partitions, prefixes, schema_files, properties)


def read_operators(checkpoint: BlobPlace, before: int | None = None) -> Iterator[Operator]:
    """Yield all operators of a query by number, as Spark described them newest, or newest before a batch.

    Raises FormatError, StorageError.
    """
    for number in count():
        name = _find_description(checkpoint, number, before)
        if name is None:
            return
        with naming_repair(checkpoint):
            operator = read_operator(checkpoint.get(name), number, f"{checkpoint.url}/{name}")
        yield operator


def _find_description(checkpoint: BlobPlace, number: int, before: int | None) -> str | None:
    """Return the name of Spark's newest description of an operator; None if there is no such operator."""
    folder = f"state/{number}/_metadata"
    if any(blob.name.rpartition("/")[2] == "metadata" for blob in checkpoint.list(folder, "metadata")):
        return f"{folder}/metadata"
    names = (blob.name.rpartition("/")[2] for blob in checkpoint.list(f"{folder}/v2"))
    known = [name for name in names if BATCH.fullmatch(name) and (before is None or int(name) < before)]
    newest = max(known, key=int, default=None)
    return None if newest is None else f"{folder}/v2/{newest}"
