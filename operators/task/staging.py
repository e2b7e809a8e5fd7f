"""The work of a task on all states of its operator: free expired rows, stage writes, count rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from pyspark_ckpt.operators.bound.base import Kept
from pyspark_ckpt.operators.rows.base import Row
from pyspark_ckpt.operators.rows.broadcast_rows import BroadcastRows
from pyspark_ckpt.operators.rows.expiry import ExpiryIndex
from pyspark_ckpt.operators.rows.state_rows import ROW_BYTES, Staged, Written
from pyspark_ckpt.operators.session.worker import WorkerSession
from pyspark_ckpt.state_store.arrays.writes import Writes

MIN_SWEPT = 10_000
"""A task may always free so many expired rows of a state."""
PACE = 2
"""How many more it may free for each row that it gets or gives a time to live: more than one."""
SHARE = 2
"""The part of a state's rows that a task may free if it cannot free more later."""
_ALWAYS_TOLD = {"expired_rows": 0, "expired_rows_left": 0}
"""Reported even if no state has a time to live."""


def sweep(session: WorkerSession, bound: Sequence[Kept], rows: int) -> None:
    """Free expired rows, as many of each state as a batch of so many ``rows`` usually writes; ``flush`` frees more."""
    session.counts.update(_ALWAYS_TOLD)
    for each in bound:
        _free(session, each, max(MIN_SWEPT, PACE * rows))


def sweep_share(session: WorkerSession, bound: Sequence[Kept], memory_bytes: int) -> None:
    """Free expired rows, up to a share of each state, before calls that each stage their own writes.

    After such a call, a stored row may already be replaced. ``memory_bytes`` limits the freed rows.
    """
    session.counts.update(_ALWAYS_TOLD)
    for each in bound:
        base = session.find_base(each.rows.number)
        share = (base.rows if base else 0) // SHARE
        _free(session, each, max(MIN_SWEPT, min(share, memory_bytes // (4 * ROW_BYTES))))
        _count_left(session, each)


def _keep_pace(session: WorkerSession, bound: Sequence[Kept], *, is_last: bool) -> None:
    """Free more rows than the task has given a time to live, so that they do not pile up."""
    for each in bound:
        if isinstance(each.index, ExpiryIndex):
            _free(session, each, PACE * each.index.entered)
            if is_last:
                _count_left(session, each)


def _free(session: WorkerSession, state: Kept, allowed: int) -> None:
    """Free expired rows of a state until the task has freed ``allowed`` of them."""
    index = state.index
    if isinstance(index, ExpiryIndex) and allowed > index.allowed:
        more, index.allowed = allowed - index.allowed, allowed
        entered = index.entered
        session.counts["expired_rows"] += state.rows.sweep(more)
        index.entered = entered  # a life that the sweep has begun is no reason to free more


def _count_left(session: WorkerSession, state: Kept) -> None:
    """Count expired rows that were not freed: as many as could be freed, so that this costs little."""
    if isinstance(state.index, ExpiryIndex):
        session.counts["expired_rows_left"] += state.rows.count_expired(state.index.allowed)


def flush(session: WorkerSession, bound: Sequence[Kept], end: bytes | None) -> None:
    """Stage and forget the writes for keys below ``end``, or for all keys if None: their turn is over."""
    _keep_pace(session, bound, is_last=end is None)
    session.end_turn()
    tables = _tables(bound)
    session.stage(_rows([_count(session, each, each.flush(end)) for each in tables]))
    session.hold(sum(each.held_bytes for each in tables))


def spill(session: WorkerSession, bound: Sequence[Kept]) -> None:
    """Stage all writes before their keys' turn is over, to free memory. The session still finds them."""
    session.let_go()
    session.counts["spilled_runs"] += 1
    session.spill(_rows([_count(session, each, each.spill()) for each in _tables(bound)]))


def finish(session: WorkerSession, bound: Sequence[Kept]) -> None:
    """Stage the remaining writes and publish everything, after the last key."""
    flush(session, bound, None)
    session.counts["spilled_runs"] += 0  # always told
    digests = {each.rows.number: each.rows.digest for each in bound if isinstance(each.rows, BroadcastRows)}
    session.publish(row_changes(bound), digests)


def take_written(bound: Sequence[Kept]) -> Iterator[Row]:
    """Return all writes in stored order, and forget them."""
    return _rows(each.flush(None) for each in _tables(bound))


def row_changes(bound: Sequence[Kept]) -> dict[int, int]:
    """Return the change in each state's number of rows since the base version, by its number; without indexes."""
    return {each.rows.number: each.rows.change for each in bound}


def _count(session: WorkerSession, table: Staged, part: Written) -> Written:
    """Count the rows of a state that are put, and those that are removed; rows of indexes do not count.

    A row that is spilled and then written again counts again.
    """
    if isinstance(table, ExpiryIndex):
        return part
    if isinstance(part, Writes):
        put = int(part.cells.there.sum())
        session.counts["updated_rows"] += put
        session.counts["removed_rows"] += len(part) - put
        return part
    return _count_each(session, part)


def _count_each(session: WorkerSession, rows: Iterable[Row]) -> Iterator[Row]:
    written = removed = 0
    for row in rows:
        written += 1
        removed += row[1] is None
        yield row
    session.counts["updated_rows"] += written - removed
    session.counts["removed_rows"] += removed


def _rows(parts: Iterable[Written]) -> Iterator[Row]:
    """Yield the rows of all parts, one after the other."""
    return chain.from_iterable(part.rows() if isinstance(part, Writes) else part for part in parts)


def _tables(bound: Sequence[Kept]) -> list[Staged]:
    """Return the rows of all states of the operator, and their indexes, in the order of their numbers."""
    indexes = [each.index for each in bound if each.index is not None]
    return sorted([*(each.rows for each in bound), *indexes], key=lambda each: each.number)
