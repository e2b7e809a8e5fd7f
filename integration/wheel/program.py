"""Count words with an aggregation and with a keyed operator, take a savepoint, and go on with more partitions.

Run by ``integration.wheel`` with the Python of an environment that has the wheel, in an empty folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt

WORDS = ("to be or not to be", "that is the question", "to thine own self be true")
PARTITIONS = "spark.sql.shuffle.partitions"


class Count(ckpt.KeyedProcessor):
    """How often each word was seen so far."""

    seen = ckpt.ValueState("seen", "long", default=0)

    def process(self, ctx: ckpt.Context, key: tuple[Any, ...], rows: Sequence[Any]) -> Iterable[tuple[str, int]]:  # noqa: ARG002
        self.seen.update(self.seen.value() + len(rows))
        yield key[0], self.seen.value()


def write(number: int) -> None:
    """Add one line of text to the input."""
    Path("text").mkdir(exist_ok=True)
    Path(f"text/{number}.txt").write_text(WORDS[number] + "\n", encoding="utf-8")


def words(spark: SparkSession) -> DataFrame:
    """The input, a word a row."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text("text")
    return lines.selectExpr("explode(split(value, ' ')) AS word")


def run(frame: DataFrame, checkpoint: str) -> dict[str, int]:
    """Run a query over the files that are there, and return the last count of each word."""
    last: dict[str, int] = {}

    def remember(batch: DataFrame, _: int) -> None:
        last.update({row.word: row.seen for row in batch.collect()})

    query = frame.writeStream.outputMode("update").option("checkpointLocation", checkpoint).foreachBatch(remember)
    query.trigger(availableNow=True).start().awaitTermination()
    return last


def frames(spark: SparkSession) -> Iterator[tuple[str, DataFrame]]:
    """The outputs of the queries, by name."""
    counted = ckpt.keyed(words(spark), by="word", uid="words").process(Count(), output="word string, seen long")
    yield "keyed", counted
    yield "native", words(spark).groupBy("word").count().withColumnRenamed("count", "seen")


def main() -> None:
    """Fail unless both queries count right, before and after the savepoint."""
    builder = SparkSession.builder.master("local[2]").config(PARTITIONS, 2).config("spark.ui.enabled", "false")
    spark = ckpt.configure(builder.config("spark.log.level", "ERROR")).getOrCreate()
    expected: Counter[str] = Counter()
    for number, line in enumerate(WORDS):
        write(number)
        expected.update(line.split())
        suffix = ""
        if number == len(WORDS) - 1:
            suffix = "-restored"
            for name in ("keyed", "native"):
                ckpt.savepoint(name, f"{name}-saved")
                ckpt.restore(f"{name}-saved", name + suffix, parallelism=3)
            spark.conf.set(PARTITIONS, 3)
        for name, frame in frames(spark):
            found = run(frame, name + suffix)
            wanted = {word: expected[word] for word in line.split()}
            if found != wanted:
                raise SystemExit(f"{name}, line {number}: {found}, and {wanted} was expected.")
    state = ckpt.reading.open_state("keyed-restored", uid="words", state="seen").to_pandas()
    if dict(zip((key["word"] for key in state["key"]), state["value"], strict=True)) != expected:
        raise SystemExit(f"The state is {state}, and {expected} was expected.")
    print(f"Spark {pyspark.__version__}: {len(expected)} words, right after a savepoint and with 3 partitions for 2.")


if __name__ == "__main__":
    main()
