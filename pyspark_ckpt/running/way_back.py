"""The way back, if a query that was stopped to be rescaled does not reach the first commit of its new checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_ckpt.queries.handles import find_checkpoint, find_handle, find_run, is_query
from pyspark_ckpt.running.first_commit import is_committed
from pyspark_ckpt.running.leftovers import (
    delete_checkpoint,
    delete_state,
    return_plan,
)
from pyspark_ckpt.running.new_checkpoint import Target, is_own
from pyspark_ckpt.running.preparation import Rescaling
from pyspark_ckpt.running.turns import Turn
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.query.entries import PARTITIONS_CONF
from pyspark_ckpt.state_store.display import count_text
from pyspark_ckpt.state_store.errors import LifecycleError, StorageError
from pyspark_ckpt.state_store.format.remote import folder_of_query

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Return:
    """The query that runs after a failure, what was done, and what is left to do."""

    query: StreamingQuery | None
    done: str
    left: str


def start_query(rescaling: Rescaling, checkpoint: str) -> StreamingQuery:
    """Call the user's function. Raises LifecycleError unless it returns the query, on ``checkpoint``."""
    rescaling.has_begun = True
    found: object = rescaling.start(checkpoint)
    if not is_query(found):
        raise LifecycleError(
            "`start` must return the StreamingQuery from `writeStream...start()`; it returned "
            f"{repr(found)[:200]} of type {type(found).__name__}.",
            hint="Return the query at the end of the function.",
        )
    query: StreamingQuery = found  # type: ignore[assignment]  # as was just found
    rescaling.runs.append(str(query.runId))
    wanted = rescaling.old.workplace.resolve(checkpoint)
    actual = rescaling.old.workplace.resolve(find_checkpoint(query))
    if wanted.url != actual.url:
        query.stop()
        raise LifecycleError(
            f"`start` was given {wanted.url}, but started a query on {actual.url}, which was stopped again.",
            hint="In the function, set the option checkpointLocation to its argument.",
        )
    if query.id != rescaling.old.query_id:
        query.stop()
        raise LifecycleError(
            f"`start` started query {query.id} on {actual.url}, where query {rescaling.old.query_id} was to go on. "
            f"Query {query.id} was stopped again.",
            hint="In the function, do not delete or change the folder: the query must continue from its files.",
        )
    return query


def go_back(rescaling: Rescaling, target: Target | None) -> Return:
    """Start the query again: on the old checkpoint, or on the new one if that has its first batch.

    A query that was already stopped stays stopped. If the way back fails, the result says so.
    """
    try:
        return _go_back(rescaling, target)
    except Exception as problem:  # noqa: BLE001 - what has failed before matters more
        rescaling.confs.undo()
        advice = f"If it does not run, call again with {rescaling.location} once the cause is removed."
        return Return(None, f"The way back has failed, too: {problem}", advice)


def _go_back(rescaling: Rescaling, target: Target | None) -> Return:
    if target is None or rescaling.turn is None:
        return _start_again(rescaling, "")
    new = rescaling.old.workplace.resolve(target.location)
    if (others := _leave_to_others(rescaling, rescaling.turn, new)) is not None:
        return others
    run = find_run(rescaling.session, rescaling.old.query_id)
    if run is not None:
        run.stop()
    is_ours = is_own(rescaling.old, target.location, rescaling.partitions)
    if is_ours and is_committed(new, rescaling.batch):
        return _go_forward(rescaling, target)
    if rescaling.query is None and target.is_made:  # perhaps a driver that runs there has made it
        rescaling.confs.undo()
        again = f"Call again with {rescaling.location} once the cause is removed: the query continues on {new.url}."
        return Return(None, "It stays stopped, as it was before.", again)
    if is_ours:
        _return_plan(rescaling, new)
    return _start_again(rescaling, _discard(rescaling, new) if is_ours else "")


def _leave_to_others(rescaling: Rescaling, turn: Turn, new: BlobPlace) -> Return | None:
    """If others have started the query meanwhile, or are rescaling it, return the result for that; else None.

    A run of this application on the old checkpoint is others' if it was there before ``start`` was called.
    """
    run = find_run(rescaling.session, rescaling.old.query_id)
    own = {*rescaling.runs, *([] if run is None else [str(run.runId())])}
    other = turn.find_other(new, own) or turn.find_other(turn.old, ())
    if other is not None:
        if run is not None:
            run.stop()
        rescaling.confs.undo()
        return Return(None, "It goes on in the other driver, so nothing was undone.", f"End this driver ({other}).")
    if rescaling.has_begun or (run is None and turn.find_later() is None):
        return None
    rescaling.confs.undo()
    query = None if run is None else find_handle(run)
    where = f"The checkpoint made in {new.url} is not used."
    return Return(query, f"Other code of this program has started it, and it was left as it is. {where}", "")


def _return_plan(rescaling: Rescaling, new: BlobPlace) -> None:
    """Do as ``return_plan``. If there is no room for the plan, the new state makes it."""
    old = rescaling.old
    try:
        return_plan(new, old.place, old.query_id, rescaling.batch, rescaling.old_partitions)
    except StorageError:
        delete_state(new, old.query_id)
        return_plan(new, old.place, old.query_id, rescaling.batch, rescaling.old_partitions)


def _start_again(rescaling: Rescaling, left: str) -> Return:
    rescaling.confs.undo()
    advice = f"Start the query on {rescaling.location}, with {PARTITIONS_CONF}={rescaling.old_partitions}. {left}"
    if rescaling.turn is not None:
        rescaling.turn.give_up()
    if rescaling.query is None:
        return Return(None, "It stays stopped, as it was before.", advice.rstrip())
    rescaling.confs.set(PARTITIONS_CONF, str(rescaling.old_partitions))
    try:
        query = start_query(rescaling, rescaling.location)
    except Exception as problem:  # noqa: BLE001 - what has failed before matters more
        run = find_run(rescaling.session, rescaling.old.query_id)
        if run is None:
            return Return(None, f"It could not be started again, either: {problem}", advice.rstrip())
        where = f"It runs on {run.resolvedCheckpointRoot()}, but `start` has failed there, too: {problem}"
        return Return(find_handle(run), where, left)
    finally:
        rescaling.confs.undo()
    number = count_text(rescaling.old_partitions, "partition")
    return Return(query, f"It was started again on {rescaling.location}, with {number}.", left)


def _go_forward(rescaling: Rescaling, target: Target) -> Return:
    """Start the query on its new checkpoint: the sink has the first batch, of which the old one does not know."""
    done = f"Its first batch on {target.location} was committed, however, so it goes on there"
    rescaling.set_confs()
    rescaling.overrule()
    try:
        return Return(start_query(rescaling, target.location), f"{done}, and was started again.", "")
    except Exception as problem:  # noqa: BLE001 - what has failed before matters more
        advice = f"Start the query on {target.location}, with {PARTITIONS_CONF}={rescaling.partitions}."
        return Return(None, f"{done}. It could not be started: {problem}", advice)


def _discard(rescaling: Rescaling, new: BlobPlace) -> str:
    """Delete the new checkpoint. Return advice on what is left to do."""
    try:
        remote = rescaling.options.remote
        state = folder_of_query(remote, rescaling.old.query_id) if remote else ""
        delete_checkpoint(new, rescaling.old.query_id, rescaling.old.workplace.place(state) if state else None)
    except Exception as problem:  # noqa: BLE001 - what has failed before matters more
        return f"Delete {new.url}, which the query does not use: deleting it has failed ({problem})."
    return ""
