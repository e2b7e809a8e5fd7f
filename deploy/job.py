"""A query from Kafka to the console: what each user has spent. State and checkpoint are in S3."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUTPUT = "user string, payments bigint, spent double"


class Spending(ckpt.KeyedProcessor):
    """Number and sum of a user's payments, until there is none for 30 days."""

    total = ckpt.ValueState("total", "struct<payments bigint, spent double>", ttl="30 days")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401, ARG002
        """Add the payments of a batch."""
        payments, spent = self.total.value() or (0, 0.0)
        payments, spent = payments + len(rows), spent + sum(row.amount for row in rows)
        self.total.update((payments, spent))
        yield key.user, payments, spent


def read_payments(lines: DataFrame) -> DataFrame:
    """Lines such as ``{"user": "ada", "amount": 5.0}`` as columns; lines that are something else are left out."""
    parsed = lines.selectExpr("from_json(CAST(value AS STRING), 'user string, amount double') AS payment")
    return parsed.select("payment.*").where("user IS NOT NULL AND amount IS NOT NULL")


def main() -> None:
    """Run the query until it fails or is stopped; the settings are in the environment."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the tests of the processor need no session

    builder = SparkSession.builder.config("spark.sql.shuffle.partitions", os.environ.get("PARTITIONS", "4"))
    spark = ckpt.configure(builder).getOrCreate()
    lines = spark.readStream.format("kafka").option("subscribe", os.environ.get("TOPIC", "payments"))
    lines = lines.option("kafka.bootstrap.servers", os.environ["KAFKA"]).option("startingOffsets", "earliest").load()
    spending = ckpt.keyed(read_payments(lines), by="user", uid="spending").process(Spending(), OUTPUT)
    writer = spending.writeStream.outputMode("update").format("console").trigger(processingTime="5 seconds")
    writer.option("checkpointLocation", os.environ["CHECKPOINT"]).start().awaitTermination()


if __name__ == "__main__":
    main()
