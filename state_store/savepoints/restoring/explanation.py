"""Explain what a restore would do, and estimate its duration, without doing it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.redistribution.row_forecast import count_rows, count_rows_of_files, estimate_rows
from pyspark_ckpt.state_store.savepoints.restoring.plan import RestorePlan
from pyspark_ckpt.state_store.savepoints.restoring.request import ExplainedOperator, RestoreExplanation

COPIED, SPLIT, CLIPPED = "objects are copied", "rows are split and joined", "stores are clipped"
CONVERTED, WRITTEN = "rows are converted, split and joined", "rows are converted"
ROW_S, COPY_BYTES_PER_S = 3e-6, 200e6
"""Seconds in which one processor reads, splits, writes and re-reads a row, and how fast objects are copied."""


def explain(
    plan: RestorePlan, runner: Runner | None, progress: Progress = lambda _done, _all: None
) -> RestoreExplanation:
    """Return what a restore does with each operator, and about how long that takes. Nothing is written.

    ``runner`` reads all rows that move, to count the rows of each new partition. Without it, an even spread is assumed.
    Raises FormatError, NotFoundError, StorageError.
    """
    processors = os.cpu_count() or 1
    operators = tuple(_explain_operator(plan, each, runner, progress) for each in plan.source.operators)
    work_s = [_estimate_work_s(each) for each in operators]
    known = [each for each in work_s if each is not None]
    return RestoreExplanation(operators, processors, sum(known) / processors if known == work_s else None)


def _estimate_work_s(operator: ExplainedOperator) -> float | None:
    """Return how many seconds one processor needs; None if the number of rows to move is not known."""
    copy_s = operator.size_bytes / COPY_BYTES_PER_S
    if operator.how == COPIED:
        return copy_s
    return None if operator.rows is None else copy_s + operator.rows * ROW_S


def _explain_operator(
    plan: RestorePlan, operator: OperatorVersion, runner: Runner | None, progress: Progress
) -> ExplainedOperator:
    how = _find_how(plan, operator)
    is_single = operator.layout is Layout.SINGLE
    is_counted = how != COPIED and runner is not None and (not is_single or plan.source.others is not None)
    expected = () if how == COPIED else tuple(_forecast_rows(plan, operator, runner, progress))
    return ExplainedOperator(
        operator.operator.number,
        operator.operator.name,
        operator.layout.value,
        plan.old_partitions if plan.source.saved_rows and not is_single else operator.partitions,
        plan.count_partitions(operator),
        _count_moved(plan, operator, expected if is_counted else None),
        operator.objects,
        operator.size_bytes,
        how,
        expected,
        is_counted,
    )


def _count_moved(plan: RestorePlan, operator: OperatorVersion, counted: Sequence[int] | None) -> int | None:
    """Return the number of an operator's rows: those ``counted``, with indexes, or those in its metadata."""
    if counted is not None:
        return sum(counted)
    return None if plan.source.others is not None else sum(operator.rows().values())


def _find_how(plan: RestorePlan, operator: OperatorVersion) -> str:
    """Return how the state of an operator is moved."""
    if plan.is_copied(operator):
        return COPIED
    if plan.target is not None:
        return WRITTEN
    if plan.source.others is not None:
        return CONVERTED
    return CLIPPED if operator.layout is Layout.KEY_GROUPS and not plan.source.saved_rows else SPLIT


def _forecast_rows(
    plan: RestorePlan, operator: OperatorVersion, runner: Runner | None, progress: Progress
) -> Sequence[int]:
    """Return the expected rows of each new partition; none if they are not known."""
    number = plan.count_partitions(operator)
    if plan.source.others is not None:
        return () if runner is None else plan.source.others.count_rows(operator, number, runner, progress)
    rows = sum(operator.rows().values())
    if runner is not None and operator.layout is not Layout.SINGLE:
        if not plan.source.saved_rows:
            return count_rows(plan.workplace, operator, number, runner, progress)
        saved = [each for name in operator.stores if (each := plan.source.get_saved(operator, name)) is not None]
        return count_rows_of_files(plan.workplace, operator, (plan.source.url, saved), number, runner, progress)
    if operator.layout is Layout.KEY_GROUPS and not plan.source.saved_rows:
        return estimate_rows(operator, number)
    return [rows // number] * number
