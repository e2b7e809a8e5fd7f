"""The states of the program: of every kind, of many types, with and without a time to live in either clock."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LARGE_CHARS = 200_000
LARGE_EACH = 40
"""One text in so many is a large one."""
_EPOCH = datetime(2024, 1, 1, tzinfo=timezone.utc)
_SHOWN_CHARS = 40


def _text(number: int) -> str:
    if number % LARGE_EACH == 0:
        return f"{number} is large ".ljust(LARGE_CHARS, chr(ord("a") + number % 26))
    return f"text {number} " * (number % 4)


def _pair(number: int) -> dict[str, Any]:
    return {
        "a": number * 1_000_003,
        "b": None if number % 11 == 0 else _text(number + 1),
        "c": Decimal(number - 500).scaleb(-2),
    }


@dataclass(frozen=True)
class Type:
    """A type, and the value that belongs to a number."""

    arrow: pa.DataType
    value: Callable[[int], Any]


_PAIR = pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.decimal128(12, 2))])
LONG = Type(pa.int64(), lambda number: number - 500)
TEXT = Type(pa.string(), _text)
DATE = Type(pa.date32(), lambda number: date(1969, 12, 1) + timedelta(days=number))
INSTANT = Type(pa.timestamp("us", "UTC"), lambda number: _EPOCH + timedelta(microseconds=number * 1001))
DECIMAL = Type(pa.decimal128(20, 4), lambda number: Decimal(number * 7 - 3000).scaleb(-4))
PAIR = Type(_PAIR, _pair)
PAIRS = Type(pa.list_(_PAIR), lambda number: [_pair(number + n) for n in range(number % 3)])
NESTED = Type(
    pa.struct([("when", pa.date32()), ("parts", pa.map_(pa.string(), pa.list_(pa.int64())))]),
    lambda number: {"when": DATE.value(number), "parts": {f"p{n}": [number, n] for n in range(number % 3)}},
)
COUNTED = Type(pa.struct([("n", pa.int64()), ("total", pa.int64())]), lambda number: {"n": 1, "total": number})


@dataclass(frozen=True)
class Plan:
    """One state: its kind, the types of its keys and values, and how long rows live."""

    kind: str
    types: Sequence[Type]
    ttl: ckpt.Ttl | None = None
    how: Any = None

    @property
    def type(self) -> Type:
        """Of a value."""
        return self.types[-1]


_EVENT = ckpt.Ttl("20 minutes", clock="event")
_EVENT_READ = ckpt.Ttl("25 minutes", clock="event", refresh="on_read_and_write")
_AT_ONCE = ckpt.Ttl("1 millisecond")
"""What a batch writes has expired in the next one, whatever the processor's clock says."""
_NEVER = ckpt.Ttl("1000 days", refresh="on_read_and_write")


def joined(kept: str, added: str) -> str:
    """Reduce texts to one that depends on their order, and does not grow without end."""
    return f"{zlib.crc32(kept.encode())} {added[-50:]}"


def _start() -> Any:  # noqa: ANN401
    return {"n": 0, "total": 0}


def _counted(kept: Any, value: int) -> Any:  # noqa: ANN401
    n, total = (kept["n"], kept["total"]) if isinstance(kept, dict) else kept
    return {"n": n + 1, "total": total + value}


def _mean(kept: Any) -> Any:  # noqa: ANN401
    n, total = (kept["n"], kept["total"]) if isinstance(kept, dict) else kept
    return f"{total} in {n}"


AGGREGATE = (_start, _counted, _mean)

PLANS: Mapping[str, Plan] = {
    "number": Plan("value", [LONG]),
    "word": Plan("value", [TEXT], _AT_ONCE),
    "pair": Plan("value", [PAIR], _EVENT),
    "day": Plan("value", [DATE], _EVENT_READ),
    "nested": Plan("value", [NESTED]),
    "numbers": Plan("list", [LONG]),
    "words": Plan("list", [TEXT], _EVENT),
    "pairs": Plan("list", [PAIR], _NEVER),
    "sums": Plan("list", [DECIMAL], _EVENT_READ),
    "lists": Plan("list", [PAIRS], _AT_ONCE),
    "counts": Plan("map", [TEXT, LONG]),
    "notes": Plan("map", [LONG, TEXT], _EVENT),
    "days": Plan("map", [DATE, PAIR], _EVENT_READ),
    "instants": Plan("map", [INSTANT, NESTED], _AT_ONCE),
    "total": Plan("reducing", [LONG], _NEVER, "sum"),
    "story": Plan("reducing", [TEXT], _EVENT, joined),
    "mean": Plan("aggregating", [COUNTED], _EVENT_READ, AGGREGATE),
}


def _declared(name: str, plan: Plan) -> Any:  # noqa: ANN401
    kinds = [from_arrow_type(each.arrow) for each in plan.types]  # as text they need a session
    if plan.kind == "value":
        return ckpt.ValueState(name, kinds[0], ttl=plan.ttl)
    if plan.kind == "list":
        return ckpt.ListState(name, kinds[0], ttl=plan.ttl)
    if plan.kind == "map":
        return ckpt.MapState(name, kinds[0], kinds[1], ttl=plan.ttl)
    if plan.kind == "reducing":
        return ckpt.ReducingState(name, kinds[0], plan.how, ttl=plan.ttl)
    create, add, result = plan.how
    return ckpt.AggregatingState(name, kinds[0], create=create, add=add, result=result, ttl=plan.ttl)


DECLARED: Mapping[str, Any] = {name: _declared(name, plan) for name, plan in PLANS.items()}


def added_value(plan: Plan, number: int) -> Any:  # noqa: ANN401
    """What ``add`` of a state is given for a number: an aggregating state is given integers."""
    return number if plan.kind == "aggregating" else plan.type.value(number)


def shown(value: Any) -> str:  # noqa: ANN401
    """A value as text that is the same for all forms in which it may come, and short."""
    return repr(_plain(value))


def _plain(value: Any) -> Any:  # noqa: ANN401, PLR0911 - one for each form
    if isinstance(value, str) and len(value) > _SHOWN_CHARS:
        return f"{len(value)} chars, {zlib.crc32(value.encode())}"
    if isinstance(value, dict):
        names = all(isinstance(key, str) for key in value) and list(value)
        if names in (["a", "b", "c"], ["when", "parts"], ["n", "total"]):
            return tuple(map(_plain, value.values()))
        return [(_plain(key), _plain(each)) for key, each in value.items()]
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat()
    return value
