"""What keyed operators refuse: before the first row where that can be, by name."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.conftest import PARTITIONS, SHUFFLE_PARTITIONS
from integration.operators.keyed import EVENTS, TOTALS, Totals, keyed, play
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.sources import Source
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.spark_hash import SEED, hash_int

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

    from integration.operators.replay import Lines


def _in_spark(frame: DataFrame, function: Any, mode: str = "update") -> DataFrame:  # noqa: ANN401
    """Spark's own applyInPandasWithState."""
    grouped: DataFrame = frame.groupBy("user").applyInPandasWithState(function, TOTALS, "n int", mode, "NoTimeout")
    return grouped


def _of_spark(_key: Any, _frames: Any, _state: GroupState) -> Iterator[pd.DataFrame]:  # noqa: ANN401
    return iter(())


def test_two_operators_of_spark_alone_are_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    frame = EVENTS.stream(spark, tmp_path / "in")
    twice = _in_spark(frame, _of_spark).union(_in_spark(frame, _of_spark))
    writer = twice.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(AnalysisException, match="Multiple applyInPandasWithStates are not supported"):
        writer.format("noop").start()


_FEW_HASH = next(user for user in count() if hash_int(user, SEED) < 1 << 31)
"""A user of the first half of all partitions, however many these are."""
_ONE_KEY = Source("id long, user int", (((0, _FEW_HASH),), ((1, _FEW_HASH),)))


class Unlucky(Totals):
    """Fails in its first batch."""

    def process(self, _ctx: ckpt.Context, _key: Any, _rows: Sequence[Any]) -> Any:  # noqa: ANN401
        raise ValueError("a mistake")


@pytest.mark.parametrize(("planned", "started"), [(1, 3), (4, 2)])
def test_a_plan_for_another_number_of_partitions_is_refused_in_the_first_batch(
    planned: int, started: int, spark: SparkSession, tmp_path: Path
) -> None:
    _ONE_KEY.write(tmp_path / "in", 0, 1)
    session = OURS.session(spark, **{SHUFFLE_PARTITIONS: str(planned)})
    rows = keyed(Totals(), TOTALS)([_ONE_KEY.stream(session, tmp_path / "in")])
    session.conf.set(SHUFFLE_PARTITIONS, str(started))
    batches: dict[int, Lines] = {}
    writer = rows.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.foreachBatch(collect_into(batches)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException) as refused:
        query.awaitTermination()
    problem = f"Keyed operator 'it' was planned for {planned} partitions, but the query runs with {started}."
    assert problem in str(refused.value)
    assert f"Set spark.sql.shuffle.partitions to {started} before the query is built" in str(refused.value)
    assert batches == {}
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()


def test_a_plan_for_another_number_than_that_of_a_batch_that_has_failed_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_inputs(Case(keyed(Totals(), TOTALS), (_ONE_KEY,)), tmp_path, 0, 1)
    batches: dict[int, Lines] = {}
    for processor, partitions, problem in (
        (Unlucky(), "2", "a mistake"),
        (Totals(), "4", "planned for 4 partitions, but the query runs with 2[.]"),
    ):
        session = OURS.session(spark, **{SHUFFLE_PARTITIONS: partitions})
        case = Case(keyed(processor, TOTALS), (_ONE_KEY,), "update")
        with pytest.raises(StreamingQueryException, match=problem):
            run(session, case, tmp_path, collect_into(batches))
    assert batches == {}
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()
    session = OURS.session(spark, **{SHUFFLE_PARTITIONS: "2"})
    run(session, Case(keyed(Totals(), TOTALS), (_ONE_KEY,), "update"), tmp_path, collect_into(batches))
    assert batches == {0: (f"Row(user={_FEW_HASH}, rows=1, total=0)",)}


@pytest.mark.parametrize("source", [EVENTS, _ONE_KEY], ids=["many keys", "one key"])
def test_a_plan_for_another_number_of_partitions_is_refused_before_the_first_row(
    source: Source, spark: SparkSession, tmp_path: Path
) -> None:
    case = Case(keyed(Totals(), TOTALS), (source,), output_mode="update")
    write_inputs(case, tmp_path, 0, 1)
    run(OURS.session(spark), case, tmp_path, collect_into({}))
    write_inputs(case, tmp_path, 1, 2)
    planned = 2 * PARTITIONS
    with pytest.raises(StreamingQueryException) as refused:
        run(OURS.session(spark, **{SHUFFLE_PARTITIONS: str(planned)}), case, tmp_path, collect_into({}))
    for told in (
        f"Keyed operator 'it' was planned for {planned} partitions, but the query runs with {PARTITIONS}, the num",
        f"Set spark.sql.shuffle.partitions to {PARTITIONS} before the query is built",
        f"`pyspark-ckpt checkpoint rescale {tmp_path / 'checkpoint'} NEW_CHECKPOINT -n {planned}`",
    ):
        assert told in str(refused.value)
    batches: dict[int, Lines] = {}
    run(OURS.session(spark), case, tmp_path, collect_into(batches))
    assert len(batches[1]) > 0


def test_a_state_of_another_type_than_the_checkpoint_has_is_refused_before_the_first_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Changed(Totals):
        total = ckpt.ValueState("total", "double", default=0.0)

    write_inputs(Case(keyed(Totals(), TOTALS), (EVENTS,)), tmp_path, 0, 1)
    run(OURS.session(spark), Case(keyed(Totals(), TOTALS), (EVENTS,), "update"), tmp_path, collect_into({}))
    write_inputs(Case(keyed(Totals(), TOTALS), (EVENTS,)), tmp_path, 1, 2)
    for changed, problem in (
        (keyed(Changed(), TOTALS), "state 'it/total' is stored as bigint, .* bigint cannot be read as double"),
        (keyed(Totals(), TOTALS, max_parallelism=64), "State 'it/rows' is stored with max_parallelism 32768"),
    ):
        with pytest.raises(StreamingQueryException, match=problem):
            run(OURS.session(spark), Case(changed, (EVENTS,), "update"), tmp_path, collect_into({}))
    batches: dict[int, Lines] = {}
    run(OURS.session(spark), Case(keyed(Totals(), TOTALS), (EVENTS,), "update"), tmp_path, collect_into(batches))
    assert len(batches[1]) > 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"by": "nobody"}, r"no columns \['nobody'\]"),
        ({"by": []}, "no columns"),
        ({"by": ["user", "USER"]}, r"a column is given twice to key by: \['user', 'user'\]"),
        ({"by": lambda: f.col("user")}, r"Column<'user'> is not the name of a column to key by"),
        ({"by": lambda: ["word", f.col("user")]}, r"Column<'user'> is not the name of a column to key by"),
        ({"by": 5}, "5 is not the name of a column to key by"),
        ({"order_by": lambda: f.col("at")}, r"Column<'at'> is not the name of a column to order by"),
        ({"order_by": "nothing"}, r"no columns \['nothing'\] to order by"),
        ({"uid": ""}, "give a uid"),
        ({"uid": "a/b"}, "give a uid"),
        ({"max_parallelism": 0}, "max_parallelism must be an integer, 1 to 32768, got 0"),
        ({"max_parallelism": 32769}, "max_parallelism must be an integer, 1 to 32768, got 32769"),
        ({"max_parallelism": 2.5}, "max_parallelism must be an integer, 1 to 32768, got 2.5"),
        ({"max_parallelism": "8"}, "max_parallelism must be an integer, 1 to 32768, got '8'"),
        ({"max_parallelism": True}, "max_parallelism must be an integer, 1 to 32768, got True"),
    ],
)
def test_bad_arguments_are_refused_by_name(
    arguments: dict[str, Any], problem: str, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    frame = EVENTS.stream(spark, tmp_path / "in")
    arguments = {name: each() if callable(each) else each for name, each in arguments.items()}
    with pytest.raises(InvalidInputError, match=problem):
        ckpt.keyed(frame, **{"by": "user", "uid": "it", **arguments})


def test_a_name_is_looked_up_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    frame = EVENTS.stream(spark, tmp_path / "in")
    (given,) = ckpt.keyed(frame, "USER", uid="it", order_by=["At"]).plan.inputs
    assert (given.by, given.order_by) == (("user",), ("at",))
    strict = EVENTS.stream(OURS.session(spark, **{"spark.sql.caseSensitive": "true"}), tmp_path / "in")
    with pytest.raises(InvalidInputError, match=r"no columns \['USER'\] to key by"):
        ckpt.keyed(strict, "USER", uid="it")
    twice = strict.withColumn("USER", f.col("user"))
    assert ckpt.keyed(twice, "USER", uid="it").plan.inputs[0].by == ("USER",)
    with pytest.raises(InvalidInputError, match=r"several columns \['user', 'USER'\] to key by"):
        ckpt.keyed(EVENTS.stream(spark, tmp_path / "in").toDF("id", "user", "USER", "a", "b"), "user", uid="it")


@pytest.mark.parametrize(
    ("output", "mode", "problem"),
    [
        ("user int, rows bigint, total", "update", "which Spark cannot read"),
        ("bigint", "update", "give columns"),
        ("", "update", "the output has no columns: give some"),
        ("user int, user int", "update", "the output has several columns 'user'"),
        (TOTALS, "complete", "mode must be 'update' or 'append', got 'complete'"),
    ],
)
def test_bad_outputs_are_refused_by_name(
    output: str, mode: str, problem: str, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    stream = ckpt.keyed(EVENTS.stream(spark, tmp_path / "in"), "user", uid="it")
    with pytest.raises(InvalidInputError, match=problem):
        stream.process(Totals(), output, mode)


def test_types_of_states_are_refused_by_the_states_name(spark: SparkSession, tmp_path: Path) -> None:
    class Wrong(Totals):
        wrong = ckpt.ValueState("wrong", "varint")

    class Default(Totals):
        wrong = ckpt.ValueState("wrong", "bigint", default=0.0)

    class Twice(Totals):
        other = ckpt.ListState("rows", "bigint")

    (tmp_path / "in").mkdir()
    stream = ckpt.keyed(EVENTS.stream(spark, tmp_path / "in"), "user", uid="it")
    with pytest.raises(InvalidInputError, match="the value of state 'wrong' has the type 'varint'"):
        stream.process(Wrong(), TOTALS)
    with pytest.raises(InvalidInputError, match=r"the default of state 'wrong' is 0\.0 \(float\).* of type int64"):
        stream.process(Default(), TOTALS)
    with pytest.raises(InvalidInputError, match="more than one state with the name 'rows'"):
        stream.process(Twice(), TOTALS)


def test_a_time_to_live_in_event_time_is_refused_when_there_is_no_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Late(Totals):
        seen = ckpt.ListState("seen", "bigint", ttl=ckpt.Ttl("1 day", clock="event"))

    (tmp_path / "in").mkdir()
    stream = ckpt.keyed(EVENTS.stream(spark, tmp_path / "in"), "user", uid="it")
    with pytest.raises(InvalidInputError, match=r"state 'seen' has a time.*the frame has no watermark"):
        stream.process(Late(), TOTALS)


def test_keys_that_spark_cannot_group_by_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    frame = Source("m map<string, int>, s string collate UNICODE_CI, n int", ()).stream(spark, tmp_path / "in")
    for name in ("m", "s"):
        with pytest.raises(InvalidInputError, match=f"column '{name}' of type .* cannot be a key"):
            ckpt.keyed(frame, name, uid="it").process(Totals(), TOTALS)


def test_a_column_of_a_reserved_name_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    frame = EVENTS.stream(spark, tmp_path / "in").withColumnRenamed("word", "__ckpt_hash")
    with pytest.raises(InvalidInputError, match=r"column '__ckpt_hash' is reserved\. Rename the column"):
        ckpt.keyed(frame, "user", uid="it").process(Totals(), TOTALS)


def test_a_frame_that_is_no_stream_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidInputError, match="not a stream"):
        ckpt.keyed(spark.range(1), "id", uid="it")
    with pytest.raises(InvalidInputError, match=r"keyed\(uid='it'\): list is not a Spark DataFrame"):
        ckpt.keyed([1], "id", uid="it")  # type: ignore[arg-type]


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
        play(spark, keyed(Wrong(), TOTALS), EVENTS, tmp_path)
