"""What a program of the documents finds does not depend on how its rows are cut into batches.

Each program gets random rows of few keys and few instants, so that many rows are of one instant. Rows with an event
time come in disorder, within the delay of the watermark, unless the program says that it needs them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from pyspark_ckpt import testing
from pyspark_ckpt.testing.comparison import count_rows, freeze
from pyspark_ckpt.testing.cuts import split
from tests.pages.documents import ROOT
from tests.testing.documented import list_processors, load_names, process_alerts

AT = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
COUNT, SEED = 10, 0
FLIGHTS = "carrier string, tailnum string, origin string, dest string, delay int, departure timestamp"
Rows: TypeAlias = list[tuple[Any, ...]]


def instants(random: Random, apart: timedelta, disorder: timedelta = timedelta()) -> list[datetime]:
    """Instants of which many are equal. Each may come before ones that are less than ``disorder`` earlier."""
    steps = sorted(random.choices(range(COUNT // 2), k=COUNT))
    shift = [disorder * random.choice([0, 0, 0.5, 0.9]) for _ in steps]
    order = sorted(range(COUNT), key=lambda n: AT + steps[n] * apart + shift[n])
    return [AT + steps[n] * apart for n in order]


def flights(random: Random, apart: timedelta = timedelta(days=1), disorder: timedelta = timedelta()) -> Rows:
    return [
        (
            random.choice(["AA", "UA"]),
            random.choice(["N1", "N2"]),
            "JFK",
            random.choice(["LAX", "SFO"]),
            random.choice([None, 5, 700, 800]),
            at,
        )
        for at in instants(random, apart, disorder)
    ]


def payments(random: Random) -> Rows:
    """Payments of two cards in disorder of up to five minutes."""
    minutes = instants(random, timedelta(minutes=3), timedelta(minutes=5))
    amounts = [0.0, 0.1, 0.7, 150.3, 450.1, 499.3]
    return [
        (random.choice(["a", "b"]), at, random.choice(["SE", "SE", "BR"]), random.choice(amounts)) for at in minutes
    ]


def users(random: Random, *others: Callable[[], Any]) -> Rows:
    return [(random.choice(["ada", "bob"]), *(make() for make in others)) for _ in range(COUNT)]


def visits(random: Random, apart: timedelta, *others: Sequence[Any]) -> Rows:
    """Visits in disorder of up to a minute."""
    times = instants(random, apart, timedelta(minutes=1))
    return [(random.choice(["ada", "bob"]), at, *map(random.choice, others)) for at in times]


@dataclass(frozen=True)
class Program:
    """One program, as its page or its file runs it, and rows for it."""

    path: str
    name: str
    columns: str
    by: str | tuple[str, ...]
    output: str
    rows: Callable[[Random], Rows]
    mode: str = "update"
    more: Mapping[str, Any] | None = None
    """Other arguments of ``testing.keyed``."""
    version: int | None = None
    finish: timedelta | None = None
    """By how much the watermark moves after the last rows."""
    result: Callable[[Sequence[Any]], Any] | None = None
    compare_states: bool = True

    def start(self) -> testing.Harness:
        made = load_names(self.path, self.version)[self.name]()
        stream = testing.keyed(self.columns, by=self.by, **(self.more or {}))
        return stream.process(made, self.output, self.mode)

    def end(self, harness: testing.Harness) -> None:
        harness.run()
        if self.finish is not None:
            harness.advance_watermark(self.finish)


MINUTE = {"watermark": ("at", "1 minute")}
DETECTOR: Mapping[str, Any] = {
    "columns": "card string, at timestamp, country string, amount double",
    "by": "card",
    "output": "card string, at timestamp, what string",
    "mode": "append",
}
FRAUD: Mapping[str, Any] = {
    **DETECTOR,
    "more": {"order_by": "at", "watermark": ("at", "5 minutes")},
    "finish": timedelta(days=1),
}
VIEWS = ("user string, page string, at timestamp", "user", "user string, views long")
AMOUNTS = ("user string, amount bigint", "user")


def page_views(random: Random) -> Rows:
    return users(random, lambda: random.choice(["/", "/a"]), lambda: AT)


def amounts(random: Random) -> Rows:
    return users(random, lambda: random.choice([1, 2, 2**40]))


def carts(random: Random) -> Rows:
    return visits(random, timedelta(minutes=11), ["pen", "ink"])


def _size(rows: Sequence[Any]) -> int:
    return len(rows)


PROGRAMS = [
    Program("docs/tutorial.md", "Countries", version=0, rows=lambda r: sorted(payments(r), key=lambda row: row[1]),
            more={"order_by": "at"}, **DETECTOR),
    Program("docs/tutorial.md", "Fraud", rows=payments, version=1, **FRAUD),
    Program("docs/tutorial.md", "Fraud", rows=payments, version=2, **FRAUD),
    Program("README.md", "Count", *VIEWS, page_views),
    Program("docs/keyed-state.md", "PageViews", *VIEWS, page_views),
    Program("docs/keyed-state.md", "Totals", *AMOUNTS, "user string, n long, sum long",
            lambda r: users(r, lambda: r.choice([None, 1, 2]))),
    *(
        Program("docs/keyed-state.md", name, "user string, at timestamp, item string", "user",
                "user string, items array<string>, at timestamp", carts, "append", MINUTE, finish=timedelta(hours=1))
        for name in ("Carts", "CartColumns")
    ),
    Program("docs/from-apply-in-pandas-with-state.md", "Counts", "user string", "user", "user string, n long", users),
    Program("docs/testing.md", "Sessions", "user string, at timestamp", "user", "user string, visits bigint",
            lambda r: visits(r, timedelta(minutes=4)), "append", MINUTE, finish=timedelta(hours=1)),
    Program("docs/broadcast.md", "Sample", "user string, amount double", "user", "user string",
            lambda r: users(r, r.random), "append", compare_states=False),
    Program("docs/examples/aircraft.py", "Aircraft", FLIGHTS, "tailnum",
            "tailnum string, flights bigint, worst_delay int", flights),
    Program("docs/examples/airlines.py", "Airline", FLIGHTS, "carrier", "carrier string, flights bigint, mean double",
            flights),
    Program("docs/examples/groundings.py", "Grounded", FLIGHTS, "tailnum", "tailnum string, last_departure timestamp",
            lambda r: flights(r, timedelta(days=7)), "append",
            {"order_by": "departure", "watermark": ("departure", "1 hour")}, finish=timedelta(days=30),
            compare_states=False),
    Program("docs/examples/outliers.py", "Outliers",
            "origin string, dest string, tailnum string, departure timestamp, air_time int", ("origin", "dest"),
            "origin string, dest string, departure timestamp, air_time int, expected double",
            lambda r: [("JFK", "LAX", f"N{n}", at, r.choice([300, 301, 500]))
                       for n, at in enumerate(instants(r, timedelta(hours=1)))],
            "append", {"order_by": ["departure", "tailnum"]}),
    Program("docs/examples/routes.py", "Airport", FLIGHTS, "origin",
            "origin string, busiest string, flights bigint, late array<string>",
            lambda r: flights(r, timedelta(days=4), timedelta(hours=1)),
            more={"watermark": ("departure", "1 hour")}, compare_states=False),
    Program("docs/examples/sequence.py", "Sequence", FLIGHTS, "tailnum",
            "tailnum string, departure timestamp, dest string, number bigint, partition int", flights, "append",
            result=lambda rows: sorted(row.number for row in rows)),
    Program("docs/examples/sessions.py", "Sessions", FLIGHTS, ("carrier", "origin"),
            "carrier string, origin string, first timestamp, last timestamp, flights int, worst_delay int",
            lambda r: [(*row[:4], row[4] or 60, row[5]) for row in flights(r, timedelta(minutes=25),
                                                                            timedelta(hours=1))],
            "append", {"watermark": ("departure", "1 hour")}, finish=timedelta(days=1)),
    Program("docs/examples/top.py", "Top", FLIGHTS, "carrier",
            "carrier string, rank int, delay int, departure timestamp, dest string",
            lambda r: [row for row in flights(r) if row[4] is not None],
            result=lambda rows: {(row.carrier, row.rank): freeze(row) for row in rows}),
    Program("docs/notebooks/first-hour.ipynb", "Count", "user string, page string", "user",
            "user string, count bigint", lambda r: users(r, lambda: "/")),
    Program("docs/notebooks/first-hour.ipynb", "Pages", "user string, page string", "user",
            "user string, pages map<string, bigint>, last array<string>",
            lambda r: users(r, lambda: r.choice(["/", "/a", "/b"]))),
    Program("docs/notebooks/first-hour.ipynb", "Away", "user string, at timestamp", "user",
            "user string, last timestamp", lambda r: visits(r, timedelta(hours=9)), "append", MINUTE,
            finish=timedelta(days=3)),
    *(
        Program("docs/notebooks/savepoint-tour.ipynb", name, "account bigint, amount bigint", "account",
                "account bigint, total bigint", lambda r: [(r.randrange(3), r.randrange(9)) for _ in range(COUNT)])
        for name in ("Totals", "Means")
    ),
    Program("deploy/job.py", "Spending", "user string, amount double", "user",
            "user string, payments bigint, spent double", lambda r: users(r, lambda: r.choice([0.5, 7.25, 100.0]))),
]  # fmt: skip
IN_STEP = {
    ("docs/broadcast.md", "Check"),
    ("docs/examples/alerts.py", "Alerts"),
    ("docs/examples/enrichment.py", "Enrichment"),
    ("docs/several-inputs.md", "Settle"),
}
"""Programs with several inputs, each with a test below."""
WITHOUT_TEST = {
    ("docs/keyed-state.md", "Visits"): "how many rows are late depends on the batches",
    ("docs/writing-state.md", "Count"): "only its declarations are there",
}
pytestmark = pytest.mark.usefixtures("quick_path")


@pytest.fixture(autouse=True)
def _examples_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))


def test_every_program_of_the_documents_has_a_test() -> None:
    tested = {(program.path, program.name) for program in PROGRAMS} | IN_STEP | set(WITHOUT_TEST)
    assert set(list_processors()) == tested


@pytest.mark.in_turn
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.path}-{program.name}-{program.version}")
def test_a_program_finds_the_same_when_its_rows_are_cut_in_other_ways(program: Program) -> None:
    rows = program.rows(Random(SEED))
    testing.check_cuts(
        program.start,
        rows,
        cuts=1,
        seed=SEED,
        finish=program.end,
        result=program.result,
        compare_states=program.compare_states,
    )


@pytest.mark.in_turn
def test_the_detector_of_the_tutorial_finds_what_a_plain_loop_finds() -> None:
    program = next(each for each in PROGRAMS if each.version == 1)
    rows = payments(Random(SEED))
    wanted: list[tuple[Any, ...]] = []
    for card in ("a", "b"):
        known: set[str] = set()
        mine = sorted((at, country, amount) for name, at, country, amount in rows if name == card)
        for at in sorted({row[0] for row in mine}):
            for country in sorted({row[1] for row in mine if row[0] == at}):
                if known and country not in known:
                    wanted.append((card, at, f"first payment in {country}"))
                known.add(country)
            spent = sum(Decimal(str(row[2])) for row in mine if at <= row[0] < at + timedelta(minutes=10))
            if any(row[0] == at and row[2] < 1 for row in mine) and spent >= 500:
                wanted.append((card, at, f"tested, then {spent:.2f} within 10 minutes"))
    assert len(wanted) > 2
    with program.start() as harness:
        harness.run(rows)
        program.end(harness)
        assert sorted(map(tuple, harness.output)) == sorted(wanted)


@pytest.mark.in_turn
def test_the_settled_sum_is_the_same_when_inputs_are_cut_in_other_ways() -> None:
    random = Random(SEED)

    def start() -> testing.Harness:
        return testing.keyed_inputs(
            orders=testing.InputColumns("user string, item int, price decimal(10, 2)", by="user"),
            payments=testing.InputColumns("payer string, amount decimal(10, 2)", by="payer"),
        ).process(load_names("docs/several-inputs.md")["Settle"](), "user string, owed decimal(12, 2)")

    cents = [Decimal(random.randrange(1000)) / 100 for _ in range(COUNT)]
    orders = [(random.choice(["ann", "bob"]), n, price) for n, price in enumerate(cents)]
    paid = [(random.choice(["ann", "bob"]), amount) for amount in cents]
    testing.check_cuts(start, {"orders": orders, "payments": paid}, cuts=2, seed=SEED)


@pytest.mark.in_turn
def test_the_enriched_flights_are_the_same_when_the_aircraft_comes_at_any_time() -> None:
    output = "tailnum string, departure timestamp, dest string, manufacturer string, seats int"

    def start() -> testing.Harness:
        return testing.keyed_inputs(
            planes=testing.InputColumns("tailnum string, manufacturer string, seats int", by="tailnum"),
            flights=testing.InputColumns(FLIGHTS, by="tailnum", watermark=("departure", "1 hour")),
        ).process(load_names("docs/examples/enrichment.py")["Enrichment"](), output, "append")

    given = flights(Random(SEED), timedelta(hours=20), timedelta(hours=1))
    planes = [("N1", "BOEING", 200), ("N2", "AIRBUS", 100)]
    testing.check_cuts(start, {"flights": given, "planes": planes}, cuts=2, seed=SEED)


@pytest.mark.in_turn
def test_checked_payments_are_the_same_when_the_rules_are_there() -> None:
    def start() -> testing.Harness:
        stream = testing.keyed(
            "user string, amount double", by="user", broadcast=testing.BroadcastColumns("name string, lowest double")
        )
        check = load_names("docs/broadcast.md")["Check"]()
        harness = stream.process(check, "user string, rule string, amount double", "append")
        harness.run(broadcast=[("large", 100.0), ("huge", 1000.0)])
        return harness

    random = Random(SEED)
    testing.check_cuts(start, users(random, lambda: random.choice([5.0, 100.0, 2000.0])), cuts=2, seed=SEED)


@pytest.mark.in_turn
def test_alerts_are_the_same_when_both_inputs_are_cut_in_the_order_of_time() -> None:
    random = Random(SEED)
    hours = sorted(random.choices(range(0, 60, 3), k=COUNT))
    left = [("departures", ("N1", "AA", "LAX", AT + timedelta(hours=hour))) for hour in hours]
    landed = [("landings", ("N1", "LAX", 300, AT + timedelta(hours=hour + 5))) for hour in hours[::2]]
    order = sorted([*landed, *left], key=lambda each: each[1][-1])
    ends = [n for n in range(1, len(order)) if order[n - 1][1][-1] < order[n][1][-1]]

    def play(cut: tuple[int, ...]) -> Any:  # noqa: ANN401 - comparable
        with process_alerts(load_names("docs/examples/alerts.py")["Alerts"]()) as harness:
            harness.run(broadcast=[("AA", 30)])
            for batch in split(order, cut):
                harness.run(**batch)
            return count_rows(harness.output)

    whole = play(())
    assert whole
    assert play(tuple(ends)) == whole
    for _ in range(3):
        assert play(tuple(sorted(random.sample(ends, 4)))) == whole


def test_a_sample_has_other_rows_when_there_are_more_than_it_takes() -> None:
    random = Random(1)
    program = next(each for each in PROGRAMS if each.name == "Sample")
    rows = [row for _ in range(15) for row in program.rows(random)]
    with program.start() as harness:
        for part in range(0, len(rows), 10):
            harness.run(pa.Table.from_pylist([{"user": u, "amount": a} for u, a in rows[part : part + 10]]))
        (kept,) = harness.state("sample").values()
    assert len(kept) == 100
    assert {(each.user, each.amount) for each in kept} <= set(rows)
    assert len({each.draw for each in kept}) == 100
