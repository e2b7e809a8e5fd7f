"""The state store providers a query can be replayed on, as session settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyspark_ckpt
from pyspark_ckpt.pyspark_releases import has_commit_ids_for_all

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_PREFIX = "spark.sql.streaming.stateStore."
PROVIDER_CLASS = _PREFIX + "providerClass"
CHECKPOINT_FORMAT = _PREFIX + "checkpointFormatVersion"
BACKEND = _PREFIX + "ckpt.backend"


@dataclass(frozen=True)
class Provider:
    """One provider and the settings it is run with."""

    name: str
    provider_class: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def session(self, spark: SparkSession, **settings: str) -> SparkSession:
        """A session of its own on the shared context, so that two providers can run side by side."""
        session = spark.newSession()
        session.conf.set(PROVIDER_CLASS, self.provider_class)
        for key, value in self.settings.items():
            session.conf.set(key, value)
        for key, value in settings.items():
            session.conf.set(key, value)
        return session

    def in_format(self, version: int) -> Provider:
        """The same provider, writing checkpoint format ``version``."""
        return Provider(
            f"{self.name} v{version}", self.provider_class, {**self.settings, CHECKPOINT_FORMAT: str(version)}
        )


_SPARK = "org.apache.spark.sql.execution.streaming.state."
HDFS_BACKED = Provider("hdfs", _SPARK + "HDFSBackedStateStoreProvider", {CHECKPOINT_FORMAT: "1"})
ROCKSDB = Provider("rocksdb", _SPARK + "RocksDBStateStoreProvider", {CHECKPOINT_FORMAT: "1"})
OURS = Provider(
    "ckpt", pyspark_ckpt.session.PROVIDER_CLASS, {CHECKPOINT_FORMAT: "2" if has_commit_ids_for_all() else "1"}
)
IN_MEMORY = Provider("ckpt-memory", pyspark_ckpt.session.PROVIDER_CLASS, {**OURS.settings, BACKEND: "memory"})
BY_NAME = {provider.name: provider for provider in (HDFS_BACKED, ROCKSDB, OURS, IN_MEMORY)}
