"""Broadcast and operator state on real Spark: order, restarts, rescaling, copies that differ, no further costs."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import pyspark_ckpt as ckpt
from integration.operators.providers import OURS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

OUTPUT = "user string, rule string, amount int"
AMOUNTS = [{"user": f"user-{n}", "amount": n} for n in range(20)]


class Matches(ckpt.KeyedProcessor):
    """Outputs the amounts that reach a rule's limit. A null limit removes a rule."""

    rules = ckpt.BroadcastState("rules", "string", "int")
    seen = ckpt.OperatorListState("seen", "string")
    total = ckpt.ValueState("total", "int", default=0)

    def process_broadcast(self, _ctx: ckpt.Context, rows: Sequence[Any]) -> None:
        for row in rows:
            self.rules.put(row.name, row.lowest)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
        for row in rows:
            self.total.update(self.total.value() + row.amount)
            self.seen.add(key.user)
            yield from ((key.user, name, row.amount) for name, lowest in self.rules.items() if row.amount >= lowest)


class Differs(Matches):
    """Makes the copies differ."""

    def process_broadcast(self, ctx: ckpt.Context, rows: Sequence[Any]) -> None:  # noqa: ARG002
        self.rules.put("partition", ctx.partition)


def of_partitions(spark: SparkSession, partitions: int) -> SparkSession:
    return OURS.session(spark, **{"spark.sql.shuffle.partitions": str(partitions)})


def match(spark: SparkSession, folder: Path, processor: ckpt.KeyedProcessor) -> DataFrame:
    amounts = spark.readStream.schema("user string, amount int").json(str(folder / "amounts"))
    rules = spark.readStream.schema("at int, name string, lowest int").json(str(folder / "rules"))
    given = ckpt.BroadcastInput(rules, order_by="at")
    return ckpt.keyed(amounts, "user", uid="match", broadcast=given).process(processor, OUTPUT, mode="append")


def add(folder: Path, **rows: Sequence[dict[str, Any]]) -> None:
    for name, some in rows.items():
        (folder / name).mkdir(exist_ok=True)
        number = len(list((folder / name).iterdir()))
        hidden = folder / name / f".{number}"
        hidden.write_text("\n".join(map(json.dumps, some)))
        hidden.rename(folder / name / f"{number}.json")


def run(frame: DataFrame, folder: Path, checkpoint: str = "checkpoint") -> None:
    writer = frame.writeStream.format("json").option("path", str(folder / "out"))
    query = writer.option("checkpointLocation", str(folder / checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def rule(at: int, name: str, lowest: int | None) -> dict[str, Any]:
    return {"at": at, "name": name, "lowest": lowest}


@pytest.mark.in_turn
def test_rules_are_the_same_for_all_keys_after_restarts_and_at_another_parallelism(
    spark: SparkSession, tmp_path: Path
) -> None:
    session = of_partitions(spark, 3)
    # The last row of "high" counts: rows of a batch come in the order of `at`, whatever their files are.
    add(tmp_path, rules=[rule(2, "high", 18), rule(1, "high", 0), rule(3, "low", 1)], amounts=AMOUNTS)
    run(match(session, tmp_path, Matches()), tmp_path)
    add(tmp_path, amounts=AMOUNTS)
    run(match(session, tmp_path, Matches()), tmp_path)
    add(tmp_path, rules=[rule(4, "low", None)])
    run(match(session, tmp_path, Matches()), tmp_path)
    assert Counter(row.rule for row in spark.read.json(str(tmp_path / "out")).collect()) == {"high": 4, "low": 38}
    with ckpt.reading.open_state(tmp_path / "checkpoint", uid="match", state="rules") as state:
        assert state.to_pandas()["value"].tolist() == [18]
        assert state.get("high") == 18
        assert state.state.rows == 1
    options = {"uid": "match", "state": "rules"}
    assert spark.read.format("ckpt_state").options(**options).load(str(tmp_path / "checkpoint")).count() == 1
    ckpt.restore(tmp_path / "checkpoint", tmp_path / "rescaled", parallelism=5)
    with ckpt.reading.open_state(tmp_path / "rescaled", uid="match", state="seen") as state:
        lists = [state.get(partition) for partition in range(5)]
        assert [len(each) for each in lists] == [8] * 5
        assert Counter(user for each in lists for user in each) == dict.fromkeys((f"user-{n}" for n in range(20)), 2)
    add(tmp_path, amounts=AMOUNTS)
    run(match(of_partitions(spark, 5), tmp_path, Matches()), tmp_path, "rescaled")
    rows = spark.read.json(str(tmp_path / "out")).collect()
    assert Counter(row.rule for row in rows) == {"high": 6, "low": 38}


def test_a_program_that_makes_the_copies_differ_ends_and_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    session = of_partitions(spark, 3)
    add(tmp_path, rules=[rule(1, "high", 18)], amounts=AMOUNTS)
    with pytest.raises(
        Exception, match=r"The copies of broadcast state 'match/rules' differ: partition \d has 1 entry"
    ):
        run(match(session, tmp_path, Differs()), tmp_path)
    run(match(session, tmp_path, Matches()), tmp_path)
    assert spark.read.json(str(tmp_path / "out")).count() == 2
