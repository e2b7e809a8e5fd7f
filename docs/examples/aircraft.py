"""All keys at once: count the flights and find the worst delay of each aircraft, without a Python loop."""

import pyarrow as pa
from flights import show
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt


class Aircraft(ckpt.VectorProcessor):
    """Two reducing states that take whole columns."""

    flights = ckpt.ReducingState("flights", "bigint", "sum")
    worst = ckpt.ReducingState("worst", "int", "max")

    def process_batch(self, ctx, batch):
        self.flights.add_rows(ctx.keys, ctx.key_index, pa.array([1] * len(batch), pa.int64()))
        self.worst.add_rows(ctx.keys, ctx.key_index, batch.column("delay"))
        return pa.table(
            {
                "tailnum": ctx.keys.column("tailnum"),
                "flights": self.flights.get_values(ctx.keys),
                "worst_delay": self.worst.get_values(ctx.keys),
            }
        )


def query(flights: DataFrame) -> DataFrame:
    return ckpt.keyed(flights.where("tailnum is not null"), by="tailnum", uid="aircraft").process(
        Aircraft(), output="tailnum string, flights bigint, worst_delay int"
    )


if __name__ == "__main__":
    show(query, order="flights")
