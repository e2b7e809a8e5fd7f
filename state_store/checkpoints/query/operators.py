"""The stateful operators of a query, as Spark describes them in its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

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
