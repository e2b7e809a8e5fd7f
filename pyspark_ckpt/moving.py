"""Make checkpoints from those of other queries: fork a query, or move one from Spark's own providers or back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark_ckpt.offline.adopting.moving import SparkStores
from pyspark_ckpt.offline.adopting.recognition import SparkCheckpoint
from pyspark_ckpt.offline.adopting.source import PROVIDERS, SparkState, find_form
from pyspark_ckpt.offline.adopting.stores import Provider
from pyspark_ckpt.offline.handing_back.moving import SparksTarget, find_refusals
from pyspark_ckpt.queries.handles import find_checkpoint
from pyspark_ckpt.running.outcome import RescaledQuery
from pyspark_ckpt.savepoints import collect_options, plan_restore, run_restore
from pyspark_ckpt.state_store.arguments import Location, location_text, require_truth
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import list_operators
from pyspark_ckpt.state_store.checkpoints.query.entries import read_confs
from pyspark_ckpt.state_store.checkpoints.query.files import list_batches
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, LifecycleError, NotFoundError
from pyspark_ckpt.state_store.format.names import PROVIDER_CONF, REPLAY_FOLDER
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.savepoints.creation import hold_logs
from pyspark_ckpt.state_store.savepoints.restoring.plan import RestorePlan
from pyspark_ckpt.state_store.savepoints.restoring.query_restore import QueryRestore
from pyspark_ckpt.state_store.savepoints.restoring.request import QueryId, Restored, RestoreRequest
from pyspark_ckpt.state_store.savepoints.restoring.source import RestoreSource

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["RescaledQuery", "adopt", "branch", "hand_back"]


def branch(
    query_or_checkpoint: StreamingQuery | Location,
    new_checkpoint: Location,
    *,
    batch: int | None = None,
    options: Mapping[str, str] | None = None,
) -> Restored:
    """Fork a query: write a checkpoint from which another query continues after ``batch``, beside the first one.

    The new query has its own id; give it its own sink, too. It processes all rows after ``batch`` again. The first
    query may run meanwhile, and from now on neither sees what the other does.

    ``query_or_checkpoint``: a running query, or a checkpointLocation. ``batch``: one that the query still retains; None
    for the last committed one. ``options`` as for ``savepoint``.

    On one file system, the table files of the new checkpoint are hard links to those of the old one: their checksums
    are compared, and ``states`` of the result have no digests. Each checkpoint deletes only its own links, and a file
    exists until the last is gone. Elsewhere, objects are copied with their checksums, and all rows are read before and
    after. To finish an interrupted call, repeat it, with ``batch`` if the query has made batches since.

    Raises InvalidInputError (no checkpoint, a batch that is not committed, a target that is not empty), LifecycleError
    (no committed batch), NotFoundError (the batch is no longer retained), FormatError (damage), StorageError.
    """
    location, target = find_checkpoint(query_or_checkpoint), location_text(new_checkpoint, "new_checkpoint")
    given = collect_options(options, location, target)
    source = Checkpoint(location, given)
    if batch is not None:
        given_batch: object = batch  # from Python, which does not check types
        if not isinstance(given_batch, int) or isinstance(given_batch, bool):
            raise InvalidInputError(f"`batch` must be a whole number, got {batch!r}.")
        last = source.newest_version - 1
        if not 0 <= batch <= last:
            there = f"the last committed one is {last}" if last >= 0 else "none is committed yet"
            raise InvalidInputError(f"{source.place.url} has no batch {batch}: {there}.")
        _require_logs(source, batch)
        source.go_back(batch + 1)
    with hold_logs(source) as (_, logs):
        request = RestoreRequest(query_id="new", shares=True)
        return run_restore(plan_restore(source, target, request, given, logs), target)


def _require_logs(source: Checkpoint, batch: int) -> None:
    """Raise NotFoundError if the query has deleted the logs of a batch; StorageError."""
    planned, committed = list_batches(source.place, "offsets"), list_batches(source.place, "commits")
    # A query continues after a batch with the offsets of this one and of the one before.
    retained = {each for each in planned & committed if each == 0 or each - 1 in planned}
    if batch not in retained:
        there = f"it has those of {len(retained)} batches, from {min(retained)} on" if retained else "it has none"
        raise NotFoundError(
            f"{source.place.url} no longer has the logs of batch {batch}: {there}.",
            hint="Name one of these. spark.sql.streaming.minBatchesToRetain says how many a query retains.",
        )


def adopt(
    checkpoint: Location,
    new_checkpoint: Location,
    parallelism: int | None = None,
    *,
    query_id: QueryId = "keep",
    drop_unknown_states: bool = False,
    options: Mapping[str, str] | None = None,
) -> Restored:
    """Move a stopped query from one of Spark's own providers to this store: write a checkpoint to ``new_checkpoint``.

    ``checkpoint``: the checkpointLocation of a query whose state is in Spark's RocksDB or HDFS-backed provider. It is
    read but not changed, and may be used as before. The unchanged program continues from the new checkpoint with the
    batch after the last committed one, in a session that ``configure()`` has set up.

    When it returns, the new checkpoint is complete and durable, and shares no file with the old one. All rows were read
    before and after, and the digests of all states are equal. Each key was hashed to check that Spark has it in the
    partition of its hash. To finish an interrupted call, repeat it; until then no query can start there.

    ``parallelism``: the number of partitions, None for the same; start the query with spark.sql.shuffle.partitions set
    to it. ``query_id``: "keep" if a sink recognises batches by the query's id and must not see them twice, "new" if the
    old query goes on writing. ``options``: those of docs/options.md without their prefix, in addition to the active
    session's.

    States of ``transformWithState`` that the program no longer declares move as well. If Spark has deleted the schema
    of such a state, nobody can read its rows: the call is refused before it writes anything, or leaves these rows
    behind if ``drop_unknown_states`` is True.

    Raises InvalidInputError (another provider, or state that cannot be moved), NotFoundError (a file is missing),
    FormatError (damage), StorageError.
    """
    checkpoint = location_text(checkpoint, "checkpoint")
    new_checkpoint = location_text(new_checkpoint, "new_checkpoint")
    require_truth(drop_unknown_states, "drop_unknown_states")
    given = collect_options(options, checkpoint, new_checkpoint)
    request = RestoreRequest(parallelism, query_id)
    moving = plan_adoption(checkpoint, new_checkpoint, request, given, drops_unknown_states=drop_unknown_states)
    return run_restore(moving, new_checkpoint)


def plan_adoption(
    checkpoint: str,
    new_checkpoint: str,
    request: RestoreRequest,
    options: Options,
    *,
    drops_unknown_states: bool = False,
) -> QueryRestore:
    """Return the plan of a move. Raises as ``adopt``."""
    state = SparkState(SparkCheckpoint(checkpoint, options), drops_unknown_states=drops_unknown_states)
    stores = SparkStores(state.checkpoint.workplace, state.form, tuple(state.checkpoint.unnamed), state.dropped)
    source = RestoreSource(state.checkpoint, state.version, state.operators, stores)
    return QueryRestore(RestorePlan.of(source, new_checkpoint, request, options))


def hand_back(
    checkpoint: Location,
    new_checkpoint: Location,
    provider: Provider = "rocksdb",
    *,
    query_id: QueryId = "keep",
    options: Mapping[str, str] | None = None,
) -> Restored:
    """Move a stopped query from this store to one of Spark's own providers: write a checkpoint to ``new_checkpoint``.

    ``checkpoint``: the checkpointLocation of a query whose state is in this store. It is read but not changed.
    ``provider``: "rocksdb" for Spark's RocksDB provider, "hdfs" for the HDFS-backed one. The unchanged program
    continues from the new checkpoint with the batch after the last committed one, even in a session without this
    package. The checkpoint has format 1 (``spark.sql.streaming.stateStore.checkpointFormatVersion``), and as many
    partitions as before.

    When it returns, the new checkpoint is complete and durable, and shares no file with the old one. All rows were read
    before and after, and digests of all states are equal. To finish an interrupted call, repeat it; until then no query
    can start there.

    ``query_id`` and ``options`` as for ``adopt``.

    Raises InvalidInputError (the state is already in one of Spark's providers; or the provider cannot hold it, such as
    keyed operators, or several states in one "hdfs" store), NotFoundError (a file is missing), FormatError (damage),
    LifecycleError (no batch is committed, or batches that a restore has planned have not run), StorageError.
    """
    checkpoint = location_text(checkpoint, "checkpoint")
    new_checkpoint = location_text(new_checkpoint, "new_checkpoint")
    given = collect_options(options, checkpoint, new_checkpoint)
    return run_restore(plan_hand_back(checkpoint, new_checkpoint, provider, query_id, given), new_checkpoint)


def plan_hand_back(
    checkpoint: str, new_checkpoint: str, provider: Provider, query_id: QueryId, options: Options
) -> QueryRestore:
    """Return the plan of a move. Raises as ``hand_back``."""
    classes = {form: name for name, form in PROVIDERS.items()}
    given: object = provider  # from Python, which does not check types
    if not isinstance(given, str) or given not in classes:
        raise InvalidInputError(f"`provider` must be one of {sorted(classes)}, got {provider!r}.")
    source = Checkpoint(checkpoint, options)
    version = source.newest_version
    if not version:
        raise LifecycleError(
            f"{source.place.url} cannot be handed back: no batch of the query has been committed yet.",
            hint="Start the query with an empty checkpointLocation, in a session without pyspark-ckpt.",
        )
    _refuse_sparks_own(source)
    source.refuse_other_provider()
    _refuse_carried_plans(source)
    operators = list_operators(source, version)
    form = find_form(read_confs(source.place, version - 1), provider, source.place.url)
    if refusals := list(find_refusals(operators, provider)):
        raise InvalidInputError(
            f"{source.place.url} cannot be handed back to {classes[provider].rpartition('.')[2]}: {refusals[0]}",
            hint="See docs/moving-in.md. `pyspark-ckpt state read` shows the rows of all states.",
        )
    target = SparksTarget(source.workplace, form, classes[provider])
    request = RestoreRequest(None, query_id, provider=target.provider_class)
    own = replace(options, remote="")  # the new state lies in the checkpoint
    restored = RestoreSource(source, version, operators)
    return QueryRestore(RestorePlan.of(restored, new_checkpoint, request, own, target))


def _refuse_sparks_own(source: Checkpoint) -> None:
    """Raise InvalidInputError if the query has run with one of Spark's own providers. Raises StorageError."""
    with suppress(NotFoundError, FormatError):  # the log does not say
        found = read_confs(source.place, source.newest_version - 1).get(PROVIDER_CONF)
        if found in PROVIDERS:
            raise InvalidInputError(
                f"{source.place.url} needs no hand-back: the query already runs with {found.rpartition('.')[2]}, one "
                "of Spark's own providers.",
                hint="Start the query there as it is. To move its state to pyspark-ckpt, use `pyspark-ckpt checkpoint "
                "adopt`.",
            )


def _refuse_carried_plans(source: Checkpoint) -> None:
    """Raise LifecycleError if plans are left that only this store's jar takes up. Raises StorageError."""
    planned = max(list_batches(source.place, "offsets"))
    left = [each for each in list_batches(source.place, REPLAY_FOLDER) if each > planned]
    if left:
        raise LifecycleError(
            f"{source.place.url} cannot be handed back: the query has gone back to a savepoint with `replay_from`, but "
            f"has not yet repeated batches {min(left)} to {max(left)}. Spark would give them other rows.",
            hint=f"Start the query there in a session with pyspark-ckpt. When batch {max(left)} is committed, stop it "
            "and call again.",
        )
