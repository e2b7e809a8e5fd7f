"""Map state, and list state with a time to live: each airport's destinations, and its very late flights of 60 days."""

from datetime import timedelta

from flights import show
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt

SHOWN = timedelta(days=60)


class Airport(ckpt.KeyedProcessor):
    """Keeps an entry for each destination, and an element for each very late flight, for 60 days of event time.

    The time to live frees the state, some time after the watermark has passed. The times of the flights decide which
    of them are shown.
    """

    destinations = ckpt.MapState("destinations", "string", "bigint")
    newest = ckpt.ValueState("newest", "timestamp")
    late = ckpt.ListState(
        "late", "struct<carrier string, delay int, departure timestamp>", ttl=ckpt.Ttl(SHOWN, clock="event")
    )

    def process(self, ctx, key, rows):
        for row in rows:
            self.destinations.put(row.dest, self.destinations.get(row.dest, 0) + 1)
            if row.delay is not None and row.delay > 600:
                self.late.add((row.carrier, row.delay, row.departure))
        newest = max(self.newest.value() or rows[0].departure, *(row.departure for row in rows))
        self.newest.update(newest)
        late = [f"{each.carrier} {each.delay} min" for each in self.late.get() if each.departure > newest - SHOWN]
        busiest = max(self.destinations.items(), key=lambda entry: entry[1])
        yield key.origin, busiest[0], busiest[1], late


def query(flights: DataFrame) -> DataFrame:
    return ckpt.keyed(flights.withWatermark("departure", "1 hour"), by="origin", uid="routes").process(
        Airport(), output="origin string, busiest string, flights bigint, late array<string>"
    )


if __name__ == "__main__":
    show(query, order="flights")
