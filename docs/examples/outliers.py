"""Outliers by an exponential mean, for all keys at once: flights whose time in the air is unusual for their route."""

import numpy as np
import pyarrow as pa
from flights import show
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt

WEIGHT = 0.05  # of a new flight in mean and variance
MIN_FLIGHTS = 30  # of a route, before which there are no outliers
LIMIT = 4.0  # in standard deviations


class Outliers(ckpt.VectorProcessor):
    """Each step takes one flight of every route, because the mean of a route depends on the flights before.

    The first flights of a route have equal weights.
    """

    seen = ckpt.ValueState("seen", "struct<flights bigint, mean double, variance double>")

    def process_batch(self, ctx, batch):
        old = self.seen.get(ctx.keys)
        flights, mean, variance = (np.array(old.field(name).fill_null(0)) for name in ("flights", "mean", "variance"))
        air_time, expected = batch["air_time"].to_numpy(), np.zeros(len(batch))
        is_outlier = np.zeros(len(batch), bool)
        for rows in split_into_steps(ctx.key_index):
            key = ctx.key_index[rows]
            difference, expected[rows] = air_time[rows] - mean[key], mean[key]
            is_outlier[rows] = (flights[key] >= MIN_FLIGHTS) & (abs(difference) > LIMIT * np.sqrt(variance[key]))
            weight = np.maximum(WEIGHT, 1 / (flights[key] + 1))
            mean[key] += weight * difference
            variance[key] = (1 - weight) * (variance[key] + weight * difference**2)
            flights[key] += 1
        new = [pa.array(each) for each in (flights, mean, variance)]
        self.seen.put(ctx.keys, pa.StructArray.from_arrays(new, fields=list(old.type)))
        found = batch.select(["origin", "dest", "departure", "air_time"])
        return found.append_column("expected", pa.array(expected)).filter(pa.array(is_outlier))


def split_into_steps(key_index):
    """Return the positions of the first row of each key, then of the second, and so on."""
    by_key = np.argsort(key_index, kind="stable")
    counts = np.bincount(key_index)
    step = np.empty(len(key_index), np.int64)
    step[by_key] = np.arange(len(key_index)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.split(np.argsort(step, kind="stable"), np.cumsum(np.bincount(step))[:-1])


def query(flights: DataFrame) -> DataFrame:
    flown = flights.where("air_time is not null")
    return ckpt.keyed(flown, by=("origin", "dest"), uid="outliers", order_by=("departure", "tailnum")).process(
        Outliers(), output="origin string, dest string, departure timestamp, air_time int, expected double"
    )


if __name__ == "__main__":
    show(query, order="departure")
