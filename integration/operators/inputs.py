"""Small deterministic inputs that hold what breaks state stores: nulls, late rows, repeats, odd numbers."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any

from integration.operators.sources import Source

START = datetime(2024, 3, 1, 12, 0, tzinfo=timezone.utc)
BATCH_MINUTES = 10
BATCHES = 4

_WORDS = ("", "a", "b", "A", "ä", "日本", "a long word that no inline field holds", None)


def events(seed: int, rows: int = 30) -> Source:
    """Users and words over time. Each batch is ten minutes on; some rows come up to half an hour late."""
    random = Random(seed)
    return Source(
        "id long, user int, word string, amount double, at timestamp",
        tuple(tuple(_event(random, batch * rows + row, batch) for row in range(rows)) for batch in range(BATCHES)),
    )


def repeats(seed: int, rows: int = 20) -> Source:
    """Events of which many come again, in the same batch and in later ones."""
    random = Random(seed)
    fresh = events(seed, rows)
    seen: list[tuple[Any, ...]] = []
    batches = []
    for batch in fresh.batches:
        seen.extend(batch)
        batches.append(tuple(random.choice(seen) for _ in range(rows)) + batch[: rows // 2])
    return Source(fresh.schema, tuple(batches))


def one_side(seed: int, rows: int = 16) -> Source:
    """One side of a join: few keys (some null), so that most rows meet others, and some never do."""
    random = Random(seed)
    return Source(
        "key int, tag string, number long, at timestamp",
        tuple(tuple(_join_row(random, batch * rows + row, batch) for row in range(rows)) for batch in range(BATCHES)),
    )


def numbers() -> Source:
    """Zeroes of both signs, NaN, infinities and null, as double and as float, again and again."""
    odd = (0.0, -0.0, math.nan, math.inf, -math.inf, None, 1.5, -1.5, 5e-324)
    rows = tuple((left, right) for left in odd for right in odd)
    return Source("d double, f float", tuple(rows[batch:] + rows[:batch] for batch in range(BATCHES)))


def kinds(seed: int, rows: int = 25) -> Source:
    """A column for every data type that Parquet files carry, each with its extremes and null."""
    random = Random(seed)
    return Source(
        ", ".join(f"c_{name} {name_of_type}" for name, name_of_type, _ in _KINDS),
        tuple(
            tuple(tuple(random.choice(values) for _, _, values in _KINDS) for _ in range(rows)) * 2
            for _ in range(BATCHES)
        ),
    )


def far() -> Source:
    """Dates and instants of all years that Spark has, of which Python has few, as days and microseconds."""
    days = (-(2**31), -719_163, -719_162, 0, 2_932_896, 2_932_897, 2**31 - 1, None)
    micros = (-(2**63), -62_135_596_800_000_001, 0, 253_402_300_800_000_000, 2**63 - 1, None)
    rows = tuple(
        (number, day, at, at, {"s": "x", "d": day, "at": at}, [at, None], [(day or 0, {"s": None, "at": at})])
        for number, (day, at) in enumerate((day, at) for day in days for at in micros)
    )
    schema = (
        "id bigint, d date, t timestamp, n timestamp_ntz, deep struct<s: string, d: date, at: timestamp>, "
        "l array<timestamp>, m map<date, struct<s: string, at: timestamp_ntz>>"
    )
    return Source(schema, tuple(rows[batch::2] + rows[:batch:3] for batch in range(BATCHES)))


_KINDS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("boolean", "boolean", (True, False, None)),
    ("byte", "tinyint", (0, 127, -128, None)),
    ("short", "smallint", (0, 32767, -32768, None)),
    ("int", "int", (0, 2**31 - 1, -(2**31), None)),
    ("long", "bigint", (0, 2**63 - 1, -(2**63), None)),
    ("float", "float", (0.0, -0.0, math.nan, 1.5, None)),
    ("double", "double", (0.0, -0.0, math.nan, math.inf, None)),
    ("short_decimal", "decimal(10,2)", (Decimal("0.00"), Decimal("99999999.99"), Decimal("-0.01"), None)),
    ("long_decimal", "decimal(38,10)", (Decimal(0), Decimal("-1234567890123456789012345678.0123456789"), None)),
    ("string", "string", _WORDS),
    ("binary", "binary", (b"", b"\x00", b"\x00\xff" * 9, None)),
    ("date", "date", (date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31), None)),
    ("timestamp", "timestamp", (START, START - timedelta(days=20_000), START + timedelta(microseconds=1), None)),
    ("timestamp_ntz", "timestamp_ntz", (datetime(1900, 1, 1), datetime(2024, 3, 1, 12, 0, 0, 7), None)),  # noqa: DTZ001
    ("array", "array<string>", ([], ["a", None], ["a"] * 5, None)),
    ("struct", "struct<n: int, s: string>", ({"n": 1, "s": "x"}, {"n": None, "s": None}, None)),
    ("nested", "array<struct<d: double>>", ([{"d": -0.0}], [{"d": 0.0}], [{"d": math.nan}], None)),
)


def _event(random: Random, number: int, batch: int) -> tuple[Any, ...]:
    user = random.choice((1, 2, 3, 4, 5, 6, 7, None))
    amount = random.choice((0.5, 1.25, -3.0, 1e9, None))
    late = random.choice((0, 0, 0, 0, 12, 33))
    at = START + timedelta(minutes=batch * BATCH_MINUTES - late, seconds=random.randrange(600))
    return number, user, random.choice(_WORDS), amount, at


def _join_row(random: Random, number: int, batch: int) -> tuple[Any, ...]:
    key = random.choice((*range(14), None))
    at = START + timedelta(minutes=batch * BATCH_MINUTES, seconds=random.randrange(900) - 300)
    return key, random.choice(("x", "y", None)), number, at
