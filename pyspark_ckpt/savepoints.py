"""Savepoints and rescaling: take a savepoint of a query, and restore it with any number of partitions.

With an active Spark session, tasks of a Spark job move the state; otherwise processes of this machine do, and neither
PySpark nor a JVM is needed. State never goes through the driver.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal

from pyspark_ckpt.jobs.connect_job import ConnectJob
from pyspark_ckpt.jobs.spark_job import QUICK_BYTES, SparkJob, master_here
from pyspark_ckpt.queries.hadoop import read_hadoop_settings
from pyspark_ckpt.queries.handles import find_checkpoint
from pyspark_ckpt.queries.last_batch import let_end
from pyspark_ckpt.queries.session_confs import find_session
from pyspark_ckpt.state_store.arguments import Location, location_text, read_mapping, require_truth
from pyspark_ckpt.state_store.blobs import BlobPlace, RetryPolicy, with_retries
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_kind
from pyspark_ckpt.state_store.checkpoints.replay import find_last_planned, follow_moves
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import CkptError, InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.local.files import make_scratch_folder
from pyspark_ckpt.state_store.options import Options, parse, read_settings
from pyspark_ckpt.state_store.redistribution.jobs import (
    SMALL_BYTES,
    CopyHere,
    LocalProcesses,
    Progress,
    RunHere,
    Runner,
)
from pyspark_ckpt.state_store.savepoints.creation import create, hold_logs, require_newest
from pyspark_ckpt.state_store.savepoints.deletion import refuse_others
from pyspark_ckpt.state_store.savepoints.nesting import refuse_nested
from pyspark_ckpt.state_store.savepoints.possession import LOOK_S
from pyspark_ckpt.state_store.savepoints.restoring import explanation
from pyspark_ckpt.state_store.savepoints.restoring.claimed_savepoint import delete_claimed, finish_claim
from pyspark_ckpt.state_store.savepoints.restoring.plan import RestorePlan
from pyspark_ckpt.state_store.savepoints.restoring.query_restore import AtEnd, QueryRestore
from pyspark_ckpt.state_store.savepoints.restoring.request import QueryId, Restored, RestoreExplanation, RestoreRequest
from pyspark_ckpt.state_store.savepoints.restoring.source import RestoreSource
from pyspark_ckpt.state_store.savepoints.savepoint import (
    Kind,
    Savepoint,
    SavepointInfo,
    open_target,
    refuse_unless_empty,
)
from pyspark_ckpt.terminal import print_notice, progress_bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STOP_TIMEOUT_S = 600.0


def savepoint(
    query_or_checkpoint: StreamingQuery | Location,
    target: Location,
    *,
    kind: Kind = "native",
    digests: bool = False,
    options: Mapping[str, str] | None = None,
) -> SavepointInfo:
    """Take a savepoint of the last committed batch of a query, running or stopped, in the empty folder ``target``.

    When it returns, the savepoint is complete, durable and self-contained: its folder may be moved, and neither the
    query nor its clean-up touches it. The query keeps running meanwhile. After an error there may be an unfinished
    savepoint, which cannot be restored; ``pyspark-ckpt savepoint delete`` removes it.

    ``query_or_checkpoint``: a running query, or a checkpointLocation. ``kind``: "native" copies files as they are;
    "canonical" writes the rows, sorted by hash, into Parquet files. ``digests``: for a native savepoint, too, record a
    digest of each state, which takes reading all rows before and after. ``options``: those of docs/options.md without
    their prefix, in addition to the active session's.

    Raises InvalidInputError (no checkpoint, a target that is not empty), LifecycleError (no committed batch),
    ConflictError (another savepoint is being taken there), NotFoundError (the version has gone), FormatError,
    StorageError.
    """
    if kind not in ("native", "canonical"):
        raise InvalidInputError(f"kind must be 'native' or 'canonical', got {kind!r}.")
    require_truth(digests, "digests")
    location, target = find_checkpoint(query_or_checkpoint), location_text(target, "target")
    given = collect_options(options, location, target)
    with run_job(f"savepoint to {target}", only_copies=kind == "native" and not digests) as (runner, progress):
        return create(
            location, target, given, runner, progress, written_by=describe_release(), kind=kind, digests=digests
        )


def stop_with_savepoint(
    query: StreamingQuery,
    target: Location,
    *,
    kind: Kind = "native",
    digests: bool = False,
    timeout_s: float = STOP_TIMEOUT_S,
    options: Mapping[str, str] | None = None,
) -> SavepointInfo:
    """Let the running batch commit, stop the query before the next one, and take a savepoint.

    The sink then has exactly the batches of the savepoint. A batch that takes longer than ``timeout_s`` seconds is
    interrupted; a query that continues from the savepoint runs it again, with the same rows. A target that is not
    empty, state of another provider and a session without our jar are refused while the query still runs. If taking
    the savepoint fails after that, the query is already stopped: call ``savepoint`` with its checkpointLocation.

    Arguments are those of ``savepoint``. Raises as ``savepoint``, and LifecycleError if the query is not running,
    ProcessError if PySpark is not installed.
    """
    if not hasattr(query, "isActive"):
        raise InvalidInputError(
            f"query must be a running StreamingQuery, got {repr(query)[:200]} of type {type(query).__name__}.",
            hint="For a stopped query, call savepoint(checkpointLocation, target).",
        )
    if not query.isActive:
        raise LifecycleError(
            f"Query {query.id} is no longer running.", hint="Call savepoint() with its checkpointLocation."
        )
    location, target = find_checkpoint(query), location_text(target, "target")
    given = collect_options(options, location, target)
    require_truth(digests, "digests")
    place, checkpoint = open_target(target, given), Checkpoint(location, given)
    refuse_nested(place, checkpoint, "a savepoint")
    refuse_unless_empty(place, "a savepoint")
    checkpoint.refuse_other_provider()
    let_end(query, timeout_s, "stop_with_savepoint()")  # else it is interrupted
    query.stop()
    return savepoint(location, target, kind=kind, digests=digests, options=options)


def restore(
    savepoint_or_checkpoint: Location,
    checkpoint_location: Location,
    *,
    parallelism: int | None = None,
    claim: Literal["no_claim", "claim"] = "no_claim",
    uid_map: Mapping[str, str] | None = None,
    source_names: Sequence[str] | None = None,
    allow_non_restored_state: bool = False,
    query_id: QueryId = "keep",
    replay_from: Location | Sequence[Location] | None = None,
    options: Mapping[str, str] | None = None,
) -> Restored:
    """Write a checkpoint into the empty ``checkpoint_location``, from which a query continues after the savepoint.

    ``savepoint_or_checkpoint``: a savepoint, or the newest committed batch of a stopped query, by its checkpoint. It is
    not changed. For a running query, see ``moving.branch`` and ``rescale``.

    When it returns, the checkpoint is complete and durable, and shares no file with the savepoint. All rows were read
    before and after, and the digests of all states are equal. To finish an interrupted restore, repeat the call; until
    then no query can start there.

    ``parallelism``: the new number of partitions of stateful operators, None for the same; start the query with
    spark.sql.shuffle.partitions set to it. ``claim``: "claim" deletes the savepoint once the checkpoint is complete; if
    its folder holds anything else, or is a checkpoint, the restore is refused before it starts. ``uid_map``: new uids
    of keyed operators, by their old ones. ``source_names``: names for the sources of a query that began without them,
    in the order in which ``pyspark-ckpt savepoint inspect`` shows them. ``query_id``: "keep" if a sink recognises
    batches by the query's id and must not see them twice, "new" if the old query goes on writing.
    ``replay_from``: the checkpoint on which the query continued after the savepoint; if ``restore`` or ``rescale`` has
    moved the query since, a list of all its checkpoints. Stop that query first. Each batch that it planned there runs
    again with the same rows, so a sink that takes each number once gets each row once. If two checkpoints have
    different rows for a batch, the later one in the list counts.
    ``allow_non_restored_state``: leave state alone that no operator of the program declares, instead of failing.
    ``options``: as for ``savepoint``.

    Raises InvalidInputError, FormatError (damage, or digests that differ), StorageError.
    """
    if claim not in ("no_claim", "claim"):
        raise InvalidInputError(f"claim must be 'no_claim' or 'claim', got {claim!r}.")
    new_uids = read_mapping(uid_map, "uid_map", "{'old': 'new'}")
    require_truth(allow_non_restored_state, "allow_non_restored_state")
    if source_names is not None and (isinstance(source_names, str) or not isinstance(source_names, Sequence)):
        raise InvalidInputError(
            f"`source_names` must be a list, got {repr(source_names)[:200]} of type {type(source_names).__name__}.",
            hint="Give a name for each source, in the order in which `pyspark-ckpt savepoint inspect` shows them.",
        )
    if source_names is not None and not source_names:
        raise InvalidInputError("`source_names` is empty.", hint="Leave it out to keep the sources as they are.")
    savepoint_or_checkpoint = location_text(savepoint_or_checkpoint, "savepoint_or_checkpoint")
    checkpoint_location = location_text(checkpoint_location, "checkpoint_location")
    earlier = _read_locations(replay_from, "replay_from")
    given = collect_options(options, savepoint_or_checkpoint, checkpoint_location, *earlier)
    request = RestoreRequest(
        parallelism,
        query_id,
        dict(new_uids),
        allow_non_restored_state,
        tuple(source_names or ()),
        replay_from=earlier,
    )
    claims = claim == "claim"
    if done := finish_claim(savepoint_or_checkpoint, checkpoint_location, request, given, claims=claims):
        return done
    at_end = None
    if claims:
        source = Savepoint(savepoint_or_checkpoint, given)
        refuse_others(source.place, source.place.walk())
        at_end = partial(delete_claimed, savepoint_or_checkpoint, checkpoint_location, given, source.info)
    with pin_and_plan(savepoint_or_checkpoint, checkpoint_location, request, given) as restoration:
        done = run_restore(restoration, checkpoint_location, at_end)
    restored = restoration.plan.source.checkpoint
    if query_id == "keep" and isinstance(restored, Savepoint):
        _tell_of_later_batches(restored.info, done, earlier, given)
    return done


def _read_locations(given: Location | Sequence[Location] | None, what: str) -> tuple[str, ...]:
    """Return the locations that are given for ``what``: one, several or none. Raises InvalidInputError."""
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Sequence):
        return (location_text(given, what),)
    if not given:
        raise InvalidInputError(f"`{what}` is empty.", hint="Leave it out if there is none to name.")
    return tuple(location_text(each, f"{what}[{number}]") for number, each in enumerate(given))


@contextmanager
def pin_and_plan(source: str, target: str, request: RestoreRequest, given: Options) -> Iterator[QueryRestore]:
    """Plan the restore of a savepoint, or of the newest batch of a checkpoint, which is pinned meanwhile.

    Raises as ``plan_restore``.
    """
    if find_kind(Workplace(given).resolve(source)) is FolderKind.CHECKPOINT:
        checkpoint = Checkpoint(source, given)
        with hold_logs(checkpoint) as (_, logs):
            yield plan_restore(checkpoint, target, request, given, logs)
    else:
        yield plan_restore(Savepoint(source, given), target, request, given)


def plan_restore(
    source: Checkpoint,
    target: str,
    request: RestoreRequest,
    given: Options,
    held_logs: Mapping[str, bytes] | None = None,
) -> QueryRestore:
    """Plan the restore of a savepoint, or of the newest batch of a checkpoint, which is not pinned. Writes nothing.

    ``held_logs``: those of the batch, if the query may run meanwhile. Raises LifecycleError (no batch is committed
    yet), InvalidInputError, FormatError, StorageError.
    """
    if isinstance(source, Savepoint):
        restored = RestoreSource.of_savepoint(source)
    else:
        restored = RestoreSource.of_checkpoint(source, require_newest(source), held_logs)
    return QueryRestore(RestorePlan.of(restored, target, request, given))


def _tell_of_later_batches(saved: SavepointInfo, done: Restored, earlier: Sequence[str], options: Options) -> None:
    """Print advice if the query is seen to have run batches that the new checkpoint has no plans of.

    ``earlier``: the checkpoints that were named in ``replay_from``.
    """
    workplace = Workplace(replace(options, remote=""))

    def resolve(location: str) -> BlobPlace:
        return with_retries(workplace.resolve(location), RetryPolicy(LOOK_S))

    last: dict[str, int] = {}
    for location in (saved.checkpoint, *earlier):
        with suppress(CkptError):  # it is deleted, or out of reach: this is only advice
            for place in follow_moves(resolve, location):
                planned = find_last_planned(place, saved.query_id)
                if planned is not None and planned >= saved.version:
                    last[place.url] = planned
    here = None
    with suppress(CkptError):
        here = find_last_planned(resolve(done.checkpoint), saved.query_id)
    if last and here is not None and (newest := max(last.values())) > here:
        where = max(last, key=lambda url: last[url])
        print_notice(
            f"pyspark-ckpt: query {saved.query_id} has gone on to batch {newest} on {where}. A sink that knows batches "
            f"by their numbers will not take {here + 1} to {newest} again. So that they have the same rows, restore "
            "with replay_from, all checkpoints on which the query has run since the savepoint "
            f"({', '.join(last)}, and any others), or see docs/sinks.md."
        )


def explain(restoration: QueryRestore, *, counts: bool) -> RestoreExplanation:
    """Return what a restore would do. ``counts``: read the state to count the rows of each new partition.

    Raises FormatError, NotFoundError, StorageError.
    """
    if not counts:
        return explanation.explain(restoration.plan, None)
    size = sum(operator.size_bytes for operator in restoration.plan.source.operators)
    with run_job(f"rows of {restoration.plan.source.url}", size) as (runner, progress):
        return explanation.explain(restoration.plan, runner, progress)


def run_restore(restoration: QueryRestore, target: str, at_end: AtEnd | None = None) -> Restored:
    """Run a restore in a Spark job or in processes of this machine, and show its progress. Raises as ``restore``."""
    size = sum(operator.size_bytes for operator in restoration.plan.source.operators)
    with run_job(f"restore to {target}", size) as (runner, progress):
        return restoration.run(runner, progress, at_end)


@contextmanager
def run_job(
    what: str, size_bytes: int = QUICK_BYTES, *, only_copies: bool = False
) -> Iterator[tuple[Runner, Progress]]:
    """Choose the runner of an operation's tasks, and show their progress."""
    session = _active_session()
    runner: Runner = RunHere() if size_bytes < SMALL_BYTES else LocalProcesses()
    is_here = session is None or (not _is_remote(session) and master_here(session.sparkContext) is not None)
    if only_copies and is_here:
        runner = CopyHere()
    elif session is not None:
        is_remote = _is_remote(session)
        runner = ConnectJob(session) if is_remote else SparkJob(session, f"pyspark-ckpt: {what}", size_bytes)
    if is_here:
        shutil.rmtree(make_scratch_folder())  # before anything is written: all tasks need such a folder
    with progress_bar(what) as progress:
        yield runner, progress


def _active_session() -> SparkSession | None:
    """Return the session of this process, if there is one, also in a thread that has none. Imports and starts none."""
    return find_session() if "pyspark.sql" in sys.modules else None


def _is_remote(session: SparkSession) -> bool:
    """Return whether a session is a client of a Spark Connect server."""
    return not hasattr(session, "_jsparkSession")


_CONFIGURED = ("s3a:", "gs:", "abfs:", "abfss:")
"""Schemes whose places are reached as Hadoop's connectors are configured."""


def collect_options(given: Mapping[str, str] | None, *locations: str) -> Options:
    """Combine the options of the session with the ``given`` ones, which win.

    In a session, locations of ``s3a:``, ``gs:`` and ``abfss:`` use the settings of Hadoop's connectors. These become
    part of the options and contain secret keys, so they are looked up only for such a location.
    """
    wanted = read_mapping(given, "options", "{'s3Region': 'eu-north-1'}")
    session = _active_session()
    found = {} if session is None else read_settings(partial(session.conf.get, default=None))
    options = parse({**found, **wanted})
    if session is None or not any(each.lower().startswith(_CONFIGURED) for each in (*locations, options.remote)):
        return options
    if _is_remote(session):
        raise InvalidInputError(
            "A Spark Connect client cannot read the server's settings of Hadoop's connectors.",
            hint="Name a folder of S3 as s3://, and give the settings as options. For the others, run this where the "
            "credentials are, without a session: docs/storage.md.",
        )
    return replace(options, hadoop=read_hadoop_settings(session))


def read_session_confs(names: Iterable[str]) -> dict[str, str] | None:
    """Return the named confs that are set in the active session; None without a session."""
    session = _active_session()
    if session is None:
        return None
    return {name: value for name in names if (value := session.conf.get(name, None)) is not None}


def describe_release() -> str:
    """Return the release that writes a savepoint, and the release of PySpark if it is installed."""
    ours = f"pyspark-ckpt {version('pyspark-ckpt')}"
    try:
        return f"{ours}, pyspark {version('pyspark')}"
    except PackageNotFoundError:
        return ours
