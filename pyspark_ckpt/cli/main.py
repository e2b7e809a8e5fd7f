"""The command line: ``pyspark-ckpt checkpoint | savepoint | rescale | state``, also as ``python -m pyspark_ckpt``.

Needs neither Spark nor a JVM. Exit codes: 0 success, 1 a reported problem or failure, 2 an invalid call.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

import msgspec

from pyspark_ckpt import __version__
from pyspark_ckpt.cli import savepoints as savepoint_commands
from pyspark_ckpt.cli.arguments import add_options, options
from pyspark_ckpt.cli.states import add_state_commands
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.verification import verify_newest, verify_version
from pyspark_ckpt.state_store.errors import CkptError
from pyspark_ckpt.state_store.format.key_groups import MAX_PARALLELISM
from pyspark_ckpt.state_store.format.keys import EMPTY
from pyspark_ckpt.state_store.format.meta import State
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.retention.collector import Collector
from pyspark_ckpt.terminal import print_bars, print_json, print_outcome, print_table, size_text, wait, with_progress

KEEP = 100
GROUP_RANGES = 32
NOTHING_YET = "no batch is committed yet"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    given = _parser().parse_args(arguments)
    try:
        run: Callable[[argparse.Namespace], int] = given.run
        return run(given)
    except CkptError as problem:
        print(f"pyspark-ckpt: {problem.message}", file=sys.stderr)
        if problem.hint:
            print(problem.hint, file=sys.stderr)
        return 2 if problem.kind == "InvalidInputError" else 1
    except BrokenPipeError:  # the reader, such as head, has stopped reading
        sys.stderr.close()
        return 0


def _on_checkpoint(command: Callable[[Checkpoint, argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    def run(given: argparse.Namespace) -> int:
        checkpoint = Checkpoint(given.checkpoint, options(given))
        checkpoint.refuse_other_provider()
        return command(checkpoint, given)

    return run


def list_stores(checkpoint: Checkpoint, given: argparse.Namespace) -> int:
    """List what is stored: operators, versions, deltas, snapshots."""
    stores = [(operator, checkpoint.count_objects(identity)) for operator, identity in checkpoint.stores()]
    version = checkpoint.newest_version
    if given.json:
        described = [{"operator_name": operator.name, **asdict(stored)} for operator, stored in stores]
        return print_json({"query": checkpoint.query_id, "version": version, "stores": described})
    what = f"version {version} (batch {version - 1} is committed)" if version else NOTHING_YET
    print(f"query {checkpoint.query_id}, {what}")
    header = ("operator", "partition", "store", "versions", "deltas", "snapshots", "lag", "table files")
    rows = [
        (
            f"{stored.identity.operator} {operator.name}",
            stored.identity.partition,
            stored.identity.name,
            f"{stored.first_version}..{stored.last_version}",
            f"{stored.deltas}, {size_text(stored.delta_bytes)}",
            stored.snapshots,
            stored.lag,
            f"{stored.table_files}, {size_text(stored.table_bytes)}",
        )
        for operator, stored in stores
    ]
    print_table(header, rows)
    return 0


def inspect(checkpoint: Checkpoint, given: argparse.Namespace) -> int:
    """Show states with their types and rows, and how evenly rows are spread over partitions."""
    version = _version(checkpoint, given)
    if version == 0:
        return _print_nothing_yet(checkpoint, given)
    metas = [(operator, identity, checkpoint.meta(identity, version)) for operator, identity in checkpoint.stores()]
    if given.json:
        rows = [
            {
                "lineage": _lineage(checkpoint, identity, version) if given.lineage else None,
                "rows_by_key_groups": _by_groups(checkpoint, [identity], version) if given.key_groups else None,
                "operator": asdict(identity),
                "operator_name": operator.name,
                "id": meta.id,
                "parent": meta.parent,
                "rows": meta.rows,
                "states": [
                    {"name": state.name, "number": state.number, "rows": state.rows, **_describe(state)}
                    for state in meta.states
                ],
            }
            for operator, identity, meta in metas
        ]
        return print_json({"query": checkpoint.query_id, "version": version, "stores": rows})
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
                types[key] = _describe(state)
        print_table(
            ("store", "state", "rows", "key", "value"),
            [(*key, rows, _short(types[key]["key"]), _short(types[key]["value"])) for key, rows in states.items()],
        )
        print("\nrows of each partition")
        partitions: Counter[str] = Counter()
        for _, identity, meta in own:
            partitions[str(identity.partition)] += meta.rows
        print_bars(partitions)
        identities = [identity for _, identity, _ in own]
        if given.key_groups:
            print(f"\nrows of each of {GROUP_RANGES} ranges of key groups")
            print_bars(_by_groups(checkpoint, with_progress(identities, str), version))
        if given.lineage:
            print()
            steps = [(each.partition, each.name, *_lineage(checkpoint, each, version)) for each in identities]
            print_table(("partition", "store", "restored from", "deltas"), steps)
    return 0


def _lineage(checkpoint: Checkpoint, identity: Identity, version: int) -> tuple[str, str]:
    base, deltas = checkpoint.steps(identity, version)
    start = "nothing" if base == EMPTY else f"snapshot {base.version} ({base.id})"
    return start, ", ".join(f"{delta.version} ({delta.id})" for delta in deltas)


def _by_groups(checkpoint: Checkpoint, identities: Iterable[Identity], version: int) -> dict[str, int]:
    """Return the number of rows in each range of key groups; each one is a range of hashes."""
    rows: Counter[int] = Counter()
    for identity in identities:
        rows.update(checkpoint.rows_by_hash(identity, version, GROUP_RANGES))
    width = MAX_PARALLELISM // GROUP_RANGES
    return {f"{part * width}..{(part + 1) * width - 1}": rows[part] for part in range(GROUP_RANGES)}


def verify(checkpoint: Checkpoint, given: argparse.Namespace) -> int:
    """Read and check everything that a version needs."""
    version = _version(checkpoint, given)
    if version == 0:
        return _print_nothing_yet(checkpoint, given)
    stores = with_progress([identity for _, identity in checkpoint.stores()], str)
    if given.version is None:
        found = [verify_newest(checkpoint, identity) for identity in stores]
    else:
        found = [verify_version(checkpoint, identity, version) for identity in stores]
    problems = [problem for each in found for problem in each.problems]
    if given.json:
        stored = {"query": checkpoint.query_id, "version": version, "stores": [asdict(each) for each in found]}
        print_json(stored, msgspec.to_builtins)
        return int(bool(problems))
    rows, size = sum(each.rows for each in found), sum(each.bytes_read for each in found)
    versions = sorted({each.version for each in found}) or [version]
    which = f"version {versions[0]}" if len(versions) == 1 else f"versions {versions[0]} to {versions[-1]}"
    what = f"{which}: {len(found)} stores, {rows:,} rows, {size_text(size)} read"
    return print_outcome(what, problems)


def collect(checkpoint: Checkpoint, given: argparse.Namespace) -> int:
    """Delete what is not needed any more, or print what would be deleted."""
    grace_s, deleted = options(given).retention_grace_period_s, 0
    stores = [identity for _, identity in checkpoint.stores()] if checkpoint.newest_version else []
    with closing(Collector(checkpoint, given.keep, grace_s, only_finds=given.dry_run)) as collector:
        garbage = {identity: collector.find(identity) for identity in with_progress(stores, str)}
        if not given.dry_run:
            deleted += sum(collector.clean(each) for each in with_progress(stores, str))
            if collector.waiting():
                wait(grace_s, "for snapshots that are being written (-o retentionGracePeriod=0 skips the wait)")
                checkpoint.look_again()
            deleted += sum(collector.clean(each) for each in with_progress(collector.waiting(), str))
    if given.json:
        described = [
            {"store": asdict(identity), "place": checkpoint.place_of(identity).url, "objects": each.blobs}
            for identity, each in garbage.items()
        ]
        answer = {"query": checkpoint.query_id, "dry_run": given.dry_run, "deleted": deleted, "stores": described}
        return print_json(answer, asdict)
    for identity, each in garbage.items():
        for blob in each.blobs:
            print(f"{checkpoint.place_of(identity).url}/{blob.name}  {size_text(blob.size_bytes)}")
    found, size = sum(len(each.blobs) for each in garbage.values()), sum(each.size_bytes for each in garbage.values())
    print(f"{found:,} objects, {size_text(size)} would be deleted" if given.dry_run else f"{deleted:,} objects deleted")
    return 0


def _version(checkpoint: Checkpoint, given: argparse.Namespace) -> int:
    """Return the requested version, 0 if nothing is committed. Raises InvalidInputError (a version not committed)."""
    if given.version is None:
        return checkpoint.newest_version
    checkpoint.require_committed(given.version)
    return int(given.version)


def _print_nothing_yet(checkpoint: Checkpoint, given: argparse.Namespace) -> int:
    if given.json:
        return print_json({"query": checkpoint.query_id, "version": 0, "stores": []})
    print(f"query {checkpoint.query_id}, {NOTHING_YET}")
    return 0


def _describe(state: State) -> dict[str, Any]:
    descriptor = state.descriptor
    return {"key": descriptor.key_schema, "value": descriptor.value_schema, "encoder": descriptor.key_encoder}


def _short(schema: Any, most: int = 60) -> str:  # noqa: ANN401 - JSON
    text = _type(schema)
    return text if len(text) <= most else text[: most - 1] + "…"


def _type(schema: Any) -> str:  # noqa: ANN401 - JSON
    """Return a readable type, from Spark's JSON or from that of a keyed state, which keeps all its former types."""
    if not isinstance(schema, dict):
        return "" if schema is None else str(schema)
    if isinstance(schema.get("fields"), list):
        return ", ".join(f"{each['name']} {_type(each['type'])}" for each in schema["fields"])
    if isinstance(schema.get("schemas"), list):
        return _type(schema["schemas"][schema["current"] - 1])
    return ", ".join(f"{name} {_type(kind)}" for name, kind in schema.items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pyspark-ckpt", description="Inspect, verify and move the state of streaming queries."
    )
    parser.add_argument("--version", action="version", version=f"pyspark-ckpt {__version__}")
    subjects = parser.add_subparsers(required=True, metavar="SUBJECT")
    commands = subjects.add_parser("checkpoint", help="the checkpoint of a query").add_subparsers(
        required=True, metavar="COMMAND"
    )
    for name, command, what in (
        ("list", list_stores, "list operators, versions, sizes, snapshots and their lag"),
        ("inspect", inspect, "show states with their types and rows, and how evenly rows are spread over partitions"),
        ("verify", verify, "read and check every object that a version needs; exit code 1 if something is wrong"),
        ("gc", collect, "delete what is not needed any more; --dry-run only prints it"),
    ):
        each = commands.add_parser(name, help=what, description=what)
        _add_checkpoint(each)
        each.add_argument("--json", action="store_true", help="print JSON")
        if command is collect:
            each.add_argument("--dry-run", action="store_true", help="print what would be deleted, and delete nothing")
            each.add_argument(
                "--keep",
                type=_count,
                default=KEEP,
                metavar="N",
                help=f"versions to keep below the newest one; default: {KEEP}, as Spark's minBatchesToRetain",
            )
        if command is inspect:
            each.add_argument("--key-groups", action="store_true", help="count the rows in each range of key groups")
            each.add_argument("--lineage", action="store_true", help="show what a restore reads: snapshot and deltas")
        if command in {inspect, verify}:
            each.add_argument("--version", type=int, help="version of the state; default: the newest committed one")
        each.set_defaults(run=_on_checkpoint(command))
    savepoint_commands.add_to(subjects, _common())
    add_state_commands(subjects)
    return parser


def _common() -> argparse.ArgumentParser:
    """Return a parser with the arguments that all savepoint commands take."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print JSON")
    add_options(common)
    return common


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that locate the checkpoint."""
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="checkpointLocation: a path, file: or s3://bucket/path"
    )
    add_options(parser)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"the number of versions must be at least 1, got {text!r}")
    return int(text)
