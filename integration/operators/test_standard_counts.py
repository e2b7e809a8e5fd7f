"""Spark's own numbers in the progress: those of keyed operators, and of programs for Spark's operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from integration.operators.keyed import EVENTS
from integration.operators.placement import stored_rows
from integration.operators.providers import HDFS_BACKED, OURS
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.test_group_states import visited
from integration.progress import recent_progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

    from integration.operators.providers import Provider
    from integration.operators.replay import Query

_TOTALS = "user int, rows bigint"


def operators(spark: SparkSession, query: Query, folder: Path, provider: Provider = OURS) -> list[Any]:
    """Run a query over all events, and return what each batch shows of its operator."""
    case = Case(query, (EVENTS,), output_mode="update")
    write_inputs(case, folder, 0, len(EVENTS.batches))
    progresses = recent_progress(run(provider.session(spark), case, folder, collect_into({})))
    return [progress.stateOperators[0] for progress in progresses]


class Totals(ckpt.KeyedProcessor):
    """A value that goes away every other time, words, and an instant that only has a time to live."""

    rows = ckpt.ValueState("rows", "bigint", default=0)
    words = ckpt.MapState("words", "string", "bigint", ttl="1 hour")
    later = ckpt.Timers("later", clock="processing")

    def process(self, ctx: Any, key: Any, rows: Any) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
        for row in rows:
            self.words.put(str(row.word), 1)
        self.later.register(ctx.processing_time_ms + 10**9)
        if self.rows.exists():
            self.rows.clear()
        else:
            self.rows.update(len(rows))
        yield key.user, len(rows)

    def on_timer(self, ctx: Any, key: Any, timer: Any) -> None:  # noqa: ANN401
        """No timer fires in a test."""


class VectorTotals(ckpt.VectorProcessor):
    """The number of rows that each user has in the batch, but for null, for all users at once."""

    rows = ckpt.ValueState("rows", "bigint")

    def process_batch(self, ctx: Any, batch: pa.Table) -> pa.Table:  # noqa: ANN401, ARG002
        counts = pa.array(np.bincount(ctx.key_index, minlength=len(ctx.keys)))
        users = ctx.keys.column("user")
        self.rows.put(ctx.keys, pc.if_else(users.is_valid(), counts, None))
        return pa.table({"user": users, "rows": counts})


def _keyed(processor: Any) -> Query:  # noqa: ANN401
    def query(frames: Sequence[DataFrame]) -> DataFrame:
        return ckpt.keyed(frames[0], by="user", uid="totals").process(processor, output=_TOTALS, mode="update")

    return query


def test_a_keyed_operator_counts_the_rows_that_it_puts_and_removes(spark: SparkSession, tmp_path: Path) -> None:
    shown = operators(spark, _keyed(Totals()), tmp_path)
    rows: dict[int | None, bool] = {}
    words: set[tuple[int | None, str]] = set()
    timers = 0
    for operator, batch in zip(shown, EVENTS.batches, strict=True):
        users = {event[1] for event in batch}
        said = {(event[1], str(event[2])) for event in batch}
        cleared = {user for user in users if rows.get(user)}
        rows |= dict.fromkeys(users, True) | dict.fromkeys(cleared, False)
        words |= said
        timers += len(users)
        assert operator.operatorName == "keyed(uid='totals')"
        assert operator.numRowsUpdated == len(said) + len(users - cleared) + len(users)
        assert operator.numRowsRemoved == len(cleared)
        assert operator.numRowsTotal == len(words) + sum(rows.values()) + timers
        assert operator.customMetrics["ckptInternalRows"] > 0, "of the time-out of each partition"


def test_columns_of_rows_are_counted_too(spark: SparkSession, tmp_path: Path) -> None:
    shown = operators(spark, _keyed(VectorTotals()), tmp_path)
    for operator, batch in zip(shown, EVENTS.batches, strict=True):
        users = {event[1] for event in batch}
        assert operator.numRowsUpdated == len(users - {None})
        assert operator.numRowsRemoved == len(users & {None})


def plain(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """What ``visit`` keeps in Spark's state, alone."""
    import pandas as pd

    deque_of = list(frames)
    state.update((state.get[0] + 1 if state.exists else 1,))
    user = None if key[0] is None or key[0] != key[0] else int(key[0])
    yield pd.DataFrame({"user": [user], "rows": [sum(map(len, deque_of))]})


def _plain(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].groupBy("user").applyInPandasWithState(plain, _TOTALS, "calls bigint", "update", "NoTimeout")


@pytest.mark.parametrize("counted", ["numRowsTotal", "numRowsUpdated", "numRowsRemoved", "numRowsDroppedByWatermark"])
def test_a_function_with_states_counts_as_the_same_function_in_spark(
    counted: str, in_spark: list[Any], with_states: list[Any]
) -> None:
    assert [getattr(each, counted) for each in with_states] == [getattr(each, counted) for each in in_spark]


@pytest.fixture(scope="module")
def in_spark(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What Spark's operator shows on Spark's own provider."""
    return operators(spark, _plain, tmp_path_factory.mktemp("spark"), HDFS_BACKED)


@pytest.fixture(scope="module")
def with_states(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the same operator shows with states in addition, which are counted apart."""
    folder = tmp_path_factory.mktemp("ours")
    shown = operators(spark, visited, folder)
    assert {each.operatorName for each in shown} == {"with_states(uid='visits')"}
    kept = len(list(stored_rows(folder / "checkpoint")))
    last = shown[-1]
    assert last.numRowsTotal + last.customMetrics["ckptInternalRows"] == kept
    return shown
