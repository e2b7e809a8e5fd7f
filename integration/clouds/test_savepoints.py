"""Savepoints in Google Cloud Storage and Azure of queries whose state is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from integration.crash.driver import ROOT
from tests.services.cloud_services import ACCOUNT, KEY, CloudService

pytestmark = [pytest.mark.spark, pytest.mark.matrix]


def test_queries_in_clouds_go_on_from_savepoints_with_more_partitions(
    gcs: CloudService, azure: CloudService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of Azure is in a credential file of Hadoop, and nothing shows it."""
    endpoint = f"AccountName={ACCOUNT};BlobEndpoint={azure.endpoint}/{ACCOUNT}"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", endpoint)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.hadoop.hadoop.security.credential.provider.path": f"localjceks://file{tmp_path}/keys.jceks",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(tmp_path / "local"),
    }
    roots = [gcs.new_folder(), azure.new_folder()]
    secrets = {f"fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net": KEY}
    given = [str(tmp_path / "run"), json.dumps(settings), json.dumps(secrets), *roots]
    command = [sys.executable, "-m", "integration.clouds.rescaled", *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    expected = [[[key, times] for key in range(20)] for times in (1, 2, 3)]
    assert json.loads(done.stdout.splitlines()[-1]) == expected * len(roots)
    assert KEY not in done.stdout + done.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
