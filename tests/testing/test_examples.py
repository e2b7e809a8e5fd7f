"""The programs of docs/examples, each tested as a user would test it."""

from __future__ import annotations

import importlib
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyspark_ckpt import testing
from tests.testing.documented import process_alerts

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
COLUMNS = "carrier string, tailnum string, origin string, dest string, delay int, departure timestamp"
AT = datetime(2013, 1, 1, tzinfo=timezone.utc)


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


@pytest.mark.in_turn
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
        assert harness.run([flight(59)]) == [("JFK", "LAX", 3, ["AA 700 min"])]
        assert harness.run([flight(61)]) == [("JFK", "LAX", 4, [])]


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


@pytest.mark.parametrize("example", ["alerts"], indirect=True)
def test_alerts(example: Any) -> None:  # noqa: ANN401
    def at(hour: float) -> datetime:
        return AT + timedelta(hours=hour)

    def departures(*hours: float, carrier: str = "AA") -> list[tuple[Any, ...]]:
        return [("N1", carrier, "LAX", at(hour)) for hour in hours]

    def landings(*hours: float) -> list[tuple[Any, ...]]:
        return [("N1", "LAX", 300, at(hour)) for hour in hours]

    with process_alerts(example.Alerts()) as harness:
        assert harness.run(departures=departures(0, 6), landings=landings(5, 11)) == []  # there is no rule yet
        rule = [("AA", 30)]
        assert harness.run(broadcast=rule, departures=departures(16.5)) == []  # exactly in time
        assert harness.run(departures=departures(17)) == [("N1", at(17), "AA", "LAX", None)]
        batch = {"departures": departures(27, 40, carrier="UA"), "landings": landings(22, 32, 45)}
        assert harness.run(**batch) == []  # that of 27 is too early, and its airline has no rule
        assert harness.run(departures=departures(50.4)) == [("N1", at(50.4), "AA", "LAX", at(45))]
        assert harness.run(broadcast=[("AA", None)], departures=departures(51)) == []


@pytest.mark.parametrize("example", ["sessions"], indirect=True)
def test_sessions(example: Any) -> None:  # noqa: ANN401
    minutes = [0, 50, 50, 109, 169, 230, 231, 500]  # from 109 to 169 it is an hour, which is too long
    flights = [flight(minute / 1440, delay=60 + number) for number, minute in enumerate(minutes)]

    def start() -> testing.Harness:
        stream = testing.keyed(COLUMNS, by=["carrier", "origin"], watermark=("departure", "1 hour"))
        output = "carrier string, origin string, first timestamp, last timestamp, flights int, worst_delay int"
        return stream.process(example.Sessions(), output, "append")

    testing.check_cuts(start, flights, cuts=2)
    sessions: list[list[tuple[Any, ...]]] = [[]]
    for each in flights:
        if sessions[-1] and each[-1] - sessions[-1][-1][-1] >= timedelta(hours=1):
            sessions.append([])
        sessions[-1].append(each)
    with start() as harness:
        harness.run(flights)
        harness.advance_watermark("1 day")
        assert harness.output == [
            ("AA", "JFK", each[0][-1], each[-1][-1], len(each), max(row[4] for row in each)) for each in sessions
        ]
        assert harness.states() == {"late": {}, "pause": {}}


@pytest.mark.parametrize("example", ["enrichment"], indirect=True)
def test_enrichment(example: Any) -> None:  # noqa: ANN401
    output = "tailnum string, departure timestamp, dest string, manufacturer string, seats int"

    def start() -> testing.Harness:
        return testing.keyed_inputs(
            planes=testing.InputColumns("tailnum string, manufacturer string, seats int", by="tailnum"),
            flights=testing.InputColumns(COLUMNS, by="tailnum", watermark=("departure", "1 hour")),
        ).process(example.Enrichment(), output, "append")

    flights, plane = [flight(0), flight(0, dest="SFO"), flight(1), flight(13)], ("N1", "BOEING", 200)
    testing.check_cuts(
        start, {"flights": flights, "planes": [plane]}, cuts=2
    )  # the row of the aircraft is always in time
    with start() as harness:
        assert harness.run(flights=flights[:3]) == []
        given_up = [("N1", AT, "LAX", None, None), ("N1", AT, "SFO", None, None)]
        assert sorted(harness.advance_watermark(AT + timedelta(days=14))) == given_up
        assert harness.run(flights=[flight(15)], planes=[plane]) == [
            ("N1", AT + timedelta(days=1), "LAX", "BOEING", 200),
            ("N1", AT + timedelta(days=15), "LAX", "BOEING", 200),
        ]
        assert harness.states() == {"plane": {("N1",): ("BOEING", 200)}, "waiting": {}, "patience": {}}


@pytest.mark.parametrize("example", ["top"], indirect=True)
def test_top(example: Any) -> None:  # noqa: ANN401
    def start() -> testing.Harness:
        output = "carrier string, rank int, delay int, departure timestamp, dest string"
        return testing.keyed(COLUMNS, by="carrier").process(example.Top(), output)

    flights = [flight(day, delay=delay) for day, delay in enumerate([5, 40, 40, -3, 7, 60, 1])]
    testing.check_cuts(start, flights, cuts=2, result=lambda rows: {row.rank: row for row in rows})
    worst = sorted(((each[4], each[5], each[3]) for each in flights), reverse=True)[:3]
    with start() as harness:
        assert harness.run(flights) == [("AA", rank, *each) for rank, each in enumerate(worst, start=1)]
        assert harness.run([flight(8, delay=40 - 1)]) == []


@pytest.mark.parametrize("example", ["outliers"], indirect=True)
def test_outliers(example: Any) -> None:  # noqa: ANN401
    columns = "origin string, dest string, tailnum string, departure timestamp, air_time int"

    def start() -> testing.Harness:
        stream = testing.keyed(columns, by=["origin", "dest"], order_by=["departure", "tailnum"])
        output = "origin string, dest string, departure timestamp, air_time int, expected double"
        return stream.process(example.Outliers(), output, "append")

    random = Random(1)
    flights = []
    for number in range(250):
        unusual = 100 if number % 49 == 48 else 0
        departure = AT + timedelta(hours=number)
        flights.append(("JFK", random.choice(["LAX", "SFO"]), "N1", departure, random.randint(300, 340) + unusual))
    wanted = []
    for dest in ("LAX", "SFO"):
        mean = variance = 0.0
        for number, each in enumerate(row for row in flights if row[1] == dest):
            difference, weight = each[4] - mean, max(0.05, 1 / (number + 1))
            if number >= 30 and abs(difference) > 4 * variance**0.5:
                wanted.append(("JFK", dest, each[3], each[4], mean))
            mean += weight * difference
            variance = (1 - weight) * (variance + weight * difference**2)
    assert len(wanted) > 2
    testing.check_cuts(start, flights, cuts=2)
    with start() as harness:
        assert sorted(harness.run(flights)) == wanted


@pytest.mark.parametrize("example", ["sequence"], indirect=True)
def test_sequence(example: Any, tmp_path: Path) -> None:  # noqa: ANN401
    output = "tailnum string, departure timestamp, dest string, number bigint, partition int"
    flights = [flight(day, f"N{day}") for day in range(40)]
    rows: list[Any] = []
    before = None
    for parallelism in (3, 2, 3):
        stream = testing.keyed(COLUMNS, by="tailnum", parallelism=parallelism, savepoint=before)
        with stream.process(example.Sequence(), output, "append") as harness:
            rows += harness.run(flights[:9]) + harness.run(flights)
            before = tmp_path / f"{len(rows)}"
            harness.savepoint(before)
    assert {row.partition for row in rows[-49:]} == {0, 1, 2}
    for partition in range(3):
        numbers = sorted(row.number for row in rows if row.partition == partition)
        assert numbers == list(range(1, len(numbers) + 1))
    given = (flights[:9] + flights) * 3
    assert sorted(row[:3] for row in rows) == sorted((each[1], each[5], each[3]) for each in given)
