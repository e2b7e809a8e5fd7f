"""Top n per key: the three worst delays of each airline so far, shown when they change."""

import heapq

from flights import show
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt

N = 3


class Top(ckpt.KeyedProcessor):
    """Keeps no more than it shows. Of equal delays the later departure comes first, then the destination decides."""

    worst = ckpt.ListState("worst", "struct<delay int, departure timestamp, dest string>")

    def process(self, ctx, key, rows):
        before = list(self.worst.get())
        worst = heapq.nlargest(N, before + [(row.delay, row.departure, row.dest) for row in rows])
        if worst != before:
            self.worst.update(worst)
            for rank, flight in enumerate(worst, start=1):
                yield key.carrier, rank, *flight


def query(flights: DataFrame) -> DataFrame:
    return ckpt.keyed(flights.where("delay is not null"), by="carrier", uid="top").process(
        Top(), output="carrier string, rank int, delay int, departure timestamp, dest string"
    )


if __name__ == "__main__":
    show(query, order="delay")
