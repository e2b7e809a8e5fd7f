"""The providers that are measured, each with every setting that is not Spark's default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
    ``part_of_keys`` of the workload's keys.
    """

    name: str
    settings: Mapping[str, str]
    ours: bool = False
    stateful: bool = True
    part_of_keys: int = 1


OURS = Variant("ckpt", {}, ours=True)
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

ALL: tuple[Variant, ...] = (OURS, SMALL_CACHE, SMALL_CACHE_FEW_KEYS, ROCKSDB, ROCKSDB_CHANGELOG, HDFS_BACKED, NO_STATE)

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
