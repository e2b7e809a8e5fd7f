"""Keyed operators and types: rows, values and keys of every type Spark has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as f
from pyspark.sql.types import VariantVal

import pyspark_ckpt as ckpt
from integration.operators import inputs
from integration.operators.keyed import EVENTS, TOTALS, Totals, Unchanged, keyed, play
from integration.operators.providers import OURS
from integration.operators.replay import lines
from integration.operators.sources import Source
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.replay import Query


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


VARIANTS = Source(
    "user int, text string",
    tuple(
        tuple((number % 3, text) for number, text in enumerate(texts))
        for texts in (
            ["1", "true", '"ab"', None, "null", '{"n": 7, "more": [1, 2.5, "x"]}'],
            ["[]", '"abc"', '{"n": null}', "12345678901", None, '{"a": {"n": 1}}'],
        )
    ),
)
_VARIANT = "user int, v variant, deep struct<a: array<variant>, m: map<string, variant>>"


def _with_variants(frame: DataFrame) -> DataFrame:
    parsed = frame.selectExpr("user", "parse_json(text) v")
    return parsed.selectExpr("user", "v", "named_struct('a', array(v, null, v), 'm', map('k', v, 'l', null)) deep")


def _as_json(frame: DataFrame) -> DataFrame:
    inner = (f"to_json({part})" for part in ("v", "deep.a[0]", "deep.a[1]", "deep.a[2]", "deep.m['k']", "deep.m['l']"))
    return frame.selectExpr("user", *inner, "try_variant_get(v, '$.n', 'int')")


def _in_and_out_of_json(query: Query) -> Query:
    return lambda frames: _as_json(query([_with_variants(frames[0])]))


def test_variants_come_out_of_rows_and_states_as_they_went_in(spark: SparkSession, tmp_path: Path) -> None:
    row = f"struct<{_VARIANT}>"

    class Variants(Through):
        value = ckpt.ValueState("value", row)
        list = ckpt.ListState("list", row)
        map = ckpt.MapState("map", "int", row)
        last = ckpt.ValueState("last", "variant")

        def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
            yield from super().process(ctx, key, rows)
            self.last.update(rows[-1].v and VariantVal(*rows[-1].v))

    for processor, times in ((Variants(), 2), (UnchangedColumns(), 1)):
        folder = tmp_path / type(processor).__name__
        found = play(spark, _in_and_out_of_json(keyed(processor, _VARIANT)), VARIANTS, folder)
        for number in range(len(VARIANTS.batches)):
            rows = spark.read.schema(VARIANTS.schema).parquet(str(folder / "input0" / f"{number:04d}.parquet"))
            assert found[number] == tuple(sorted(lines(_as_json(_with_variants(rows))) * times))
    with open_state(str(tmp_path / "Variants" / "checkpoint"), uid="it", state="last") as state:
        values = {user: VariantVal(*state.get(user)).toJson() for user in (0, 2)}
    assert values == {0: "12345678901", 2: '{"a":{"n":1}}'}


def test_types_that_python_is_not_handed_are_refused_by_column(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    frame = _with_variants(VARIANTS.stream(spark, tmp_path / "in"))
    with pytest.raises(InvalidInputError, match="column 'v' of type variant cannot be a key"):
        ckpt.keyed(frame, "v", uid="it").process(Unchanged(), "user int")
    calendar = frame.selectExpr("user", "array(make_interval(1)) age")
    with pytest.raises(InvalidInputError, match="column 'age' has values of type interval, which cannot be"):
        ckpt.keyed(calendar, "user", uid="it").process(Unchanged(), "user int")


class OfVoid(Unchanged):
    """Has a state that nothing can be kept in."""

    nothing = ckpt.ValueState("nothing", "struct<n int, v void>")


class ByMaps(Unchanged):
    """Has a state whose keys have no order."""

    maps = ckpt.MapState("maps", "map<int, int>", "int")


@pytest.mark.parametrize(
    ("processor", "problem"),
    [
        (
            OfVoid(),
            r"uid='it'\): the value of state 'nothing' has the type .*void.*: Values of type null cannot",
        ),
        (ByMaps(), r"uid='it'\): the key of state 'maps' has the type .*map.*: A value of type map<.* of a key"),
    ],
    ids=["void", "map"],
)
def test_types_that_no_state_can_have_are_refused_by_the_name_of_the_state(
    processor: Any,  # noqa: ANN401
    problem: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(InvalidInputError, match=problem):
        ckpt.keyed(VARIANTS.stream(spark, tmp_path / "in"), "user", uid="it").process(processor, "user int")


class CountAges(ckpt.VectorProcessor):
    """Rows of a key whose columns pandas does not have, and the newest age among them, kept in every kind of state."""

    rows = ckpt.ReducingState("rows", "bigint", "sum")
    newest = ckpt.ReducingState("newest", "interval year to month", "max")
    ages = ckpt.MapState("ages", "interval year to month", "array<interval month>")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        self.rows.add_rows(ctx.keys, ctx.key_index, pa.array(np.ones(len(batch), np.int64)))
        self.newest.add_rows(ctx.keys, ctx.key_index, batch["age"])
        ages = batch["age"].fill_null(0)
        self.ages.put_entries(ctx.keys, ctx.key_index, ages, pa.array([[each] for each in ages.to_pylist()]))
        (newest,) = {each[-1][1][0] == each[-1][0] for each in self.ages.get_range(ctx.keys).to_pylist()}
        assert newest
        counted = {"n": self.rows.get_values(ctx.keys), "newest": self.newest.get_values(ctx.keys)}
        return pa.table({**{name: ctx.keys.column(name) for name in ctx.keys.names}, **counted})


class CountAgesOfOne(ckpt.KeyedProcessor):
    """The same for one key after the other."""

    rows = ckpt.ValueState("rows", "bigint", default=0)
    newest = ckpt.ReducingState("newest", "interval year to month", max)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        self.rows.update(self.rows.value() + len(rows))
        for row in rows:
            self.newest.add(row.age)
        yield *key, self.rows.value(), self.newest.get()


@pytest.mark.parametrize("processor", [CountAges(), CountAgesOfOne()])
def test_keys_that_pandas_does_not_have_are_those_that_spark_groups_by(
    processor: Any,  # noqa: ANN401
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    keys = {
        "age": "interval year to month",
        "nothing": "void",
        "deep": "struct<age: interval month, l: array<interval year>>",
        "voids": "array<void>",
    }

    def aged(frame: DataFrame) -> DataFrame:
        months = "if(user = 3, null, make_ym_interval(user - 4, user))"
        month, year = "cast(user - 4 as interval month)", "cast(user % 3 as interval year)"
        deep = f"named_struct('age', {month}, 'l', array({year}, null))"
        voids = "if(user % 2 = 0, array(null), array(null, null))"
        return frame.selectExpr(f"{months} age", "null nothing", f"{deep} deep", f"{voids} voids")

    def as_text(frame: DataFrame) -> DataFrame:
        return frame.selectExpr(*(f"cast({name} as string) {name}" for name in (*keys, "n", "newest")))

    def native(frames: Sequence[DataFrame]) -> DataFrame:
        counted = aged(frames[0]).groupBy(*keys).agg(f.count("*").alias("n"), f.max("age").alias("newest"))
        return as_text(counted)

    def query(frames: Sequence[DataFrame]) -> DataFrame:
        output = (
            ", ".join(f"{name} {kind}" for name, kind in keys.items()) + ", n bigint, newest interval year to month"
        )
        return as_text(keyed(processor, output, list(keys))([aged(frames[0])]))

    found = play(spark, query, EVENTS, tmp_path / "keyed")
    assert found == play(spark, native, EVENTS, tmp_path / "native")
    assert "INTERVAL" in str(found)
    with open_state(str(tmp_path / "keyed" / "checkpoint"), uid="it", state="rows") as state:
        rows = state.to_arrow()
        assert rows.num_rows > 5
        for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True):
            assert state.get(tuple(key.values())) == value
    with open_state(str(tmp_path / "native" / "checkpoint")) as state:
        own = [list(key.values()) for key in state.to_arrow()["key"].to_pylist()]
    assert sorted(map(repr, own)) == sorted(repr(list(key.values())) for key in rows["key"].to_pylist())


class FarColumns(ckpt.VectorProcessor):
    """Puts out all rows after they have been through each kind of state and a timer, and how many a key has had."""

    row = f"struct<{inputs.far().schema}>"
    last = ckpt.ValueState("last", row)
    packed = ckpt.ValueState("packed", "struct<d date, t timestamp>")
    newest = ckpt.ReducingState("newest", "timestamp", "max")
    list = ckpt.ListState("list", row)
    days = ckpt.MapState("days", "date", row)
    deep = ckpt.MapState("deep", "struct<s string, d date>", "timestamp")
    due = ckpt.Timers("due", clock="event")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        batch = batch.drop_columns(["seen"])
        rows = batch.to_struct_array().combine_chunks()
        index, keys = ctx.key_index, ctx.keys
        _, first = np.unique(index, return_index=True)
        self.last.put(keys, rows.take(first))
        assert self.last.get(keys).equals(rows.take(first))
        packed = batch.select(["d", "t"]).take(first).to_struct_array().combine_chunks()
        self.packed.put(keys, packed)
        assert self.packed.get(keys).equals(packed)
        self.newest.add_rows(keys, index, batch["t"])
        self.list.put_lists(keys, pa.array([[]] * len(keys), pa.list_(rows.type)))
        self.list.add_rows(keys, index, rows)
        order = np.argsort(index, kind="stable")
        assert self.list.get_lists(keys).flatten().equals(rows.take(order))
        day = pc.coalesce(batch["d"], pa.scalar(0, pa.int32()).cast(pa.date32())).combine_chunks()
        self.days.put_entries(keys, index, day, rows)
        assert self.days.get_entries(keys, index, day).type == rows.type
        found = self.days.get_range(keys, end=pa.array([None] * len(keys), pa.date32()))
        assert found.keys.take(np.zeros(0, np.int64)).type == day.type
        assert len(found.items) == len(set(zip(index.tolist(), day.cast(pa.int32()).to_pylist(), strict=True)))
        pair = pc.make_struct(pa.array(["x"] * len(day)), day, field_names=["s", "d"])
        self.deep.put_entries(keys, index, pair, batch["t"].fill_null(0))
        assert self.deep.get_range(keys).keys.field("d").equals(found.keys)
        self.days.clear_keys(keys)
        self.deep.clear_keys(keys)
        at = pa.array(np.zeros(len(keys), np.int64)).view(pa.timestamp("us", "UTC"))
        self.due.register_rows(keys, np.arange(len(keys)), at)
        return pa.Table.from_struct_array(rows)

    def process_timers(self, ctx: ckpt.VectorContext, timers: pa.Table) -> pa.Table:
        lists = self.list.get_lists(ctx.keys)
        assert len(lists) == len(timers) == len(self.packed.get(ctx.keys))
        self.packed.clear_keys(ctx.keys)
        assert pc.list_element(lists, 0).field("d").equals(ctx.keys.column("d").combine_chunks())
        return pa.Table.from_struct_array(lists.flatten().slice(0, 0))


def _as_text(query: Query) -> Query:
    return lambda frames: query(frames).selectExpr("cast(struct(*) as string) row")


def test_dates_and_instants_that_python_does_not_have_go_through_every_state_in_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = inputs.far()
    settings = {"spark.sql.session.timeZone": "UTC"}

    def query(frames: Sequence[DataFrame]) -> DataFrame:
        watched = frames[0].withColumn("seen", f.expr("timestamp'2024-01-01'")).withWatermark("seen", "1 day")
        return keyed(FarColumns(), source.schema, ["d", "deep"])([watched])

    found = play(spark, _as_text(query), source, tmp_path, settings=settings)
    session = OURS.session(spark, **settings)
    for number in range(len(source.batches)):
        rows = session.read.schema(source.schema).parquet(str(tmp_path / "input0" / f"{number:04d}.parquet"))
        assert found[number] == lines(rows.selectExpr("cast(struct(*) as string) row"))
    assert "+294247-01-10" in str(found)
    assert "-5877641-06-23" in str(found)
    with open_state(str(tmp_path / "checkpoint"), uid="it", state="packed") as state:
        assert state.count() == 0, "the timers of all keys have fired"
    with open_state(str(tmp_path / "checkpoint"), uid="it", state="list") as state:
        assert state.to_arrow().num_rows == state.count() > 0


def test_a_date_that_python_does_not_have_is_refused_by_operator_and_column_for_one_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = inputs.far()
    with pytest.raises(Exception, match=r"Column 'd' of keyed operator 'it': There is a value of type date32"):
        play(spark, keyed(Unchanged(), source.schema, "id"), source, tmp_path)


_KEYS = [name for name in inputs.kinds(seed=5).schema.replace("<", " ").split() if name.startswith("c_")]


@pytest.mark.in_turn
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


class TotalsByPlace(ckpt.KeyedProcessor):
    """Adds the second column of the rows of a user, and what the last one has in its second field."""

    total = ckpt.ValueState("total", "bigint", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        self.total.update(self.total.value() + sum(row[1] + row[-1][1] for row in rows))
        yield key.user, self.total.value()


def test_rows_may_have_columns_and_fields_that_share_a_name(spark: SparkSession, tmp_path: Path) -> None:
    amount = f.col("id").alias("n")
    pair = f.expr("named_struct('n', 'text', 'n', id)").alias("pair")

    def query(frames: Sequence[DataFrame]) -> DataFrame:
        rows = frames[0].select("user", amount, (amount + 1).alias("n"), pair)
        return ckpt.keyed(rows, "user", uid="it").process(TotalsByPlace(), "user int, total bigint")

    def sums(frames: Sequence[DataFrame]) -> DataFrame:
        return frames[0].groupBy("user").agg((2 * f.sum(amount)).alias("total"))

    assert play(spark, query, EVENTS, tmp_path) == play(spark, sums, EVENTS, tmp_path / "native")


def test_what_the_plan_generates_compiles(spark: SparkSession, tmp_path: Path) -> None:
    """Where code does not compile, Spark falls back to interpreting it, which is right and slow, and fills the log."""
    only = {"spark.sql.codegen.factoryMode": "CODEGEN_ONLY", "spark.sql.codegen.fallback": "false"}
    assert play(spark, keyed(Totals(), TOTALS), EVENTS, tmp_path, settings=only)
