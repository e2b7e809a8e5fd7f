"""A program that cannot continue with the state of any one partition stops before its first row, wherever rows come."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import pyspark_ckpt
import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import CHECKPOINT_FORMAT, OURS
from integration.operators.replay import collect_into
from integration.operators.sources import Source
from pyspark_ckpt.operators.encoding.spark_hash import SparkHash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

    from integration.operators.replay import Lines

    Query = Callable[[DataFrame], DataFrame]

OUT = "user int, shown string"
ALLOWED = "spark.sql.streaming.stateStore.ckpt.allowNonRestoredState"


def _user_in(partition: int) -> int:
    """One whose rows are in that partition of two: of a keyed operator by the first bit, of Spark's by the last."""
    of = SparkHash([pa.int32()])
    return next(user for user in range(100) if (of((user,)) >> 31, of((user,)) & 1) == (partition, partition))


FIRST, SECOND = _user_in(0), _user_in(1)
EVENTS = Source("user int, also int, n bigint", (((SECOND, SECOND, 1),), ((FIRST, FIRST, 2),), ((SECOND, SECOND, 3),)))


class Sums(ckpt.KeyedProcessor):
    """Adds up, and keeps what it has seen for a day."""

    total: Any = ckpt.ValueState("total", "bigint")
    seen = ckpt.ListState("seen", "struct<n int, who struct<id int>>", ttl="1 day")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.total.update((self.total.value() or 0) + sum(row.n for row in rows))
        self.seen.add_all([(row.n, (row.user,)) for row in rows])
        yield key[0], str(self.total.value())


class Texts(Sums):
    total = ckpt.ValueState("total", "string")


class Lists(Sums):
    total = ckpt.ListState("total", "bigint")


class Nested(Sums):
    seen = ckpt.ListState("seen", "struct<n int, who struct<id string>>", ttl="1 day")


class OtherClock(Sums):
    seen = ckpt.ListState("seen", "struct<n int, who struct<id int>>", ttl=ckpt.Ttl("1 day", clock="event"))


class Renamed(Sums):
    total = ckpt.ValueState("sum", "bigint")


class Wider(Sums):
    seen = ckpt.ListState("seen", "struct<n bigint, who struct<id int>>", ttl="1 day")


def _keyed(processor: Any, uid: str = "it", by: str = "user", **more: Any) -> Query:  # noqa: ANN401
    return lambda frame: ckpt.keyed(frame, by, uid=uid, **more).process(processor, OUT)


def add(
    key: tuple[Any, ...],
    frames: Iterator[pd.DataFrame],
    _state: GroupState,
    sums: Any,  # noqa: ANN401
) -> Iterator[pd.DataFrame]:
    import pandas as pd

    sums.total.update((sums.total.value() or 0) + sum(int(frame["n"].sum()) for frame in frames))
    yield pd.DataFrame({"user": [int(key[0])], "shown": [str(sums.total.value())]})


class Beside:
    total = ckpt.ValueState("total", "bigint")


class TextBeside:
    total = ckpt.ValueState("total", "string")


def _grouped(states: object, uid: str = "it", by: Sequence[str] = ("user",)) -> Query:
    def query(frame: DataFrame) -> DataFrame:
        called = ckpt.with_states(add, states, uid=uid)
        return frame.groupBy(*by).applyInPandasWithState(called, OUT, "n bigint", "update", "NoTimeout")

    return query


def _play(
    spark: SparkSession, folder: Path, query: Query, files: int, settings: Mapping[str, str] = MappingProxyType({})
) -> dict[int, Lines]:
    """Run a query over the first so many files, as far as it has not seen them; the rows of every batch."""
    EVENTS.write(folder / "input", 0, files)
    session = OURS.session(spark, **{SHUFFLE_PARTITIONS: "2", **settings})
    batches: dict[int, Lines] = {}
    running = (
        query(EVENTS.stream(session, folder / "input"))
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .foreachBatch(collect_into(batches))
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    return batches


CHANGES = {
    "type": (
        _keyed(Sums()),
        _keyed(Texts()),
        "The value of state 'it/total' is stored as bigint, but the program declares string: values of type bigint ca",
    ),
    "nested type": (
        _keyed(Sums()),
        _keyed(Nested()),
        r"'it/seen' is stored as struct<n:int,who:struct<id:int>>, .* declares struct<.*>: field 'who.id': values of",
    ),
    "kind": (
        _keyed(Sums()),
        _keyed(Lists()),
        "'it/total' is stored as ValueState, but the program declares it as List",
    ),
    "uid": (_keyed(Sums()), _keyed(Sums(), "other"), r"declares \['other/seen', .* has state \['it/seen'"),
    "name": (_keyed(Sums()), _keyed(Renamed()), r"the checkpoint has state \['it/total'\]"),
    "key": (
        _keyed(Sums()),
        _keyed(Sums(), by="also"),
        r"is stored by key \(user int\), but the program has the key \(also int\)",
    ),
    "max_parallelism": (
        _keyed(Sums()),
        _keyed(Sums(), max_parallelism=64),
        "is stored with max_parallelism 32768, but the program has 64",
    ),
    "ttl": (
        _keyed(Sums()),
        lambda frame: _keyed(OtherClock())(
            frame.selectExpr("*", "timestamp_seconds(n) as at").withWatermark("at", "1 day")
        ),
        "'it/seen' has rows with a time to live by clock='processing', .* declares clock='event'",
    ),
    "type, with_states": (_grouped(Beside()), _grouped(TextBeside()), "is stored as bigint, .* declares string"),
    "uid, with_states": (_grouped(Beside()), _grouped(Beside(), "other"), r"the checkpoint has state \['it/total'\]"),
}
LEFT_OUT = {"kind", "name", "max_parallelism", "uid, with_states"}
"""One partition shows these as well: see tests/operators/encoding/test_evolution.py."""


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("change", "checkpoint_format"),
    [
        pytest.param(change, "1" if change == "type" else "2", marks=pytest.mark.matrix if change in LEFT_OUT else ())
        for change in CHANGES
    ],
)
def test_a_change_that_another_partition_cannot_follow_is_refused_and_the_old_program_goes_on(
    change: str, checkpoint_format: str, spark: SparkSession, tmp_path: Path
) -> None:
    old, new, problem = CHANGES[change]
    settings = {CHECKPOINT_FORMAT: checkpoint_format}
    _play(spark, tmp_path, old, 1, settings)
    with pytest.raises(StreamingQueryException, match=problem):
        _play(spark, tmp_path, new, 2, settings)
    assert not list((tmp_path / "checkpoint" / "state" / "0" / "0").glob(f"{2:020d}-*"))
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    batches = _play(spark, tmp_path, old, 3, settings)
    assert list(batches) == [1, 2]
    assert [str(lines) for lines in batches.values()] == [
        f"(\"Row(user={FIRST}, shown='2')\",)",
        f"(\"Row(user={SECOND}, shown='4')\",)",
    ]


@pytest.mark.parametrize("columns", ["keyed", "with_states"])
def test_key_columns_in_another_order_are_refused_by_both_orders(
    columns: str, spark: SparkSession, tmp_path: Path
) -> None:
    def query(by: Sequence[str]) -> Query:
        if columns == "keyed":
            return lambda frame: ckpt.keyed(frame, by, uid="it").process(Sums(), OUT)
        return _grouped(Beside(), by=by)

    _play(spark, tmp_path, query(["user", "also"]), 1)
    with pytest.raises(StreamingQueryException, match=r"by key \(user int, also int\).* key \(also int, user int\)"):
        _play(spark, tmp_path, query(["also", "user"]), 2)
    assert list(_play(spark, tmp_path, query(["user", "also"]), 2)) == [1]


class Fresh(Sums):
    """Under another name, and of a type that the old state could not be read as."""

    total = ckpt.ValueState("text", "string")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.total.update((self.total.value() or "") + "".join(str(row.n) for row in rows))
        yield key[0], self.total.value()


@pytest.mark.parametrize("changed", [_keyed(Fresh()), _keyed(Sums(), "other", "also")], ids=["name", "uid"])
def test_a_state_begins_empty_under_another_name_or_uid_when_the_option_allows_it(
    changed: Query, spark: SparkSession, tmp_path: Path
) -> None:
    _play(spark, tmp_path, _keyed(Sums()), 1)
    with pytest.raises(StreamingQueryException, match="allowNonRestoredState"):
        _play(spark, tmp_path, changed, 2)
    batches = _play(spark, tmp_path, changed, 3, {ALLOWED: "true"})
    assert [str(lines) for lines in batches.values()] == [
        f"(\"Row(user={FIRST}, shown='2')\",)",
        f"(\"Row(user={SECOND}, shown='3')\",)",
    ]


def test_partitions_know_the_same_types_when_only_one_had_rows_for_each_program(
    spark: SparkSession, tmp_path: Path
) -> None:
    _play(spark, tmp_path, _keyed(Sums()), 1)
    _play(spark, tmp_path, _keyed(Wider()), 2)
    pyspark_ckpt.restore(str(tmp_path / "checkpoint"), str(tmp_path / "rescaled"), parallelism=1)
    _play(spark, tmp_path, _keyed(Wider()), 3)
    pyspark_ckpt.restore(str(tmp_path / "checkpoint"), str(tmp_path / "again"), parallelism=3)
