"""The harness: batches of rows and the states that they leave, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing
from pyspark_ckpt.operators.task.user_errors import ProcessorError
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.testing.programs import AT, COLUMNS, OUTPUT, ROWS, Match, Totals, VectorTotals, after, stream


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


def test_the_fixture_closes_its_harnesses(ckpt_harnesses: Any) -> None:  # noqa: ANN401
    harness = ckpt_harnesses.keyed(COLUMNS, by="user").process(Totals(), OUTPUT)
    assert harness.run(ROWS[:1]) == [("ada", 1)]
    assert harness.checkpoint.exists()


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
