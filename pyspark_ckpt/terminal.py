"""Output of the command line: tables, charts and JSON on stdout, progress on stderr.

Rich lays out what is shown. It is imported where it is needed, because it is slow to import. On a terminal, tables fit
its width. Elsewhere nothing is cut or wrapped, and there are no escape codes.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from pyspark_ckpt.state_store.display import count_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

T = TypeVar("T")

BAR_WIDTH, MIN_BAR_WIDTH = 40, 8
GAP = 2
"""Spaces between columns."""
MIN_WRAPPED = 16
"""A column this narrow is not wrapped."""
MAX_COLUMNS = 1 << 24
"""The width of a line that is not for a terminal. Lines are as long as their cells, not padded to this."""


def print_json(value: object) -> int:
    """Print ``value`` as JSON; return the exit code."""
    print(json.dumps(value, indent=2))
    return 0


def print_text(text: str) -> None:
    """Print lines of prose, with control characters escaped. On a terminal, a long line is wrapped at spaces."""
    for line in map(escape_controls, text.split("\n")):
        wrapped = [line]
        if sys.stdout.isatty():
            width = shutil.get_terminal_size().columns
            wrapped = textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
        print("\n".join(wrapped))


def print_notice(text: str) -> None:
    """Print a line on stderr, with control characters escaped."""
    print(escape_controls(text), file=sys.stderr)


def print_outcome(what: str, problems: Sequence[str]) -> int:
    """Print the problems found in ``what``, or that there are none; return the exit code."""
    for problem in problems:
        print_text(f"WRONG: {escape_controls(problem)}")
    print_text(f"{what}: {count_text(len(problems), 'problem') if problems else 'all right'}")
    return int(bool(problems))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows in columns, under a header. A number is a count, and gets thousands separators.

    If the columns do not fit the terminal, long texts are wrapped at spaces. If that is not enough, each row is printed
    as a record: a line for each cell, after the name of its column.
    """
    cells = [[f"{cell:,}" if isinstance(cell, int) else escape_controls(str(cell)) for cell in row] for row in rows]
    console = _console()
    widths = _fit(header, cells, console.width)
    if widths is None:
        _print_records(header, cells, console)
        return
    from rich.table import Table  # noqa: PLC0415 - see the module
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for n, (name, width) in enumerate(zip(header, widths, strict=True)):
        is_count = any(isinstance(row[n], int) for row in rows)
        table.add_column(Text(name), overflow="fold", justify="right" if is_count else "left", width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    _print(table, console)


def _fit(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return how wide the columns are if the table is ``width`` wide; None if words would have to be cut."""
    from rich.cells import cell_len  # noqa: PLC0415 - see the module

    columns = list(zip(header, *rows, strict=True))
    widest = [max(map(cell_len, column)) for column in columns]
    free = width - GAP * len(columns) - sum(widest)
    if free >= 0:
        return widest
    narrowest = [
        most if most <= MIN_WRAPPED else max(MIN_WRAPPED, *(cell_len(word) for cell in column for word in cell.split()))
        for most, column in zip(widest, columns, strict=True)
    ]
    free = width - GAP * len(columns) - sum(narrowest)
    if free < 0:
        return None
    fitted = list(narrowest)
    for n in sorted(range(len(columns)), key=lambda n: widest[n] - narrowest[n]):  # the least first: all of it may fit
        more = min(free, widest[n] - narrowest[n])
        fitted[n] += more
        free -= more
    return fitted


def _print_records(header: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print a line for each cell that has text, and an empty line between rows."""
    from rich.table import Table  # noqa: PLC0415 - see the module
    from rich.text import Text  # noqa: PLC0415

    records = Table.grid(padding=(0, GAP, 0, 0))
    records.add_column(no_wrap=True)
    records.add_column(overflow="fold")
    for n, row in enumerate(rows):
        if n:
            records.add_row("", "")
        for name, cell in zip(header, row, strict=True):
            if cell:
                records.add_row(Text(name), Text(cell))
    _print(records, console)


def escape_controls(text: str) -> str:
    """Return text with ends of lines and control characters escaped: paths and values of states may have any."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def print_bars(counts: Mapping[str, int]) -> None:
    """Print counts as a bar chart, and how uneven they are."""
    from rich.bar import Bar  # noqa: PLC0415 - see the module
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    most, console = max(counts.values(), default=0), _console()
    texts = max(map(len, counts), default=0) + len(f"{most:,}")
    width = max(MIN_BAR_WIDTH, min(BAR_WIDTH, console.width - texts - 3 * GAP))
    chart = Table.grid(padding=(0, GAP, 0, 0))
    for justify in ("right", "left", "right"):
        chart.add_column(justify=justify)
    for name, number in counts.items():
        chart.add_row(Text(name), Bar(max(1, most), 0, number, width=width), Text(f"{number:,}"))
    _print(chart, console)
    mean = sum(counts.values()) / max(1, len(counts))
    if mean:
        print(f"the largest has {most / mean:.2f} times the mean")


def _print(shown: RenderableType, console: Console) -> None:
    """Print on stdout, without spaces at the ends of lines."""
    with console.capture() as captured:
        console.print(shown)
    for line in captured.get().splitlines():
        print(line.rstrip())


def _console() -> Console:
    """Return a console as wide as the terminal; if stdout is none, one without limits and escape codes."""
    from rich.console import Console  # noqa: PLC0415 - see the module

    is_terminal = sys.stdout.isatty()
    return Console(
        force_terminal=is_terminal,
        force_jupyter=False,
        color_system="auto" if is_terminal else None,
        width=None if is_terminal else MAX_COLUMNS,
        highlight=False,
    )


def with_progress(items: Sequence[T], name: Callable[[T], str]) -> Iterator[T]:
    """Yield ``items``; show progress on stderr if it is a terminal."""
    with progress_bar("") as show:
        for done, item in enumerate(items):
            show(done, len(items), name(item))
            yield item


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[..., None]]:
    """Give a function that shows how many parts of ``what`` are done, as a bar on stderr if that is a terminal.

    Its arguments are the number of finished parts, the number of all parts, and optionally another text for ``what``.
    It draws in the caller's thread, because a fork would lose a thread of its own.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total, _what=what: None
        return
    from rich.console import Console  # noqa: PLC0415 - see the module
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415

    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns = (text, BarColumn(BAR_WIDTH // 2), MofNCompleteColumn())
    console = Console(stderr=True, force_jupyter=False)
    own = {"auto_refresh": False, "transient": True, "redirect_stdout": False, "redirect_stderr": False}
    with Progress(*columns, console=console, **own) as bar:  # type: ignore[arg-type]  # all of them are flags
        task = bar.add_task(escape_controls(what), total=None)

        def show(done: int, total: int, what: str = what) -> None:
            bar.update(task, completed=done, total=total or None, description=escape_controls(what), refresh=True)

        yield show


def wait(seconds: float, why: str) -> None:
    """Sleep; show on stderr how long it takes if that is a terminal."""
    until = time.monotonic() + seconds
    with progress_bar(f"waiting, in seconds, {why}") as show:
        while (left := until - time.monotonic()) > 0:
            show(round(seconds - left), round(seconds))
            time.sleep(min(1.0, left))
