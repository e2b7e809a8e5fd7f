"""The clocks of a harness: watermarks, late rows, and timers of both clocks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql.types import StructType

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing
from pyspark_ckpt.operators.task.user_errors import ProcessorError
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.testing.delays import read_delay_ms
from tests.testing.programs import AT, COLUMNS, OUTPUT, ROWS, Sessions, after, stream


def test_timers_fire_as_the_watermark_follows_the_rows() -> None:
    with stream(watermark=("at", "1 minute")).process(Sessions(), OUTPUT, "append") as harness:
        assert harness.run(ROWS) == []
        assert [timer.at for timer in harness.timers()["ada",]] == [after(10)]
        assert harness.run([("cy", 0, after(11))]) == []
        assert harness.watermark == after(10)
        assert sorted(harness.run()) == [("ada", 2), ("bob", 1)]
        assert harness.metrics["fired_timers"] == 2
        assert list(harness.timers()) == [("cy",)]
        assert harness.advance_watermark("1 hour") == [("cy", 1)]
        with pytest.raises(InvalidInputError, match=r"The watermark is .* and cannot go back to"):
            harness.advance_watermark(AT)


def test_late_rows_are_dropped_as_spark_does() -> None:
    with stream(watermark=("at", "1 minute")).process(Sessions(), OUTPUT, "append") as harness:
        harness.run([("ada", 1, after(30))])
        harness.run([("ada", 1, after(20))])  # late is what the watermark of the batch before has passed
        assert (harness.dropped, harness.state("rows")) == (0, {("ada",): [after(30), after(20)]})
        harness.run([("ada", 1, after(20)), ("ada", 1, after(29.5))])
        assert harness.dropped == 1
        assert harness.state("rows") == {("ada",): [after(30), after(20), after(29.5)]}


class LateToo(ckpt.KeyedProcessor):
    """Counts late rows apart."""

    late = ckpt.ValueState("late", "bigint", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        """Outputs their number."""
        yield key.user, len(rows)

    def process_late(self, _ctx: ckpt.Context, _key: Any, rows: Any) -> None:  # noqa: ANN401
        """Counts them."""
        self.late.update(self.late.value() + len(rows))


def test_late_rows_go_to_their_method() -> None:
    with stream(watermark=("at", "1 minute")).process(LateToo(), OUTPUT) as harness:
        harness.run([("ada", 1, after(30))])
        harness.run()
        assert harness.run([("ada", 1, after(20)), ("ada", 1, after(31))]) == [("ada", 1)]
        assert (harness.state("late"), harness.metrics["late_rows"], harness.dropped) == ({("ada",): 1}, 1, 0)


class Reminders(ckpt.KeyedProcessor):
    """Remembers a user for an hour, and reminds of it after ten minutes."""

    known = ckpt.ValueState("known", "bigint", ttl=ckpt.Ttl("1 hour"))
    again = ckpt.Timers("again", clock="processing")

    def process(self, ctx: ckpt.Context, _key: Any, rows: Any) -> None:  # noqa: ANN401
        """Remembers the last number."""
        self.known.update(rows[-1].n)
        self.again.register(ctx.processing_time_ms + 600_000)

    def on_timer(self, _ctx: ckpt.Context, key: Any, _timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
        """Outputs it."""
        yield key.user, self.known.value()


def test_processing_time_stands_still_until_it_is_moved() -> None:
    with stream().process(Reminders(), OUTPUT) as harness:
        begin = harness.processing_time
        assert harness.run(ROWS) == harness.run() == []
        assert sorted(harness.advance_processing_time("11 minutes")) == [("ada", 2), ("bob", 5)]
        assert harness.processing_time == begin + timedelta(minutes=11)
        assert harness.state("known") == {("ada",): 2, ("bob",): 5}
        harness.advance_processing_time(begin + timedelta(minutes=100))
        assert harness.state("known") == {}


def test_the_watermark_of_several_inputs_is_the_earliest() -> None:
    class Both(ckpt.KeyedProcessor):
        def process_left(self, ctx: ckpt.Context, key: Any, _rows: Any) -> Iterator[Any]:  # noqa: ANN401
            yield key.user, ctx.watermark_ms

        process_right = process_left

    marked = testing.InputColumns(COLUMNS, by="user", watermark=("at", "1 minute"))
    with testing.keyed_inputs(left=marked, right=marked).process(Both(), OUTPUT) as harness:
        harness.run(left=[("ada", 1, after(30))])
        assert harness.watermark is not None
        assert harness.watermark.timestamp() == 0
        harness.run(right=[("ada", 1, after(20))])
        assert harness.watermark == after(19)


class BothClocks(Sessions):
    """The same with a timer of processing time."""

    never = ckpt.Timers("never", clock="processing")


def test_event_timers_fire_beside_timers_of_processing_time() -> None:
    with stream(watermark=("at", "1 minute"), parallelism=3).process(BothClocks(), OUTPUT, "append") as harness:
        harness.run(ROWS)
        assert sorted(harness.advance_watermark("1 day")) == [("ada", 2), ("bob", 1)]


def test_the_latest_watermark_counts_where_spark_is_told_so() -> None:
    class Both(ckpt.KeyedProcessor):
        def process_left(self, _ctx: ckpt.Context, _key: Any, _rows: Any) -> None:  # noqa: ANN401
            pass

        process_right = process_left

    marked = testing.InputColumns(COLUMNS, by="user", watermark=("at", "1 minute"))
    conf = {"spark.sql.streaming.multipleWatermarkPolicy": "MAX"}
    with testing.keyed_inputs(left=marked, right=marked, conf=conf).process(Both(), OUTPUT) as harness:
        harness.run(left=[("ada", 1, after(30))])
        assert harness.watermark == after(29)


def test_the_schema_of_a_frame_brings_its_watermark() -> None:
    schema = StructType().add("user", "string").add("n", "long")
    schema.add("at", "timestamp", metadata={"spark.watermarkDelayMs": 60_000})
    with testing.keyed(schema, by="user").process(Sessions(), OUTPUT, "append") as harness:
        harness.run([("ada", 1, after(30))])
        assert harness.watermark == after(29)


def test_a_clock_does_not_move_if_its_batch_fails() -> None:
    class Fails(Sessions):
        def on_timer(self, _ctx: ckpt.Context, _key: Any, _timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
            raise LookupError("no")

    with stream(watermark=("at", "1 minute")).process(Fails(), OUTPUT, "append") as harness:
        harness.run(ROWS)
        for _ in range(2):
            with pytest.raises(ProcessorError, match="no"):
                harness.advance_watermark("1 hour")
            assert harness.watermark == after(-1)


@pytest.mark.parametrize(
    ("delay", "delay_ms"),
    [
        ("1 month", 31 * 86_400_000),
        ("1.5 seconds", 1500),
        ("interval 1 minute", 60_000),
        ("1 MINUTES 2 seconds", 62_000),
        ("+1 minute -30 seconds", 30_000),
        (timedelta(seconds=1), 1000),
        ("2 mins", None),
        ("10 ms", None),
        ("1minute", None),
        ("1.5 minutes", None),
        ("-1 minute", None),
        ("", None),
        (5, None),
    ],
)
def test_a_delay_is_read_as_spark_reads_it(delay: Any, delay_ms: int | None) -> None:  # noqa: ANN401
    if delay_ms is None:
        with pytest.raises(InvalidInputError, match="the delay"):
            read_delay_ms(delay, "the delay")
    else:
        assert read_delay_ms(delay, "the delay") == delay_ms
