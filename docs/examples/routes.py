"""Map state, and list state with a time to live: each airport's destinations, and its very late flights of 60 days."""

from flights import show
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt


class Airport(ckpt.KeyedProcessor):
    """Keeps an entry for each destination, and an element for each very late flight, for 60 days of event time."""

    destinations = ckpt.MapState("destinations", "string", "bigint")
    late = ckpt.ListState("late", "struct<carrier string, delay int>", ttl=ckpt.Ttl("60 days", clock="event"))

    def process(self, ctx, key, rows):
        for row in rows:
            self.destinations.put(row.dest, self.destinations.get(row.dest, 0) + 1)
            if row.delay is not None and row.delay > 600:
                self.late.add((row.carrier, row.delay))
        busiest = max(self.destinations.items(), key=lambda entry: entry[1])
        yield key.origin, busiest[0], busiest[1], [f"{row.carrier} {row.delay} min" for row in self.late.get()]


def query(flights: DataFrame) -> DataFrame:
    return ckpt.keyed(flights.withWatermark("departure", "1 hour"), by="origin", uid="routes").process(
        Airport(), output="origin string, busiest string, flights bigint, late array<string>"
    )


if __name__ == "__main__":
    show(query, order="flights")
