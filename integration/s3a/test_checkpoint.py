"""A checkpointLocation of s3a: Spark's own logs are there by Hadoop's connector, and all state is beside them.

The user has set what S3A needs, and nothing else: the state servers find no credentials and no endpoint by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt
from integration.crash.driver import FORMAT, LOCAL, ROOT, Driver
from integration.crash.faults import FORMATS
from integration.crash.reference import order, read_output
from pyspark_ckpt.cli.main import main
from tests.services.s3_server import S3Service, hide_credentials

QUERY = "windows"
BATCHES = 4

pytestmark = pytest.mark.spark


@pytest.fixture
def driver(s3: S3Service, tmp_path: Path) -> Iterator[Driver]:
    """A session that has S3A's jars and knows the endpoint; the keys come with each query."""
    jars = sorted((ROOT / ".tools" / "s3a").glob("*.jar"))
    if not jars:
        pytest.skip("NOT RUN: needs Hadoop's S3A, which `make .tools/s3a/.ready` fetches where there is Maven.")
    conf = {f"spark.hadoop.{key}": value for key, value in s3.s3a.items()}
    conf["spark.jars"] = ",".join([pyspark_ckpt.session.jar_path(), *map(str, jars)])
    with pytest.MonkeyPatch.context() as patch:
        hide_credentials(patch, tmp_path)
        made = Driver(tmp_path, LOCAL, conf)
    with made:
        yield made


def test_state_in_an_s3a_checkpoint_is_right_when_all_that_is_local_is_lost(
    driver: Driver, s3: S3Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, keys = s3.new_folder().replace("s3:", "s3a:", 1), s3.s3a_keys
    folders = {f"{root}/format-{version}": tmp_path / f"v{version}" for version in FORMATS}

    def orders(until: int) -> list[dict[str, Any]]:
        in_s3a = [
            order(QUERY, folder, checkpoint=place, conf={FORMAT: place[-1], **keys}, until=until)
            for place, folder in folders.items()
        ]
        return [*in_s3a, order(QUERY, tmp_path / "local", until=until)]

    driver.run(*orders(BATCHES // 2))
    driver.lose_local_state()
    driver.run(*orders(BATCHES))
    driver.lose_local_state()

    output = read_output(tmp_path / "local" / QUERY)
    state = driver.state(QUERY, tmp_path / "local" / QUERY)
    assert len(output) == BATCHES
    for place, folder in folders.items():
        assert read_output(folder / QUERY) == output
        assert driver.state(QUERY, folder, keys, place) == state
        arguments = [argument for key, value in s3.options.items() for argument in ("-o", f"{key}={value}")]
        assert main(["checkpoint", "verify", place, *arguments]) == 0, capsys.readouterr()
    found = s3.files(root.replace("s3a:", "s3:", 1))
    assert {Path(file).suffix for file in found} >= {".delta", ".snapshot", ".sst", ".winner"}

    servers = [Path(f"/proc/{server.pid}") for server in driver.state_servers()]
    files = [path for path in (driver.folder / "local").rglob("*") if path.is_file()]
    files += [path / name for path in servers for name in ("cmdline", "environ") if path.exists()]
    seen = driver.all_logs().encode() + b"".join(path.read_bytes() for path in files)
    assert keys["fs.s3a.secret.key"].encode() not in seen
