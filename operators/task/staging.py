"""The work of a task on all states of its operator: free expired rows, stage writes, count rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from pyspark_ckpt.operators.bound.base import Kept
from pyspark_ckpt.operators.rows.base import Row
from pyspark_ckpt.operators.rows.broadcast_rows import BroadcastRows
from pyspark_ckpt.operators.rows.expiry import MIN_SWEPT, ExpiryIndex
from pyspark_ckpt.operators.rows.state_rows import Staged, Written
from pyspark_ckpt.operators.session.worker import WorkerSession
from pyspark_ckpt.state_store.arrays.writes import Writes


def sweep(session: WorkerSession, bound: Sequence[Kept], rows: int) -> None:
    """Free expired rows: in each state at most twice the batch's ``rows``, or MIN_SWEPT if that is more."""
    for each in bound:
        session.counts["expired_rows"] += each.rows.sweep(max(MIN_SWEPT, 2 * rows))


def flush(session: WorkerSession, bound: Sequence[Kept], end: bytes | None) -> None:
    """Stage and forget the writes for keys below ``end``, or for all keys if None: their turn is over."""
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
    """Count which rows of a state are put and which are removed; rows of indexes are no state.

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
