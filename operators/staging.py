"""What a task does with all states of its operator: sweep them, stage what they have written, count their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from pyspark_ckpt.operators.bound import Kept, Row, Staged
from pyspark_ckpt.operators.expiry import LEAST_SWEPT
from pyspark_ckpt.operators.worker_session import WorkerSession


def sweep(session: WorkerSession, bound: Sequence[Kept], rows: int) -> None:
    """Free expired rows: of each state no more than twice the batch's ``rows``, or LEAST_SWEPT."""
    for each in bound:
        session.counts["expired_rows"] += each.sweep(max(LEAST_SWEPT, 2 * rows))


def flush(session: WorkerSession, bound: Sequence[Kept], end: bytes | None) -> None:
    """Stage what was written for keys below ``end`` (all keys: None), and let go of it: their turn is over."""
    session.stage(written(bound, end))


def finish(session: WorkerSession, bound: Sequence[Kept]) -> None:
    """Publish what was staged, after the last key: the last act."""
    flush(session, bound, None)
    session.publish(row_changes(bound))


def written(bound: Sequence[Kept], end: bytes | None = None) -> Iterator[Row]:
    """What was written for keys below ``end`` (all keys: None), in stored order; it is forgotten."""
    return chain.from_iterable(each.flush(end) for each in _tables(bound))


def row_changes(bound: Sequence[Kept]) -> dict[int, int]:
    """How many rows more than in the base version each state has, by its number; indexes are not counted."""
    return {each.number: each.change for each in bound}


def _tables(bound: Sequence[Kept]) -> list[Staged]:
    """All states of the operator in the order of their numbers."""
    indexes = [each.index for each in bound if each.index is not None]
    return sorted([*bound, *indexes], key=lambda each: each.number)
