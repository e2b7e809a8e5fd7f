"""HDFS loses the power of all its nodes at once: what it has acknowledged must be there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
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
TRIES = 8

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


def test_what_hdfs_has_acknowledged_is_there_after_a_loss_of_power(spark: SparkSession, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    try:
        make_image(tmp_path / "disk.img", DISK_BYTES)
        with mounted(tmp_path / "disk.img", tmp_path / "disk") as disk, _running(disk, tmp_path / "logs", mark) as url:
            os.sync()  # a new file system, and no more than that
            for name, write in WRITES.items():
                write(spark, f"{url}/{name}/file")
                disk.copy_as_power_is_lost(mark, tmp_path / f"{name}.img")
    except NoDiskError as problem:
        pytest.skip(f"NOT RUN: needs loop devices and mkfs.ext4 ({problem}).")
    found = {name: _read(tmp_path, name) for name in WRITES}
    assert found == {"object": CONTENT, "entry": CONTENT, "as Spark does": None}


def _read(folder: Path, name: str) -> bytes | None:
    """Return what a file has after the loss of power, None if it cannot be read."""
    with mounted(folder / f"{name}.img", folder / name) as disk, _running(disk, folder / f"{name} logs", "") as url:
        for _ in range(TRIES):  # the data node tells which blocks it has
            with contextlib.suppress(OSError, RuntimeError), Client(url).read(f"/{name}/file") as file:
                return bytes(file.read())
            time.sleep(1)
    return None


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
        yield url
