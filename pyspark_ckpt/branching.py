"""Branch a query: make another checkpoint from one of its retained batches, while it runs or when it is stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_ckpt.queries.handles import find_checkpoint
from pyspark_ckpt.savepoints import collect_options, plan_restore, run_restore
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.query.files import list_batches
from pyspark_ckpt.state_store.errors import InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.location import Location, location_text
from pyspark_ckpt.state_store.savepoints.creation import pin
from pyspark_ckpt.state_store.savepoints.request import Restored, RestoreRequest

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def branch(
    query_or_checkpoint: StreamingQuery | Location,
    new_checkpoint: Location,
    *,
    batch: int | None = None,
    options: Mapping[str, str] | None = None,
) -> Restored:
    """Fork a query: write a checkpoint from which another query continues after ``batch``, beside the first one.

    The new query has an id of its own. Give it a sink of its own, too. It processes again all rows after ``batch``. The
    first query may run meanwhile, and neither sees what the other does from now on.

    ``query_or_checkpoint``: a running query, or a checkpointLocation. ``batch``: one that the query still retains; None
    for the last committed one. ``options`` as for ``savepoint``.

    On one file system, the table files of the new checkpoint are hard links to those of the old one: their checksums
    are compared, and ``states`` of the result have no digests. Each checkpoint deletes its own names, and a file exists
    as long as one of them does. Elsewhere, objects are copied with their checksums, and all rows are read before and
    after. An interrupted call is finished by the same call, if the query has made no batch since, or ``batch`` is
    given.

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
    with pin(source):
        request = RestoreRequest(query_id="new", shares=True)
        return run_restore(plan_restore(source, target, request, given), target)


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
