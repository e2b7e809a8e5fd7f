"""A program whose session runs before it knows of the store: gives it the store, and runs queries of three kinds.

Arguments: the master, and a folder. It prints JSON: what each query has output, and how many deltas each has left.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

PARTITIONS = 2


def main(master: str, folder: Path) -> None:
    """Run it."""
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    spark = builder.config("spark.sql.shuffle.partitions", str(PARTITIONS)).getOrCreate()
    (folder / "inputs").mkdir(parents=True)
    (folder / "inputs" / "1.csv").write_text("a,1\nb,2\na,3\n")
    rows = spark.readStream.schema("user string, n int").csv(str(folder / "inputs"))
    spark.udf.register("plus_one", lambda number: number + 1, "int")
    rows.createOrReplaceTempView("seen")

    import pyspark_ckpt as ckpt

    class Count(ckpt.KeyedProcessor):
        seen = ckpt.ValueState("seen", "long", default=0)

        def process(self, ctx: Any, key: Any, rows: Sequence[Any]) -> Any:  # noqa: ANN401, ARG002
            self.seen.update(self.seen.value() + len(rows))
            yield key.user, self.seen.value()

    assert ckpt.attach(spark, memory_limit="64m") is spark
    assert ckpt.attach(spark) is spark
    counted = ckpt.keyed(rows, by="user", uid="count").process(Count(), output="user string, n long", mode="update")
    shown = {
        "sums": run(rows.groupBy("user").agg(f.sum("n")), folder / "sums"),
        "keyed": run(counted, folder / "keyed"),
        "by SQL": run(spark.sql("SELECT user, max(plus_one(n)) FROM seen GROUP BY user"), folder / "by SQL"),
    }
    ckpt.savepoint(folder / "keyed", folder / "saved")
    print("RESULT", json.dumps(shown), flush=True)
    spark.stop()


def run(frame: DataFrame, checkpoint: Path) -> list[Any]:
    """What a query outputs in its only batch, the deltas in its checkpoint, and whether a run has taken its fence."""
    shown: list[Any] = []
    writer = frame.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
    query = writer.foreachBatch(lambda batch, _number: shown.extend(map(list, batch.collect())))
    query.trigger(availableNow=True).start().awaitTermination()
    deltas = len(list(checkpoint.glob("state/0/*/*.delta")))
    return [sorted(shown), deltas, len(list(checkpoint.glob("_ckpt/runs/*.run")))]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
