"""Output of the command line: tables and JSON on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

BAR_WIDTH = 40
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024


def print_json(value: object, default: Callable[[Any], object] = str) -> int:
    """Print ``value`` as JSON; return the exit code."""
    print(json.dumps(value, indent=2, default=default))
    return 0


def print_outcome(what: str, problems: Sequence[str]) -> int:
    """Print the problems found in ``what``, or that there are none; return the exit code."""
    for problem in problems:
        print(f"WRONG: {problem}")
    print(f"{what}: {f'{len(problems)} problems' if problems else 'all right'}")
    return int(bool(problems))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows in columns, under a header."""
    lines = [header, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(header))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_bars(counts: Mapping[str, int]) -> None:
    """Print counts as a bar chart, and how uneven they are."""
    most, width = max(counts.values(), default=0), max(map(len, counts), default=0)
    for name, number in counts.items():
        bar = "█" * round(BAR_WIDTH * number / most) if most else ""
        print(f"{name.rjust(width)}  {bar.ljust(BAR_WIDTH)}  {number:,}")
    mean = sum(counts.values()) / max(1, len(counts))
    if mean:
        print(f"the largest has {most / mean:.2f} times the mean")


def with_progress(items: Sequence[T], name: Callable[[T], str]) -> Iterator[T]:
    """Yield ``items``; show progress on stderr if it is a terminal."""
    for number, item in enumerate(items, 1):
        if sys.stderr.isatty():
            print(f"\r\x1b[K[{number}/{len(items)}] {name(item)}", end="", file=sys.stderr, flush=True)
        yield item
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Give a function that shows how many parts of ``what`` are done, as a bar on stderr if that is a terminal."""
    is_terminal = sys.stderr.isatty()

    def show(done: int, total: int) -> None:
        if is_terminal and total:
            bar = "█" * (BAR_WIDTH * done // total)
            print(f"\r\x1b[K{what}  {bar.ljust(BAR_WIDTH)}  {done}/{total}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def wait(seconds: float, why: str) -> None:
    """Sleep; show the remaining seconds on stderr if it is a terminal."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if sys.stderr.isatty():
            print(f"\r\x1b[Kwaiting {left:.0f} s {why}", end="", file=sys.stderr)
        time.sleep(min(1.0, left))
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def size_text(number: float) -> str:
    """Return a number of bytes in a readable unit."""
    for unit in _UNITS:
        if number < _STEP or unit == _UNITS[-1]:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= _STEP
    raise AssertionError("not reached")
