"""Queries of operators and sources that were those of others go on with their state and their offsets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import pyspark_ckpt as ckpt
from integration.conftest import PARTITIONS, SHUFFLE_PARTITIONS
from integration.operators.providers import OURS
from integration.savepoints.test_source_names import COMPACTION, EVOLUTION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
OUTPUT = "user string, n long"


class Count(ckpt.KeyedProcessor):
    """Counts the rows of a user."""

    n = ckpt.ValueState("n", "long", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        self.n.update(self.n.value() + len(rows))
        yield key.user, self.n.value()


def _read(spark: SparkSession, folder: Path) -> DataFrame:
    folder.mkdir(exist_ok=True)
    return spark.readStream.schema("user string").option("maxFilesPerTrigger", 1).json(str(folder))


def _give(folder: Path, number: int, users: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.json").write_text("".join(f"{json.dumps({'user': user})}\n" for user in users))


def _count(spark: SparkSession, folder: Path, uid: str = "views") -> DataFrame:
    return ckpt.keyed(_read(spark, folder), by="user", uid=uid).process(Count(), OUTPUT, "append")


def _distinct(spark: SparkSession, folder: Path) -> DataFrame:
    return _read(spark, folder).dropDuplicates(["user"]).selectExpr("user", "-1L AS n")


def _again(spark: SparkSession, folder: Path, uid: str = "again") -> DataFrame:
    return ckpt.keyed(_count(spark, folder), by="user", uid=uid).process(Count(), OUTPUT, "append")


def _run(frame: DataFrame, checkpoint: Path) -> list[tuple[str, int]]:
    """Run a query over what is there; return its output."""
    shown: list[tuple[str, int]] = []
    query = (
        frame.writeStream.foreachBatch(lambda rows, _batch: shown.extend(tuple(row) for row in rows.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(300)
    return sorted(shown)


@pytest.fixture(params=["1", "2"])
def session(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[SparkSession]:
    """The session with a checkpoint format."""
    spark.conf.set(FORMAT, request.param)
    partitions = spark.conf.get(SHUFFLE_PARTITIONS)
    yield spark
    spark.conf.unset(FORMAT)
    spark.conf.set(SHUFFLE_PARTITIONS, str(partitions))


def test_two_queries_become_one(session: SparkSession, tmp_path: Path) -> None:
    spark, (left, right) = session, (tmp_path / "left", tmp_path / "right")
    for number, users in enumerate(["abc", "ab", "a"]):
        _give(left, number, users)
    assert _run(_count(spark, left), tmp_path / "one")[-1] == ("c", 1)
    spark.conf.set(SHUFFLE_PARTITIONS, "3")
    _give(right, 0, "xyz")
    assert _run(_distinct(spark, right), tmp_path / "two") == [("x", -1), ("y", -1), ("z", -1)]
    saved, other = tmp_path / "saved", tmp_path / "two"
    ckpt.savepoint(tmp_path / "one", saved)
    info = ckpt.writing.compose_savepoint(
        tmp_path / "both", [(other, 0), (saved, "views")], sources=[(other, 0), (saved, 0)]
    )
    assert (info.version, info.partitions) == (3, 3)
    ckpt.restore(tmp_path / "both", tmp_path / "both now", parallelism=5)
    spark.conf.set(SHUFFLE_PARTITIONS, "5")
    _give(left, 3, "acd")
    _give(right, 1, "wxyzw")
    program = _distinct(spark, right).union(_count(spark, left))
    assert _run(program, tmp_path / "both now") == [("a", 4), ("c", 2), ("d", 1), ("w", -1)]
    _give(left, 4, "a")
    assert _run(program, tmp_path / "both now") == [("a", 5)]
    assert _run(_distinct(spark, right), tmp_path / "two") == [("w", -1)]  # what it is made of goes on


@pytest.mark.parametrize("are_named", [True, False])
def test_sources_with_compacted_logs_go_on(
    spark: SparkSession,
    tmp_path: Path,
    are_named: bool,  # noqa: FBT001
) -> None:
    confs = {FORMAT: "2", SHUFFLE_PARTITIONS: "3", **COMPACTION, **(EVOLUTION if are_named else {})}
    session = OURS.session(spark, **confs)

    def read(name: str) -> DataFrame:
        (tmp_path / name).mkdir(exist_ok=True)
        reader = session.readStream.schema("user string").option("maxFilesPerTrigger", 1)
        return (reader.name(f"of_{name}") if are_named else reader).json(str(tmp_path / name))

    def program() -> DataFrame:
        counts = ckpt.keyed(read("left"), by="user", uid="views").process(Count(), OUTPUT, "append")
        return counts.union(read("right").dropDuplicates(["user"]).selectExpr("user", "-1L AS n"))

    for number, users in enumerate(["abc", "ab", "a", "a", "b"]):
        _give(tmp_path / "left", number, users)
        _give(tmp_path / "right", number, users.upper())
    counts = ckpt.keyed(read("left"), by="user", uid="views").process(Count(), OUTPUT, "append")
    _run(counts, tmp_path / "one")
    _run(read("right").dropDuplicates(["user"]), tmp_path / "two")
    sources = ("of_left", "of_right") if are_named else (0, 0)
    one, two = tmp_path / "one", tmp_path / "two"
    assert list((two / "sources").glob("*/*.compact"))
    ckpt.writing.compose_savepoint(
        tmp_path / "both", [(one, "views"), (two, 0)], sources=[(one, sources[0]), (two, sources[1])]
    )
    ckpt.restore(tmp_path / "both", tmp_path / "now")
    assert _run(program(), tmp_path / "now") == []
    for number, users in enumerate(["ad", "b", "a"], 5):
        _give(tmp_path / "left", number, users)
        _give(tmp_path / "right", number, users.upper())
    assert _run(program(), tmp_path / "now") == [("D", -1), ("a", 5), ("a", 6), ("b", 4), ("d", 1)]


def test_an_operator_is_added_and_taken_away(session: SparkSession, tmp_path: Path) -> None:
    spark, folder = session, tmp_path / "input"
    _give(folder, 0, "ab")
    assert _run(_count(spark, folder), tmp_path / "one") == [("a", 1), ("b", 1)]
    ckpt.writing.compose_savepoint(tmp_path / "more", [None, (tmp_path / "one", "views")])
    ckpt.restore(tmp_path / "more", tmp_path / "two")
    _give(folder, 1, "ac")
    assert _run(_again(spark, folder), tmp_path / "two") == [("a", 1), ("c", 1)]
    assert ckpt.reading.open_state(tmp_path / "two", uid="views", state="n").to_pandas()["value"].tolist() == [2, 1, 1]
    ckpt.writing.compose_savepoint(tmp_path / "less", [(tmp_path / "two", 0)])
    ckpt.restore(tmp_path / "less", tmp_path / "three")
    _give(folder, 2, "ad")
    assert _run(_count(spark, folder, "again"), tmp_path / "three") == [("a", 2), ("d", 1)]


def test_an_aggregation_comes_from_a_program_that_has_run_without_rows(session: SparkSession, tmp_path: Path) -> None:
    spark, (folder, empty) = session, (tmp_path / "input", tmp_path / "empty")
    _give(folder, 0, "aab")
    _run(_count(spark, folder), tmp_path / "one")
    _give(empty, 0, "")
    _run(_distinct(spark, empty), tmp_path / "two")
    ckpt.writing.compose_savepoint(
        tmp_path / "more",
        [(tmp_path / "two", 0), (tmp_path / "one", "views")],
        sources=[(tmp_path / "one", 0)],
    )
    ckpt.restore(tmp_path / "more", tmp_path / "three")
    _give(folder, 1, "ab")
    program = _count(spark, folder).dropDuplicates(["user"])
    assert _run(program, tmp_path / "three") == [("a", 3), ("b", 2)]
    _give(folder, 2, "ac")
    assert _run(program, tmp_path / "three") == [("c", 1)]


def test_transform_with_state_gets_another_number(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "input"

    def show(more: bool) -> DataFrame:  # noqa: FBT001
        shown = _read(spark, folder).groupBy("user").transformWithState(_make_totals(), OUTPUT, "Append", "None")
        if not more:
            return shown
        return ckpt.keyed(shown, by="user", uid="again").process(Again(), OUTPUT, "append")

    _give(folder, 0, "aab")
    assert _run(show(more=False), tmp_path / "one") == [("a", 2), ("b", 1)]
    ckpt.writing.compose_savepoint(tmp_path / "more", [None, (tmp_path / "one", 0)])
    ckpt.restore(tmp_path / "more", tmp_path / "two", parallelism=3)
    spark.conf.set(SHUFFLE_PARTITIONS, "3")
    try:
        _give(folder, 1, "ac")
        assert _run(show(more=True), tmp_path / "two") == [("a", 3), ("c", 1)]
    finally:
        spark.conf.set(SHUFFLE_PARTITIONS, str(PARTITIONS))


def _make_totals() -> Any:  # noqa: ANN401
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Totals(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.seen = handle.getListState("seen", "user string")
            self.total = handle.getValueState("total", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Any:  # noqa: ANN401, ARG002, N802, N803
            self.seen.appendList([(row.user,) for row in rows])
            rows_seen = len(list(self.seen.get()))
            self.total.update((rows_seen,))
            yield Row(user=key[0], n=rows_seen)

        def close(self) -> None: ...

    return Totals()


class Again(ckpt.KeyedProcessor):
    """Shows the last total of a user."""

    last = ckpt.ValueState("last", "long")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        self.last.update(rows[-1].n)
        yield key.user, self.last.value()
