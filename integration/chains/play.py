"""Plays a course in drivers that are killed, and compares every batch, and the states that are left."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from integration.chains.course import DELAY_US, Course, Kill
from integration.chains.steps import Row
from integration.conftest import SHUFFLE_PARTITIONS
from integration.crash.chaos import VICTIMS
from integration.crash.driver import FORMAT, Driver, DriverDiedError, OrderFailedError, Relay
from integration.crash.faults import FAIL_POINTS, all_armed
from integration.moves import make_checkpoint
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.testing.crashes.processes import kill

PROGRAM = "integration.chains.program"
LONG_MS = 300_000
PAUSE_S = 0.1
_LOG_OFFSET = re.compile(r'"logOffset":\s*(\d+)')


class Difference(AssertionError):  # noqa: N818 - what was found
    """Spark has another result than plain Python."""


def play(course: Course, folder: Path, drivers: Relay) -> int:
    """Play all runs below ``folder``; how many kills there were. Raises Difference, and whatever stops a query."""
    kills = 0
    batches: dict[int, tuple[int, int]] = {}
    for number, run in enumerate(course.runs):
        checkpoint = folder / f"checkpoint{number}"
        make_checkpoint(run, folder, folder / f"checkpoint{number - 1}", checkpoint)
        kills += _run(course, number, folder, checkpoint, drivers)
        batches |= _read_log(checkpoint)
    _compare(course, folder, checkpoint, [batches[batch] for batch in range(len(batches))])
    return kills


def _run(course: Course, number: int, folder: Path, checkpoint: Path, drivers: Relay) -> int:
    """Bring a run to its end, however many drivers that takes; how many kills there were."""
    run, kills = course.runs[number], 0
    planned = run.kill
    while True:
        driver = drivers.driver()
        conf = {FORMAT: str(course.checkpoint_format), SHUFFLE_PARTITIONS: str(run.partitions)}
        if planned and planned.point:
            driver.lose_local_state()
            conf |= all_armed([planned.point], f"sleep={LONG_MS}", course.checkpoint_format)
        driver.send("run", seed=course.seed, number=number, folder=str(folder), checkpoint=str(checkpoint), conf=conf)
        was_killed = planned is not None and _strike(planned, driver)
        planned, kills = None, kills + was_killed
        try:
            driver.receive()
        except (DriverDiedError, OrderFailedError, BrokenPipeError) as failure:
            drivers.close()
            if not was_killed:
                raise Difference(f"{course}: a run failed, and nothing was killed: {failure}") from failure
        else:
            if FAIL_POINTS in conf:  # the next run is to have a state server without them
                driver.lose_local_state()
            return kills


def _strike(planned: Kill, driver: Driver) -> bool:
    """Kill what is planned, unless the run is over before; whether something was killed."""
    if not _wait(driver, lambda: _is_time(planned, driver)) or driver.has_answered(planned.after_s):
        return False
    if planned.victim in VICTIMS:
        victims = VICTIMS[planned.victim](driver)
        for victim in victims[:1]:
            kill(victim)
        return bool(victims)
    driver.kill_driver(planned.victim)
    driver.await_end()
    return True


def _is_time(planned: Kill, driver: Driver) -> bool:
    if planned.point:
        return any(mark.name.startswith(f"{planned.point}-") for mark in driver.fired())
    return planned.victim not in VICTIMS or bool(VICTIMS[planned.victim](driver))


def _wait(driver: Driver, look: Callable[[], bool]) -> bool:
    """Wait for something that a run need not come to; False if it ends before."""
    while not look():
        if driver.has_answered(PAUSE_S):
            return False
    return True


def _read_log(checkpoint: Path) -> Mapping[int, tuple[int, int]]:
    """The watermark of each batch in microseconds, and how many files were read up to it."""
    found = {}
    for path in (checkpoint / "offsets").glob("[0-9]*"):
        _, confs, *offsets = path.read_text(encoding="utf-8").splitlines()
        offset = _LOG_OFFSET.search("".join(offsets))
        assert offset, f"{path} has no offset"
        found[int(path.name)] = json.loads(confs)["batchWatermarkMs"] * 1000, int(offset[1]) + 1
    return found


def _compare(course: Course, folder: Path, checkpoint: Path, batches: list[tuple[int, int]]) -> None:
    """Compare watermarks, the rows of each batch and the keyed states with what they must be."""
    late_us = mark_us = before = 0
    for batch, (logged_us, files) in enumerate(batches):
        if logged_us != mark_us:
            raise Difference(f"{course}: batch {batch} has the watermark {logged_us}, not {mark_us}")
        given = [row for each in course.batches[before:files] for row in each]
        rows = given
        for step in course.steps:
            rows = step.process(rows, late_us, mark_us)
        _compare_rows(course, batch, rows, folder / "output" / f"{batch}.json")
        newest_ms = max((at_us for at_us, _, _ in given), default=0) // 1000
        late_us, mark_us, before = mark_us, max(mark_us, newest_ms * 1000 - DELAY_US), files
    if before != len(course.batches):
        raise Difference(f"{course}: only {before} of {len(course.batches)} files were read")
    _compare_states(course, checkpoint)


def _compare_rows(course: Course, batch: int, rows: list[Row], output: Path) -> None:
    expected = Counter(f"Row(at={at_us}, user={user}, n={number})" for at_us, user, number in rows)
    found = Counter(json.loads(output.read_text(encoding="utf-8")))
    if expected != found:
        lacks, has = sorted((expected - found).elements()), sorted((found - expected).elements())
        raise Difference(f"{course}: batch {batch} lacks {lacks[:8]} and has {has[:8]}")


def _compare_states(course: Course, checkpoint: Path) -> None:
    for uid, step in course.named_steps().items():
        for name, expected in step.states().items():
            found: dict[Any, Any] = {}
            table = open_state(str(checkpoint), uid=uid, state=name).to_arrow().to_pylist()
            for row in table:
                user = row["key"]["user"]
                if name == "sums":
                    found[user, row["map_key"]] = row["value"]
                elif name == "seen":
                    found.setdefault(user, []).append(row["value"])
                else:
                    found[user] = row["value"]
            if found != dict(expected):
                raise Difference(f"{course}: state {uid}/{name} is {found}, not {dict(expected)}")
