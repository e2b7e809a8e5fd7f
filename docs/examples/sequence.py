"""Operator list: number the rows that each partition outputs, so that a reader sees whether one is missing or twice.

The numbers of a partition begin at 1 and have no gap, also after restarts, and after a rescaling and back.
"""

import numpy as np
import pyarrow as pa
from flights import show
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt


class Sequence(ckpt.VectorProcessor):
    """Keeps the last number of every partition that there has ever been, as far as this one knows.

    After a restore each partition has the elements of all, some of them old. The largest number of a partition is its
    last, and a partition that was away for a while goes on from it.
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
