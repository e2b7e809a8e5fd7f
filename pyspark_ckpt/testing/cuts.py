"""``check_cuts``: the same rows, cut into batches in many ways, must come to the same result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, TypeAlias

from pyspark_ckpt.state_store.errors import InvalidInputError, add_note
from pyspark_ckpt.testing.comparison import MAX_SHOWN, describe_differences, freeze
from pyspark_ckpt.testing.given_rows import RowsLike, list_rows
from pyspark_ckpt.testing.harness import Harness

InputRows: TypeAlias = "RowsLike | Mapping[str, RowsLike]"
Cut: TypeAlias = tuple[int, ...]
"""After how many rows each batch but the last ends. A repeated number ends an empty batch."""

SINGLE_ROWS = 200
"""Up to so many rows are also given one by one."""
_EMPTY = 0.5
"""How likely an empty batch is to follow."""
_WHERE = ("in one batch", "cut")


@dataclass(frozen=True)
class Outcome:
    """The result of some batches: the output that counts, and each state by key."""

    output: Any
    states: Mapping[str, Any]


def check_cuts(
    start: Callable[[], Harness],
    rows: InputRows,
    *,
    cuts: int = 10,
    seed: int = 0,
    finish: Callable[[Harness], object] = Harness.run,
    result: Callable[[Sequence[Any]], Any] | None = None,
    compare_states: bool = True,
    real_time: bool = False,
) -> None:
    """Give the same rows in one batch, one by one, and cut at random in ``cuts`` ways; the results must be equal.

    Spark decides by load which rows come to a batch, and runs batches without rows where the watermark has moved, so
    the result of a program should not depend on either. ``start`` makes a new harness for each way. More than 200 rows
    are not given one by one.

    ``rows``: those of the only input; or a mapping from names of inputs to their rows, which are then also interleaved
    at random. A broadcast input is named "broadcast", and the only other input "".
    ``finish`` is called after the last rows; by default it runs a batch without rows, in which due timers fire.
    ``result`` turns all output rows into a value that must be equal. By default that is, in append mode, how often each
    row was output; in update mode, the last row of each key. The contents of the states must be equal, too, unless
    ``compare_states`` is False. With ``real_time``, each cut is also made into groups of rows of one batch.

    Raises AssertionError, with the fewest cuts that make a difference, and InvalidInputError if some cut makes a row
    late: late rows depend on the cuts in every program.
    """
    by_input = rows if isinstance(rows, Mapping) else {"": rows}
    named = {name: list_rows(some) for name, some in by_input.items()}
    check = _Check(start, finish, result, compare_states=compare_states)
    whole = _interleave(named, None)
    expected = check.run(whole, ())
    draw = Random(seed)  # noqa: S311 - a repeatable choice
    for number in range(cuts + 1):
        order = whole if number == 0 else _interleave(named, draw)
        if number == 0 and len(order) > SINGLE_ROWS:
            continue
        ends = range(1, len(order))
        cut = tuple(end for each in ends for end in (each, each)) if number == 0 else _draw_cut(len(order), draw)
        for way in (check, replace(check, is_live=True)) if real_time else (check,):
            if way.run(order, cut) != expected:
                fewest = _shrink(partial(way.differs, expected, order), cut)
                raise AssertionError(_describe(order, fewest, expected, way.run(order, fewest), way.name))


@dataclass(frozen=True)
class _Check:
    start: Callable[[], Harness]
    finish: Callable[[Harness], object]
    result: Callable[[Sequence[Any]], Any] | None
    compare_states: bool
    is_live: bool = False

    @property
    def name(self) -> str:
        """What rows are cut into."""
        return "groups of one batch" if self.is_live else "batches"

    def run(self, order: Sequence[tuple[str, Any]], cut: Cut) -> Outcome:
        with ExitStack() as stack:
            harness = self.start()
            if not isinstance(harness, Harness):
                raise InvalidInputError(f"`start` must return a new Harness, but returned {type(harness).__name__}.")
            stack.callback(harness.close)
            try:
                if self.is_live:
                    harness.run_live(*split(order, cut))
                else:
                    for batch in split(order, cut):
                        harness.run(batch.pop("", ()), **batch)
                        self._refuse_late(harness, cut)
                self.finish(harness)
            except Exception as problem:
                add_note(problem, f"The {self.name} were cut {_name(cut)}.")
                raise
            self._refuse_late(harness, cut)
            shown = (self.result or harness.summarise)(harness.output)
            states = harness.states() if self.compare_states else {}
            return Outcome(shown, {name: _freeze_state(held) for name, held in states.items()})

    def differs(self, expected: Outcome, order: Sequence[tuple[str, Any]], cut: Cut) -> bool:
        return self.run(order, cut) != expected

    def _refuse_late(self, harness: Harness, cut: Cut) -> None:
        if late := harness.dropped + harness.metrics.get("late_rows", 0):
            raise InvalidInputError(
                f"{late} rows are late if the batches are cut {_name(cut)}.",
                hint="Give rows whose event times go back by less than the delay of the watermark.",
            )


def _freeze_state(held: Mapping[Any, Any]) -> dict[Any, Any]:
    return {freeze(key): freeze(value) for key, value in held.items()}


def split(order: Sequence[tuple[str, Any]], cut: Cut) -> Iterator[dict[str, list[Any]]]:
    """Yield the rows of each batch by input."""
    for begin, end in pairwise([0, *cut, len(order)]):
        batch: dict[str, list[Any]] = {}
        for name, row in order[begin:end]:
            batch.setdefault(name, []).append(row)
        yield batch


def _interleave(rows: Mapping[str, Sequence[Any]], draw: Random | None) -> list[tuple[str, Any]]:
    """Return the rows of all inputs in one order, which keeps that of each input."""
    names = [name for name, some in rows.items() for _ in some]
    if draw is not None:
        draw.shuffle(names)
    given = {name: iter(some) for name, some in rows.items()}
    return [(name, next(given[name])) for name in names]


def _draw_cut(count: int, draw: Random) -> Cut:
    """Return the ends of up to 8 batches, some of which are followed by an empty one."""
    if count == 0:
        return ()
    ends = draw.sample(range(1, count + 1), draw.randint(1, min(count, 8)))
    return tuple(sorted([*ends, *(end for end in ends if draw.random() < _EMPTY)]))


def _shrink(fails: Callable[[Cut], bool], cut: Cut) -> Cut:
    """Return a cut that still fails, from which no batch end can be left out."""
    place = 0
    while place < len(cut):
        fewer = cut[:place] + cut[place + 1 :]
        if fails(fewer):
            cut = fewer
        else:
            place += 1
    return cut


def _describe(order: Sequence[tuple[str, Any]], cut: Cut, expected: Outcome, found: Outcome, parts: str) -> str:
    lines = [f"The result depends on the {parts}. With all rows in one batch, and cut {_name(cut)}:"]
    for number, batch in enumerate(split(order, cut)):
        lines += [f"  {'batch' if parts == 'batches' else 'group'} {number}:"]
        for name, some in batch.items():
            more = f" and {len(some) - MAX_SHOWN} more" if len(some) > MAX_SHOWN else ""
            lines.append(f"    {f'{name}: ' if name else ''}{some[:MAX_SHOWN]}{more}")
    if expected.output != found.output:
        lines += describe_differences("output", expected.output, found.output, _WHERE)
    for name, held in expected.states.items():
        if held != found.states[name]:
            lines += describe_differences(f"state {name!r}", held, found.states[name], _WHERE)
    return "\n".join(lines)


def _name(cut: Cut) -> str:
    return f"after row {', '.join(map(str, cut))}" if cut else "into one"
