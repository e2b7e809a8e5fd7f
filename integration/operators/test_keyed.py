"""Keyed operators in real queries: against Spark's own aggregation, with every type, with operators behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from integration.conftest import PARTITIONS, SHUFFLE_PARTITIONS
from integration.operators import inputs
from integration.operators.keyed import keyed, play
from integration.operators.placement import stored_rows
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, lines, run, write_inputs
from integration.operators.sources import Source
from pyspark_ckpt import operators as ckpt
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.replay import Lines

_EVENTS = inputs.events(seed=31, rows=60)
_TOTALS = "user int, rows bigint, total bigint"


class Totals(ckpt.KeyedProcessor):
    """Rows and sum of a user, one key after the other."""

    rows = ckpt.ValueState("rows", "bigint", default=0)
    total = ckpt.ValueState("total", int, default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.rows.update(self.rows.value() + len(rows))
        self.total.update(self.total.value() + sum(row.id for row in rows))
        yield key.user, self.rows.value(), self.total.value()


class VectorTotals(ckpt.VectorProcessor):
    """The same for all users at once."""

    totals = ckpt.ValueState("totals", "struct<rows bigint, total bigint>")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        old = self.totals.get(ctx.keys)
        rows = np.bincount(ctx.key_index, minlength=len(ctx.keys))
        total = np.zeros(len(ctx.keys), np.int64)
        np.add.at(total, ctx.key_index, batch.column("id").to_numpy())
        rows = pc.add(rows, old.field("rows").fill_null(0))
        total = pc.add(total, old.field("total").fill_null(0))
        self.totals.put(ctx.keys, pa.StructArray.from_arrays([rows, total], fields=list(old.type)))
        return pa.table({"total": total, "user": ctx.keys.column("user"), "rows": rows})


class Unchanged(ckpt.KeyedProcessor):
    """Puts out every row as it came, and the one before, out of its state."""

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> Sequence[Any]:  # noqa: ANN401
        return rows


class UnchangedColumns(ckpt.VectorProcessor):
    """Puts out all rows as they came."""

    def process_batch(self, _ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        return batch


class Through(ckpt.KeyedProcessor):
    """Puts out every row after it has been through each kind of state."""

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        for number, row in enumerate(rows):
            self.value.update(row)  # type: ignore[attr-defined]
            self.list.add(row)  # type: ignore[attr-defined]
            self.map.put(number, row)  # type: ignore[attr-defined]
            yield self.value.value()  # type: ignore[attr-defined]
        assert repr(list(self.list.get())) == repr(list(self.map.values()))  # type: ignore[attr-defined]
        yield from self.list.get()  # type: ignore[attr-defined]
        self.list.clear()  # type: ignore[attr-defined]
        self.map.clear()  # type: ignore[attr-defined]


@pytest.mark.parametrize("processor", [Totals(), VectorTotals()])
def test_totals_equal_those_of_sparks_aggregation(processor: Any, spark: SparkSession, tmp_path: Path) -> None:  # noqa: ANN401
    def native(frames: Sequence[DataFrame]) -> DataFrame:
        return frames[0].groupBy("user").agg(f.count("*").alias("rows"), f.sum("id").alias("total"))

    expected = play(spark, native, _EVENTS, tmp_path / "native")
    assert play(spark, keyed(processor, _TOTALS), _EVENTS, tmp_path / "keyed") == expected
    assert any(expected.values())


def test_keys_are_stored_in_the_partition_of_their_key_group(spark: SparkSession, tmp_path: Path) -> None:
    settings = {SHUFFLE_PARTITIONS: "5"}
    play(spark, keyed(VectorTotals(), _TOTALS, max_parallelism=128), _EVENTS, tmp_path, settings=settings)
    rows = list(stored_rows(tmp_path / "checkpoint", tmp_path / "restored"))
    assert len(rows) == len({row[1] for batch in _EVENTS.batches for row in batch})
    assert {row.partition for row in rows} == {(row.partition_hash * 128 >> 32) * 5 // 128 for row in rows}
    assert all(row.partition == (row.partition_hash * 128 >> 32) * 5 // 128 for row in rows)


def _kinds() -> Source:
    plain = inputs.kinds(seed=5)
    nested = ", m map<string, array<bigint>>, deep struct<a: array<struct<n: bigint, d: decimal(38,10)>>, b: boolean>"
    extra = [
        ([("a", [2**63 - 1, None]), ("b", [])], {"a": [{"n": None, "d": None}], "b": True}),
        ([("", None)], {"a": None, "b": None}),
        (None, None),
        ([], {"a": [], "b": False}),
    ]
    return Source(
        plain.schema + nested,
        tuple(
            tuple((*row, *extra[number % len(extra)]) for number, row in enumerate(batch)) for batch in plain.batches
        ),
    )


@pytest.mark.parametrize(
    ("processor", "zone"), [(Unchanged(), "America/Los_Angeles"), (UnchangedColumns(), "America/Los_Angeles")]
)
def test_rows_of_every_type_come_out_as_they_went_in(
    processor: Any,  # noqa: ANN401
    zone: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    source = _kinds()
    by = [name.split()[0] for name in ("c_string", "c_double", "c_long_decimal")]
    settings = {"spark.sql.session.timeZone": zone}
    found = play(spark, keyed(processor, source.schema, by), source, tmp_path, settings=settings)
    session = OURS.session(spark, **settings)
    for number in range(len(source.batches)):
        expected = session.read.schema(source.schema).parquet(str(tmp_path / "input0" / f"{number:04d}.parquet"))
        assert found[number] == lines(expected)


def test_values_of_every_type_come_out_of_states_as_they_went_in(spark: SparkSession, tmp_path: Path) -> None:
    source = _kinds()
    row = f"struct<{source.schema}>"

    class AllKinds(Through):
        value = ckpt.ValueState("value", row)
        list = ckpt.ListState("list", row)
        map = ckpt.MapState("map", "int", row)

    found = play(spark, keyed(AllKinds(), source.schema, "c_int"), source, tmp_path)
    for number in range(len(source.batches)):
        expected = spark.read.schema(source.schema).parquet(str(tmp_path / "input0" / f"{number:04d}.parquet"))
        assert found[number] == tuple(sorted([*lines(expected), *lines(expected)]))


_KEYS = [name for name in inputs.kinds(seed=5).schema.replace("<", " ").split() if name.startswith("c_")]


@pytest.mark.parametrize("by", [_KEYS[first : first + 4] for first in range(0, len(_KEYS), 4)], ids="+".join)
def test_keys_of_every_type_are_those_that_spark_groups_by(by: list[str], spark: SparkSession, tmp_path: Path) -> None:
    source = inputs.kinds(seed=7)
    kinds = dict(spark.createDataFrame([], source.schema).dtypes)

    class Count(ckpt.KeyedProcessor):
        rows = ckpt.ValueState("rows", "bigint", default=0)

        def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
            self.rows.update(self.rows.value() + len(rows))
            yield *key, self.rows.value()

    output = ", ".join(f"{name} {kinds[name]}" for name in by) + ", rows bigint"
    found = play(spark, keyed(Count(), output, by), source, tmp_path / "keyed")
    native = play(
        spark, lambda frames: frames[0].groupBy(*by).agg(f.count("*").alias("rows")), source, tmp_path / "native"
    )
    assert found == native


_BEHIND = {
    "repartition": lambda frame: frame.repartition(3),
    "select": lambda frame: frame.selectExpr("user + 1 as next", "total"),
    "deduplication": lambda frame: frame.dropDuplicates(["user"]),
    "join": lambda frame: frame.join(frame.sparkSession.range(4).withColumnRenamed("id", "user"), "user"),
}


@pytest.mark.parametrize("name", _BEHIND)
def test_rows_go_on_into_any_operator(name: str, spark: SparkSession, tmp_path: Path) -> None:
    def query(frames: Sequence[DataFrame]) -> DataFrame:
        totals = ckpt.keyed(frames[0], "user", uid="it").process(Totals(), _TOTALS, mode="append")
        behind: DataFrame = _BEHIND[name](totals)
        return behind

    plain = play(
        spark,
        lambda frames: ckpt.keyed(frames[0], "user", uid="it").process(Totals(), _TOTALS, mode="append"),
        _EVENTS,
        tmp_path / "plain",
        "append",
    )
    found = play(spark, query, _EVENTS, tmp_path / "behind", "append")
    assert any(found.values())
    if name == "repartition":
        assert found == plain


@pytest.mark.parametrize("partitions", [1, 2])
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
        return ckpt.keyed(frames[0].dropDuplicates(["id"]), "user", uid="it").process(Totals(), _TOTALS)

    expected = play(spark, native, source, tmp_path / "native", settings=settings)
    assert play(spark, query, source, tmp_path / "keyed", settings=settings) == expected


def test_an_aggregation_may_follow_in_append_mode(spark: SparkSession, tmp_path: Path) -> None:
    def query(frames: Sequence[DataFrame]) -> DataFrame:
        keyed_rows = ckpt.keyed(frames[0], "user", uid="it").process(Unchanged(), _EVENTS.schema, mode="append")
        windows = keyed_rows.withWatermark("at", "5 minutes").groupBy(f.window("at", "10 minutes"))
        return windows.agg(f.count("*").alias("rows"))

    found = play(spark, query, _EVENTS, tmp_path / "keyed", "append")
    native = play(
        spark,
        lambda frames: (
            frames[0]
            .withWatermark("at", "5 minutes")
            .groupBy(f.window("at", "10 minutes"))
            .agg(f.count("*").alias("rows"))
        ),
        _EVENTS,
        tmp_path / "native",
        "append",
    )
    assert sorted(sum(found.values(), ())) == sorted(sum(native.values(), ()))
    assert any(found.values())


@pytest.mark.parametrize("vectorised", [False, True])
def test_rows_of_a_key_come_in_the_order_that_is_asked_for(
    vectorised: bool,  # noqa: FBT001
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    class Rows(ckpt.KeyedProcessor):
        def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
            yield key.user, [row.id for row in rows]

    class Columns(ckpt.VectorProcessor):
        def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
            ids = batch.column("id").to_numpy()
            lists = [ids[ctx.key_index == number].tolist() for number in range(len(ctx.keys))]
            return pa.table({"user": ctx.keys.column("user"), "ids": pa.array(lists, pa.list_(pa.int64()))})

    processor = Columns() if vectorised else Rows()
    query = keyed(processor, "user int, ids array<bigint>", order_by=["amount", "at"])
    found = play(spark, query, _EVENTS, tmp_path)
    names = [each.split()[0] for each in _EVENTS.schema.split(", ")]
    for number, batch in enumerate(_EVENTS.batches):
        rows = [dict(zip(names, row, strict=True)) for row in batch]
        rows.sort(key=lambda row: (row["amount"] is not None, row["amount"] or 0, row["at"]))
        for user in {row["user"] for row in rows}:
            expected = f"Row(user={user}, ids={[row['id'] for row in rows if row['user'] == user]})"
            assert expected in found[number]


class Counting(Totals):
    """Counts what it does."""

    calls = ckpt.Counter("calls")
    seen = ckpt.Counter("seen")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.calls.add()
        self.seen.add(len(rows))
        return super().process(ctx, key, rows)


def test_counters_are_in_the_progress_of_the_query(spark: SparkSession, tmp_path: Path) -> None:
    case = Case(keyed(Counting(), _TOTALS), (_EVENTS,), output_mode="update")
    write_inputs(case, tmp_path, 0, 2)
    finished = run(OURS.session(spark), case, tmp_path, collect_into({}))
    for progress, batch in zip(finished.recentProgress, _EVENTS.batches, strict=False):
        metrics = progress.stateOperators[0].customMetrics
        assert (metrics["it/calls"], metrics["it/seen"]) == (len({row[1] for row in batch}), len(batch))


def test_a_second_keyed_operator_in_a_query_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    frame = ckpt.keyed(_EVENTS.stream(spark, tmp_path / "in"), "user", uid="first").process(Totals(), _TOTALS)
    with pytest.raises(InvalidInputError, match=r"uid='second'.*comes from another keyed operator"):
        ckpt.keyed(frame, "user", uid="second").process(Totals(), _TOTALS)


def test_a_plan_for_another_number_of_partitions_is_refused_before_the_first_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    case = Case(keyed(Totals(), _TOTALS), (_EVENTS,), output_mode="update")
    write_inputs(case, tmp_path, 0, 1)
    run(OURS.session(spark), case, tmp_path, collect_into({}))
    write_inputs(case, tmp_path, 1, 2)
    other = OURS.session(spark, **{SHUFFLE_PARTITIONS: str(PARTITIONS + 1)})
    with pytest.raises(Exception, match=f"planned for {PARTITIONS + 1} partitions"):
        run(other, case, tmp_path, collect_into({}))
    batches: dict[int, Lines] = {}
    run(OURS.session(spark), case, tmp_path, collect_into(batches))
    assert len(batches[1]) > 0


def test_a_state_of_another_type_than_the_checkpoint_has_is_refused_before_the_first_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Changed(Totals):
        total = ckpt.ValueState("total", "double", default=0.0)

    write_inputs(Case(keyed(Totals(), _TOTALS), (_EVENTS,)), tmp_path, 0, 1)
    run(OURS.session(spark), Case(keyed(Totals(), _TOTALS), (_EVENTS,), "update"), tmp_path, collect_into({}))
    write_inputs(Case(keyed(Totals(), _TOTALS), (_EVENTS,)), tmp_path, 1, 2)
    for changed, problem in (
        (keyed(Changed(), _TOTALS), "State 'total' has another type.*values of type int64 cannot be read as double"),
        (keyed(Totals(), _TOTALS, max_parallelism=64), "State 'it/rows' is stored with key_encoder"),
    ):
        with pytest.raises(StreamingQueryException, match=problem):
            run(OURS.session(spark), Case(changed, (_EVENTS,), "update"), tmp_path, collect_into({}))
    batches: dict[int, Lines] = {}
    run(OURS.session(spark), Case(keyed(Totals(), _TOTALS), (_EVENTS,), "update"), tmp_path, collect_into(batches))
    assert len(batches[1]) > 0


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
        case = Case(keyed(processor, "user int, rows bigint"), (_EVENTS,), "update")
        write_inputs(case, tmp_path, number, number + 1)
        run(OURS.session(spark), case, tmp_path, collect_into(batches))
    for number in range(3):
        rows = [row for batch in _EVENTS.batches[: number + 1] for row in batch]
        users = {row[1] for row in _EVENTS.batches[number]}
        counts = sorted(f"Row(user={user}, rows={sum(row[1] == user for row in rows)})" for user in users)
        assert list(batches[number]) == counts


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"by": "nobody"}, r"no columns \['nobody'\]"),
        ({"by": []}, "no columns"),
        ({"order_by": "nothing"}, r"no columns \['nothing'\] to order by"),
        ({"uid": ""}, "give a uid"),
        ({"uid": "a/b"}, "give a uid"),
        ({"max_parallelism": 0}, "max_parallelism is 0"),
        ({"max_parallelism": 32769}, "max_parallelism is 32769"),
    ],
)
def test_bad_arguments_are_refused_by_name(
    arguments: dict[str, Any], problem: str, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    frame = _EVENTS.stream(spark, tmp_path / "in")
    with pytest.raises(InvalidInputError, match=problem):
        ckpt.keyed(frame, **{"by": "user", "uid": "it", **arguments})


@pytest.mark.parametrize(
    ("output", "mode", "problem"),
    [
        ("user int, rows bigint, total", "update", "which Spark cannot read"),
        ("bigint", "update", "give columns"),
        (_TOTALS, "complete", "mode is 'complete'"),
    ],
)
def test_bad_outputs_are_refused_by_name(
    output: str, mode: str, problem: str, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    stream = ckpt.keyed(_EVENTS.stream(spark, tmp_path / "in"), "user", uid="it")
    with pytest.raises(InvalidInputError, match=problem):
        stream.process(Totals(), output, mode)


def test_types_of_states_are_refused_by_the_states_name(spark: SparkSession, tmp_path: Path) -> None:
    class Wrong(Totals):
        wrong = ckpt.ValueState("wrong", "varint")

    class Twice(Totals):
        other = ckpt.ListState("rows", "bigint")

    (tmp_path / "in").mkdir()
    stream = ckpt.keyed(_EVENTS.stream(spark, tmp_path / "in"), "user", uid="it")
    with pytest.raises(InvalidInputError, match="the value of state 'wrong' has the type 'varint'"):
        stream.process(Wrong(), _TOTALS)
    with pytest.raises(InvalidInputError, match="more than one state with the name 'rows'"):
        stream.process(Twice(), _TOTALS)


def test_keys_that_spark_cannot_group_by_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    frame = Source("m map<string, int>, s string collate UNICODE_CI, n int", ()).stream(spark, tmp_path / "in")
    for name in ("m", "s"):
        with pytest.raises(InvalidInputError, match=f"column '{name}' of type .* cannot be a key"):
            ckpt.keyed(frame, name, uid="it").process(Totals(), _TOTALS)


def test_a_frame_that_is_no_stream_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidInputError, match="no stream"):
        ckpt.keyed(spark.range(1), "id", uid="it")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([(1, 2)], "2 values are given for the fields"),
        ([("x", 2, 3)], "yielded rows that are not"),
        ([{"user": 1, "other": 2}], "there is no field 'other'"),
    ],
)
def test_output_rows_of_another_shape_fail_the_query_with_what_is_wrong(
    rows: Any,  # noqa: ANN401
    problem: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    class Wrong(Totals):
        def process(self, _ctx: ckpt.Context, _key: Any, _rows: Sequence[Any]) -> Any:  # noqa: ANN401
            return rows

    with pytest.raises(Exception, match=problem):
        play(spark, keyed(Wrong(), _TOTALS), _EVENTS, tmp_path)
