"""``ckpt.testing.crash`` on queries that survive, and on some that do not."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from pyspark_ckpt.state_store.errors import InvalidInputError, ProcessError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.kill]

COLUMNS = "user string, n bigint"


class Totals(ckpt.KeyedProcessor):
    """A total by user."""

    total = ckpt.ValueState("total", "bigint", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        self.total.update(self.total.value() + sum(row.n for row in rows))
        yield key.user, self.total.value()


def visits() -> Any:  # noqa: ANN401
    draw = Random(7)
    batches = [[(draw.choice("abcdef"), draw.randrange(100)) for _ in range(10)] for _ in range(10)]
    return ckpt.testing.Batches(COLUMNS, batches)


def totals(rows: DataFrame) -> DataFrame:
    return ckpt.keyed(rows, by="user", uid="totals").process(Totals(), "user string, total bigint", "append")


@pytest.mark.in_turn
def test_a_query_survives_its_kills() -> None:
    survived = ckpt.testing.crash(totals, seed=3, faults=4, rows=visits())
    assert len(survived.faults) >= 1
    assert len(survived.rows) == 50


@pytest.mark.in_turn
def test_a_driver_that_was_replaced_changes_nothing_when_it_wakes_up() -> None:
    survived = ckpt.testing.crash(totals, seed=2, faults=4, rows=visits())
    assert "driver replaced" in survived.faults
    assert len(survived.rows) == 50


@pytest.mark.matrix
def test_a_query_survives_the_death_of_executors(tmp_path: Path) -> None:
    survived = ckpt.testing.crash(totals, seed=5, faults=4, executors=2, folder=tmp_path, rows=visits())
    assert "executor" in survived.faults
    assert len(survived.rows) == 50
    with ckpt.reading.open_state(survived.checkpoint, uid="totals", state="total") as state:
        assert state.count() == 6


@pytest.mark.matrix
def test_sparks_operators_with_their_state_in_memory_survive_their_kills() -> None:
    def count(rows: DataFrame) -> DataFrame:
        return rows.groupBy("user").agg(f.count("*").alias("rows"), f.sum("n").alias("total"))

    conf = {"spark.sql.streaming.stateStore.ckpt.backend": "memory"}
    survived = ckpt.testing.crash(count, seed=5, faults=5, mode="update", key="user", conf=conf, rows=visits())
    assert len(survived.faults) >= 1


@pytest.mark.matrix
def test_what_depends_on_chance_is_found() -> None:
    with pytest.raises(AssertionError, match=r"The result differs \(seed=1, after .*\):\n  output:\n"):
        ckpt.testing.crash(lambda rows: totals(rows).withColumn("chance", f.rand()), seed=1, faults=1, rows=visits())


@pytest.mark.matrix
def test_a_query_that_cannot_start_is_told_with_its_log() -> None:
    with pytest.raises(ProcessError, match=r"(?s)The query failed without a fault.*usr"):
        ckpt.testing.crash(lambda rows: rows.groupBy("usr").count(), rows=visits())


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="there are no inputs"):
        ckpt.testing.crash(totals)
    with pytest.raises(InvalidInputError, match="`key` must name the columns"):
        ckpt.testing.crash(totals, mode="update", rows=visits())
