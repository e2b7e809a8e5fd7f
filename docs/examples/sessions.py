"""Sessions: an airline's departures from an airport that are an hour late, as long as less than an hour is between two.

The state is sorted by time, so a timer reads only the session that may have ended.
"""

from datetime import timedelta

from flights import show
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt

PAUSE = timedelta(hours=1)


class Sessions(ckpt.KeyedProcessor):
    """Rows only add to the state, and timers decide: the result is the same however the stream is cut into batches."""

    late = ckpt.MapState("late", "timestamp", "struct<flights int, worst int>")
    pause = ckpt.Timers("pause", clock="event")

    def process(self, ctx, key, rows):
        for row in rows:
            flights, worst = self.late.get(row.departure, (0, 0))
            self.late.put(row.departure, (flights + 1, max(worst, row.delay)))
            self.pause.register(row.departure + PAUSE)

    def on_timer(self, ctx, key, timer):
        session = dict(self.late.items(end=timer.at))
        if max(session) + PAUSE == timer.at:  # else a later departure continues it, and has a timer of its own
            flights, worst = (
                sum(each.flights for each in session.values()),
                max(each.worst for each in session.values()),
            )
            yield key.carrier, key.origin, min(session), max(session), flights, worst
            for departure in session:
                self.late.remove(departure)


def query(flights: DataFrame) -> DataFrame:
    late = flights.where("delay >= 60").withWatermark("departure", "1 hour")
    return ckpt.keyed(late, by=("carrier", "origin"), uid="sessions").process(
        Sessions(),
        output="carrier string, origin string, first timestamp, last timestamp, flights int, worst_delay int",
    )


if __name__ == "__main__":
    show(query, order="flights")
