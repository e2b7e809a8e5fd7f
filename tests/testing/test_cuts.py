"""Cutting the same rows into batches in many ways, and strategies for rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing
from pyspark_ckpt.operators.task.user_errors import ProcessorError
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.testing import strategies
from pyspark_ckpt.testing.cuts import _shrink
from tests.testing.programs import COLUMNS, OUTPUT, HastySessions, Match, Sessions, Totals, after

VISITS = [("ada", 0, after(0)), ("ada", 0, after(3)), ("bob", 0, after(16)), ("ada", 0, after(17))]


def sessions(processor: ckpt.KeyedProcessor) -> testing.Harness:
    """Sessions of users."""
    return testing.keyed(COLUMNS, by="user", watermark=("at", "1 minute")).process(processor, OUTPUT, "append")


def test_a_program_whose_timers_decide_passes() -> None:
    testing.check_cuts(lambda: sessions(Sessions()), VISITS, finish=lambda harness: harness.advance_watermark("1 day"))


class Reader(ckpt.KeyedProcessor):
    """Tells which row has been before each."""

    last = ckpt.ValueState("last", "bigint", ttl=ckpt.Ttl("10 minutes", clock="event"))

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        for row in rows:
            yield key.user, row.n, self.last.value()
            self.last.update(row.n)


def test_rows_of_one_millisecond_come_in_the_order_of_their_microseconds() -> None:
    def make() -> testing.Harness:
        given = testing.keyed("user string, n bigint, at timestamp", by="user", watermark=("at", "1 minute"))
        return given.process(Reader(), "user string, n bigint, last bigint", "append")

    rows = [("ada", n, after(0) + timedelta(microseconds=n)) for n in range(6)]
    testing.check_cuts(make, rows)
    with make() as harness:
        assert harness.run(rows[::-1]) == [("ada", n, n - 1 if n else None) for n in range(6)]


def test_a_program_that_depends_on_the_batches_is_found() -> None:
    with pytest.raises(AssertionError) as found:
        testing.check_cuts(lambda: sessions(HastySessions()), VISITS)
    told = str(found.value)
    assert "The result depends on the batches. With all rows in one batch, and cut after row 3, 3:" in told
    assert "('ada', 2): None in one batch, 1 cut" in told


def test_rows_that_a_cut_makes_late_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"1 rows are late if the batches are cut after row"):
        testing.check_cuts(lambda: sessions(Sessions()), [*VISITS, ("ada", 0, after(2))])


def totals(mode: str = "update") -> testing.Harness:
    """Totals of users."""
    return testing.keyed(COLUMNS, by="user", parallelism=2).process(Totals(), OUTPUT, mode)


@pytest.mark.in_turn
def test_in_update_mode_the_last_row_of_a_key_counts() -> None:
    testing.check_cuts(totals, VISITS, cuts=3)
    with pytest.raises(AssertionError, match="output:"):
        testing.check_cuts(lambda: totals("append"), VISITS, cuts=3)


def test_states_are_compared_unless_the_test_does_not_want_it() -> None:
    class Batches(ckpt.KeyedProcessor):
        batches = ckpt.ValueState("batches", "bigint", default=0)

        def process(self, _ctx: ckpt.Context, key: Any, _rows: Any) -> Iterator[Any]:  # noqa: ANN401
            self.batches.update(self.batches.value() + 1)
            yield (key.user,)

    def start() -> testing.Harness:
        return testing.keyed(COLUMNS, by="user").process(Batches(), "user string")

    testing.check_cuts(start, VISITS, cuts=2, compare_states=False)
    with pytest.raises(AssertionError, match=r"state 'batches':\n    \('ada',\): 1 in one batch, 2 cut"):
        testing.check_cuts(start, VISITS, cuts=2)
    hidden = testing.keyed(COLUMNS, by="user")
    with pytest.raises(InvalidInputError, match="no key column 'user'"):
        testing.check_cuts(lambda: hidden.process(Totals(), "u string, total bigint"), VISITS)


def test_inputs_are_also_interleaved() -> None:
    def start() -> testing.Harness:
        return testing.keyed_inputs(
            orders=testing.InputColumns("user string, number bigint, price bigint", by="user"),
            payments=testing.InputColumns("user string, number bigint, amount bigint", by="user"),
        ).process(Match(), "user string, owed bigint", "append")

    rows = {"orders": [("ada", 1, 5), ("ada", 2, 5)], "payments": [("ada", 1, 5), ("ada", 2, 5)]}
    with pytest.raises(AssertionError, match="payments: "):
        testing.check_cuts(start, rows)


class Echo(ckpt.KeyedProcessor):
    """Keeps and outputs all rows."""

    rows = ckpt.MapState("rows", "double", "array<double>")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        """Outputs them."""
        for row in rows:
            self.rows.put(row.x, [row.x])
            yield key.user, row.x


@pytest.mark.parametrize("mode", ["append", "update"])
def test_nan_is_equal_to_itself(mode: str) -> None:
    stream = testing.keyed("user double, x double", by="user")
    rows = [(float("nan"), float("nan")), (1.0, float("nan")), (float("nan"), 2.0)]
    testing.check_cuts(lambda: stream.process(Echo(), "user double, x double", mode), rows, cuts=2)


def test_rows_to_cut_may_be_a_generator_or_a_table() -> None:
    table = pa.Table.from_pylist([{"user": user, "n": n, "at": at} for user, n, at in VISITS])
    for rows in (iter(VISITS), table, table.to_pandas()):
        testing.check_cuts(totals, rows, cuts=1)


def test_an_error_tells_the_cut() -> None:
    class Fails(Totals):
        def process(self, ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
            if ctx.batch_id:
                raise LookupError("second")
            yield from super().process(ctx, key, rows)

    with pytest.raises(ProcessorError) as found:
        testing.check_cuts(
            lambda: testing.keyed(COLUMNS, by="user").process(Fails(), OUTPUT), VISITS, finish=lambda _: None
        )
    assert any("The batches were cut after row 1, 1" in note for note in found.value.__notes__)
    with pytest.raises(InvalidInputError, match="`start` must return a new Harness"):
        testing.check_cuts(lambda: None, VISITS)  # type: ignore[arg-type,return-value]


def test_a_cut_that_fails_is_made_small() -> None:
    assert _shrink(lambda cut: 5 in cut and cut.count(8) == 2, (1, 3, 5, 5, 8, 8, 9)) == (5, 8, 8)


@pytest.mark.in_turn
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(strategies.batches(COLUMNS, user=st.sampled_from(["ada", "bob"]), n=st.integers(-9, 9), at=st.just(after(0))))
def test_random_batches_come_to_what_a_dict_comes_to(batches: list[list[Any]]) -> None:
    totals_of: dict[tuple[str], int] = {}
    with totals() as harness:
        for batch in batches:
            harness.run(batch)
            for user, number, _ in batch:
                totals_of[user,] = totals_of.get((user,), 0) + number
        assert harness.state("total") == totals_of


EVERY_TYPE = (
    "a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h decimal(9,2), i decimal(38,18), j date, "
    "k timestamp, l timestamp_ntz, m string, n binary, o array<int>, p map<string,bigint>, q struct<x:int,y:string>, "
    "v map<array<int>,int>, "
    "r interval day to second, s time(6), t interval year to month"
)


class Keeps(ckpt.KeyedProcessor):
    """Keeps the last row of all."""

    last = ckpt.ValueState("last", f"struct<{EVERY_TYPE}>")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        """Outputs all rows."""
        self.last.update(rows[-1][1:])
        yield from rows


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(strategies.rows(f"one int, {EVERY_TYPE}", one=st.just(1), k=st.none() | st.datetimes(
    datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.timezones(no_cache=False)))  # noqa: DTZ001
)  # fmt: skip
def test_values_of_all_types_pass(rows: list[Any]) -> None:
    with testing.keyed(f"one int, {EVERY_TYPE}", by="one").process(Keeps(), f"one int, {EVERY_TYPE}") as harness:
        found = harness.run(rows)
        assert list(map(repr, found)) == list(map(repr, harness.run(found)))
        assert len(found) == len(rows)


def test_strategies_refuse_unknown_columns_by_name() -> None:
    with pytest.raises(InvalidInputError, match=r"no column 'usr'.*Did you mean 'user'"):
        strategies.rows(COLUMNS, usr=st.none())


@given(strategies.cuts(st.lists(st.integers())))
def test_cuts_keep_all_rows_in_order(batches: list[list[int]]) -> None:
    assert all(isinstance(batch, list) for batch in batches)
