"""``pyspark-ckpt state read | count | get | diff | changes``: rows of one state, on the terminal or for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from pyspark_ckpt.cli.arguments import TABLE_ROWS
from pyspark_ckpt.offline.reading.batch_changes import change_feed
from pyspark_ckpt.offline.reading.differences import diff
from pyspark_ckpt.offline.reading.keys.json_values import from_json, json_values
from pyspark_ckpt.offline.reading.reader import StateReader
from pyspark_ckpt.offline.reading.rows.keyed_rows import LISTS, MAPS, TIMERS
from pyspark_ckpt.offline.reading.rows.partition_rows import BROADCASTS, OPERATOR_LISTS
from pyspark_ckpt.offline.reading.sources import state_at
from pyspark_ckpt.offline.reading.stored_state import Selection, StoredState
from pyspark_ckpt.state_store.display import count_text
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.terminal import print_json, print_table

_ELEMENT, _ENTRY = ("element",), ("entry", "entries")
_ROWS = {LISTS: _ELEMENT, OPERATOR_LISTS: _ELEMENT, MAPS: _ENTRY, BROADCASTS: _ENTRY, TIMERS: ("timer",)}
"""What a row is called, by the kind of state, and its plural unless it just adds an s."""


def open_selected(
    checkpoint: str,
    settings: dict[str, str],
    uid: str | None,
    operator: int | None,
    store: str | None,
    state: str | None,
    version: int | None,
    *,
    without_expired: bool,
) -> StateReader:
    """Open the state that the arguments select. Raises InvalidInputError, FormatError, StorageError."""
    wanted = Selection(uid, operator, store, state)
    return StateReader(state_at(checkpoint, parse(settings)), wanted, version, include_expired=not without_expired)


def read(opened: StateReader, form: str, limit: int | None) -> int:
    """Print the rows of a state, up to a limit."""
    with opened as state:
        rows: Iterator[list[Any]] = (row for batch in state.batches() for row in read_rows(batch))
        first = next(rows, None)
        if first is None:
            print(f"{state.state.whose} has no rows.", file=sys.stderr)
        else:
            rows = chain([first], rows)
        print_rows(state.schema.names, rows, form, limit)
    return 0


def count(opened: StateReader, form: str) -> int:
    """Print how many rows a state has."""
    with opened as state:
        rows, names = state.count(), _ROWS.get(state.state.kind, ("row",))
    if form == "json":
        return print_json({"version": state.version, "rows": rows})
    print(rows if form == "csv" else count_text(rows, *names))
    return 0


def get(opened: StateReader, key: Any, form: str, limit: int | None) -> int:  # noqa: ANN401 - a value of JSON
    """Print the rows of one key; exit code 1 if there are none."""
    with opened as state:
        found = state.find(key, from_json).rows
        if found.num_rows == 0:
            print(_explain_missing(state.state, key), file=sys.stderr)
    print_rows(found.schema.names, (row for batch in found.to_batches() for row in read_rows(batch)), form, limit)
    return int(found.num_rows == 0)


def compare(
    form: str,
    limit: int | None,
    a: str,
    b: str,
    settings: dict[str, str],
    **selection: Any,  # noqa: ANN401 - those of ``diff``
) -> int:
    """Print the rows in which a state differs; exit code 1 if there are any."""
    with diff(a, b, options=settings, **selection) as differences:
        rows: Iterator[list[Any]] = (row for batch in differences.batches() for row in read_rows(batch))
        first = next(rows, None)
        if first is None:
            print("The state is the same on both sides.", file=sys.stderr)
        print_rows(differences.schema.names, rows if first is None else chain([first], rows), form, limit)
    return int(first is not None)


def changes(
    form: str,
    limit: int | None,
    checkpoint: str,
    settings: dict[str, str],
    **selection: Any,  # noqa: ANN401 - those of ``change_feed``
) -> int:
    """Print the changes of a state, batch by batch."""
    with change_feed(checkpoint, options=settings, **selection) as feed:
        rows: Iterator[list[Any]] = (row for batch in feed.batches() for row in read_rows(batch))
        first = next(rows, None)
        if first is None:
            batches = f"batches {feed.first_batch} to {feed.last_batch}"
            there = f"{batches} did not change" if feed.first_batch <= feed.last_batch else "there are no changes of"
            print(f"{there[0].upper()}{there[1:]} {feed.state.whose}.", file=sys.stderr)
        print_rows(feed.schema.names, rows if first is None else chain([first], rows), form, limit)
    return 0


def _explain_missing(state: StoredState, key: Any) -> str:  # noqa: ANN401 - a value of JSON
    columns = ", ".join(f"{each.name} {each.type}" for each in state.key_type)
    asked = json.dumps(key, ensure_ascii=False, default=str)
    return f"{state.whose} has no row with key {asked}. It has {count_text(state.rows, 'stored row')}, by {columns}."


def read_rows(batch: pa.RecordBatch) -> Iterator[list[Any]]:
    """Return rows as JSON values."""
    return map(list, zip(*map(json_values, batch.columns), strict=True))


def print_rows(names: list[str], rows: Iterable[list[Any]], form: str, limit: int | None) -> None:
    """Print rows of JSON values in one of the forms; without a limit, a table has the first TABLE_ROWS."""
    shown = islice(rows, TABLE_ROWS if limit is None and form == "table" else limit)
    if form == "json":
        for row in shown:
            print(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False))
    elif form == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows(list(map(_text, row)) for row in shown)
    else:
        print_table(names, [list(map(_text, row)) for row in shown])
        if limit is None and next(iter(rows), None) is not None:
            print(f"Only the first {TABLE_ROWS} rows are shown; --limit shows more.", file=sys.stderr)


def _text(value: Any) -> str:  # noqa: ANN401 - a value of JSON
    """Return a cell: text as it is, other values as JSON."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
