"""The command line: ``pyspark-ckpt checkpoint list | inspect | verify``, also as ``python -m pyspark_ckpt``.

Needs neither Spark nor a JVM. Exit codes: 0 all is well, 1 something is wrong and was named, 2 the call was.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from pyspark_ckpt.state_store.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import CkptError
from pyspark_ckpt.state_store.meta import State
from pyspark_ckpt.state_store.options import parse

T = TypeVar("T")

BAR_WIDTH = 40
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    given = _parser().parse_args(arguments)
    try:
        options = parse(dict(pair.split("=", 1) for pair in given.option))
        checkpoint = Checkpoint(given.checkpoint, options)
        command: Callable[[Checkpoint, argparse.Namespace], int] = given.command
        return command(checkpoint, given)
    except CkptError as problem:
        print(f"pyspark-ckpt: {problem.message}", file=sys.stderr)
        if problem.hint:
            print(problem.hint, file=sys.stderr)
        return 2 if problem.kind == "InvalidInputError" else 1
    except BrokenPipeError:  # a reader such as head that has had enough
        sys.stderr.close()
        return 0


def list_stores(checkpoint: Checkpoint, given: argparse.Namespace) -> int:
    """What is stored: operators, versions, deltas, snapshots."""
    stores = [(operator, checkpoint.stored(identity)) for operator, identity in checkpoint.stores()]
    version = checkpoint.newest_version
    if given.json:
        described = [{"operator_name": operator.name, **asdict(stored)} for operator, stored in stores]
        return _print_json({"query": checkpoint.query_id, "version": version, "stores": described})
    print(f"query {checkpoint.query_id}, version {version} (batch {version - 1} is committed)")
    header = ("operator", "partition", "store", "versions", "deltas", "snapshots", "lag", "table files")
    rows = [
        (
            f"{stored.identity.operator} {operator.name}",
            stored.identity.partition,
            stored.identity.name,
            f"{stored.first_version}..{stored.last_version}",
            f"{stored.deltas}, {_size(stored.delta_bytes)}",
            stored.snapshots,
            stored.lag,
            f"{stored.table_files}, {_size(stored.table_bytes)}",
        )
        for operator, stored in stores
    ]
    _print_table(header, rows)
    return 0


def inspect(checkpoint: Checkpoint, given: argparse.Namespace) -> int:
    """States with their types and rows, and how even the partitions are."""
    version = _version(checkpoint, given)
    metas = [(operator, identity, checkpoint.meta(identity, version)) for operator, identity in checkpoint.stores()]
    if given.json:
        rows = [
            {
                "operator": asdict(identity),
                "operator_name": operator.name,
                "id": meta.id,
                "parent": meta.parent,
                "rows": meta.rows,
                "states": [
                    {"name": state.name, "number": state.number, "rows": state.rows, **_described(state)}
                    for state in meta.states
                ],
            }
            for operator, identity, meta in metas
        ]
        return _print_json({"query": checkpoint.query_id, "version": version, "stores": rows})
    print(f"query {checkpoint.query_id}, version {version}")
    for number in sorted({identity.operator for _, identity, _ in metas}):
        own = [(operator, identity, meta) for operator, identity, meta in metas if identity.operator == number]
        print(f"\noperator {number}: {own[0][0].name}")
        states: dict[tuple[str, str], int] = {}
        types: dict[tuple[str, str], Mapping[str, Any]] = {}
        for _, identity, meta in own:
            for state in meta.states:
                key = identity.name, state.name
                states[key] = states.get(key, 0) + state.rows
                types[key] = _described(state)
        _print_table(
            ("store", "state", "rows", "key", "value"),
            [(*key, rows, _short(types[key]["key"]), _short(types[key]["value"])) for key, rows in states.items()],
        )
        print("\nrows of each partition")
        partitions: Counter[str] = Counter()
        for _, identity, meta in own:
            partitions[str(identity.partition)] += meta.rows
        _print_bars(partitions)
    return 0


def verify(checkpoint: Checkpoint, given: argparse.Namespace) -> int:
    """Read everything that a version needs, and check all of it."""
    version = _version(checkpoint, given)
    stores = [identity for _, identity in checkpoint.stores()]
    found = [checkpoint.verify(identity, version) for identity in _with_progress(stores, str)]
    problems = [(each.identity, problem) for each in found for problem in each.problems]
    if given.json:
        _print_json({"query": checkpoint.query_id, "version": version, "stores": [asdict(each) for each in found]})
        return int(bool(problems))
    for _, problem in problems:
        print(f"WRONG: {problem}")
    rows, size = sum(each.rows for each in found), sum(each.bytes_read for each in found)
    outcome = f"{len(problems)} problems" if problems else "all right"
    print(f"version {version}: {len(found)} stores, {rows:,} rows, {_size(size)} read: {outcome}")
    return int(bool(problems))


def _version(checkpoint: Checkpoint, given: argparse.Namespace) -> int:
    return int(given.version) if given.version is not None else checkpoint.newest_version


def _described(state: State) -> dict[str, Any]:
    descriptor = state.descriptor
    return {"key": descriptor.key_schema, "value": descriptor.value_schema, "encoder": descriptor.key_encoder}


def _short(schema: Any, most: int = 60) -> str:  # noqa: ANN401 - JSON
    text = _type(schema)
    return text if len(text) <= most else text[: most - 1] + "…"


def _type(schema: Any) -> str:  # noqa: ANN401 - JSON
    """A type in words: Spark's own JSON, or that of keyed states, which keep every type they were written by."""
    if not isinstance(schema, dict):
        return "" if schema is None else str(schema)
    if isinstance(schema.get("fields"), list):
        return ", ".join(f"{each['name']} {_type(each['type'])}" for each in schema["fields"])
    if isinstance(schema.get("schemas"), list):
        return _type(schema["schemas"][schema["current"] - 1])
    return ", ".join(f"{name} {_type(kind)}" for name, kind in schema.items())


def _print_json(value: object) -> int:
    print(json.dumps(value, indent=2, default=str))
    return 0


def _print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    lines = [header, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(header))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_bars(counts: Mapping[str, int]) -> None:
    most, width = max(counts.values(), default=0), max(map(len, counts), default=0)
    for name, number in counts.items():
        bar = "█" * round(BAR_WIDTH * number / most) if most else ""
        print(f"{name.rjust(width)}  {bar.ljust(BAR_WIDTH)}  {number:,}")
    mean = sum(counts.values()) / max(1, len(counts))
    if mean:
        print(f"the largest has {most / mean:.2f} times the mean")


def _with_progress(items: Sequence[T], name: Callable[[T], str]) -> Iterator[T]:
    """Tell a person on stderr how far it is."""
    for number, item in enumerate(items, 1):
        if sys.stderr.isatty():
            print(f"\r\x1b[K[{number}/{len(items)}] {name(item)}", end="", file=sys.stderr, flush=True)
        yield item
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _size(number: float) -> str:
    for unit in _UNITS:
        if number < _STEP or unit == _UNITS[-1]:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= _STEP
    raise AssertionError("not reached")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pyspark-ckpt", description="Look at the state of streaming queries.")
    subjects = parser.add_subparsers(required=True, metavar="SUBJECT")
    commands = subjects.add_parser("checkpoint", help="the checkpoint of a query").add_subparsers(
        required=True, metavar="COMMAND"
    )
    for name, command, what in (
        ("list", list_stores, "operators, versions, sizes, snapshots and their lag"),
        ("inspect", inspect, "states with their types and rows, and how even the partitions are"),
        ("verify", verify, "read every object that a version needs; exit code 1 names what is wrong"),
    ):
        each = commands.add_parser(name, help=what, description=what)
        each.add_argument(
            "checkpoint", metavar="CHECKPOINT", help="checkpointLocation: a path, file: or s3://bucket/path"
        )
        each.add_argument("--json", action="store_true", help="for programs")
        each.add_argument(
            "-o",
            "--option",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            type=_pair,
            help="an option such as s3Endpoint=http://host:9000; may be repeated",
        )
        if command is not list_stores:
            each.add_argument("--version", type=int, help="of the state; default: the newest committed one")
        each.set_defaults(command=command)
    return parser


def _pair(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return text
