"""Timers: an aircraft that does not leave New York for 14 days is reported, once, as soon as the time is over."""

from datetime import timedelta

from flights import show
from pyspark.sql import DataFrame

from pyspark_ckpt import operators as ckpt

PAUSE = timedelta(days=14)


class Grounded(ckpt.KeyedProcessor):
    """Each departure is kept until its time is over: by then another one has come, or the aircraft is grounded.

    Rows come before the timers that are due. So they only add to state, and timers decide: that comes
    to the same whatever batches the departures come in, and in whatever order.
    """

    departures = ckpt.MapState("departures", "timestamp", "boolean")
    over = ckpt.Timers("over", clock="event")

    def process(self, ctx, key, rows):
        for row in rows:
            self.departures.put(row.departure, True)
            self.over.register(row.departure + PAUSE)

    def on_timer(self, ctx, key, timer):
        departure = timer.at - PAUSE
        self.departures.remove(departure)
        if next(self.departures.keys(), timer.at) >= timer.at:  # none until the time was over
            yield key.tailnum, departure


def query(flights: DataFrame) -> DataFrame:
    known = flights.where("tailnum is not null").withWatermark("departure", "1 hour")
    return ckpt.keyed(known, by="tailnum", uid="groundings").process(
        Grounded(), output="tailnum string, last_departure timestamp"
    )


if __name__ == "__main__":
    show(query, order="last_departure")
