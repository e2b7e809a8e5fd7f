"""Whole entries of the offset log in the wrong place: they were exchanged, or one was copied over another.

The clock of batches and the offsets of sources rise from entry to entry. Each alone may go back: a clock is set, or a
topic is recreated. Only if both go back from one entry to the next, these two are out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from pyspark_ckpt.state_store.checkpoints.query.sources import Offsets, parse_offsets
from pyspark_ckpt.state_store.errors import FormatError

MAX_DEPTH = 8
"""How deep in an offset numbers are looked for."""


def find_misplaced(entries: Mapping[str, bytes]) -> dict[str, str]:
    """Return by name which whole entries may be in the wrong place, and why, in the order of their batches.

    Most entries are in order. The others often show which of two is wrong; if they do not, both are returned.
    """
    found = [_read(name, content) for name, content in entries.items()]
    if not any(_is_older(later, before) for before, later in pairwise(found)):
        return {}
    lengths = _measure(found, _may_follow)
    back = _measure(found[::-1], lambda later, before: _may_follow(before, later))[::-1]
    at = [length if length + rest - 1 == max(lengths) else 0 for length, rest in zip(lengths, back, strict=True)]
    return {
        each.name: _explain(each, found[:number], found[number + 1 :])
        for number, each in enumerate(found)
        if not at[number] or at.count(at[number]) > 1
    }


class _Entry(NamedTuple):
    name: str
    content: bytes
    clock: int | None
    offsets: Offsets | None
    positions: Mapping[str, Any]
    """The same by the ids of the sources, decoded."""


class _Times(msgspec.Struct):
    batchTimestampMs: int  # noqa: N815 - Spark's name


def _read(name: str, content: bytes) -> _Entry:
    offsets = _read_offsets(content)
    positions = {} if offsets is None else {each: _decode(offset) for each, offset in offsets.by_id.items()}
    return _Entry(name, content, _read_clock(content), offsets, positions)


def _read_clock(content: bytes) -> int | None:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
        return msgspec.json.decode(content.split(b"\n")[1], type=_Times).batchTimestampMs
    return None


def _read_offsets(content: bytes) -> Offsets | None:
    with suppress(FormatError):
        return parse_offsets(content, "")
    return None


def _measure(entries: Sequence[_Entry], may_follow: Callable[[_Entry, _Entry], bool]) -> list[int]:
    """Return for each entry the length of the longest chain of entries that follow each other and end with it."""
    lengths: list[int] = []
    for each in entries:
        before = zip(entries, lengths, strict=False)
        lengths.append(1 + max((length for other, length in before if may_follow(other, each)), default=0))
    return lengths


def _may_follow(before: _Entry, later: _Entry) -> bool:
    return later.content != before.content and not _is_older(later, before)


def _explain(entry: _Entry, before: Iterable[_Entry], after: Iterable[_Entry]) -> str:
    for what, others in (
        ("is older than", (each for each in before if _is_older(entry, each))),
        ("is newer than", (each for each in after if _is_older(each, entry))),
        ("is the same as", (each for each in (*before, *after) if each.content == entry.content)),
    ):
        if (other := next(iter(others), None)) is not None:
            return f"{what} {other.name}: entries were exchanged, or one was copied over another"
    return "does not fit the others: entries were exchanged, or one was copied over another"


def _is_older(one: _Entry, other: _Entry) -> bool:
    """Return whether ``one`` was certainly written before ``other``: by the clock, and by the offset of a source."""
    if one.clock is None or other.clock is None or one.clock >= other.clock:
        return False
    if one.offsets is None or other.offsets is None:
        return False
    now, then = one.offsets, other.offsets
    if now.are_named != then.are_named or (now.has_all and then.has_all and len(now.by_id) != len(then.by_id)):
        return False  # the numbers of a source differ
    shared = one.positions.keys() & other.positions
    return any(_has_fallen(other.positions[each], one.positions[each]) for each in shared)


def _decode(offset: str | None) -> Any:  # noqa: ANN401 - any JSON
    with suppress(msgspec.DecodeError, RecursionError):
        return None if offset is None else msgspec.json.decode(offset)
    return None


def _has_fallen(then: Any, now: Any, depth: int = 0) -> bool:  # noqa: ANN401 - any JSON
    """Return whether a number of an offset has fallen.

    Partitions, in an object with numbers as names, count separately. Of other numbers in one object, such as a version
    and a position in it, none may have risen.
    """
    if isinstance(then, dict) and isinstance(now, dict) and depth < MAX_DEPTH:
        pairs = [(then[name], now[name]) for name in then.keys() & now.keys()]
        if any(_has_fallen(*pair, depth + 1) for pair in pairs if not all(map(_is_number, pair))):
            return True
        steps = [after - before for before, after in pairs if _is_number(before) and _is_number(after)]
        are_partitions = all(name.isdecimal() for name in then)
        return min(steps, default=0) < 0 and (are_partitions or max(steps) <= 0)
    return _is_number(then) and _is_number(now) and now < then


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
