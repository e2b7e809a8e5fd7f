"""One query, the same batches, any provider: what came out of each batch, and the state that is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from integration.progress import recent_progress
from integration.short import has

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from integration.operators.providers import Provider
    from integration.operators.sources import Source

Query: TypeAlias = Callable[[Sequence[DataFrame]], DataFrame]
Lines: TypeAlias = tuple[str, ...]

COUNTS = ("numRowsTotal", "numRowsUpdated", "numRowsRemoved", "numRowsDroppedByWatermark")


@dataclass(frozen=True)
class StateView:
    """One reading of the state after the last batch, through Spark's ``statestore`` source."""

    options: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ("*",)


ONE_STORE = (StateView(),)
JOIN_SIDES = (StateView({"joinSide": "left"}), StateView({"joinSide": "right"}))


@dataclass(frozen=True)
class Case:
    """A streaming query with its input.

    ``runs`` counts the files of each run, and a restart lies between two runs; ``run_settings`` are session
    settings of one run each.
    """

    query: Query
    sources: tuple[Source, ...]
    output_mode: str = "append"
    settings: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[int, ...] = (2, 2)
    run_settings: tuple[Mapping[str, str], ...] = ()
    one_batch_a_run: bool = False
    state: tuple[StateView, ...] = ONE_STORE
    counts: tuple[str, ...] = COUNTS


@dataclass(frozen=True)
class Recording:
    """What a replay showed. Rows are kept as sorted text: -0.0, NaN and null stay apart, order does not matter."""

    batches: Mapping[int, Lines]
    counts: Mapping[int, tuple[Mapping[str, Any], ...]]
    state: tuple[Lines, ...]


def replay(spark: SparkSession, case: Case, provider: Provider, folder: Path) -> Recording:
    """Run all of ``case`` on ``provider`` below ``folder``, restarting between runs, then read the state back."""
    batches: dict[int, Lines] = {}
    counts: dict[int, tuple[Mapping[str, Any], ...]] = {}
    ends = tuple(accumulate(case.runs))
    for number, (first, last) in enumerate(zip((0, *ends), ends, strict=False)):
        write_inputs(case, folder, first, last)
        settings = {**case.settings, **(case.run_settings[number] if case.run_settings else {})}
        session = provider.session(spark, **settings)
        finished = run(session, case, folder, collect_into(batches))
        for progress in recent_progress(finished):
            counts[progress.batchId] = _row_counts(progress, case.counts)
    return Recording(batches, counts, read_state(provider.session(spark, **case.settings), case, folder))


def replay_both(
    spark: SparkSession, case: Case, expected: Provider, actual: Provider, folder: Path
) -> tuple[Recording, Recording]:
    """``replay`` on two providers at once, each in a folder of its own."""
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(replay, spark, case, expected, folder / "expected")
        second = pool.submit(replay, spark, case, actual, folder / "actual")
        return first.result(), second.result()


def run(
    spark: SparkSession,
    case: Case,
    folder: Path,
    each_batch: Callable[[DataFrame, int], None],
    checkpoint: str = "checkpoint",
) -> StreamingQuery:
    """Start the query on what is in the input folders, wait until it has read all of it, and return it stopped."""
    inputs = [source.stream(spark, folder / f"input{number}") for number, source in enumerate(case.sources)]
    writer = (
        case.query(inputs)
        .writeStream.outputMode(case.output_mode)
        .option("checkpointLocation", str(folder / checkpoint))
        .foreachBatch(each_batch)
    )
    trigger = {"once": True} if case.one_batch_a_run else {"availableNow": True}
    query = writer.trigger(**trigger).start()
    query.awaitTermination()
    return query


def read_state(
    spark: SparkSession, case: Case, folder: Path, checkpoint: str = "checkpoint", **options: str
) -> tuple[Lines, ...]:
    """The rows of every view of the case, read through Spark's ``statestore`` source. Spark 3.5 has none."""
    if not has("4.0"):
        return ()
    return tuple(
        lines(
            spark.read.format("statestore")
            .options(**view.options, **options)
            .load(str(folder / checkpoint))
            .selectExpr(*view.columns)
        )
        for view in case.state
    )


def lines(frame: DataFrame) -> Lines:
    """All rows of a frame as sorted text."""
    return tuple(sorted(map(repr, frame.collect())))


def write_inputs(case: Case, folder: Path, first: int, last: int) -> None:
    """Write files ``first`` to ``last - 1`` of every source of the case."""
    for number, source in enumerate(case.sources):
        source.write(folder / f"input{number}", first, last)


def collect_into(batches: dict[int, Lines]) -> Callable[[DataFrame, int], None]:
    """A ``foreachBatch`` function that keeps every batch's rows as text."""

    def collect(frame: DataFrame, batch_id: int) -> None:
        batches[batch_id] = lines(frame)

    return collect


def _row_counts(progress: StreamingQueryProgress, names: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        {"operatorName": operator.operatorName, **{name: getattr(operator, name) for name in names}}
        for operator in progress.stateOperators
    )
