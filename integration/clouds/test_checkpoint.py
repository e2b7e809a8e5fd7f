"""State in Google Cloud Storage and Azure, and a checkpointLocation in Google Cloud Storage by Hadoop's connector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt
from integration.crash.driver import FORMAT, LOCAL, OPTIONS, ROOT, Driver
from integration.crash.reference import order, read_output
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import place_at
from tests.services.cloud_services import KEY, CloudService

QUERY = "windows"
BATCHES = 4

pytestmark = pytest.mark.spark


def test_state_is_right_in_a_remote_when_all_that_is_local_is_lost(
    gcs: CloudService, azure: CloudService, tmp_path: Path
) -> None:
    """Spark's own log is on a file system: the session has no connector to the clouds."""
    remotes = {"gcs": gcs.new_folder(), "azure": azure.new_folder()}

    def orders(until: int) -> list[dict[str, Any]]:
        remote = [
            order(QUERY, tmp_path / name, conf={FORMAT: "2", f"{OPTIONS}remote": remotes[name]}, until=until)
            for name in remotes
        ]
        return [*remote, order(QUERY, tmp_path / "local", until=until)]

    with Driver(tmp_path, LOCAL) as driver:
        driver.run(*orders(BATCHES // 2))
        driver.lose_local_state()
        driver.run(*orders(BATCHES))
        driver.lose_local_state()
        output = read_output(tmp_path / "local" / QUERY)
        state = driver.state(QUERY, tmp_path / "local" / QUERY)
        assert len(output) == BATCHES
        for name, remote in remotes.items():
            folder = tmp_path / name / QUERY
            assert read_output(folder) == output
            assert driver.state(QUERY, folder, {f"{OPTIONS}remote": remote}) == state
            suffixes = {Path(blob.name).suffix for blob in place_at(remote).walk()}
            assert suffixes >= {".delta", ".snapshot", ".sst"}
        assert KEY.encode() not in _read_all(driver)


def test_a_checkpoint_in_google_cloud_storage_is_right_when_all_that_is_local_is_lost(
    gcs: CloudService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user has set what Hadoop's connector needs, and nothing else."""
    jars = sorted((ROOT / ".tools" / "gcs-connector").glob("*.jar"))
    if not jars:
        pytest.skip("NOT RUN: needs Hadoop's connector, which `make .tools/gcs-connector/.ready` fetches by Maven.")
    conf = {
        "spark.jars": ",".join([pyspark_ckpt.session.jar_path(), *map(str, jars)]),
        "spark.hadoop.fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
        "spark.hadoop.fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "spark.hadoop.fs.gs.storage.root.url": f"{gcs.endpoint}/",
        "spark.hadoop.fs.gs.auth.null.enable": "true",
        "spark.hadoop.fs.gs.auth.service.account.enable": "false",
        "spark.hadoop.fs.gs.project.id": "tests",
        # Hadoop 3.5 has defaults that this connector cannot read.
        "spark.hadoop.fs.gs.block.size": str(64 << 20),
        "spark.hadoop.fs.gs.outputstream.buffer.size": str(8 << 20),
        "spark.hadoop.fs.gs.outputstream.upload.chunk.size": str(24 << 20),
        "spark.hadoop.fs.gs.inputstream.inplace.seek.limit": str(8 << 20),
        "spark.hadoop.fs.gs.inputstream.min.range.request.size": str(2 << 20),
    }
    place = f"{gcs.new_folder()}/checkpoint"
    with monkeypatch.context() as patch:
        patch.delenv("STORAGE_EMULATOR_HOST")
        with Driver(tmp_path, LOCAL, conf) as driver:
            for until in (BATCHES // 2, BATCHES):
                driver.run(
                    order(QUERY, tmp_path / "gcs", checkpoint=place, conf={FORMAT: "2"}, until=until),
                    order(QUERY, tmp_path / "local", until=until),
                )
                driver.lose_local_state()
            output = read_output(tmp_path / "local" / QUERY)
            assert len(output) == BATCHES
            assert read_output(tmp_path / "gcs" / QUERY) == output
            state = driver.state(QUERY, tmp_path / "local" / QUERY)
            assert driver.state(QUERY, tmp_path / "gcs" / QUERY, {}, place) == state
    for command in ("list", "verify"):
        assert main(["checkpoint", command, place]) == 0, capsys.readouterr()


def _read_all(driver: Driver) -> bytes:
    """All logs, and what the state servers were told by arguments."""
    servers = [Path(f"/proc/{server.pid}/cmdline") for server in driver.state_servers()]
    return driver.all_logs().encode() + b"".join(path.read_bytes() for path in servers if path.exists())
