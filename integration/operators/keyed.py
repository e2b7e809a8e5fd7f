"""Queries with a keyed operator, run over the files of a source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs
from pyspark_ckpt import operators as ckpt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from integration.operators.replay import Lines, Query
    from integration.operators.sources import Source


def play(
    spark: SparkSession,
    query: Query,
    source: Source,
    folder: Path,
    mode: str = "update",
    settings: Any = None,  # noqa: ANN401
) -> Mapping[int, Lines]:
    """Run a query over all files of ``source``, with a restart in the middle; the rows of every batch."""
    case = Case(query, (source,), output_mode=mode)
    session = OURS.session(spark, **(settings or {}))
    batches: dict[int, Lines] = {}
    for first, last in ((0, 2), (2, len(source.batches))):
        write_inputs(case, folder, first, last)
        run(session, case, folder, collect_into(batches))
    return batches


def keyed(processor: Any, output: str, by: str | Sequence[str] = "user", **more: Any) -> Query:  # noqa: ANN401
    return lambda frames: ckpt.keyed(frames[0], by, uid="it", **more).process(processor, output)
