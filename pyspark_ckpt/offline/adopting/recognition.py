"""Recognizes the stateful operators of a query by the names and the schemas of their stores.

Spark records them from 4.0 on. Before, the state of an operator shows what it is. Source: the classes that write state
in Spark 3.5 (``statefulOperators.scala``, ``SymmetricHashJoinStateManager``, ``FlatMapGroupsWithStateExecHelper``)::

    join                 stores left-keyToNumValues, left-keyWithIndexToValue, and the same of the right side
    limit                key (key: void), value (value: bigint)
    deduplication        value (__dummy__: void), or within the watermark (expiresAtMicros: bigint)
    function of groups   value (groupState, perhaps timeoutTimestamp)
    session windows      the last column of the key is sessionStartTime, and the value has a session window
    aggregation          anything else

Names are those that Spark 4 gives these operators: it starts a query only if they are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.query.entries import read_partitions
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.checkpoints.query.spark_files import StateSchema, read_schemas
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.format.remote import DEFAULT_STORE, store_folder
from pyspark_ckpt.state_store.identity import Identity

JOIN_STORES = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")
_OF_PYTHON = "applyInPandasWithState"
_OF_SCALA = "flatMapGroupsWithState"
_SESSION_START = "sessionStartTime"
_SESSION_WINDOW = "spark.sessionWindow"


class SparkCheckpoint(Checkpoint):
    """The checkpoint of a query in one of Spark's own providers."""

    unnamed: Sequence[Operator] = ()
    """Operators whose kind Spark has not recorded, once the operators were read."""

    def _read_operators(self) -> Iterator[Operator]:
        named = list(super()._read_operators())
        self.unnamed = list(self._recognize(len(named)))
        yield from named
        yield from self.unnamed

    def partitions_in_use(self, operator: Operator) -> int:
        """Return how many partitions may have state; its keys show how many have it: see ``SparkState``."""
        return operator.partitions

    def _recognize(self, first: int) -> Iterator[Operator]:
        """Yield the operators from number ``first`` on. Raises FormatError, StorageError."""
        batch = self.newest_version - 1
        for number in count(first) if batch >= 0 else ():
            schemas = _read_schemas(self.place, number)
            if not schemas:
                return
            partitions = read_partitions(self.place, batch)
            yield _recognize(schemas, number, partitions, f"{self.place.url}/state/{number}")


def describe(operator: Operator) -> bytes:
    """Return what Spark 4 writes into ``state/<operator>/_metadata/metadata``."""
    stores = [
        {"storeName": name, "numColsPrefixKey": prefix, "numPartitions": operator.partitions}
        for name, prefix in zip(operator.stores, operator.prefix_columns, strict=True)
    ]
    info = {"operatorId": operator.number, "operatorName": operator.name}
    return b"v1\n" + msgspec.json.encode({"operatorInfo": info, "stateStoreInfo": stores})


def _read_schemas(place: BlobPlace, number: int) -> dict[str, StateSchema]:
    """Return the schemas of an operator by store; none if there is no such operator, or not one with one state each."""
    found: dict[str, StateSchema] = {}
    for store in (DEFAULT_STORE, *JOIN_STORES):
        name = f"{store_folder(Identity(number, 0, store))}/_metadata/schema"
        try:
            content = place.get(name)
        except NotFoundError:
            continue
        schemas = read_schemas(content, f"{place.url}/{name}")
        if len(schemas) == 1:
            found[store] = schemas[0]
    return found


def _recognize(schemas: dict[str, StateSchema], number: int, partitions: int, where: str) -> Operator:
    if DEFAULT_STORE in schemas:
        try:
            name, prefix = _name_operator(schemas[DEFAULT_STORE])
        except (LookupError, TypeError, AttributeError) as problem:
            raise FormatError(f"The schema of state in {where} is damaged: {problem!r}.") from problem
        return Operator(number, name, (DEFAULT_STORE,), partitions, (prefix,), ((),))
    if missing := [store for store in JOIN_STORES if store not in schemas]:
        raise FormatError(f"{where} has no schema of the store {missing[0]!r} of a join.")
    return Operator(number, "symmetricHashJoin", JOIN_STORES, partitions, (0,) * 4, ((),) * 4)


def _name_operator(schema: StateSchema) -> tuple[str, int]:
    """Return Spark's name of an operator with one store, and how many columns of its key it scans by."""
    keys, values = _fields(schema.keys), _fields(schema.values)
    names = [each["name"] for each in values]
    if _name_types(keys) == [("key", "void")] and _name_types(values) == [("value", "long")]:
        return "globalLimit", 0
    if names == ["__dummy__"] and values[0]["type"] == "void":
        return "dedupe", 0
    if names == ["expiresAtMicros"]:
        return "dedupeWithinWatermark", 0
    if names in (["groupState"], ["groupState", "timeoutTimestamp"]):
        is_row = isinstance(values[0]["type"], dict) and values[0]["type"].get("type") == "struct"
        return _OF_PYTHON if is_row else _OF_SCALA, 0
    has_window = any(each.get("metadata", {}).get(_SESSION_WINDOW) for each in values)
    if keys and keys[-1]["name"] == _SESSION_START and has_window:
        return "sessionWindowStateStoreSaveExec", len(keys) - 1
    return "stateStoreSave", 0


def _fields(schema: Any) -> Sequence[Any]:  # noqa: ANN401 - JSON
    fields: Sequence[Any] = schema["fields"]
    return fields


def _name_types(fields: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(each["name"], each["type"]) for each in fields]
