"""An unchanged function of Spark's applyInPandasWithState: only the call around it is ours."""

import pandas as pd
from flights import show
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt


def count(key, frames, state):
    """Count the flights and cancellations of an airline at an airport."""
    flights, cancelled = state.get if state.exists else (0, 0)
    for frame in frames:
        flights += len(frame)
        cancelled += int(frame["delay"].isna().sum())
    state.update((flights, cancelled))
    yield pd.DataFrame({"carrier": [key[0]], "origin": [key[1]], "flights": [flights], "cancelled": [cancelled]})


def query(flights: DataFrame) -> DataFrame:
    return ckpt.keyed(flights, by=("carrier", "origin"), uid="cancellations").apply_in_pandas_with_state(
        count,
        "carrier string, origin string, flights long, cancelled long",
        "flights long, cancelled long",
        "update",
        "NoTimeout",
    )


if __name__ == "__main__":
    show(query, order="flights")
