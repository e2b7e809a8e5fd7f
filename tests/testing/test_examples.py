"""The programs of docs/examples, each tested as a user would test it."""

from __future__ import annotations

import importlib
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import testing

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
COLUMNS = "carrier string, tailnum string, origin string, dest string, delay int, departure timestamp"
AT = datetime(2013, 1, 1, tzinfo=UTC)


def flight(day: float, tailnum: str = "N1", delay: int | None = 0, dest: str = "LAX") -> tuple[Any, ...]:
    """A flight of an airline from an airport."""
    return "AA", tailnum, "JFK", dest, delay, AT + timedelta(days=day)


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    """The module of an example, importable as it is beside the others."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("flights", request.param):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(request.param)


@pytest.mark.parametrize("example", ["airlines"], indirect=True)
def test_airlines(example: Any) -> None:  # noqa: ANN401
    with testing.keyed(COLUMNS, by="carrier").process(example.Airline(), "c string, n bigint, d double") as harness:
        assert harness.run([flight(0, delay=None)]) == [("AA", 1, None)]
        assert harness.run([flight(1, delay=10), flight(2, delay=20)]) == [("AA", 3, 15.0)]


@pytest.mark.parametrize("example", ["aircraft"], indirect=True)
def test_aircraft(example: Any) -> None:  # noqa: ANN401
    output = "tailnum string, flights bigint, worst_delay int"
    flights = [flight(day, tailnum, delay) for day, (tailnum, delay) in enumerate([("N1", 5), ("N2", None), ("N1", 3)])]
    testing.check_cuts(lambda: testing.keyed(COLUMNS, by="tailnum").process(example.Aircraft(), output), flights)
    with testing.keyed(COLUMNS, by="tailnum", parallelism=2).process(example.Aircraft(), output) as harness:
        assert sorted(harness.run(flights)) == [("N1", 2, 5), ("N2", 1, None)]


@pytest.mark.parametrize("example", ["routes"], indirect=True)
def test_routes(example: Any) -> None:  # noqa: ANN401
    stream = testing.keyed(COLUMNS, by="origin", watermark=("departure", "1 hour"))
    output = "origin string, busiest string, flights bigint, late array<string>"
    with stream.process(example.Airport(), output) as harness:
        flights = [flight(0), flight(0, delay=700), flight(0, dest="SFO")]
        assert harness.run(flights) == [("JFK", "LAX", 2, ["AA 700 min"])]
        assert harness.run([flight(61)]) == [("JFK", "LAX", 3, ["AA 700 min"])]
        assert harness.run([flight(62)]) == [("JFK", "LAX", 4, [])]


@pytest.mark.parametrize("example", ["groundings"], indirect=True)
def test_groundings(example: Any) -> None:  # noqa: ANN401
    def start() -> testing.Harness:
        stream = testing.keyed(COLUMNS, by="tailnum", watermark=("departure", "1 hour"), order_by="departure")
        return stream.process(example.Grounded(), "tailnum string, last_departure timestamp", "append")

    flights = [flight(0), flight(1, "N2"), flight(13), flight(15, "N2"), flight(30), flight(31, "N2")]
    testing.check_cuts(start, flights, compare_states=False)
    with start() as harness:
        harness.run(flights)
        harness.advance_watermark("30 days")
        assert sorted(harness.output) == [
            ("N1", AT + timedelta(days=13)),
            ("N1", AT + timedelta(days=30)),
            ("N2", AT + timedelta(days=1)),
            ("N2", AT + timedelta(days=15)),
            ("N2", AT + timedelta(days=31)),
        ]


@pytest.mark.parametrize("example", ["unchanged"], indirect=True)
def test_unchanged(example: Any) -> None:  # noqa: ANN401
    output = "carrier string, origin string, flights long, cancelled long"
    stream = testing.keyed(COLUMNS, by=["carrier", "origin"])
    state = "flights long, cancelled long"
    with stream.apply_in_pandas_with_state(example.count, output, state, "update", "NoTimeout") as harness:
        assert harness.run([flight(0), flight(1, delay=None)]) == [("AA", "JFK", 2, 1)]
        assert harness.run([flight(2, delay=None)]) == [("AA", "JFK", 3, 2)]
