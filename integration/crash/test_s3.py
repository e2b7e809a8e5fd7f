"""State in S3: the driver is killed while it goes there, and all that is local is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.crash.driver import OPTIONS, Relay
from integration.crash.faults import FAIL_POINTS, all_armed
from integration.crash.reference import Reference, order
from tests.services.s3_server import S3Service

QUERIES = ("windows", "dedup", "join")
STEPS = ("commit.before_upload", "commit.after_upload", "snapshot.before_manifest")
LONG_MS = 900_000

pytestmark = [pytest.mark.spark, pytest.mark.kill]


@pytest.mark.in_turn
@pytest.mark.parametrize("version", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_state_in_s3_is_right_when_the_driver_is_killed_and_local_state_is_lost(
    version: int, local: Relay, reference: Reference, s3: S3Service, tmp_path: Path
) -> None:
    remote = s3.new_folder()
    place = {f"{OPTIONS}{key}": value for key, value in {"remote": remote, **s3.options}.items()}
    doomed = local.driver()
    doomed.lose_local_state()
    conf = {**all_armed(STEPS, f"sleep={LONG_MS}", version), **place}
    doomed.send("run", runs=[order(name, tmp_path, conf=conf) for name in QUERIES])
    for step in STEPS:
        doomed.await_fired(step)
    doomed.kill_driver()
    doomed.await_end()
    local.close()

    driver = local.driver()
    driver.run(*(order(name, tmp_path, conf={**conf, FAIL_POINTS: ""}, until=4) for name in QUERIES))
    driver.lose_local_state()
    driver.run(*(order(name, tmp_path, conf={**conf, FAIL_POINTS: ""}) for name in QUERIES))
    driver.lose_local_state()
    for name in QUERIES:
        reference.check(driver, name, tmp_path, place)
        assert not list((tmp_path / name / "checkpoint" / "state").rglob("*.delta")), "all state is in S3"
    keys = s3.files(remote)
    assert {Path(key).suffix for key in keys} >= {".delta", ".snapshot", ".sst"}
