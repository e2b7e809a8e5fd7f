"""HDFS loses the power of all its nodes at once: what it has acknowledged must be there."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hdfs_native import Client

from integration.crash.lost_power import Disk, NoDiskError, make_image, mounted
from integration.crash.processes import eventually
from integration.partitions import hdfs
from integration.partitions.cluster import end
from integration.partitions.network import can_join, joined
from integration.power.outcomes import FILES, go_on, require_whole, write_lines
from integration.power.query import Settings
from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.testing.crashes.processes import MARK
from tests.services.hdfs_service import MINI_CLUSTER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kill,
    pytest.mark.in_turn,
    pytest.mark.skipif(not MINI_CLUSTER.exists(), reason="NOT RUN: needs Hadoop's mini cluster."),
    pytest.mark.skipif(not can_join(), reason="NOT RUN: needs root on Linux, and the command ip."),
]

DISK_BYTES = 256 << 20
CONTENT = bytes(range(256)) * (10 << 10)
"""Of a file of three blocks."""
REPORTED = b"Successfully sent block report"
"""A data node has told the name node which blocks it has."""
MOMENTS = (1, 4, FILES)
"""How many batches are acknowledged when the power is lost."""

Write = Callable[["SparkSession", str], None]


def _write_object(_: SparkSession, url: str) -> None:
    place_at(url.rpartition("/")[0]).put("file", CONTENT)


def _write_entry(spark: SparkSession, url: str, *, may_replace: bool = False) -> None:
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(url)
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    manager = jvm.org.apache.spark.sql.ckpt.FencedCheckpointFileManager(path.getParent(), conf)
    manager.mkdirs(path.getParent())
    output = manager.createAtomic(path, may_replace)
    output.write(CONTENT)
    output.close()


WRITES: dict[str, Write] = {
    "object": _write_object,
    "entry": _write_entry,
    "as Spark does": partial(_write_entry, may_replace=True),
}


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The image of an empty file system."""
    image = tmp_path / "disk.img"
    try:
        make_image(image, DISK_BYTES)
        with mounted(image, tmp_path / "tried"):
            return image
    except NoDiskError as problem:
        pytest.skip(f"NOT RUN: needs loop devices and mkfs.ext4 ({problem}).")


def test_what_hdfs_has_acknowledged_is_there_after_a_loss_of_power(
    spark: SparkSession, disk: Path, tmp_path: Path
) -> None:
    mark = uuid.uuid4().hex
    with mounted(disk, tmp_path / "disk") as mount, _running(mount, tmp_path / "logs", mark) as url:
        os.sync()  # a new file system, and no more than that
        for name, write in WRITES.items():
            write(spark, f"{url}/{name}/file")
            mount.copy_as_power_is_lost(mark, tmp_path / f"{name}.img")
    found = {name: _read(tmp_path, name) for name in WRITES}
    assert found == {"object": CONTENT, "entry": CONTENT, "as Spark does": None}


def _read(folder: Path, name: str) -> bytes | None:
    """Return what a file has after the loss of power, None if it cannot be read."""
    with mounted(folder / f"{name}.img", folder / name) as disk, _running(disk, folder / f"{name} logs", "") as url:
        try:
            with Client(url).read(f"/{name}/file") as file:
                return bytes(file.read())
        except (OSError, RuntimeError):
            return None


@pytest.mark.matrix
def test_a_query_in_hdfs_goes_on_after_a_loss_of_power(spark: SparkSession, disk: Path, tmp_path: Path) -> None:
    counts, acknowledged, mark = write_lines(tmp_path / "lines"), tmp_path / "acks", uuid.uuid4().hex
    acknowledged.mkdir()

    def settings(url: str) -> Settings:
        return Settings(str(tmp_path / "lines"), f"{url}/checkpoint", str(acknowledged), sink=str(tmp_path / "sink"))

    def count_acknowledged() -> int:
        return max((int(path.name) for path in acknowledged.iterdir()), default=-1)

    copied: dict[int, Path] = {}
    (tmp_path / "sink").mkdir()
    with mounted(disk, tmp_path / "disk") as mount, _running(mount, tmp_path / "logs", mark) as url:
        os.sync()
        query = subprocess.Popen(settings(url).command(), env={**os.environ, MARK: mark})
        while len(copied) < len(MOMENTS):
            eventually("a batch", lambda: count_acknowledged() >= MOMENTS[len(copied)])
            batches = count_acknowledged()
            copied[batches] = tmp_path / f"{batches}.img"
            mount.copy_as_power_is_lost(mark, copied[batches])
        assert query.wait() == 0
    shutil.rmtree(tmp_path / "sink")
    for batches, image in copied.items():
        with mounted(image, tmp_path / str(batches)) as mount, _running(mount, tmp_path / f"{batches} logs", "") as url:
            require_whole(f"{url}/checkpoint", batches, counts)
            go_on(spark, settings(url), counts)


@contextlib.contextmanager
def _running(disk: Disk, logs: Path, mark: str) -> Iterator[str]:
    """Run both nodes on a disk, with a mark in their environment, until they are killed: at which URL."""
    logs.mkdir()
    with joined(["server"]) as network, contextlib.ExitStack() as stack:
        server = network.machines["server"]
        for role, command in hdfs.node_commands(disk.path, dict.fromkeys(("name", "data"), server.address)).items():
            log = stack.enter_context((logs / role).open("wb"))
            process = subprocess.Popen(
                server.command(*command), env={**os.environ, MARK: mark}, stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(end, process)
        url = hdfs.url_of(server.address)
        eventually("HDFS", partial(hdfs.takes_files, url))
        eventually("a report of blocks", lambda: REPORTED in (logs / "data").read_bytes())
        yield url
