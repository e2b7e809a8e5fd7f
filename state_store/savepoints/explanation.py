"""Explain what a restore would do, and how long that may take, without doing it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.redistribution.row_forecast import count_rows, count_rows_of_files, estimate_rows
from pyspark_ckpt.state_store.savepoints.plan import RestorePlan
from pyspark_ckpt.state_store.savepoints.request import ExplainedOperator, RestoreExplanation

COPIED, SPLIT, CLIPPED = "objects are copied", "rows are split and joined", "stores are clipped"
ROW_S, COPY_BYTES_PER_S = 3e-6, 200e6
"""How long one processor takes to read, split, write and re-read a row, and how fast objects are copied."""


def explain(
    plan: RestorePlan, runner: Runner | None, progress: Progress = lambda _done, _all: None
) -> RestoreExplanation:
    """Return what a restore does with each operator, and how long that may take. Nothing is written.

    ``runner`` reads all rows that move, to count those of each new partition. Without it, an even spread is assumed.
    Raises FormatError, NotFoundError, StorageError.
    """
    processors = os.cpu_count() or 1
    operators = tuple(_explain_operator(plan, each, runner, progress) for each in plan.operators)
    work_s = sum(
        each.size_bytes / COPY_BYTES_PER_S + (each.rows * ROW_S if each.how != COPIED else 0) for each in operators
    )
    return RestoreExplanation(operators, processors, work_s / processors)


def _explain_operator(
    plan: RestorePlan, operator: OperatorVersion, runner: Runner | None, progress: Progress
) -> ExplainedOperator:
    how = COPIED
    if not plan.is_copied(operator):
        how = CLIPPED if operator.layout is Layout.KEY_GROUPS and not plan.saved_rows else SPLIT
    is_counted = how != COPIED and runner is not None and operator.layout is not Layout.SINGLE
    return ExplainedOperator(
        operator.operator.number,
        operator.operator.name,
        operator.layout.value,
        plan.old_partitions if plan.saved_rows and operator.layout is not Layout.SINGLE else operator.partitions,
        plan.count_partitions(operator),
        sum(operator.rows().values()),
        operator.objects,
        operator.size_bytes,
        how,
        () if how == COPIED else tuple(_forecast_rows(plan, operator, runner, progress)),
        is_counted,
    )


def _forecast_rows(
    plan: RestorePlan, operator: OperatorVersion, runner: Runner | None, progress: Progress
) -> Sequence[int]:
    """Return the expected rows of each new partition."""
    number, rows = plan.count_partitions(operator), sum(operator.rows().values())
    if runner is not None and operator.layout is not Layout.SINGLE:
        if not plan.saved_rows:
            return count_rows(plan.workplace, operator, number, runner, progress)
        saved = [each for name in operator.stores if (each := plan.get_saved(operator, name)) is not None]
        return count_rows_of_files(plan.workplace, operator, (plan.source_url, saved), number, runner, progress)
    if operator.layout is Layout.KEY_GROUPS and not plan.saved_rows:
        return estimate_rows(operator, number)
    return [rows // number] * number
