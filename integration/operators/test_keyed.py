"""Keyed operators in real queries: against Spark's own aggregation, with operators before and after them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators import inputs
from integration.operators.keyed import EVENTS, TOTALS, Totals, Unchanged, VectorTotals, keyed, play
from integration.operators.placement import stored_rows
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.sources import Source
from integration.progress import recent_progress
from integration.sample import sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.replay import Lines


@pytest.mark.parametrize("processor", [Totals(), VectorTotals()])
def test_totals_equal_those_of_sparks_aggregation(processor: Any, spark: SparkSession, tmp_path: Path) -> None:  # noqa: ANN401
    def native(frames: Sequence[DataFrame]) -> DataFrame:
        return frames[0].groupBy("user").agg(f.count("*").alias("rows"), f.sum("id").alias("total"))

    expected = play(spark, native, EVENTS, tmp_path / "native")
    assert play(spark, keyed(processor, TOTALS), EVENTS, tmp_path / "keyed") == expected
    assert any(expected.values())


class OddlyNamed(Totals):
    """The same of columns that are no attributes."""

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.total.update(self.total.value() + sum(row._0 for row in rows))
        self.rows.update(self.rows.value() + sum(row._0 == row[0] and row._2 == row[2] for row in rows))
        yield key[0], self.rows.value(), self.total.value()


def test_columns_may_have_names_that_python_and_sql_do_not_take(spark: SparkSession, tmp_path: Path) -> None:
    def odd(frames: Sequence[DataFrame]) -> DataFrame:
        renamed = frames[0].toDF("class", "us`er.of", "_id", "amount", "at")
        return ckpt.keyed(renamed, "us`er.of", uid="it", order_by="_id").process(OddlyNamed(), TOTALS)

    expected = play(spark, keyed(Totals(), TOTALS), EVENTS, tmp_path / "plain")
    assert play(spark, odd, EVENTS, tmp_path / "odd") == expected


def test_keys_are_stored_in_the_partition_of_their_key_group(spark: SparkSession, tmp_path: Path) -> None:
    settings = {SHUFFLE_PARTITIONS: "5"}
    play(spark, keyed(VectorTotals(), TOTALS, max_parallelism=128), EVENTS, tmp_path, settings=settings)
    rows = list(stored_rows(tmp_path / "checkpoint"))
    assert len(rows) == len({row[1] for batch in EVENTS.batches for row in batch})
    assert {row.partition for row in rows} == {(row.partition_hash * 128 >> 32) * 5 // 128 for row in rows}
    assert all(row.partition == (row.partition_hash * 128 >> 32) * 5 // 128 for row in rows)


_COMING = Source(
    EVENTS.schema,
    tuple(
        tuple(row for row in batch if row[1] is None or row[1] <= 2 * number + 2)
        for number, batch in enumerate(EVENTS.batches)
    ),
)
"""There are new users in each batch, among whom are all that were there before."""

_BEHIND = {
    "repartition": lambda frame: frame.repartition(3),
    "select": lambda frame: frame.selectExpr("user + 1 as next", "total"),
    "deduplication": lambda frame: frame.dropDuplicates(["user"]),
    "join": lambda frame: frame.join(frame.sparkSession.range(4).withColumnRenamed("id", "user"), "user"),
}


def _of_new_users(batches: Mapping[int, list[Row]]) -> Mapping[int, list[Row]]:
    earlier: set[int | None] = set()
    new = {}
    for number, rows in batches.items():
        new[number] = [row for row in rows if row.user not in earlier]
        earlier |= {row.user for row in rows}
    return new


_AS_IT_SHOULD_BE: Mapping[str, Callable[[Mapping[int, list[Row]]], Mapping[int, list[Row]]]] = {
    "repartition": lambda batches: batches,
    "select": lambda batches: {
        number: [Row(next=None if row.user is None else row.user + 1, total=row.total) for row in rows]
        for number, rows in batches.items()
    },
    "deduplication": _of_new_users,
    "join": lambda batches: {number: [row for row in rows if row.user in range(4)] for number, rows in batches.items()},
}


def _row(line: str) -> Row:
    row: Row = eval(line, {"Row": Row})  # noqa: S307 - the text of a row
    return row


@pytest.mark.parametrize("name", sampled(_BEHIND, {"repartition", "select"}))
def test_rows_go_on_into_any_operator(name: str, spark: SparkSession, tmp_path: Path) -> None:
    def query(frames: Sequence[DataFrame]) -> DataFrame:
        totals = ckpt.keyed(frames[0], "user", uid="it").process(Totals(), TOTALS, mode="Append")
        behind: DataFrame = _BEHIND[name](totals)
        return behind

    plain = play(
        spark,
        lambda frames: ckpt.keyed(frames[0], "user", uid="it").process(Totals(), TOTALS, mode="append"),
        _COMING,
        tmp_path / "plain",
        "append",
    )
    found = play(spark, query, _COMING, tmp_path / "behind", "append")
    rows = {number: [_row(line) for line in batch] for number, batch in plain.items()}
    expected = _AS_IT_SHOULD_BE[name](rows)
    assert all(expected.values())
    assert found == {number: tuple(sorted(map(repr, batch))) for number, batch in expected.items()}


@pytest.mark.parametrize("partitions", sampled([1, 2], [2]))
def test_a_deduplication_may_be_in_front_also_in_the_same_task(
    partitions: int, spark: SparkSession, tmp_path: Path
) -> None:
    """With one partition Spark shuffles nothing: the stores of both operators are open in one task."""
    settings = {SHUFFLE_PARTITIONS: str(partitions)}
    source = inputs.repeats(seed=67)

    def native(frames: Sequence[DataFrame]) -> DataFrame:
        counted = frames[0].dropDuplicates(["id"]).groupBy("user").agg(f.count("*").alias("rows"), f.sum("id"))
        return counted.toDF("user", "rows", "total")

    def query(frames: Sequence[DataFrame]) -> DataFrame:
        return ckpt.keyed(frames[0].dropDuplicates(["id"]), "user", uid="it").process(Totals(), TOTALS)

    expected = play(spark, native, source, tmp_path / "native", settings=settings)
    assert play(spark, query, source, tmp_path / "keyed", settings=settings) == expected


def test_an_aggregation_may_follow_in_append_mode(spark: SparkSession, tmp_path: Path) -> None:
    def query(frames: Sequence[DataFrame]) -> DataFrame:
        keyed_rows = ckpt.keyed(frames[0], "user", uid="it").process(Unchanged(), EVENTS.schema, mode="append")
        windows = keyed_rows.withWatermark("at", "5 minutes").groupBy(f.window("at", "10 minutes"))
        return windows.agg(f.count("*").alias("rows"))

    found = play(spark, query, EVENTS, tmp_path / "keyed", "append")
    native = play(
        spark,
        lambda frames: (
            frames[0]
            .withWatermark("at", "5 minutes")
            .groupBy(f.window("at", "10 minutes"))
            .agg(f.count("*").alias("rows"))
        ),
        EVENTS,
        tmp_path / "native",
        "append",
    )
    assert sorted(sum(found.values(), ())) == sorted(sum(native.values(), ()))
    assert any(found.values())


class Counting(Totals):
    """Counts what it does."""

    calls = ckpt.MetricCounter("calls")
    seen = ckpt.MetricCounter("seen")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.calls.add()
        self.seen.add(len(rows))
        return super().process(ctx, key, rows)


def test_counters_are_in_the_progress_of_the_query(spark: SparkSession, tmp_path: Path) -> None:
    case = Case(keyed(Counting(), TOTALS), (EVENTS,), output_mode="update")
    write_inputs(case, tmp_path, 0, 2)
    finished = run(OURS.session(spark), case, tmp_path, collect_into({}))
    for progress, batch in zip(recent_progress(finished), EVENTS.batches, strict=False):
        metrics = progress.stateOperators[0].customMetrics
        assert (metrics["it/calls"], metrics["it/seen"]) == (len({row[1] for row in batch}), len(batch))


def test_a_state_goes_on_when_fields_are_added_renamed_and_widened(spark: SparkSession, tmp_path: Path) -> None:
    class First(ckpt.KeyedProcessor):
        seen = ckpt.ValueState("seen", "struct<count int, gone string>")

        def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
            before = self.seen.value()
            self.seen.update(((before.count if before else 0) + len(rows), "gone"))
            yield key.user, self.seen.value().count

    class Second(ckpt.KeyedProcessor):
        seen = ckpt.ValueState("seen", "struct<last bigint, rows bigint>", aliases={"rows": "count"})

        def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
            before = self.seen.value()
            self.seen.update((rows[-1].id, (before.rows if before else 0) + len(rows)))
            yield key.user, self.seen.value().rows

    batches: dict[int, Lines] = {}
    for number, processor in enumerate((First(), Second(), Second())):
        case = Case(keyed(processor, "user int, rows bigint"), (EVENTS,), "update")
        write_inputs(case, tmp_path, number, number + 1)
        run(OURS.session(spark), case, tmp_path, collect_into(batches))
    for number in range(3):
        rows = [row for batch in EVENTS.batches[: number + 1] for row in batch]
        users = {row[1] for row in EVENTS.batches[number]}
        counts = sorted(f"Row(user={user}, rows={sum(row[1] == user for row in rows)})" for user in users)
        assert list(batches[number]) == counts
