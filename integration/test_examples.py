"""The examples of the docs, over the flights of some months, against pandas; and one of them as a user runs it."""

from __future__ import annotations

import importlib
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
    """A late flight is remembered for 60 days after the watermark of its batch, or after the first watermark."""
    months = flights["departure"].dt.month
    newest = flights.groupby(months)["departure"].max()
    watermark = {month: newest[max(month - 1, 1)] - _HOUR for month in newest.index}
    is_alive = months.map(lambda month: watermark[_MONTHS] - watermark[month] < _LIFE)
    rows = []
    for origin, of_origin in flights.groupby("origin"):
        counts = of_origin.groupby("dest").size()
        late = of_origin[(of_origin["delay"] > 600).fillna(value=False) & is_alive[of_origin.index]]
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


_KEYS = {"airlines": ["carrier"], "aircraft": ["tailnum"], "routes": ["origin"], "unchanged": ["carrier", "origin"]}


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    """The module that the examples share, importable as it is beside them."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("flights", *(path.stem for path in EXAMPLES.glob("*.py"))):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("flights")


@pytest.mark.parametrize("expected", [airlines, aircraft, routes, groundings, unchanged])
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
    (tmp_path / "flights").mkdir()
    shared.write_months(flights, tmp_path / "flights")
    example = importlib.import_module(expected.__name__)
    results: list[pd.DataFrame] = []
    query = example.query(shared.stream_of(spark, tmp_path / "flights")).writeStream.outputMode("update")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = query.foreachBatch(lambda rows, _: results.append(rows.toPandas()))
    query.trigger(availableNow=True).start().awaitTermination()
    streamed = pd.concat([each for each in results if len(each)])
    if expected.__name__ in _KEYS:
        streamed = streamed.drop_duplicates(_KEYS[expected.__name__], keep="last")
    if "late" in streamed:
        streamed["late"] = streamed["late"].map(sorted)
    wanted = expected(flights)
    names = list(wanted.columns)
    assert len(wanted) > 2
    for each in (streamed, wanted):
        for name in each.select_dtypes(include=["datetimetz"]):
            each[name] = each[name].dt.tz_localize(None)
    pd.testing.assert_frame_equal(
        streamed[names].sort_values(names[:2]).reset_index(drop=True),
        wanted.sort_values(names[:2]).reset_index(drop=True),
        check_dtype=False,
    )


def test_an_example_runs_as_the_docs_say() -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "airlines.py")], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split()[:2] == ["UA", "58665"]
