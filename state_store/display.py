"""What people are shown: sizes and numbers as text, names that they may have meant, and tables in notebooks."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from html import escape

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024


def size_text(number: float) -> str:
    """Return a number of bytes in a readable unit."""
    for unit in _UNITS:
        if number < _STEP or unit == _UNITS[-1]:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= _STEP
    raise AssertionError("not reached")


def count_text(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 store``, ``1,000 stores``. ``plural``: if it has no plain s at the end."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the known name that is most like ``name``, in any case; empty if none is."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" Did you mean {by_lower[near[0]]!r}?" if near else ""


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a title and a table as HTML, in which the content has no meaning. A number is a count."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<p>{escape(title)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td style="text-align: right">{value:,}</td>'
    return f"<td>{escape('' if value is None else str(value))}</td>"
