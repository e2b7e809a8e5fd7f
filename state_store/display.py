"""Text for people: sizes and numbers, names that they may have meant, and tables in notebooks."""

from __future__ import annotations

import difflib
import shlex
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


def write_command(*words: str, **options: str) -> str:
    """Return a command of this package, in backquotes, ready to paste into a shell.

    ``words``: the ones after its name; placeholders are in capitals. ``options``: of the store, as ``-o KEY=VALUE``.
    """
    given = (word for key, value in options.items() for word in ("-o", f"{key}={value}"))
    return f"`{' '.join(map(_quote, ('pyspark-ckpt', *words, *given)))}`"


def _quote(word: str) -> str:
    """Return a word for a shell. Unprintable characters are escaped byte by byte, as bash and zsh read them."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        each if each.isprintable() and each not in "\\'" else "".join(f"\\x{byte:02x}" for byte in each.encode())
        for each in word
    )
    return f"$'{escaped}'"


def write_rescale(checkpoint: str, partitions: int | str = "PARTITIONS", **options: str) -> str:
    """Return the command that copies a ``checkpoint``; see ``write_command``.

    If the copy's state is in a folder named by the query's id (option ``remote``), the copy gets a new id.
    """
    new_id = ("--query-id", "new") if "remote" in options else ()
    return write_command(
        "checkpoint", "rescale", checkpoint, "NEW_CHECKPOINT", "-n", str(partitions), *new_id, **options
    )


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the known name that is most like ``name``, in any case; empty if none is."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" Did you mean {by_lower[near[0]]!r}?" if near else ""


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a title and a table as HTML. Markup in the content is escaped. A number is a count."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<p>{escape(title)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td style="text-align: right">{value:,}</td>'
    return f"<td>{escape('' if value is None else str(value))}</td>"
