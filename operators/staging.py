"""What a task does with all states of its operator: sweep them, stage what they have written, count their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from pyspark_ckpt.operators.bound import Kept, Row, Staged
from pyspark_ckpt.operators.expiry import LEAST_SWEPT
from pyspark_ckpt.operators.state_rows import Written
from pyspark_ckpt.operators.worker_session import WorkerSession
from pyspark_ckpt.state_store.bulk import RowColumns, is_built


def sweep(session: WorkerSession, bound: Sequence[Kept], rows: int) -> None:
    """Free expired rows: of each state no more than twice the batch's ``rows``, or LEAST_SWEPT."""
    for each in bound:
        session.counts["expired_rows"] += each.sweep(max(LEAST_SWEPT, 2 * rows))


def flush(session: WorkerSession, bound: Sequence[Kept], end: bytes | None) -> None:
    """Stage what was written for keys below ``end`` (all keys: None), and let go of it: their turn is over.

    As columns, if no state has written anything else, else as rows.
    """
    columns: list[RowColumns] = []
    parts = (each.flush(end) for each in _tables(bound))
    for part in parts:
        if isinstance(part, RowColumns):
            columns.append(part)
        elif (first := next(part, None)) is not None:
            session.stage(chain(_rows(columns), [first], part, _rows(parts)))
            return
    if is_built(columns):
        session.stage_columns(columns)
    else:
        session.stage(_rows(columns))


def finish(session: WorkerSession, bound: Sequence[Kept]) -> None:
    """Publish what was staged, after the last key: the last act."""
    flush(session, bound, None)
    session.publish(row_changes(bound))


def written(bound: Sequence[Kept]) -> Iterator[Row]:
    """All that was written, in stored order; it is forgotten."""
    return _rows(each.flush(None) for each in _tables(bound))


def row_changes(bound: Sequence[Kept]) -> dict[int, int]:
    """How many rows more than in the base version each state has, by its number; indexes are not counted."""
    return {each.number: each.change for each in bound}


def _rows(parts: Iterable[Written]) -> Iterator[Row]:
    """Those of all parts, one after the other."""
    return chain.from_iterable(part.rows() if isinstance(part, RowColumns) else part for part in parts)


def _tables(bound: Sequence[Kept]) -> list[Staged]:
    """All states of the operator in the order of their numbers."""
    indexes = [each.index for each in bound if each.index is not None]
    return sorted([*bound, *indexes], key=lambda each: each.number)
