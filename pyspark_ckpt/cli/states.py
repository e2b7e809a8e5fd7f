"""``pyspark-ckpt state read | count | get``: the rows of one state, on the terminal or for programs."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.cli.arguments import add_options, options
from pyspark_ckpt.terminal import print_json, print_table

if TYPE_CHECKING:
    from pyspark_ckpt.reading import StateReader

TABLE_ROWS = 100
_WHAT = {
    "read": "show the rows of a state",
    "count": "count the rows of a state",
    "get": "show the rows of one key; fetches only files that can have it",
}


def add_state_commands(
    subjects: Any,  # noqa: ANN401 - argparse names no type for it
) -> None:
    """Add ``state`` and its commands."""
    state = subjects.add_parser("state", help="read the state in a checkpoint or a savepoint")
    commands = state.add_subparsers(required=True, metavar="COMMAND")
    for name, command in (("read", read), ("count", count), ("get", get)):
        each = commands.add_parser(name, help=_WHAT[name], description=_WHAT[name])
        each.add_argument(
            "checkpoint",
            metavar="CHECKPOINT",
            help="a checkpointLocation or a savepoint: a path, file:, s3:// or hdfs://",
        )
        add_options(each)
        each.add_argument("--uid", help="uid of a keyed operator")
        each.add_argument("--operator", type=int, metavar="N", help="number of an operator; see checkpoint inspect")
        each.add_argument("--store", help="name of a store of a stream-stream join")
        each.add_argument("--state", help="name of the state; not needed if there is only one")
        each.add_argument("--version", type=int, help="version of the state; default: the newest committed one")
        each.add_argument("--without-expired", action="store_true", help="leave out rows past their time to live")
        if command is get:
            each.add_argument(
                "--key", required=True, type=_json, help="JSON: a value, or an array or object of columns"
            )
        if command is not count:
            each.add_argument("--limit", type=_limit, metavar="ROWS", help=f"default: all; {TABLE_ROWS} in a table")
        each.add_argument("--format", choices=("table", "json", "csv"), default="table")
        each.set_defaults(run=command)


def read(given: argparse.Namespace) -> int:
    """Print the rows of a state, up to a limit."""
    with _open(given) as state:
        names = state.schema.names
        rows = (row for batch in state.batches() for row in _rows(batch))
        _print(names, rows, given)
    return 0


def count(given: argparse.Namespace) -> int:
    """Print how many rows a state has."""
    with _open(given) as state:
        rows = state.count()
    if given.format == "json":
        return print_json({"version": state.version, "rows": rows})
    print(rows)
    return 0


def get(given: argparse.Namespace) -> int:
    """Print the rows of one key; exit code 1 if there are none."""
    with _open(given) as state:
        found = state.rows_of_json(given.key)
    _print(found.schema.names, (row for batch in found.to_batches() for row in _rows(batch)), given)
    return int(found.num_rows == 0)


def _open(given: argparse.Namespace) -> StateReader:
    from pyspark_ckpt.reading.reader import StateReader  # noqa: PLC0415
    from pyspark_ckpt.reading.sources import state_at  # noqa: PLC0415
    from pyspark_ckpt.reading.stored_state import Selection  # noqa: PLC0415

    wanted = Selection(given.uid, given.operator, given.store, given.state)
    found = state_at(given.checkpoint, options(given))
    return StateReader(found, wanted, given.version, include_expired=not given.without_expired)


def _rows(batch: Any) -> Iterator[list[Any]]:  # noqa: ANN401 - a RecordBatch, imported late
    from pyspark_ckpt.reading.json_values import json_values  # noqa: PLC0415

    return map(list, zip(*map(json_values, batch.columns), strict=True))


def _print(names: list[str], rows: Iterable[list[Any]], given: argparse.Namespace) -> None:
    limit = TABLE_ROWS if given.limit is None and given.format == "table" else given.limit
    shown = islice(rows, limit)
    if given.format == "json":
        for row in shown:
            print(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False))
    elif given.format == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows(list(map(_text, row)) for row in shown)
    else:
        print_table(names, [list(map(_text, row)) for row in shown])
        if given.limit is None and next(iter(rows), None) is not None:
            print(f"Only the first {TABLE_ROWS} rows are shown; --limit shows more.", file=sys.stderr)


def _text(value: Any) -> str:  # noqa: ANN401 - a value of JSON
    """Return a cell: text as it is, other values as JSON."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _json(text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(text, parse_float=Decimal)  # a float would lose digits of a decimal
    except ValueError as problem:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not JSON ({problem}); text needs quotes: '\"like this\"'"
        ) from problem


def _limit(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"the number of rows must be a whole number, got {text!r}")
    return int(text)
