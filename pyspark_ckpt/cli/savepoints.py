"""``pyspark-ckpt savepoint create | list | inspect | verify | restore | delete`` and ``pyspark-ckpt rescale``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.arguments import options, pair, pairs, settings
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.inventory import inventory
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.state_store.savepoints.request import Request, Restored
from pyspark_ckpt.state_store.savepoints.restoration import Restoration
from pyspark_ckpt.state_store.savepoints.savepoint import Savepoint, SavepointInfo, find_savepoints, place_of_savepoint
from pyspark_ckpt.terminal import (
    print_bars,
    print_json,
    print_outcome,
    print_table,
    progress_bar,
    size_text,
)

Command: TypeAlias = Callable[[argparse.Namespace], int]


def create(given: argparse.Namespace) -> int:
    """Take a savepoint of a checkpoint, whose query may be running."""
    info = savepoints.savepoint(
        given.checkpoint, given.target, kind=given.kind, digests=given.digests, options=settings(given)
    )
    return _print_info(info, given.target, as_json=given.json)


def list_all(given: argparse.Namespace) -> int:
    """List savepoints below a folder; exit code 1 if one is damaged, 2 if there is no such folder."""
    place = place_of_savepoint(given.folder, options(given))
    found = find_savepoints(place)
    if not found:
        _require_there(place)
    if given.json:
        print_json([{"name": name, **_as_json(info)} for name, info in found])
    else:
        rows = [(name, *(_row(info) if isinstance(info, SavepointInfo) else _no_row(info))) for name, info in found]
        print_table(("savepoint", "taken", "query", "batch", "partitions", "bytes"), rows)
    return int(any(isinstance(info, FormatError) for _, info in found))


def _require_there(place: BlobPlace) -> None:
    """Raise InvalidInputError if there is no such folder. In S3 and HDFS an empty folder counts as missing."""
    is_there = Path(place.url).is_dir() if place.url.startswith("/") else bool(place.walk())
    if not is_there:
        raise InvalidInputError(
            f"{place.url} does not exist, so there is no savepoint below it.",
            hint="Name the folder in which savepoints were taken, or one above it.",
        )


def inspect(given: argparse.Namespace) -> int:
    """Show what a savepoint holds."""
    return _print_info(Savepoint(given.savepoint, options(given)).info, given.savepoint, as_json=given.json)


def verify(given: argparse.Namespace) -> int:
    """Read and check everything in a savepoint."""
    saved = Savepoint(given.savepoint, options(given))
    with progress_bar(given.savepoint) as progress:
        stores, problems, of_stores = saved.verify_stores(progress)
        more, of_rows = saved.verify_rows(progress)
    problems += [*saved.verify_files(), *more]
    found = {
        (operator, store, state): digest
        for (operator, store), digests in {**of_stores, **of_rows}.items()
        for state, digest in digests.items()
    }
    if given.json:
        named = ("operator", "store", "state", "rows", "digest")
        states = [dict(zip(named, (*state, each.rows, each.sum), strict=True)) for state, each in found.items()]
        read = [asdict(each) for each in stores]
        whole = {"problems": problems, "version": saved.info.version, "states": states, "stores": read}
        print_json(whole, msgspec.to_builtins)
        return int(bool(problems))
    if not problems:
        _print_states(saved.info, found)
    rows = sum(each.rows for each in found.values())
    return print_outcome(f"version {saved.info.version}: {rows:,} rows, {size_text(saved.info.size_bytes)}", problems)


def remove(given: argparse.Namespace) -> int:
    """Delete a savepoint, or the remains of an unfinished one."""
    deleted = delete(given.savepoint, options(given))
    if given.json:
        return print_json({"savepoint": given.savepoint, "deleted": deleted})
    print(f"{deleted:,} objects deleted")
    return 0


def restore(given: argparse.Namespace) -> int:
    """Restore a savepoint as a checkpoint."""
    uid_map = pairs(given.uid)
    if given.explain:
        saved = Savepoint(given.savepoint, options(given))
        request = Request(given.parallelism, given.query_id, uid_map, given.allow_non_restored_state)
        plan = Restoration(
            saved,
            saved.info.version,
            saved.versions(),
            given.target,
            request,
            options(given),
            saved.info.files,
            saved.info.rows,
        )
        return _explain(plan, given)
    done = savepoints.restore(
        given.savepoint,
        given.target,
        parallelism=given.parallelism,
        claim=given.claim,
        uid_map=uid_map,
        allow_non_restored_state=given.allow_non_restored_state,
        query_id=given.query_id,
        options=settings(given),
    )
    return _print_restored(done, as_json=given.json)


def rescale(given: argparse.Namespace) -> int:
    """Copy the checkpoint of a stopped query for another number of partitions."""
    if given.explain:
        checkpoint = Checkpoint(given.checkpoint, options(given))
        version = checkpoint.newest_version
        if version == 0:
            raise LifecycleError(
                f"{checkpoint.place.url} cannot be rescaled: no batch of the query has been committed yet."
            )
        request, operators = Request(given.parallelism, given.query_id), inventory(checkpoint, version)
        return _explain(Restoration(checkpoint, version, operators, given.target, request, options(given)), given)
    done = savepoints.rescale(
        given.checkpoint, given.target, given.parallelism, query_id=given.query_id, options=settings(given)
    )
    return _print_restored(done, as_json=given.json)


def _explain(restoration: Restoration, given: argparse.Namespace) -> int:
    plan = savepoints.explain(restoration, counts=not given.quick)
    if given.json:
        return print_json(plan, asdict)
    planned = restoration.plan
    print(f"{planned.source_url}: {planned.old_partitions} to {planned.partitions} partitions")
    print_table(
        ("operator", "layout", "partitions", "rows", "objects", "bytes", "how"),
        [
            (
                f"{each.number} {each.name}",
                each.layout,
                f"{each.old_partitions} to {each.partitions}",
                f"{each.rows:,}",
                each.objects,
                size_text(each.size_bytes),
                each.how,
            )
            for each in plan.operators
        ],
    )
    print(f"about {plan.seconds:.0f} s on {plan.processors} processors")
    for each in plan.operators:
        if each.expected_rows:
            how = "counted" if each.is_counted else "if they are spread evenly"
            print(f"\nrows of each new partition of operator {each.number}, {how}")
            print_bars({str(partition): rows for partition, rows in enumerate(each.expected_rows)})
    return 0


def _print_info(info: SavepointInfo, where: str, *, as_json: bool) -> int:
    if as_json:
        return print_json(msgspec.to_builtins(info))
    taken, query, batch, partitions, size = _row(info)
    print(f"savepoint {where}: query {query}, batch {batch}, {partitions} partitions, {size}, taken {taken}")
    print(f"of {info.checkpoint}, by {info.written_by}, {info.kind}")
    recorded = {
        (operator.number, store, state): digest
        for operator in info.operators
        for store in operator.stores
        for state, digest in info.digests_of(operator.number, store).items()
    }
    _print_states(info, recorded)
    if not recorded and info.operators:
        print(
            "no digests are recorded: savepoint verify reads all rows for them, and so does savepoint create --digests"
        )
    return 0


def _print_states(info: SavepointInfo, digests: Mapping[tuple[int, str, str], Digest]) -> None:
    """Print all states, with known digests. Only a digest counts the rows of an expiry index."""
    rows = []
    for operator in info.operators:
        for state in operator.states:
            known = digests.get((operator.number, state.store, state.name))
            number = known.rows if known is not None else state.rows if state.is_counted else None
            rows.append(
                (
                    f"{operator.number} {operator.name}",
                    ", ".join(operator.uids),
                    operator.layout,
                    state.store,
                    state.name,
                    "" if number is None else f"{number:,}",
                    "" if known is None else known.sum,
                )
            )
    print_table(("operator", "uid", "layout", "store", "state", "rows", "digest"), rows)


def _print_restored(done: Restored, *, as_json: bool) -> int:
    if as_json:
        return print_json(msgspec.to_builtins(done))
    print_table(
        ("operator", "store", "state", "rows", "digest, before and after"),
        [
            (each.operator, each.store, each.name, f"{each.digest.rows:,}", each.digest.sum or "")
            for each in done.states
        ],
    )
    print(f"{size_text(done.copied_bytes)} copied, {size_text(done.rewritten_bytes)} rewritten")
    print(f"{done.checkpoint} continues after batch {done.version - 1} of query {done.query_id}")
    print(f"with {done.partitions} partitions: start the query with spark.sql.shuffle.partitions={done.partitions}")
    return 0


def _row(info: SavepointInfo) -> tuple[str, str, int, int, str]:
    taken = datetime.fromtimestamp(info.created_ms / 1000, timezone.utc)
    return (
        f"{taken:%Y-%m-%d %H:%M:%S} UTC",
        info.query_id,
        info.version - 1,
        info.partitions,
        size_text(info.size_bytes),
    )


def _no_row(problem: FormatError | None) -> tuple[str, ...]:
    """Return the row of a savepoint that cannot be used."""
    return "unfinished" if problem is None else f"DAMAGED: {problem.message}", "", "", "", ""


def _as_json(info: SavepointInfo | FormatError | None) -> dict[str, Any]:
    if isinstance(info, FormatError):
        return {"damaged": info.message}
    return msgspec.to_builtins(info) if info else {}


def add_to(subjects: Any, common: argparse.ArgumentParser) -> None:  # noqa: ANN401 - argparse has no name for it
    """Add the commands to the parser's subjects."""
    commands = subjects.add_parser("savepoint", help="savepoints of queries").add_subparsers(
        required=True, metavar="COMMAND"
    )
    for name, command, what, places in (
        (
            "create",
            create,
            "take a savepoint of the last committed batch; the query may be running",
            ("checkpoint", "target"),
        ),
        (
            "list",
            list_all,
            "list savepoints below a folder; exit code 1 if one is damaged, 2 if there is no such folder",
            ("folder",),
        ),
        ("inspect", inspect, "show what a savepoint holds", ("savepoint",)),
        ("verify", verify, "read and check a whole savepoint; exit code 1 if something is wrong", ("savepoint",)),
        ("delete", remove, "delete a savepoint, or the remains of an unfinished one", ("savepoint",)),
        (
            "restore",
            restore,
            "write a checkpoint from a savepoint, for any number of partitions",
            ("savepoint", "target"),
        ),
    ):
        _add(commands, name, command, what, places, common)
    kinds = commands.choices["create"]
    kinds.add_argument(
        "--kind", choices=("native", "canonical"), default="native", help="canonical: sorted rows in Parquet files"
    )
    kinds.add_argument(
        "--digests",
        action="store_true",
        help="record a digest of each state of a native savepoint, which reads all rows",
    )
    again = commands.choices["restore"]
    again.add_argument(
        "--claim",
        choices=("no_claim", "claim"),
        default="no_claim",
        help="claim: delete the savepoint after the restore",
    )
    what = "rename the uid of a keyed operator; may be repeated"
    again.add_argument("--uid", action="append", default=[], metavar="OLD=NEW", type=pair("OLD=NEW"), help=what)
    again.add_argument(
        "--allow-non-restored-state", action="store_true", help="accept state that no operator declares; it is kept"
    )
    what = "copy the checkpoint of a stopped query for another number of partitions"
    scale = _add(subjects, "rescale", rescale, what, ("checkpoint", "target"), common)
    for each, is_needed in ((again, False), (scale, True)):
        each.add_argument("--query-id", choices=("keep", "new"), default="keep", help="default: keep")
        each.add_argument(
            "-n", "--parallelism", type=int, required=is_needed, metavar="N", help="the new number of partitions"
        )
        each.add_argument("--explain", action="store_true", help="print what would be done, and do nothing")
        each.add_argument("--quick", action="store_true", help="with --explain: estimate row counts, read no rows")


def _add(
    commands: Any,  # noqa: ANN401 - see add_to
    name: str,
    command: Command,
    what: str,
    places: tuple[str, ...],
    common: argparse.ArgumentParser,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what, parents=[common])
    for place in places:
        parser.add_argument(place, metavar=place.upper(), help="a path, file:, s3://bucket/path or hdfs://")
    parser.set_defaults(run=command)
    return parser
