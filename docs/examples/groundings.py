"""Timers: report an aircraft that has not left New York for 14 days, once, as soon as the time is over."""

from datetime import timedelta

from flights import show
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt

PAUSE = timedelta(days=14)


class Grounded(ckpt.KeyedProcessor):
    """Each departure deletes the timer of the previous one, even if it is due: rows come before timers in a batch.

    Each departure therefore checks whether the time was over. The result is the same however the stream is cut into
    batches, because flights come in the order of time. Where rows may come in another order, let only timers decide,
    as the carts in keyed-state.md do.
    """

    last = ckpt.ValueState("last", "timestamp")
    idle = ckpt.Timers("idle", clock="event")

    def process(self, ctx, key, rows):
        for row in rows:
            last = self.last.value()
            if last is not None:
                self.idle.delete(last + PAUSE)
                if row.departure - last >= PAUSE:  # the timer is due, and would fire after this row
                    yield key.tailnum, last
            self.last.update(row.departure)
            self.idle.register(row.departure + PAUSE)

    def on_timer(self, ctx, key, timer):
        yield key.tailnum, self.last.value()
        self.last.clear()


def query(flights: DataFrame) -> DataFrame:
    known = flights.where("tailnum is not null").withWatermark("departure", "1 hour")
    return ckpt.keyed(known, by="tailnum", uid="groundings", order_by="departure").process(
        Grounded(), output="tailnum string, last_departure timestamp"
    )


if __name__ == "__main__":
    show(query, order="last_departure")
