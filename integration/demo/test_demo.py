"""The demo: its plain loop says what its operator does, and it runs through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pyspark_ckpt as ckpt
from integration.demo.flights import by_days, read_flights
from integration.demo.pauses import COLUMNS, LATENESS, NAME, Pauses, pauses_in_one_go

ROOT = Path(__file__).parents[2]
FLIGHT = "tailnum string, departure timestamp, origin string"
PAUSE = "tailnum string, since timestamp, departures long, airports long"


@pytest.mark.parametrize("days", [9, 24, 80])
def test_the_plain_loop_finds_the_pauses_of_the_operator(days: int) -> None:
    flights = read_flights()
    some = flights[flights["tailnum"].isin(flights["tailnum"].dropna().unique()[::120])]
    batches = [*by_days(some, days), some.head(0)]
    stream = ckpt.testing.keyed(
        FLIGHT, by="tailnum", uid=NAME, order_by="departure", watermark=("departure", f"{LATENESS.seconds} seconds")
    )
    found = []
    with stream.process(Pauses(), PAUSE, "append") as harness:
        for batch in batches:
            rows = batch[["tailnum", "departure", "origin"]].itertuples(index=False, name=None)
            found += harness.run([(tailnum, departure.to_pydatetime(), origin) for tailnum, departure, origin in rows])
    expected = pauses_in_one_go(batches)
    assert len(expected) > 40
    assert sorted(found) == sorted(expected[COLUMNS].itertuples(index=False, name=None))


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.kill
def test_the_demo_runs_through() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "integration.demo", "--days-per-file", "48"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "pauses of aircraft (keyed, with timers): all " in done.stdout
