"""Inputs of a harness that do not count for the watermark while they are idle."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing
from pyspark_ckpt.operators.keyed_inputs import KeyedInputs
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.testing.programs import after


class Sides(ckpt.KeyedProcessor):
    """Reminds a user five minutes after each row."""

    due = ckpt.Timers("due", clock="event")

    def process_left(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
        for row in rows:
            self.due.register(row.at + timedelta(minutes=5))

    process_right = process_left

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Any:  # noqa: ANN401
        yield key.user, timer.at


def sides(idle_after: str | None = "1 minute", **more: Any) -> KeyedInputs[testing.Harness]:  # noqa: ANN401
    given = testing.InputColumns(
        "user string, at timestamp", "user", watermark=("at", "0 seconds"), idle_after=idle_after
    )
    return testing.keyed_inputs(left=given, right=given, **more)


def start(**more: Any) -> testing.Harness:  # noqa: ANN401
    return sides(**more).process(Sides(), "user string, at timestamp", "append")


def rows(minute: int) -> list[tuple[str, Any]]:
    return [("ada", after(minute))]


def test_an_idle_input_does_not_count_until_its_next_row() -> None:
    with start() as harness:
        harness.run(left=rows(10), right=rows(1))
        assert harness.watermark == after(1)
        assert harness.advance_processing_time("59 seconds") == []
        harness.run(left=rows(20))
        assert harness.watermark == after(1)
        harness.advance_processing_time("1 second")
        assert harness.watermark == after(20)
        assert harness.run() == [("ada", after(6)), ("ada", after(15))]
        harness.run(left=rows(40), right=rows(30))
        assert harness.watermark == after(30)
        harness.run(left=rows(50))
        assert harness.watermark == after(30)


def test_inputs_that_are_all_idle_leave_it_where_the_last_of_them_was() -> None:
    with start() as harness:
        harness.run(left=rows(10), right=rows(1))
        harness.advance_processing_time("1 hour")
        assert harness.watermark == after(1), "both at once"
        harness.run(left=rows(20))
        assert harness.watermark == after(20)
    with start() as harness:
        harness.run(left=rows(10), right=rows(1))
        harness.advance_processing_time("1 second")
        harness.run(left=rows(11))
        harness.advance_processing_time("1 hour")
        assert harness.watermark == after(11), "right was the first"


def test_the_silence_is_kept_over_restarts_and_savepoints(tmp_path: Path) -> None:
    with start(folder=tmp_path / "first") as harness:
        harness.run(left=rows(10), right=rows(1))
        harness.advance_processing_time("59 seconds")
        harness.restart()
        harness.run(left=rows(20))
        assert harness.watermark == after(1), "that of an input is kept"
    with start(folder=tmp_path / "first") as harness:
        harness.advance_processing_time("1 second")
        assert harness.watermark == after(20)
        harness.savepoint(tmp_path / "saved")
    with start(folder=tmp_path / "second", savepoint=tmp_path / "saved", parallelism=2) as harness:
        harness.run(left=rows(30))
        assert harness.watermark == after(30)


def test_an_input_without_idle_after_always_counts() -> None:
    with start(idle_after=None) as harness:
        harness.run(left=rows(10), right=rows(1))
        harness.advance_processing_time("1 day")
        harness.run(left=rows(20))
        assert harness.watermark == after(1)


def test_an_idle_after_without_a_watermark_is_refused() -> None:
    given = testing.InputColumns("user string, at timestamp", "user", idle_after="1 minute")
    with pytest.raises(InvalidInputError, match="there is an idle_after, but no watermark"):
        testing.keyed_inputs(left=given)
