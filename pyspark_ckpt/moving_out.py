"""Moves a query from this store to one of Spark's own state store providers: copies its checkpoint, state included."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from pyspark_ckpt.adoption.source import PROVIDERS, find_form
from pyspark_ckpt.adoption.stores import Provider
from pyspark_ckpt.handover.moving import SparksTarget, find_refusals
from pyspark_ckpt.savepoints import collect_options, run_restore
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import list_operators
from pyspark_ckpt.state_store.checkpoints.query.entries import read_confs
from pyspark_ckpt.state_store.checkpoints.query.files import list_batches
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, LifecycleError, NotFoundError
from pyspark_ckpt.state_store.format.names import PROVIDER_CONF, REPLAY_FOLDER
from pyspark_ckpt.state_store.location import Location, location_text
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.savepoints.query_restore import QueryRestore
from pyspark_ckpt.state_store.savepoints.request import QueryId, Restored, RestoreRequest


def hand_back(
    checkpoint: Location,
    new_checkpoint: Location,
    provider: Provider = "rocksdb",
    *,
    query_id: QueryId = "keep",
    options: Mapping[str, str] | None = None,
) -> Restored:
    """Move a stopped query from this store to one of Spark's own providers: write a checkpoint to ``new_checkpoint``.

    ``checkpoint``: the checkpointLocation of a query whose state is in this store. It is read and not changed.
    ``provider``: "rocksdb" for Spark's RocksDB provider, "hdfs" for the HDFS-backed one. The unchanged program
    continues from the new checkpoint with the batch after the last committed one, also in a session without this
    package. The checkpoint has format 1 (``spark.sql.streaming.stateStore.checkpointFormatVersion``), and as many
    partitions as before.

    When it returns, the new checkpoint is complete and durable, and shares no file with the old one. All rows were read
    before and after, and digests of all states are equal. To finish an interrupted call, repeat it; until then no query
    can start there.

    ``query_id`` and ``options`` as for ``adopt``.

    Raises InvalidInputError (the state is in a provider of Spark's own already; or the provider does not have such
    state: keyed operators, and several states in a store of "hdfs"), NotFoundError (a file is missing), FormatError
    (damage), LifecycleError (no batch is committed, or plans of batches that a restore has carried over have not run),
    StorageError.
    """
    checkpoint = location_text(checkpoint, "checkpoint")
    new_checkpoint = location_text(new_checkpoint, "new_checkpoint")
    given = collect_options(options, checkpoint, new_checkpoint)
    return run_restore(plan(checkpoint, new_checkpoint, provider, query_id, given), new_checkpoint)


def plan(checkpoint: str, new_checkpoint: str, provider: Provider, query_id: QueryId, options: Options) -> QueryRestore:
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
            hint="See docs/moving-in.md. `pyspark-ckpt state read` has the rows of all states.",
        )
    target = SparksTarget(source.workplace, form, classes[provider])
    request = RestoreRequest(None, query_id, provider=target.provider_class)
    own = replace(options, remote="")  # the new state lies in the checkpoint
    return QueryRestore(source, version, operators, new_checkpoint, request, own, other_target=target)


def _refuse_sparks_own(source: Checkpoint) -> None:
    """Raise InvalidInputError if the query has run with one of Spark's own providers. Raises StorageError."""
    with suppress(NotFoundError, FormatError):  # the log does not say
        found = read_confs(source.place, source.newest_version - 1).get(PROVIDER_CONF)
        if found in PROVIDERS:
            raise InvalidInputError(
                f"{source.place.url} needs no hand-back: the query runs with {found.rpartition('.')[2]}, a provider of "
                "Spark's own, already.",
                hint="Start the query there as it is. To move its state to pyspark-ckpt, use `pyspark-ckpt adopt`.",
            )


def _refuse_carried_plans(source: Checkpoint) -> None:
    """Raise LifecycleError if plans are left that only this store's jar takes up. Raises StorageError."""
    planned = max(list_batches(source.place, "offsets"))
    left = [each for each in list_batches(source.place, REPLAY_FOLDER) if each > planned]
    if left:
        raise LifecycleError(
            f"{source.place.url} cannot be handed back: the query has gone back to a savepoint with `replay_from`, and "
            f"has not run batches {min(left)} to {max(left)} again. Spark would give other rows to these numbers.",
            hint=f"Start the query there in a session with pyspark-ckpt. When batch {max(left)} is committed, stop it "
            "and call again.",
        )
