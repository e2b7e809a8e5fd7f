"""The providers that are measured, each with every setting that is not Spark's default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

_PREFIX = "spark.sql.streaming.stateStore."
_SPARK = "org.apache.spark.sql.execution.streaming.state."
_ROCKSDB = {
    _PREFIX + "providerClass": _SPARK + "RocksDBStateStoreProvider",
    _PREFIX + "checkpointFormatVersion": "1",
}
_CHANGELOG = _PREFIX + "rocksdb.changelogCheckpointing.enabled"


@dataclass(frozen=True)
class Variant:
    """One provider with its settings. ``ours``: the session is made by ``pyspark_ckpt.configure``.

    Not ``stateful``: every batch is a query of its own, of the same plan, and keeps nothing. Its input has one in
    ``part_of_keys`` of the workload's keys. ``form``: which of the workload's forms runs, if it has several. One with
    ``turns`` takes many seconds for a batch: it is not warmed, and measured in so many rounds only. ``checkout``: the
    code that runs is that of another checkout of this project, with the environment in its ``.venv``.
    """

    name: str
    settings: Mapping[str, str]
    ours: bool = False
    stateful: bool = True
    part_of_keys: int = 1
    form: str = ""
    turns: int | None = None
    checkout: Path | None = None


OURS = Variant("ckpt", {}, ours=True)
IN_MEMORY = Variant(
    "ckpt, in memory", {_PREFIX + "ckpt.backend": "memory", _PREFIX + "ckpt.memoryLimit": "1g"}, ours=True
)
SMALL_CACHE = Variant("ckpt, small cache", {_PREFIX + "ckpt.memoryLimit": "16m"}, ours=True)
SMALL_CACHE_FEW_KEYS = replace(SMALL_CACHE, name="the same, a tenth of the keys", part_of_keys=10)
ROCKSDB = Variant("rocksdb", {**_ROCKSDB, _CHANGELOG: "false"})
ROCKSDB_CHANGELOG = Variant("rocksdb, changelog", {**_ROCKSDB, _CHANGELOG: "true"})
HDFS_BACKED = Variant(
    "hdfs-backed",
    {
        _PREFIX + "providerClass": _SPARK + "HDFSBackedStateStoreProvider",
        _PREFIX + "checkpointFormatVersion": "1",
    },
)
NO_STATE = Variant("no state", {}, stateful=False)

# Batches of this many rows between Spark and Python; its default is 10,000.
_LARGE_BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100000"}
VECTORISED = Variant("vectorised", _LARGE_BATCHES, ours=True, form="vectorised")
VECTORISED_BY_DEFAULT = Variant("vectorised, Spark's defaults", {}, ours=True, form="vectorised")
VECTORISED_UNCOMPRESSED = replace(
    VECTORISED,
    name="vectorised, compression none",
    settings={**_LARGE_BATCHES, _PREFIX + "ckpt.compression": "none"},
)
VECTORISED_FEW_KEYS = replace(VECTORISED, name="vectorised, 1 in 100 keys", part_of_keys=100)
UNCOMPRESSED_FEW_KEYS = replace(
    VECTORISED_UNCOMPRESSED, name=f"{VECTORISED_UNCOMPRESSED.name}, 1 in 100 keys", part_of_keys=100
)
PER_KEY = Variant("per key", _LARGE_BATCHES, ours=True, form="per key")
WITHOUT_STATE = Variant("vectorised, no state", _LARGE_BATCHES, ours=True, form="without state")
MAP_IN_ARROW = Variant("mapInArrow", _LARGE_BATCHES, form="mapInArrow")
UNCHANGED = Variant("applyInPandasWithState's code, on ckpt", _LARGE_BATCHES, ours=True, form="unchanged", turns=3)
_PEER = {**_ROCKSDB, _CHANGELOG: "true", **_LARGE_BATCHES}
GROUPS = Variant("applyInPandasWithState", _PEER, form="applyInPandasWithState", turns=2)
TRANSFORM = Variant("transformWithState", _PEER, form="transformWithState", turns=2)
TRANSFORM_FRAMES = Variant("transformWithStateInPandas", _PEER, form="transformWithStateInPandas", turns=2)
TRANSFORM_HERE = Variant(
    "transformWithState's code, on ckpt", _LARGE_BATCHES, ours=True, form="transformWithState, here"
)
TRANSFORM_FRAMES_HERE = Variant(
    "transformWithStateInPandas' code, on ckpt", _LARGE_BATCHES, ours=True, form="transformWithStateInPandas, here"
)
SEVERAL_STATES = Variant("value, list and map with TTL", _LARGE_BATCHES, ours=True, form="several states")
SEVERAL_STATES_PER_KEY = replace(SEVERAL_STATES, name=f"{SEVERAL_STATES.name}, per key", form="several states, per key")
ONE_PICKLE = Variant("one pickled state", _PEER, form="one pickled state", turns=3)
MANY_TIMERS = Variant("a million timers", {}, ours=True, form="many timers")
NO_TIMERS = Variant("no timers", {}, ours=True, form="no timers")
ONE_OPERATOR = Variant("one operator", _LARGE_BATCHES, ours=True, form="one operator")
WITH_RULES = Variant("with 10,000 rules", {}, ours=True, form="with rules")
WITHOUT_RULES = Variant("without rules", {}, ours=True, form="without rules")
TWO_OPERATORS = Variant("two operators in a chain", _LARGE_BATCHES, ours=True, form="two operators")

# A snapshot as soon as there is a delta, so that what is rescaled is table files and not the rows of one batch.
_SNAPSHOTS = {_PREFIX + "maintenanceInterval": "1s", _PREFIX + "ckpt.snapshotEveryVersions": "1"}
RESCALED = Variant("ckpt, rescaled", _SNAPSHOTS, ours=True)
RESCALED_KEYED = Variant("vectorised, rescaled", {**_LARGE_BATCHES, **_SNAPSHOTS}, ours=True, form="vectorised")
PER_KEY_SAVED = replace(RESCALED_KEYED, name="per key, saved", form="per key")
REPARTITIONED = replace(ROCKSDB, name="rocksdb, repartitioned")

ALL: tuple[Variant, ...] = (
    OURS,
    IN_MEMORY,
    SMALL_CACHE,
    SMALL_CACHE_FEW_KEYS,
    VECTORISED,
    VECTORISED_BY_DEFAULT,
    VECTORISED_FEW_KEYS,
    VECTORISED_UNCOMPRESSED,
    UNCOMPRESSED_FEW_KEYS,
    PER_KEY,
    UNCHANGED,
    WITHOUT_STATE,
    MAP_IN_ARROW,
    GROUPS,
    TRANSFORM,
    TRANSFORM_FRAMES,
    TRANSFORM_HERE,
    TRANSFORM_FRAMES_HERE,
    SEVERAL_STATES,
    SEVERAL_STATES_PER_KEY,
    ONE_PICKLE,
    MANY_TIMERS,
    NO_TIMERS,
    ONE_OPERATOR,
    TWO_OPERATORS,
    WITH_RULES,
    WITHOUT_RULES,
    ROCKSDB,
    ROCKSDB_CHANGELOG,
    HDFS_BACKED,
    NO_STATE,
    RESCALED,
    RESCALED_KEYED,
    REPARTITIONED,
)

SESSION_SETTINGS: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
