"""Sessions: flights of an airline from an airport that are at least an hour late, each less than an hour after another.

The state is sorted by time, so a timer reads no more than the session that may have ended.
"""

from datetime import timedelta

from flights import show
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt

PAUSE = timedelta(hours=1)


class Sessions(ckpt.KeyedProcessor):
    """Rows only add to the state, and timers decide. So the result does not depend on how the stream is cut."""

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
