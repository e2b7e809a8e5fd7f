"""Rescale a running query in one call: let its batch end, stop it, rescale its checkpoint, and start it again.

Until the new query has committed a batch, the way back is the old checkpoint, whatever fails. It is not changed, except
that it gets numbers of runs (see ``turns``), and the plan of a batch that the new query has begun, because the sink may
already have its rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, NoReturn

from pyspark_ckpt.queries.handles import describe_failure, find_execution
from pyspark_ckpt.queries.last_batch import go_on, let_end
from pyspark_ckpt.queries.progress import end_s, has_run, read_last
from pyspark_ckpt.running.first_commit import await_first_commit
from pyspark_ckpt.running.leftovers import delete_checkpoint, return_plan
from pyspark_ckpt.running.new_checkpoint import Target, find_target
from pyspark_ckpt.running.outcome import Downtime, RescaledQuery, RescaleError
from pyspark_ckpt.running.preparation import Rescaling, Start, prepare, refuse_other_run
from pyspark_ckpt.running.turns import only_call
from pyspark_ckpt.running.way_back import go_back, start_query
from pyspark_ckpt.savepoints import STOP_TIMEOUT_S, restore
from pyspark_ckpt.state_store.arguments import Location
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.display import count_text
from pyspark_ckpt.state_store.errors import CkptError, LifecycleError, add_note, with_hint
from pyspark_ckpt.state_store.extras import require_extra
from pyspark_ckpt.state_store.retention.pins import Pins
from pyspark_ckpt.terminal import print_notice, progress_bar

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_WHAT = "rescale()"
_NOTICE_S = 2.0
"""How long to watch a query that should run on: it may still end, or Ctrl-C may have cancelled its jobs."""


def rescale(
    query_or_checkpoint: StreamingQuery | Location,
    start: Start,
    parallelism: int,
    *,
    new_checkpoint: Location | None = None,
    old_checkpoint: Literal["keep", "delete"] = "keep",
    timeout_s: float = STOP_TIMEOUT_S,
    first_batch_timeout_s: float | None = None,
    options: Mapping[str, str] | None = None,
) -> RescaledQuery:
    """Let the running batch of a query end, rescale its state to ``parallelism`` partitions, and start it again.

    When it returns, the new query has committed its first batch, or has waited ten seconds in vain for data. No row is
    lost or counted twice, if the sink takes each batch once. If anything fails before that commit, the query is
    started again on its old checkpoint with its old number of partitions, and the error says so. If a check fails
    beforehand, or the batch does not end within ``timeout_s`` seconds, the call is refused and the query runs on. The
    downtime is printed on stderr, and is in the result. After the call has returned, no query can be started on the old
    checkpoint: start the program on the new one.

    ``start`` builds and starts the query, and returns it. It is called in this thread with the checkpointLocation,
    after ``spark.sql.shuffle.partitions`` of the query's session was set to the number of partitions, where it stays.
    On the way back, ``start`` is called with the old checkpointLocation and the old number, and then the conf is set
    back to its former value.

    ``query_or_checkpoint``: the query, running or stopped; or the checkpointLocation of a stopped one. A stopped query
    stays stopped if it cannot be rescaled. If a driver died in this call, repeat the call to finish it; a driver that
    still runs on the old checkpoint can no longer change anything.
    ``new_checkpoint``: an empty folder; None for ``<checkpoint>-<parallelism>-partitions`` beside the old one, with
    ``-2`` and so on if it is in use. ``old_checkpoint``: "delete" deletes it after the first commit.
    ``first_batch_timeout_s``: how long to wait for the first commit before going back; None to wait as long as the
    batch runs. ``options``: as for ``savepoint``; ``remote`` is set in the session, too.

    Raises InvalidInputError (nothing was done), LifecycleError (the query has failed, its batch did not end and it runs
    on, or another call rescales it), RescaleError (a LifecycleError) after the way back: its ``query`` is the one that
    runs now, or None if another driver has started the query meanwhile and runs it. FormatError and StorageError are
    raised only while the query still runs.
    """
    require_extra("pyspark", _WHAT)
    rescaling = prepare(
        query_or_checkpoint,
        start,
        parallelism,
        new_checkpoint,
        old_checkpoint,
        timeout_s,
        first_batch_timeout_s,
        options,
    )
    with only_call(rescaling.old.query_id):
        refuse_other_run(rescaling.session, rescaling.old.query_id, rescaling.query)  # of a call that was before
        last_commit_s = _stop(rescaling, rescaling.query, timeout_s)
        done = _move(rescaling, last_commit_s, first_batch_timeout_s)
    print_notice(
        f"pyspark-ckpt: {done.old_checkpoint}, {count_text(done.old_partitions, 'partition')}, to {done.checkpoint}, "
        f"{count_text(done.partitions, 'partition')}: {done.downtime}"
    )
    return done


def _stop(rescaling: Rescaling, query: StreamingQuery | None, timeout_s: float) -> float:
    """End the query after its batch. Return when it had ended. Raises LifecycleError if it fails, or runs on."""
    called_s = time.time()
    if query is None:
        return called_s
    name, old = f"query {query.id}", rescaling.old.place.url
    try:
        with progress_bar(f"the batch of {name} ends, in seconds") as show:
            has_ended = let_end(query, timeout_s, _WHAT, lambda waited_s: show(round(waited_s), round(timeout_s)))
        runs_on = not has_ended and _runs_on(query)
    except BaseException as raised:  # noqa: BLE001 - Ctrl-C, mostly; it is raised again
        problem = _find_interrupt(raised)
        if _runs_on(query):
            add_note(problem, f"Nothing was done: {name} runs on, on {old}.")
            raise problem  # noqa: B904 - what was raised is its own context, or the same
        _fail(rescaling, problem, None)
    if runs_on:
        raise LifecycleError(
            f"The batch of {name} has not ended within {timeout_s:g} s. Nothing was done: the query runs on.",
            hint="Call again with a longer timeout_s. Or stop the query, which interrupts its batch, and call again: "
            "the batch is then repeated with the same rows.",
        )
    query.stop()
    failure = query.exception()
    if failure is not None:
        raise LifecycleError(
            f"The last batch of {name} has failed, so the query is not rescaled: {describe_failure(failure)}",
            hint=f"Start the query on {old} again once the cause is removed, as after any failed batch.",
        )
    rescaling.old.look_again()
    last = read_last(query)
    return called_s if last is None or not has_run(last) else max(called_s, end_s(last))


def _runs_on(query: StreamingQuery) -> bool:
    """Let a query that was told to end run on, and return whether it does."""
    go_on(query, _WHAT)
    thread, pause = find_execution(query).queryExecutionThread(), threading.Event()
    until = time.monotonic() + _NOTICE_S
    while thread.isAlive() and time.monotonic() < until:
        pause.wait(0.1)
    return bool(thread.isAlive())


def _move(rescaling: Rescaling, last_commit_s: float, timeout_s: float | None) -> RescaledQuery:
    """Rescale the checkpoint of the stopped query, and start it on the new one. Raises RescaleError."""
    target, restored, stopped_s = None, None, time.time()
    options = rescaling.given_options
    try:
        target = find_target(
            rescaling.old, rescaling.location, rescaling.partitions, rescaling.given, rescaling.options
        )
        turn = rescaling.take_turn(target.location)
        if not target.is_made:
            restored = restore(rescaling.location, target.location, parallelism=rescaling.partitions, options=options)
        new = rescaling.old.workplace.resolve(target.location)
        rescaling.point_back(turn, new)
        rescaled_s = time.time()
        turn.require()
        refuse_other_run(rescaling.session, rescaling.old.query_id, None)
        rescaling.set_confs()
        query = start_query(rescaling, target.location)
        started_s = time.time()
        with progress_bar("the first batch runs, in seconds") as show:
            watch = _watch(rescaling, new, show)
            committed_s = await_first_commit(query, new, rescaling.batch, timeout_s, watch)
        turn.require_no_other(new, {str(query.runId)})
        turn.require()
        refuse_other_run(rescaling.session, rescaling.old.query_id, query)
        rescaling.record_move()
    except BaseException as problem:  # noqa: BLE001 - whatever it is, a query must run
        _fail(rescaling, problem, target)
    is_deleted = rescaling.deletes and committed_s is not None and _delete_old(rescaling)
    first_batch_s = None if committed_s is None else max(0.0, committed_s - started_s)
    downtime = Downtime(
        max(0.0, stopped_s - last_commit_s), rescaled_s - stopped_s, started_s - rescaled_s, first_batch_s
    )
    return RescaledQuery(
        query,
        target.location,
        rescaling.partitions,
        rescaling.location,
        rescaling.old_partitions,
        is_deleted,
        downtime,
        restored,
    )


def _delete_old(rescaling: Rescaling) -> bool:
    """Delete the old checkpoint, and return whether that was possible; the query runs in any case."""
    try:
        if Pins(rescaling.old.place).list_held(tidies=False):
            print_notice(
                f"pyspark-ckpt: {rescaling.location} was not deleted: it is being read or copied, as for a savepoint. "
                "Delete it yourself."
            )
            return False
        delete_checkpoint(rescaling.old.place, rescaling.old.query_id, None)
    except CkptError as problem:
        print_notice(f"pyspark-ckpt: {rescaling.location} could not be deleted: {problem} Delete it yourself.")
        return False
    return True


def _watch(rescaling: Rescaling, new: BlobPlace, show: Callable[..., None]) -> Callable[[float], bool]:
    """Return a function that copies the first batch's plan to the old checkpoint, and says whether there is a plan yet.

    If the driver dies in that batch, the sink may have its rows, and the query may be started on the old checkpoint.
    """
    is_returned = False

    def look(waited_s: float) -> bool:
        nonlocal is_returned
        show(round(waited_s), None)
        old = rescaling.old
        is_returned = is_returned or return_plan(
            new, old.place, old.query_id, rescaling.batch, rescaling.old_partitions
        )
        return is_returned

    return look


def _fail(rescaling: Rescaling, problem: BaseException, target: Target | None) -> NoReturn:
    """Take the way back, and raise the error that says so."""
    problem = _find_interrupt(problem)
    try:
        back = go_back(rescaling, target)
    except BaseException as again:
        rescaling.confs.undo()
        add_note(again, f"The way back was interrupted. If no query runs, call again with {rescaling.location}.")
        raise
    if not isinstance(problem, Exception):
        add_note(problem, f"Query {rescaling.old.query_id} was not rescaled. {back.done} {back.left}".rstrip())
        raise problem
    message = f"Query {rescaling.old.query_id} could not be rescaled: {_describe(problem)}"
    raise RescaleError(with_hint(message, back.done), hint=back.left, query=back.query) from problem


def _describe(problem: Exception) -> str:
    """Return the text of an error without the hundred lines of JVM stack that py4j adds; the cause has them."""
    return f"{problem}".partition("\n\tat ")[0].replace("\n: ", " ")


def _find_interrupt(problem: BaseException) -> BaseException:
    """Return the KeyboardInterrupt that made a call of the JVM fail, if it is that; else the problem itself.

    On Ctrl-C, PySpark calls the JVM from its signal handler. If a call is under way, both fail with other errors.
    """
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return cause
        cause = cause.__context__
    return problem
