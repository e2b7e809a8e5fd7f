"""The command line: ``pyspark-ckpt``, or ``python -m pyspark_ckpt``.

Needs neither Spark nor a JVM. Exit codes: 0 success, 1 a reported problem or failure, 2 an invalid call, 130 Ctrl-C,
141 nobody reads the output. A command's code is imported when it runs, so help and completion are quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from pyspark_ckpt import __version__
from pyspark_ckpt.cli import INTERRUPTED, NAME
from pyspark_ckpt.cli.arguments import (
    KEEP,
    Place,
    dry_run_options,
    json_flag,
    names,
    pairs,
    place,
    store_options,
    version_option,
)
from pyspark_ckpt.cli.dispatch import CommandError, Root
from pyspark_ckpt.cli.state_commands import state
from pyspark_ckpt.cli.streams import READER_GONE, OutputError, discard_output, watch_streams


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    try:
        with watch_streams():
            return _run(arguments)
    except OutputError as problem:
        return _end_without_output(problem)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = commands.main(None if arguments is None else list(arguments), NAME, standalone_mode=False)
    except click.ClickException as problem:
        problem.show()
        return problem.exit_code
    except click.Abort as problem:
        told = [f"{NAME}: interrupted", *getattr(problem.__cause__, "__notes__", ())]
        print("\n" * sys.stderr.isatty() + "\n".join(told), file=sys.stderr)  # after the ^C of the terminal
        return INTERRUPTED
    except CommandError as problem:
        print(f"{NAME}: " + "\n".join(problem.lines), file=sys.stderr)
        return problem.exit_code
    return int(code or 0)


def _end_without_output(problem: OutputError) -> int:
    discard_output(problem.stream)
    if problem.is_reader_gone:
        return READER_GONE
    if problem.stream != "stderr":
        try:
            print(f"{NAME}: {problem}", file=sys.stderr, flush=True)
        except OSError:  # no stream is left to report it
            discard_output("stderr")
    return 1


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=NAME, message="%(prog)s %(version)s")
def commands() -> None:
    """Inspect, verify and move the state of streaming queries."""


@commands.group
def checkpoint() -> None:
    """Inspect, check, copy and move the checkpoint of a query."""


@checkpoint.command("list")
@place("checkpoint")
@store_options
@json_flag
def list_stores(checkpoint: str, settings: dict[str, str], *, as_json: bool) -> int:
    """List operators, versions, sizes, snapshots and their lag."""
    from pyspark_ckpt.cli import checkpoints

    return checkpoints.list_stores(checkpoints.open_checkpoint(checkpoint, settings), as_json=as_json)


@checkpoint.command
@place("checkpoint")
@version_option
@click.option("--key-groups", is_flag=True, help="Count the rows in each range of key groups.")
@click.option("--lineage", is_flag=True, help="Show what a restore reads: snapshot and deltas.")
@store_options
@json_flag
def inspect(checkpoint: str, settings: dict[str, str], **how: Any) -> int:  # noqa: ANN401 - flags, and a number
    """Show states with their types and rows. Also how evenly rows are spread over partitions."""
    from pyspark_ckpt.cli import checkpoints

    return checkpoints.inspect(checkpoints.open_checkpoint(checkpoint, settings), **how)


@checkpoint.command
@place("checkpoint")
@version_option
@store_options
@json_flag
def verify(checkpoint: str, settings: dict[str, str], version: int | None, *, as_json: bool) -> int:
    """Read and check every object that a version needs.

    Without --version, also the files that a start of the query needs. Exit code 1 if something is wrong.
    """
    from pyspark_ckpt.cli import checkpoints

    return checkpoints.verify(checkpoints.open_to_verify(checkpoint, settings), version, as_json=as_json)


@checkpoint.command
@place("checkpoint")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=KEEP,
    metavar="N",
    help=f"Keep the newest version and N below it; default: {KEEP}, as Spark's minBatchesToRetain.",
)
@store_options
@json_flag
def gc(checkpoint: str, settings: dict[str, str], keep: int, *, dry_run: bool, as_json: bool) -> int:
    """Delete objects that are no longer needed; --dry-run only lists them."""
    from pyspark_ckpt.cli import checkpoints

    opened = checkpoints.open_checkpoint(checkpoint, settings)
    return checkpoints.collect(opened, keep, dry_run=dry_run, as_json=as_json)


@checkpoint.command
@place("checkpoint")
@click.option("--apply", is_flag=True, help="Do it: move the files that are in the way into _ckpt/removed.")
@click.option("--quick", is_flag=True, help="Check names and metadata of the state, not its rows.")
@click.option("--query-id", default="", metavar="ID", help="The query's id, if metadata is lost; `new` makes one.")
@store_options
@json_flag
def repair(**given: Any) -> int:  # noqa: ANN401 - the arguments of the function it calls
    """Say what is broken in logs and state, and after which batch the query can continue.

    Changes nothing without --apply. Exit code 1 if there is something to repair.
    """
    from pyspark_ckpt.cli.repair import repair_checkpoint

    return repair_checkpoint(**given)


@commands.group
def savepoint() -> None:
    """Take, check, restore, migrate and delete savepoints of queries."""


@savepoint.command
@place("checkpoint")
@place("target")
@click.option(
    "--kind",
    type=click.Choice(["native", "canonical"]),
    default="native",
    help="canonical: sorted rows in Parquet files.",
)
@click.option(
    "--digests", is_flag=True, help="Record a digest of each state of a native savepoint. This reads all rows."
)
@store_options
@json_flag
def create(**given: Any) -> int:  # noqa: ANN401 - the arguments of the function it calls
    """Take a savepoint of the last committed batch. The query may be running."""
    from pyspark_ckpt.cli import savepoints

    return savepoints.create(**given)


@savepoint.command("list")
@place("folder")
@store_options
@json_flag
def list_savepoints(folder: str, settings: dict[str, str], *, as_json: bool) -> int:
    """List savepoints below a folder. Exit code 1 if one is damaged, 2 if there is no such folder."""
    from pyspark_ckpt.cli import savepoints

    return savepoints.list_all(folder, settings, as_json=as_json)


@savepoint.command("inspect")
@place("savepoint")
@store_options
@json_flag
def inspect_savepoint(savepoint: str, settings: dict[str, str], *, as_json: bool) -> int:
    """Show what a savepoint holds."""
    from pyspark_ckpt.cli import savepoints

    return savepoints.inspect(savepoint, settings, as_json=as_json)


@savepoint.command("verify")
@place("savepoint")
@store_options
@json_flag
def verify_savepoint(savepoint: str, settings: dict[str, str], *, as_json: bool) -> int:
    """Read and check a whole savepoint. Exit code 1 if something is wrong."""
    from pyspark_ckpt.cli import savepoints

    return savepoints.verify(savepoint, settings, as_json=as_json)


@savepoint.command
@place("savepoint")
@store_options
@json_flag
def delete(savepoint: str, settings: dict[str, str], *, as_json: bool) -> int:
    """Delete a savepoint, or the remains of an unfinished one."""
    from pyspark_ckpt.cli import savepoints

    return savepoints.remove(savepoint, settings, as_json=as_json)


QUERY_ID = click.option("--query-id", type=click.Choice(["keep", "new"]), default="keep", help="Default: keep.")


@savepoint.command
@place("savepoint")
@place("target")
@click.option("-n", "--parallelism", type=int, metavar="N", help="The new number of partitions.")
@click.option(
    "--claim",
    type=click.Choice(["no_claim", "claim"]),
    default="no_claim",
    help="claim: delete the savepoint after the restore.",
)
@QUERY_ID
@pairs("--uid", "uid_map", form="OLD=NEW", what="Rename the uid of a keyed operator")
@names("--source-names", what="Name the sources of a query that began without names, in the order of savepoint inspect")
@click.option(
    "--replay-from",
    metavar="CHECKPOINT",
    multiple=True,
    help="Reuse this checkpoint's plans of the batches after the savepoint. Repeat it for each checkpoint on which "
    "the query has run since: of two plans of a batch, the last one counts.",
)
@click.option("--allow-non-restored-state", is_flag=True, help="Accept state that no operator declares; it is kept.")
@dry_run_options
@store_options
@json_flag
def restore(**given: Any) -> int:  # noqa: ANN401 - the arguments of the function it calls
    """Write a checkpoint from a savepoint, or from a stopped checkpoint. Its number of partitions may change."""
    from pyspark_ckpt.cli import savepoints

    return savepoints.restore(**given)


@checkpoint.command
@place("checkpoint")
@place("target")
@click.option("-n", "--parallelism", type=int, required=True, metavar="N", help="The new number of partitions.")
@QUERY_ID
@dry_run_options
@store_options
@json_flag
def rescale(**given: Any) -> int:  # noqa: ANN401 - the arguments of the function it calls
    """Copy a checkpoint for another number of partitions. The query must be stopped."""
    from pyspark_ckpt.cli import savepoints

    return savepoints.rescale(**given)


@commands.group
def query() -> None:
    """Watch a running query, through its checkpoint."""


@query.command
@place("checkpoint")
@click.option("--progress", metavar="FILE", help="The query's progress as JSON, alone or between other lines of a log.")
@click.option("--cores", type=int, metavar="N", help="How many tasks run at a time.")
@store_options
@json_flag
def advise(**given: Any) -> int:  # noqa: ANN401 - the arguments of the function it calls
    """Say whether more partitions would help a query, and why. Changes nothing."""
    from pyspark_ckpt.cli import advice

    return advice.advise_on_partitions(**given)


@checkpoint.command("adopt")
@place("checkpoint")
@place("target")
@click.option("-n", "--parallelism", type=int, metavar="N", help="The number of partitions; default: the same.")
@QUERY_ID
@click.option(
    "--drop-unknown-states",
    is_flag=True,
    help="Leave behind rows of undeclared states of transformWithState whose schema Spark has deleted.",
)
@dry_run_options
@store_options
@json_flag
def move_in(**given: Any) -> int:  # noqa: ANN401 - the arguments of the function it calls
    """Copy a checkpoint from Spark's RocksDB or HDFS-backed provider to this store. The query must be stopped."""
    from pyspark_ckpt.cli import savepoints

    return savepoints.move_in(**given)


@checkpoint.command
@place("checkpoint")
@place("target")
@click.option("--batch", type=int, metavar="N", help="A batch that the query retains; default: the last committed one.")
@store_options
@json_flag
def branch(**given: Any) -> int:  # noqa: ANN401 - the arguments of the function it calls
    """Fork a query, which may be running: write a checkpoint from which another query continues."""
    from pyspark_ckpt.cli import savepoints

    return savepoints.branch(**given)


@savepoint.command("migrate")
@place("savepoint")
@place("target")
@click.option("--migrations", required=True, metavar="MODULE:NAME", help="A list of Migration in a Python module.")
@click.option("--dry-run", is_flag=True, help="Print how states and rows would change, and write nothing.")
@click.option(
    "--samples", type=click.IntRange(0), default=5, metavar="N", help="With --dry-run: rows of each state; default: 5."
)
@store_options
@json_flag
def migrate_state(**given: Any) -> int:  # noqa: ANN401 - the arguments of the function it calls
    """Apply the migrations that the state has not had, and write a new savepoint."""
    from pyspark_ckpt.cli import migrations

    return migrations.migrate(**given)


@checkpoint.command("hand-back")
@place("checkpoint")
@place("target")
@click.option(
    "--provider", type=click.Choice(["rocksdb", "hdfs"]), default="rocksdb", help="Spark's provider; default: rocksdb."
)
@QUERY_ID
@dry_run_options
@store_options
@json_flag
def hand_back(**given: Any) -> int:  # noqa: ANN401 - the arguments of the function it calls
    """Copy a checkpoint from this store to Spark's RocksDB or HDFS-backed provider. The query must be stopped."""
    from pyspark_ckpt.cli import savepoints

    return savepoints.hand_back(**given)


@query.command("serve")
@click.argument("checkpoints", nargs=-1, required=True, type=Place(readable=False), metavar="CHECKPOINT...")
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Default: a free one.")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Default: 127.0.0.1. Prefer ssh to another.")
@names("--allowed-host", "allowed_hosts", what="Also answer requests for these host names")
@click.option(
    "--savepoints", multiple=True, type=Place(readable=False), metavar="FOLDER", help="List savepoints in this folder."
)
@store_options
def serve_page(**given: Any) -> int:  # noqa: ANN401 - the arguments of the function it calls
    """Serve a web page about checkpoints, read-only, to a browser on this machine. Ctrl-C ends it."""
    from pyspark_ckpt.cli import web_page

    return web_page.serve_checkpoints(**given)


commands.add_command(state)
