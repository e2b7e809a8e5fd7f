"""Where the checkpoints of these tests are, and what a driver needs to reach them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from integration.crash.driver import ROOT
from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.options import parse
from tests.services.hdfs_service import HdfsService
from tests.services.s3_server import S3Service

LOGS = ("metadata", "offsets/", "commits/")


@dataclass(frozen=True)
class Place:
    """A folder for checkpoints.

    ``url``: as Spark has it; ``own``: as this package has it, with ``options``. ``conf``: of a driver. ``jars``: more
    jars of a driver.
    """

    url: str
    own: str
    conf: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    jars: tuple[str, ...] = ()

    def read_logs(self, checkpoint: str) -> dict[str, bytes]:
        """Return Spark's own logs of a checkpoint in this folder."""
        place = place_at(f"{self.own}/{checkpoint}", parse(self.options).s3)
        return {blob.name: place.get(blob.name) for blob in place.walk() if blob.name.startswith(LOGS)}


def local_place(folder: Path) -> Place:
    """Return a place in a folder of this machine."""
    return Place(str(folder), str(folder))


def s3_place(s3: S3Service) -> Place:
    """Return a place in a real S3. Skips the test without S3A."""
    jars = sorted((ROOT / ".tools" / "s3a").glob("*.jar"))
    if not jars:
        pytest.skip("NOT RUN: needs Hadoop's S3A, which `make .tools/s3a/.ready` fetches where there is Maven.")
    own = s3.new_folder()
    settings = {**s3.s3a, **s3.s3a_keys}
    conf = {f"spark.hadoop.{key}": value for key, value in settings.items()}
    return Place(own.replace("s3:", "s3a:", 1), own, conf, s3.options, tuple(map(str, jars)))


def hdfs_place(hdfs: HdfsService) -> Place:
    """Return a place in a real HDFS."""
    folder = hdfs.new_folder()
    # Spark's own files: its client waits so long for the name node to hear of a block.
    quick = {"spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10"}
    return Place(folder, folder, quick)
