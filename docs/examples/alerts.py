"""Two inputs and broadcast rules, as in fraud detection: report aircraft that leave before they can be back.

Some tail numbers in the data are wrong: an aircraft lands in Los Angeles and leaves New York 15 minutes later.
Such a program also finds a card that is used in two places.
"""

from datetime import timedelta

import pandas as pd
from flights import Table, show
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt


class Alerts(ckpt.KeyedProcessor):
    """Compares each departure with the last flight of the aircraft. An alert needs a rule for the airline.

    A key gets the rows of a batch in the order of time, from both inputs. If one stream can be later than the other,
    keep the rows in a map, and compare them when a timer fires.
    """

    rules = ckpt.BroadcastState("rules", "string", "int")
    last = ckpt.ValueState("last", "struct<dest string, landed timestamp, air_time int>")

    def process_broadcast(self, ctx, rows):
        for row in rows:
            self.rules.put(row.carrier, row.minutes)  # null removes the rule

    def process_landings(self, ctx, key, rows):
        landing = rows[-1]
        self.last.update((landing.dest, landing.landed, landing.air_time))

    def process_departures(self, ctx, key, rows):
        for row in rows:
            last, on_ground = self.last.value(), self.rules.get(row.carrier)
            if last is not None and on_ground is not None:
                is_in_air = last.landed is None or last.landed > row.left
                landed = None if is_in_air else last.landed
                if is_in_air or row.left < landed + timedelta(minutes=on_ground + last.air_time):
                    yield key.tailnum, row.left, row.carrier, last.dest, landed
            self.last.update((row.dest, None, None))


def read_rules() -> Table:
    """Return how many minutes on the ground an aircraft needs at least before it flies back."""
    rules = pd.DataFrame({"carrier": ["AA", "B6", "DL", "UA"], "minutes": [30, 25, 30, 25], "file": "first"})
    return Table(rules.astype({"minutes": "int32"}), "carrier string, minutes int", "file")


def query(flights: DataFrame, rules: DataFrame) -> DataFrame:
    flown = flights.where("tailnum is not null and air_time is not null")
    departures = flown.selectExpr("tailnum", "carrier", "dest", "timestampadd(minute, delay, departure) AS left")
    landings = flown.selectExpr(
        "tailnum", "dest", "air_time", "timestampadd(minute, delay + air_time, departure) AS landed"
    )
    return ckpt.keyed_inputs(
        uid="alerts",
        merge=True,
        broadcast=rules,
        landings=ckpt.KeyedInput(landings, by="tailnum", order_by="landed"),
        departures=ckpt.KeyedInput(departures, by="tailnum", order_by="left"),
    ).process(Alerts(), output="tailnum string, left timestamp, carrier string, was_in string, landed timestamp")


if __name__ == "__main__":
    show(query, order="left", other=read_rules())
