"""Moves a query from one of Spark's own state store providers to this one: copies its checkpoint, state included."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_ckpt.offline.adopting.moving import SparkStores
from pyspark_ckpt.offline.adopting.recognition import SparkCheckpoint
from pyspark_ckpt.offline.adopting.source import SparkState
from pyspark_ckpt.savepoints import collect_options, run_restore
from pyspark_ckpt.state_store.location import Location, location_text
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.savepoints.query_restore import QueryRestore
from pyspark_ckpt.state_store.savepoints.request import QueryId, Restored, RestoreRequest


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
    read and not changed, and may be used as before. The unchanged program continues from the new checkpoint, in a
    session that ``configure()`` has set up, with the batch after the last committed one.

    When it returns, the new checkpoint is complete and durable, and shares no file with the old one. All rows were read
    before and after, and digests of all states are equal. Each key is hashed, and it is checked that Spark has it in
    the partition of its hash. To finish an interrupted call, repeat it; until then no query can start there.

    ``parallelism``: the number of partitions, None for the same; start the query with spark.sql.shuffle.partitions set
    to it. ``query_id``: "keep" if a sink recognises batches by the query's id and must not see them twice, "new" if the
    old query writes, too. ``options``: those of docs/options.md without their prefix, in addition to those of the
    active session.

    States of ``transformWithState`` that the program no longer declares move as well. If Spark has deleted the schema
    of such a state, nobody can read its rows: the call is refused before it writes anything, or leaves these rows
    behind if ``drop_unknown_states`` is True.

    Raises InvalidInputError (another provider, or state that cannot be moved), NotFoundError (a file is missing),
    FormatError (damage), StorageError.
    """
    checkpoint = location_text(checkpoint, "checkpoint")
    new_checkpoint = location_text(new_checkpoint, "new_checkpoint")
    given = collect_options(options, checkpoint, new_checkpoint)
    request = RestoreRequest(parallelism, query_id)
    moving = plan(checkpoint, new_checkpoint, request, given, drops_unknown_states=drop_unknown_states)
    return run_restore(moving, new_checkpoint)


def plan(
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
    return QueryRestore(
        state.checkpoint, state.version, state.operators, new_checkpoint, request, options, others=stores
    )
