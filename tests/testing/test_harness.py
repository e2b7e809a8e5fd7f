"""The harness: batches, clocks, states, restarts and savepoints, without Spark."""

from __future__ import annotations

import gc
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing
from pyspark_ckpt.operators.keyed import KeyedStream
from pyspark_ckpt.operators.task.user_errors import ProcessorError
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.testing.delays import read_delay_ms
from tests.labs.saved_query import Query
from tests.testing.programs import AT, COLUMNS, OUTPUT, Match, Sessions, Totals, VectorTotals, after

ROWS = [("ada", 1, AT), ("bob", 5, AT), ("ada", 2, AT)]


def stream(**more: Any) -> KeyedStream[testing.Harness]:  # noqa: ANN401
    """Rows by user."""
    return testing.keyed(COLUMNS, by="user", **more)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_batch_returns_its_output_and_leaves_its_states(parallelism: int) -> None:
    with stream(parallelism=parallelism).process(Totals(), OUTPUT) as harness:
        assert harness.state("total") == {}
        assert sorted(harness.run(ROWS)) == [("ada", 3), ("bob", 5)]
        assert harness.counters == {"seen": 3}
        (row,) = harness.run([{"user": "ada", "n": 4, "at": after(1)}])
        assert (row.user, row.total) == ("ada", 7)
        assert harness.counters == {"seen": 1}
        assert harness.states() == {
            "total": {("ada",): 7, ("bob",): 5},
            "log": {("ada",): [1, 2, 4], ("bob",): [5]},
            "times": {("ada",): {1: AT, 2: AT, 4: after(1)}, ("bob",): {5: AT}},
        }
        assert sorted(harness.output) == [("ada", 3), ("ada", 7), ("bob", 5)]


def test_rows_may_be_a_pandas_frame_or_an_arrow_table() -> None:
    frame = pd.DataFrame(ROWS, columns=["user", "n", "at"])
    with stream().process(VectorTotals(), OUTPUT) as harness:
        assert sorted(harness.run(frame)) == [("ada", 3), ("bob", 5)]
        assert sorted(harness.run(pa.Table.from_pandas(frame))) == [("ada", 6), ("bob", 10)]
        assert harness.run(pa.RecordBatch.from_pandas(frame[:1])) == [("ada", 7)]


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


def test_several_inputs_share_their_states() -> None:
    connected = testing.keyed_inputs(
        orders=testing.InputColumns("user string, number bigint, price bigint", by="user"),
        payments=testing.InputColumns("payer string, number bigint, amount bigint", by="payer"),
        parallelism=2,
    )
    with connected.process(Match(), "user string, owed bigint") as harness:
        assert harness.run(payments=[("ada", 1, 10)], orders=[("ada", 1, 12), ("ada", 2, 5)]) == [("ada", 2)]
        assert harness.run(payments=[("ada", 1, 2)]) == [("ada", None)]
        assert harness.state("open") == {("ada",): {2: 5}}
        with pytest.raises(InvalidInputError, match=r"no input 'payment'.*Did you mean 'payments'"):
            harness.run(payment=[])


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


def test_an_initial_state_comes_in_the_first_batch_only() -> None:
    initial = testing.Rows("USER string, total bigint", [("ada", 10), ("dan", 1)])
    with stream(parallelism=2).process(Totals(), OUTPUT, initial_state=initial) as harness:
        assert sorted(harness.run(ROWS)) == [("ada", 13), ("bob", 5)]
        assert harness.run([("dan", 1, AT)]) == [("dan", 2)]


def test_functions_of_spark_run_unchanged() -> None:
    def count(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:  # noqa: ANN401
        total = (state.get[0] if state.exists else 0) + sum(int(frame["n"].sum()) for frame in frames)
        state.update((total,))
        yield pd.DataFrame({"user": [key[0]], "total": [total]})

    harness = stream().apply_in_pandas_with_state(count, OUTPUT, "total bigint", "update", "NoTimeout")
    with harness:
        assert sorted(harness.run(ROWS)) == [("ada", 3), ("bob", 5)]
        assert harness.run(ROWS[:1]) == [("ada", 4)]
        assert harness.state("state") == {("ada",): (4,), ("bob",): (5,)}


def test_a_row_in_another_order_is_refused_when_a_function_of_spark_gives_it() -> None:
    def keep(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:  # noqa: ANN401
        state.update(
            Row(**dict.fromkeys(("total", "seen") if key[0] == "ada" else ("seen", "total"), len(list(frames))))
        )
        yield pd.DataFrame({"user": [key[0]], "total": [1]})

    kind = "seen bigint, total bigint"
    with stream().apply_in_pandas_with_state(keep, OUTPUT, kind, "update", "NoTimeout") as harness:
        assert harness.run([("bob", 1, AT)]) == [("bob", 1)]
        with pytest.raises(ckpt.InvalidInputError, match="fields are in another order than"):
            harness.run([("ada", 1, AT)])


class Stateful(StatefulProcessor):
    """Counts, and outputs the count in the form of its rows."""

    def init(self, handle: Any) -> None:  # noqa: ANN401
        """Declares the count."""
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ANN401, ARG002, N802, N803
        """Outputs the count."""
        rows = list(rows)
        added = sum(len(each) if isinstance(each, pd.DataFrame) else 1 for each in rows)
        before = self.count.get()
        total = (before[0] if before else 0) + added
        self.count.update((total,))
        of_frames = any(isinstance(each, pd.DataFrame) for each in rows)
        yield pd.DataFrame({"user": [key[0]], "total": [total]}) if of_frames else Row(user=key[0], total=total)


@pytest.mark.parametrize("form", ["transform_with_state", "transform_with_state_in_pandas"])
def test_stateful_processors_of_spark_run_unchanged(form: str) -> None:
    with getattr(stream(), form)(Stateful(), OUTPUT, "update", "None") as harness:
        assert sorted(harness.run(ROWS)) == [("ada", 2), ("bob", 1)]
        assert harness.run(ROWS[:1]) == [("ada", 3)]
        assert harness.state("count") == {("ada",): (3,), ("bob",): (1,)}


class Forgetful(Totals):
    """Keeps in itself what it must remember."""

    def __init__(self) -> None:
        self.sum = 0

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        """Adds to its own attribute."""
        self.sum += sum(row.n for row in rows)
        yield key.user, self.sum


def test_a_processor_remembers_only_what_its_states_hold() -> None:
    with stream().process(Forgetful(), OUTPUT) as harness:
        assert harness.run(ROWS[:1]) == harness.run(ROWS[:1]) == [("ada", 1)]


class Failing(Totals):
    """Fails for one number."""

    def process(self, ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        """Fails after it has written."""
        yield from super().process(ctx, key, rows)
        if any(row.n == 13 for row in rows):
            raise LookupError("thirteen")


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_batch_that_fails_writes_nothing_and_can_be_repeated(parallelism: int) -> None:
    with stream(parallelism=parallelism).process(Failing(), OUTPUT) as harness:
        harness.run(ROWS)
        with pytest.raises(ProcessorError, match=r"for key \(user='cy'\), partition \d, batch 1.*thirteen"):
            harness.run([("ada", 7, AT), ("bob", 7, AT), ("cy", 13, AT)])
        assert harness.state("total") == {("ada",): 3, ("bob",): 5}
        assert harness.run([("ada", 4, AT)]) == [("ada", 7)]
        assert len(harness.output) == 3


def test_a_restart_changes_nothing() -> None:
    with stream(watermark=("at", "1 minute"), parallelism=2).process(Sessions(), OUTPUT, "append") as harness:
        for minute in range(12):
            harness.run([("ada", 1, after(minute)), ("bob", 1, after(minute - 0.5))])
        harness.restart()
        assert harness.run([("cy", 1, after(21.7))]) == []
        assert harness.run() == [("bob", 12)]
        harness.restart()
        assert harness.advance_watermark(after(21)) == [("ada", 12)]


class Renamed(Totals):
    """A fixed program: it outputs ten times the total."""

    def process(self, ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        """Outputs ten times the total."""
        for user, total in super().process(ctx, key, rows):
            yield user, total * 10


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_a_savepoint_goes_on_in_another_program_at_another_parallelism(kind: Any, tmp_path: Path) -> None:  # noqa: ANN401
    with stream(parallelism=2, uid="totals").process(Totals(), OUTPUT) as harness:
        harness.run(ROWS)
        harness.savepoint(tmp_path / "savepoint", kind=kind)
        harness.run(ROWS)
    moved = stream(parallelism=5, uid="totals", savepoint=tmp_path / "savepoint", folder=tmp_path / "new")
    with moved.process(Renamed(), OUTPUT) as harness:
        assert harness.state("total") == {("ada",): 3, ("bob",): 5}
        assert sorted(harness.run(ROWS)) == [("ada", 60), ("bob", 100)]
    again = stream(parallelism=5, uid="totals", folder=tmp_path / "new")
    with again.process(Renamed(), OUTPUT) as harness:
        assert harness.run([("ada", 1, AT)]) == [("ada", 70)]


def test_a_timer_survives_the_savepoint(tmp_path: Path) -> None:
    with stream(watermark=("at", "1 minute")).process(Sessions(), OUTPUT, "append") as harness:
        harness.run(ROWS)
        harness.savepoint(tmp_path / "savepoint")
    moved = stream(watermark=("at", "1 minute"), parallelism=3, savepoint=tmp_path / "savepoint")
    with moved.process(Sessions(), OUTPUT, "append") as harness:
        assert harness.watermark == after(-1)
        assert sorted(harness.advance_watermark("1 hour")) == [("ada", 2), ("bob", 1)]


def test_a_program_that_cannot_have_the_states_is_refused(tmp_path: Path) -> None:
    with stream(folder=tmp_path).process(Totals(), OUTPUT) as harness:
        harness.run(ROWS)
    changed = stream(folder=tmp_path, watermark=("at", "1 minute"))
    with (
        changed.process(Sessions(), OUTPUT) as harness,
        pytest.raises(
            InvalidInputError,
            match=r"operator 0 of the query, declares .*, but the checkpoint has state",
        ),
    ):
        harness.run(ROWS)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([("ada", "1", AT)], r"row 0: column 'n' is of type int64, but '1' is of type str"),
        ([("ada", 1, AT), ("ada", 1)], r"row 1: \('ada', 1\) does not fit the columns \['user', 'n', 'at'\]"),
        ([None], r"row 0: None does not fit"),
        ("ada", r"'ada' is not a sequence of rows"),
        (7, r"7 is not a sequence of rows"),
        (pd.DataFrame({"user": ["ada"], "m": [1]}), r"row 0: .* does not fit the columns"),
        (pd.DataFrame({"user": ["ada"]})["user"], r"is not a sequence of rows"),
        (pa.table([["a"], ["b"]], names=["user", "user"]), r"several columns of one name"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(rows: Any, problem: str) -> None:  # noqa: ANN401
    with stream().process(Totals(), OUTPUT) as harness:
        with pytest.raises(InvalidInputError, match=problem):
            harness.run(rows)
        assert harness.run(ROWS[:1]) == [("ada", 1)]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"columns": "user strin"}, "which Spark cannot read: 'strin' is not a type"),
        ({"columns": "user varchar(3)"}, "which keyed operators do not take: .*in place of char and varchar"),
        ({"by": "usr"}, r"no columns \['usr'\] to key by.*Did you mean 'user'"),
        ({"watermark": ("n", "1 minute")}, "the event time 'n' is of type bigint; Spark takes only"),
        ({"watermark": "at"}, "must be a column and a delay, got 'at'"),
        ({"watermark": ("at", "1 parsec")}, "'1 parsec', which Spark does not read as an interval"),
        ({"columns": "user string, at timestamp_ntz", "watermark": ("at", "1 minute")}, "Spark takes only timestamps"),
        ({"conf": {"spark.sql.streaming.stateStore.ckpt.wrkerMemory": "1m"}}, "wrkerMemory"),
        ({"conf": {"spark.sql.shuffle.partitions": "3"}}, "is the parallelism of the harness"),
        ({"conf": "x"}, "conf must be a mapping"),
        ({"parallelism": 0}, "parallelism must be an integer, 1 to 32768, got 0"),
        ({"uid": ""}, "give a uid"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments: Any, problem: str) -> None:  # noqa: ANN401
    with pytest.raises(InvalidInputError, match=problem):
        testing.keyed(**{"columns": COLUMNS, "by": "user", **arguments})


def test_what_a_query_refuses_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="declares event-time timers, but the frame has no watermark"):
        stream().process(Sessions(), OUTPUT)
    with stream().process(Totals(), OUTPUT) as harness:
        with pytest.raises(InvalidInputError, match=r"declares no state 'totl'.*Did you mean 'total'"):
            harness.state("totl")
        with pytest.raises(InvalidInputError, match="No input of the harness has a watermark"):
            harness.advance_watermark("1 minute")


def test_a_folder_keeps_its_parallelism(tmp_path: Path) -> None:
    with stream(folder=tmp_path, parallelism=2).process(Totals(), OUTPUT) as harness:
        harness.run(ROWS)
    with pytest.raises(InvalidInputError, match="has 2 partitions, but the harness has the parallelism 3"):
        stream(folder=tmp_path, parallelism=3).process(Totals(), OUTPUT)


def test_the_savepoint_of_a_query_with_other_operators_is_refused(tmp_path: Path) -> None:
    query = Query(str(tmp_path / "checkpoint"), 2)
    query.run(2)
    with pytest.raises(InvalidInputError, match="has the stateful operators 0: symmetricHashJoin, 1: stateStoreSave"):
        stream(folder=tmp_path, parallelism=2).process(Totals(), OUTPUT)


def test_a_processor_that_cannot_be_copied_is_refused() -> None:
    class Locks(Totals):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    with pytest.raises(InvalidInputError, match=r"Locks cannot be copied to the workers: .*lock"):
        stream().process(Locks(), OUTPUT)


def test_a_closed_harness_says_so() -> None:
    harness = stream().process(Totals(), OUTPUT)
    harness.close()
    with pytest.raises(ckpt.LifecycleError, match="The harness is closed"):
        harness.run(ROWS)


def test_two_harnesses_cannot_share_a_folder(tmp_path: Path) -> None:
    with (
        stream(folder=tmp_path).process(Totals(), OUTPUT),
        pytest.raises(ckpt.LifecycleError, match="Another harness uses"),
    ):
        stream(folder=tmp_path).process(Totals(), OUTPUT)


def test_the_fixture_closes_its_harnesses(ckpt_harnesses: Any) -> None:  # noqa: ANN401
    harness = ckpt_harnesses.keyed(COLUMNS, by="user").process(Totals(), OUTPUT)
    assert harness.run(ROWS[:1]) == [("ada", 1)]
    assert harness.checkpoint.exists()


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


@pytest.mark.parametrize("order", [0, 1])
def test_a_folder_belongs_to_one_harness_also_after_a_restart(order: int, tmp_path: Path) -> None:
    with stream(folder=tmp_path).process(Totals(), OUTPUT) as harness:
        harness.run(ROWS)
        harness.restart()
        for _ in range(order):
            harness.run(ROWS)
        with pytest.raises(ckpt.LifecycleError, match="Another harness uses"):
            stream(folder=tmp_path).process(Totals(), OUTPUT)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoint", "owner"]
    with stream(folder=tmp_path).process(Totals(), OUTPUT) as harness:
        assert harness.run([("bob", 1, AT)]) == [("bob", 6 + 5 * order)]


def test_the_schema_of_a_frame_brings_its_watermark() -> None:
    schema = StructType().add("user", "string").add("n", "long")
    schema.add("at", "timestamp", metadata={"spark.watermarkDelayMs": 60_000})
    with testing.keyed(schema, by="user").process(Sessions(), OUTPUT, "append") as harness:
        harness.run([("ada", 1, after(30))])
        assert harness.watermark == after(29)


@pytest.mark.in_turn
def test_harnesses_work_in_threads() -> None:
    def play(number: int) -> int:
        with stream(parallelism=2).process(Totals(), OUTPUT) as harness:
            for _ in range(3):
                harness.run([("ada", number, AT), ("bob", 1, AT)])
            return int(harness.state("total")["ada",])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(play, range(16))) == [3 * number for number in range(16)]


def test_metrics_are_there_if_no_task_has_run() -> None:
    with stream().process(Totals(), OUTPUT) as harness:
        assert harness.metrics["fired_timers"] == 0
        harness.run()
        assert [harness.metrics[name] for name in ("late_rows", "fired_timers", "expired_rows")] == [0, 0, 0]


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


def test_what_fails_to_start_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(InvalidInputError):
        stream(savepoint=tmp_path / "nothing").process(Totals(), OUTPUT)
    assert list(tmp_path.iterdir()) == []
    harness = stream().process(Totals(), OUTPUT)
    harness.run(ROWS)
    del harness  # nobody closes it
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_all_calls_of_a_closed_harness_say_so(tmp_path: Path) -> None:
    harness = stream(watermark=("at", "1 minute")).process(Sessions(), OUTPUT, "append")
    harness.run(ROWS)
    harness.close()
    harness.close()
    calls = (harness.run, harness.restart, harness.timers, harness.states, lambda: harness.state("rows"))
    for call in (*calls, lambda: harness.savepoint(tmp_path / "savepoint")):
        with pytest.raises(ckpt.LifecycleError, match="The harness is closed"):
            call()


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


def test_a_folder_may_be_relative_to_the_present_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in (("ada", 3), ("ada", 6)):
        with stream(folder="kept").process(Totals(), OUTPUT) as harness:
            assert expected in harness.run(ROWS)
            assert harness.checkpoint.is_absolute()
    assert (tmp_path / "kept" / "checkpoint").is_dir()
