"""Operator list: number the rows that each partition outputs, so that a reader finds rows that are missing or repeated.

The numbers of a partition begin at 1 and have no gaps, also after restarts and rescaling.
"""

import numpy as np
import pyarrow as pa
from flights import show
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt


class Sequence(ckpt.VectorProcessor):
    """Keeps the last number of this partition, and those of the others as they were at the last restore.

    A restore gives each partition the elements of all. Several may be of one partition: the largest counts. So a
    partition that was rescaled away goes on with its own numbers when it comes back.
    """

    last = ckpt.OperatorListState("last", "struct<partition int, number bigint>", redistribute="union")

    def process_batch(self, ctx, batch):
        last = {ctx.partition: 0}
        for partition, number in self.last.get():
            last[partition] = max(number, last.get(partition, 0))
        numbers = last[ctx.partition] + 1 + np.arange(len(batch))
        last[ctx.partition] += len(batch)
        self.last.update(last.items())
        numbered = batch.select(["tailnum", "departure", "dest"]).append_column("number", pa.array(numbers))
        return numbered.append_column("partition", pa.array(np.full(len(batch), ctx.partition, np.int32)))


def query(flights: DataFrame) -> DataFrame:
    return ckpt.keyed(flights.where("tailnum is not null"), by="tailnum", uid="sequence").process(
        Sequence(),
        output="tailnum string, departure timestamp, dest string, number bigint, partition int",
        mode="append",
    )


if __name__ == "__main__":
    show(query, order="number")
