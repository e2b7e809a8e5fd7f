"""Value state: the flights and the mean delay of each airline so far, with one call for each airline and batch."""

from flights import show
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt


class Airline(ckpt.KeyedProcessor):
    """Keeps all counts in one struct, so that they are read and written together."""

    totals = ckpt.ValueState("totals", "struct<flights bigint, departed bigint, minutes bigint>")

    def process(self, ctx, key, rows):
        flights, departed, minutes = self.totals.value() or (0, 0, 0)
        delays = [row.delay for row in rows if row.delay is not None]
        flights, departed, minutes = flights + len(rows), departed + len(delays), minutes + sum(delays)
        self.totals.update((flights, departed, minutes))
        yield key.carrier, flights, minutes / departed if departed else None


def query(flights: DataFrame) -> DataFrame:
    return ckpt.keyed(flights, by="carrier", uid="airlines").process(
        Airline(), output="carrier string, flights bigint, mean_delay double"
    )


if __name__ == "__main__":
    show(query, order="flights")
