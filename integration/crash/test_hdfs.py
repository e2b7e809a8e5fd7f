"""A checkpoint in HDFS: the driver is killed while state goes there, and all that is local is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.crash.driver import Relay
from integration.crash.faults import NEWEST, all_armed
from integration.crash.reference import Reference, order
from pyspark_ckpt.cli.main import main
from tests.services.hdfs_service import HdfsService

QUERIES = ("windows", "join")
STEPS = ("commit.after_upload", "snapshot.before_manifest")  # one query is held, the other goes on
LONG_MS = 900_000
# Spark's own files: its client waits so long for the name node to hear of a block.
QUICK = {"dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10"}

pytestmark = [pytest.mark.spark, pytest.mark.kill]


@pytest.mark.in_turn
def test_state_in_hdfs_is_right_when_the_driver_is_killed_and_local_state_is_lost(
    local: Relay, reference: Reference, hdfs: HdfsService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = {name: hdfs.new_folder() for name in QUERIES}

    def orders(**more: object) -> list[dict[str, object]]:
        return [order(name, tmp_path, checkpoint=checkpoints[name], **{"conf": QUICK, **more}) for name in QUERIES]

    doomed = local.driver()
    doomed.lose_local_state()
    doomed.send("run", runs=orders(conf={**QUICK, **all_armed(STEPS, f"sleep={LONG_MS}", NEWEST)}))
    for step in STEPS:
        doomed.await_fired(step)
    doomed.kill_driver()
    doomed.await_end()
    local.close()

    driver = local.driver()
    driver.run(*orders(until=4))
    driver.lose_local_state()
    driver.run(*orders())
    driver.lose_local_state()
    for name, checkpoint in checkpoints.items():
        reference.check(driver, name, tmp_path, QUICK, checkpoint)
        suffixes = {Path(file).suffix for file in hdfs.files(checkpoint)}
        assert suffixes >= {".delta", ".snapshot", ".sst"}, "its state is beside Spark's own files"
        assert main(["checkpoint", "list", checkpoint]) == 0
        assert main(["checkpoint", "verify", checkpoint]) == 0
        assert "all right" in capsys.readouterr().out
