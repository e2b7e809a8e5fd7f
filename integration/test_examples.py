"""The examples of the docs, over the flights of some months, against pandas; and one of them as a user runs it."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from integration.jvm import JAVA_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
_MONTHS = 4
_HOUR, _LIFE, _PAUSE = pd.Timedelta(hours=1), pd.Timedelta(days=60), pd.Timedelta(days=14)


def airlines(flights: pd.DataFrame) -> pd.DataFrame:
    groups = flights.groupby("carrier")["delay"]
    return pd.DataFrame({"flights": groups.size(), "mean_delay": groups.mean()}).reset_index()


def aircraft(flights: pd.DataFrame) -> pd.DataFrame:
    groups = flights.groupby("tailnum")["delay"]
    return pd.DataFrame({"flights": groups.size(), "worst_delay": groups.max()}).reset_index()


def routes(flights: pd.DataFrame) -> pd.DataFrame:
    """A late flight is remembered until the origin has a flight that departs 60 days later."""
    rows = []
    for origin, of_origin in flights.groupby("origin"):
        counts = of_origin.groupby("dest").size()
        is_shown = of_origin["departure"] > of_origin["departure"].max() - _LIFE
        late = of_origin[(of_origin["delay"] > 600).fillna(value=False) & is_shown]
        shown = [f"{carrier} {delay} min" for carrier, delay in zip(late["carrier"], late["delay"], strict=True)]
        rows.append((origin, counts.idxmax(), counts.max(), sorted(shown)))
    return pd.DataFrame(rows, columns=["origin", "busiest", "flights", "late"])


def groundings(flights: pd.DataFrame) -> pd.DataFrame:
    known = flights.dropna(subset=["tailnum"])
    behind = known.groupby("tailnum")["departure"].shift(-1).fillna(known["departure"].max() - _HOUR)
    found = known[behind - known["departure"] >= _PAUSE]
    return found[["tailnum", "departure"]].rename(columns={"departure": "last_departure"})


def unchanged(flights: pd.DataFrame) -> pd.DataFrame:
    groups = flights.groupby(["carrier", "origin"])["delay"]
    return pd.DataFrame(
        {"flights": groups.size(), "cancelled": groups.apply(lambda each: each.isna().sum())}
    ).reset_index()


def _list_rows(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples(index=False))


def alerts(flights: pd.DataFrame) -> pd.DataFrame:
    """Each aircraft's departures and landings, month by month, in the order of time."""
    on_ground = {"AA": 30, "B6": 25, "DL": 30, "UA": 25}
    flown = flights.dropna(subset=["tailnum", "air_time"])
    events = []
    for each in _list_rows(flown):
        left = each.departure + pd.Timedelta(minutes=each.delay)
        landed = left + pd.Timedelta(minutes=each.air_time)
        back = landed + pd.Timedelta(minutes=each.air_time)
        events += [(each.departure.month, left, 1, each, None), (each.departure.month, landed, 0, each, back)]
    last: dict[str, tuple[Any, ...]] = {}
    rows = []
    for _, at, is_departure, each, back in sorted(events, key=lambda event: event[:3]):
        if is_departure:
            if each.tailnum in last and (minutes := on_ground.get(each.carrier)) is not None:
                dest, landed, ready = last[each.tailnum]
                if landed is None or at < ready + pd.Timedelta(minutes=minutes):
                    rows.append((each.tailnum, at, each.carrier, dest, landed))
            last[each.tailnum] = each.dest, None, None
        else:
            last[each.tailnum] = each.dest, at, back
    return pd.DataFrame(rows, columns=["tailnum", "left", "carrier", "was_in", "landed"])


def sessions(flights: pd.DataFrame) -> pd.DataFrame:
    late = flights[(flights["delay"] >= 60).fillna(value=False)]
    before = late.groupby(["carrier", "origin"])["departure"].shift()
    number = ((late["departure"] - before) >= _HOUR).groupby([late["carrier"], late["origin"]]).cumsum()
    found = late.groupby(["carrier", "origin", number.rename("number")]).agg(
        first=("departure", "min"), last=("departure", "max"), flights=("delay", "size"), worst_delay=("delay", "max")
    )
    watermark = late["departure"].max() - _HOUR
    ended: pd.DataFrame = found[found["last"] + _HOUR <= watermark].reset_index()
    return ended.drop(columns="number")


def enrichment(flights: pd.DataFrame) -> pd.DataFrame:
    """The aircraft of each engine come with one batch, the flights of a month with another; batches have watermarks."""
    planes = importlib.import_module("enrichment").read_planes().rows
    engines = sorted(planes["engine"].unique())
    newest = flights.groupby(flights["departure"].dt.month)["departure"].max()
    watermarks = [None, *(newest[min(batch, _MONTHS)] - _HOUR for batch in range(1, len(engines)))]
    known = {each.tailnum: each for each in _list_rows(planes)}
    rows = []
    for each in _list_rows(flights.dropna(subset=["tailnum"])):
        plane: Any = known.get(each.tailnum)
        comes = math.inf if plane is None else engines.index(plane.engine)
        over = each.departure + pd.Timedelta(days=14)
        late = (batch for batch in range(each.departure.month - 1, len(engines)) if batch and watermarks[batch] >= over)
        gives_up = next(late, math.inf)
        if comes == gives_up == math.inf:
            continue
        found = (plane.manufacturer, plane.seats) if comes <= gives_up else (None, None)
        rows.append((each.tailnum, each.departure, each.dest, *found))
    return pd.DataFrame(rows, columns=["tailnum", "departure", "dest", "manufacturer", "seats"])


def top(flights: pd.DataFrame) -> pd.DataFrame:
    columns = ["delay", "departure", "dest"]
    ordered = flights.dropna(subset=["delay"]).sort_values(columns, ascending=False)
    worst = ordered.groupby("carrier").head(3)
    return worst.assign(rank=worst.groupby("carrier").cumcount() + 1)[["carrier", "rank", *columns]]


def outliers(flights: pd.DataFrame) -> pd.DataFrame:
    rows = []
    flown = flights.dropna(subset=["air_time"]).sort_values(["departure", "tailnum"])
    for (origin, dest), of_route in flown.groupby(["origin", "dest"]):
        mean = variance = 0.0
        for number, (departure, air_time) in enumerate(zip(of_route["departure"], of_route["air_time"], strict=True)):
            difference, weight = air_time - mean, max(0.05, 1 / (number + 1))
            if number >= 30 and abs(difference) > 4 * variance**0.5:
                rows.append((origin, dest, departure, air_time, mean))
            mean += weight * difference
            variance = (1 - weight) * (variance + weight * difference**2)
    return pd.DataFrame(rows, columns=["origin", "dest", "departure", "air_time", "expected"])


def sequence(flights: pd.DataFrame) -> pd.DataFrame:
    return flights.dropna(subset=["tailnum"])[["tailnum", "departure", "dest"]]


def _require_no_gap(numbered: pd.DataFrame) -> None:
    assert numbered["partition"].nunique() == 2
    for _, rows in numbered.groupby("partition"):
        assert sorted(rows["number"]) == list(range(1, len(rows) + 1))


_EXPECTED = [
    *(airlines, aircraft, routes, groundings, unchanged, alerts, sequence),
    *(
        pytest.param(each, marks=pytest.mark.matrix) for each in (sessions, enrichment, top, outliers)
    ),  # in harnesses, too
]
_OTHERS = {"alerts": "read_rules", "enrichment": "read_planes"}
_KEYS = {
    "airlines": ["carrier"],
    "aircraft": ["tailnum"],
    "routes": ["origin"],
    "top": ["carrier", "rank"],
    "unchanged": ["carrier", "origin"],
}


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    """The module that the examples share, importable as it is beside them."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("flights", *(path.stem for path in EXAMPLES.glob("*.py"))):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("flights")


@pytest.mark.in_turn
@pytest.mark.parametrize("expected", _EXPECTED, ids=lambda expected: expected.__name__)
def test_an_example_comes_to_what_pandas_comes_to(
    expected: Callable[[pd.DataFrame], pd.DataFrame],
    shared: Any,  # noqa: ANN401
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    for path in EXAMPLES.glob("*.py"):
        spark.sparkContext.addPyFile(str(path))
    flights = shared.read_flights()
    flights = flights[flights["departure"] < f"2013-0{_MONTHS + 1}-01"].reset_index(drop=True)
    shared.write_months(flights, tmp_path / "flights")
    example = importlib.import_module(expected.__name__)
    streams = [shared.stream_of(spark, tmp_path / "flights")]
    if reader := _OTHERS.get(expected.__name__):
        other = getattr(example, reader)()
        shared.write_files(other.rows, other.rows[other.file], tmp_path / "other")
        streams.append(shared.stream_of(spark, tmp_path / "other", other.schema))
    results: list[pd.DataFrame] = []
    query = example.query(*streams).writeStream.outputMode("update")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = query.foreachBatch(lambda rows, _: results.append(rows.toPandas()))
    query.trigger(availableNow=True).start().awaitTermination()
    streamed = pd.concat([each for each in results if len(each)])
    if expected.__name__ in _KEYS:
        streamed = streamed.drop_duplicates(_KEYS[expected.__name__], keep="last")
    if "number" in streamed:
        _require_no_gap(streamed)
    if "late" in streamed:
        streamed["late"] = streamed["late"].map(sorted)
    wanted = expected(flights)
    names = list(wanted.columns)
    assert len(wanted) > 2
    for each in (streamed, wanted):
        for name in each.select_dtypes(include=["datetimetz"]):
            each[name] = each[name].dt.tz_localize(None)
    pd.testing.assert_frame_equal(
        streamed[names].sort_values(names[:3]).reset_index(drop=True),
        wanted.sort_values(names[:3]).reset_index(drop=True),
        check_dtype=False,
    )


@pytest.mark.in_turn
def test_an_example_runs_as_the_docs_say() -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "airlines.py")], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split()[:2] == ["UA", "58665"]
