"""Local files of a process that was killed, in a folder of the user's choice, save the next one its restores."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.crash.driver import OPTIONS, Driver
from integration.crash.faults import NEWEST
from integration.crash.processes import eventually
from integration.crash.reference import Reference, order

QUERIES = ("windows", "join")

pytestmark = [pytest.mark.spark, pytest.mark.kill]


@pytest.mark.in_turn
def test_a_new_process_goes_on_with_local_files_when_the_one_before_was_killed(
    reference: Reference, tmp_path: Path
) -> None:
    for name in QUERIES:
        reference.start_from_half(name, NEWEST, tmp_path)
    home = tmp_path / "home"
    conf = {f"{OPTIONS}localDir": str(home)}
    hold = {"batch": 4, "file": str(tmp_path / "never")}
    with Driver(tmp_path, conf=conf) as doomed:
        doomed.send("run", runs=[order(name, tmp_path, hold=hold) for name in QUERIES])
        for name in QUERIES:
            eventually("the output of batch 4", (tmp_path / name / "output" / "4.json").exists)
        doomed.kill_driver()
        doomed.await_end()
    (left_over,) = home.iterdir()
    with Driver(tmp_path, conf=conf) as driver:
        after = driver.run(*(order(name, tmp_path) for name in QUERIES))
        assert list(home.iterdir()) == [left_over]
        for name in QUERIES:
            reference.check(driver, name, tmp_path)
    assert all(each["restores"] == 0 for each in after)
