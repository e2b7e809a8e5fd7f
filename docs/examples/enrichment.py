"""Enrichment: give each flight the maker and the seats of its aircraft, whose row may come later than the flight.

The aircraft come in one file for each kind of engine. Most come with the flights of March, and some never.
"""

from datetime import timedelta

import pandas as pd
from flights import Table, find_data, show
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt

PATIENCE = timedelta(days=14)


class Enrichment(ckpt.KeyedProcessor):
    """Flights of an unknown aircraft wait in the state until its row comes, or until a timer gives up.

    They are in a map by time, so a timer reads only its own flights.
    """

    plane = ckpt.ValueState("plane", "struct<manufacturer string, seats int>")
    waiting = ckpt.MapState("waiting", "timestamp", "array<string>")
    patience = ckpt.Timers("patience", clock="event")

    def process_planes(self, ctx, key, rows):
        plane = rows[-1].manufacturer, rows[-1].seats
        self.plane.update(plane)
        for departure, dests in self.waiting.items():
            self.patience.delete(departure + PATIENCE)
            for dest in dests:
                yield key.tailnum, departure, dest, *plane
        self.waiting.clear()

    def process_flights(self, ctx, key, rows):
        plane = self.plane.value()
        for row in rows:
            if plane is not None:
                yield key.tailnum, row.departure, row.dest, *plane
            else:
                self.waiting.put(row.departure, [*self.waiting.get(row.departure, []), row.dest])
                self.patience.register(row.departure + PATIENCE)

    def on_timer(self, ctx, key, timer):
        departure = timer.at - PATIENCE
        for dest in self.waiting.get(departure):
            yield key.tailnum, departure, dest, None, None
        self.waiting.remove(departure)


def read_planes() -> Table:
    """Return the makers and seats of 3,322 aircraft. Those of every seventh flight are not among them."""
    planes = pd.read_csv(find_data("planes.csv"), usecols=["tailnum", "manufacturer", "seats", "engine"])
    return Table(planes.astype({"seats": "int32"}), "tailnum string, manufacturer string, seats int", "engine")


def query(flights: DataFrame, planes: DataFrame) -> DataFrame:
    known = flights.where("tailnum is not null").withWatermark("departure", "1 hour")
    return ckpt.keyed_inputs(
        uid="enrichment",
        planes=ckpt.KeyedInput(planes, by="tailnum"),
        flights=ckpt.KeyedInput(known, by="tailnum"),
    ).process(
        Enrichment(),
        output="tailnum string, departure timestamp, dest string, manufacturer string, seats int",
    )


if __name__ == "__main__":
    show(query, order="departure", other=read_planes())
