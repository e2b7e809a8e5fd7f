"""What the log of a store says once."""

from __future__ import annotations

import pytest

from pyspark_ckpt.state_store.log import MAX_STANDING, STANDING_S, StoreLog


class Clock:
    """A clock that stands still until it is moved."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_what_stays_as_it_is_is_said_once_in_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = StoreLog("test", "0/1/default", clock)
    for _ in range(61):
        log.warn_of_standing("snapshot %s is damaged", 7)
        log.warn_of_standing("snapshot %s is damaged", 8)
        clock.now_s += STANDING_S / 60
    said = [record.getMessage() for record in caplog.records]
    assert said == ["snapshot 7 is damaged", "snapshot 8 is damaged"] * 2
    assert {vars(record)["store"] for record in caplog.records} == {"0/1/default"}


def test_texts_that_are_known_are_limited_and_those_found_last_stay(caplog: pytest.LogCaptureFixture) -> None:
    log = StoreLog("test", "0/1/default", Clock())
    for number in range(1000):
        log.warn_of_standing("snapshot 0%% %s", number)
        log.warn_of_standing("always there")
    assert len(caplog.records) == 1001
    caplog.clear()
    log.warn_of_standing("snapshot 0%% %s", 1000 - MAX_STANDING + 1)
    assert not caplog.records
    log.warn_of_standing("snapshot 0%% %s", 0)
    assert len(caplog.records) == 1
