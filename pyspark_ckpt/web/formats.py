"""How figures, times and names are written on a page."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from itertools import groupby
from typing import Any

from markupsafe import Markup

from pyspark_ckpt.offline.descriptions.json_forms import Fields
from pyspark_ckpt.state_store.display import count_text, size_text
from pyspark_ckpt.terminal import escape_controls

NOTHING = "\N{EN DASH}"
LEVELS = 8
"""Shades of a heat map."""
MIN_BARS = 40
"""Bars that a chart always has room for: without it, few bars would be wide."""
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
_FIGURES = 10
CLOCKS_S = 60
"""How far the clock of a place may be ahead without being shown."""
_LAST_S = 253_402_300_799.0
"""The end of the year 9999."""


def show_count(number: float | None) -> str:
    """Return a number with separators of thousands."""
    return NOTHING if number is None else f"{number:,.0f}"


def show_size(number: float | None) -> str:
    """Return a number of bytes in a readable unit."""
    return NOTHING if number is None else size_text(number)


def show_duration(seconds: float | None) -> str:
    """Return a time span in its two largest units: 1 h 5 min, 3.2 s, 40 ms."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 1:
        return "< 1 s" if seconds <= 0 else f"{seconds * 1000:.0f} ms"
    if seconds < _FIGURES:
        return f"{seconds:.1f} s"
    whole, parts = round(seconds), []
    for size, unit in _UNITS:
        number, whole = divmod(whole, int(size))
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2])


def show_time(seconds: float | None) -> Markup:
    """Return an instant in UTC, as an HTML element that programs can read as well."""
    if seconds is None or not math.isfinite(seconds) or not 0 <= seconds <= _LAST_S:
        return Markup(NOTHING)  # noqa: S704 - a constant
    at = datetime.fromtimestamp(seconds, timezone.utc)
    return Markup('<time datetime="{}">{}</time>').format(f"{at:%Y-%m-%dT%H:%M:%SZ}", f"{at:%Y-%m-%d %H:%M:%S}")


def show_ago(seconds: float | None) -> str:
    """Return how long an instant is ago."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    since_s = time.time() - seconds
    if -CLOCKS_S < since_s < 1:
        return "just now"
    return f"{show_duration(abs(since_s))} {'ago' if since_s > 0 else 'from now'}"


def show_text(text: object) -> str:
    """Escape control characters in a text, also those that change its direction."""
    return escape_controls(str(text))


def shade(number: float, most: float) -> int:
    """Return the shade of a number in a heat map, from 0 to ``LEVELS``: 0 for nothing."""
    if number <= 0 or most <= 0:
        return 0
    return max(1, min(LEVELS, math.ceil(LEVELS * number / most)))


def draw_bars(values: Sequence[float | None], label: str, tips: Sequence[str], height: int = 48) -> Markup:
    """Return a bar chart as SVG, the first value at the left."""
    most = max((value for value in values if value is not None), default=0) or 1
    width = max(MIN_BARS, len(values))
    bars = []
    for n, (value, tip) in enumerate(zip(values, tips, strict=True)):
        tall = 0 if value is None else max(0.6, height * value / most)
        bars.append(
            Markup('<rect x="{}" y="{:.1f}" width="0.8" height="{:.1f}" data-tip="{}"><title>{}</title></rect>').format(
                n, height - tall, tall, tip, tip
            )
        )
    return Markup(
        '<svg class="bars" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(width, height, label, Markup("").join(bars))


def draw_lines(series: Sequence[Sequence[float | None]], label: str, height: int = 48) -> Markup:
    """Return lines as SVG on one scale that begins at 0, the first value of each at the left. None leaves a gap."""
    most = max((value for values in series for value in values if value is not None), default=0) or 1
    width = max((len(values) for values in series), default=1) - 1 or 1
    lines = []
    for number, values in enumerate(series):
        points = [
            None if value is None else f"{n:.2f},{height - (height - 1) * max(0, value) / most:.2f}"
            for n, value in enumerate(values)
        ]
        for is_gap, found in groupby(points, lambda point: point is None):
            if not is_gap:
                lines.append(Markup('<polyline class="l{}" points="{}"/>').format(number, " ".join(map(str, found))))
    return Markup(
        '<svg class="lines" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(width, height, label, Markup("").join(lines))


def draw_heat(cells: Sequence[tuple[float, str]], label: str, columns: int = 20) -> Markup:
    """Return a heat map as SVG: squares in rows, each with a number, which gives its shade, and a text."""
    most = max((number for number, _ in cells), default=0)
    rows = math.ceil(len(cells) / columns) or 1
    squares = [
        Markup(
            '<rect class="h{}" x="{}" y="{}" width="9.2" height="9.2" rx="1.2" data-tip="{}"><title>{}</title></rect>'
        ).format(shade(number, most), n % columns * 10, n // columns * 10, tip, tip)
        for n, (number, tip) in enumerate(cells)
    ]
    return Markup('<svg class="heat" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        columns * 10, rows * 10, label, Markup("").join(squares)
    )


def chart_versions(versions: Sequence[Fields], field: str) -> Markup:
    """Return the chart of a field of a history's versions, which come newest first."""
    shown = list(reversed(versions))
    most = max((each[field] for each in shown if each[field] is not None), default=None)
    show, what = (show_size, "Bytes written for") if field.endswith("_bytes") else (show_duration, "Time of")
    tips = [f"batch {each['batch']:,}: {show(each[field])}" for each in shown]
    label = f"{what} each batch, the newest at the right; at most {show(most)}"
    chart = draw_bars([each[field] for each in shown], label, tips)
    return Markup("<figcaption>{}</figcaption>{}").format(label, chart)


def chart_batches(batches: Sequence[Fields], fields: Sequence[str], what: str, kind: str) -> Markup:
    """Return a chart with a line for each field of batches, which come newest first.

    ``kind``: how their numbers are written: a key of ``FILTERS``. Empty if no batch has any of them.
    """
    shown = list(reversed(batches))
    series = [[each.get(field) for each in shown] for field in fields]
    known = [value for values in series for value in values if value is not None]
    if not known:
        return Markup("")
    label = f"{what}, the newest batch at the right; at most {FILTERS[kind](max(known))}"
    return Markup("<figure><figcaption>{}</figcaption>{}</figure>").format(label, draw_lines(series, label))


def show_ms(ms: float | None) -> str:
    """Return a time span in milliseconds as text."""
    return NOTHING if ms is None else show_duration(ms / 1000)


def show_rate(number: float | None) -> str:
    """Return a rate per second: with a digit after the point if it is small."""
    if number is None or not math.isfinite(number):
        return NOTHING
    return f"{number:,.1f}/s" if abs(number) < _FIGURES else f"{number:,.0f}/s"


def show_share(share: float | None) -> str:
    """Return a share in percent."""
    return NOTHING if share is None else f"{share:.0%}"


def chart_partitions(partitions: Sequence[Fields], field: str) -> Markup:
    """Return the heat map of a field of partitions."""
    show, what = (show_size, "Bytes") if field.endswith("_bytes") else (show_count, "Stored rows")
    cells = [(each[field], f"partition {each['partition']}: {show(each[field])}") for each in partitions]
    return draw_heat(cells, f"{what} of each partition")


def chart_groups(rows: Fields) -> Markup:
    """Return the heat map of rows by ranges of key groups."""
    cells = [(number, f"key groups {groups}: {show_count(number)}") for groups, number in rows.items()]
    return draw_heat(cells, "Rows of each range of key groups", 16)


FILTERS: dict[str, Callable[..., Any]] = {
    "count": show_count,
    "size": show_size,
    "duration": show_duration,
    "ms": show_ms,
    "rate": show_rate,
    "share": show_share,
    "instant": show_time,
    "ago": show_ago,
    "plain": show_text,
    "noun": count_text,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "chart_batches": chart_batches,
    "chart_versions": chart_versions,
    "chart_partitions": chart_partitions,
    "chart_groups": chart_groups,
}
