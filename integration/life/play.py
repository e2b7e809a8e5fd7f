"""Plays a course on real Spark, with so little memory that everything spills, beside the dicts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.moves import make_checkpoint
from integration.operators.providers import OURS
from integration.operators.sources import Source
from integration.progress import read_instant
from tests.life.course import DELAY, Course, Run
from tests.life.program import INPUT, OUTPUT
from tests.life.rules import RULES
from tests.life.truth import Line, Truth

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

WORKER_MEMORY = "spark.sql.streaming.stateStore.ckpt.workerMemory"
_SHOWN = 8


class Difference(AssertionError):  # noqa: N818 - what was found
    """Spark has another result than the dicts."""


def play(spark: SparkSession, course: Course, folder: Path) -> int:
    """Play all runs below ``folder``; how many lines were told. Raises Difference, and whatever stops a query."""
    truth, told = Truth(course), 0
    for number, run in enumerate(course.runs):
        checkpoint = folder / f"checkpoint{number}"
        make_checkpoint(run, folder, folder / f"checkpoint{number - 1}", checkpoint)
        for batch, mark_ms, rows, rules, lines in _run(spark, course, run, folder, checkpoint):
            _compare(course, run, batch, truth.process(batch, mark_ms, rows, rules), lines)
            told += len(lines)
        if course.rules is not None:
            _compare_lists(course, run, truth, checkpoint)
    return told


def _run(
    spark: SparkSession, course: Course, run: Run, folder: Path, checkpoint: Path
) -> list[tuple[int, int, Any, Any, list[Line]]]:
    """What each batch of a run was given and has told: its number, the watermark, the rows, the rules, the lines."""
    settings = {SHUFFLE_PARTITIONS: str(run.partitions), WORKER_MEMORY: "1m"}
    session = OURS.session(spark, **settings)
    recorded: dict[int, list[Line]] = {}

    def collect(frame: DataFrame, batch: int) -> None:
        recorded[batch] = [tuple(row) for row in frame.collect()]

    frames = list(_streams(session, course, run, folder))
    rules = None if course.rules is None else _rules(session, course, run, folder)
    if course.is_connected:
        left, right = (ckpt.KeyedInput(frame, ["k", "w"], order_by="seq") for frame in frames)
        stream: Any = ckpt.keyed_inputs(uid="life", merge=True, broadcast=rules, left=left, right=right)
    else:
        stream = ckpt.keyed(frames[0], ["k", "w"], uid="life", order_by="seq", broadcast=rules)
    lines = stream.process(course.program(), OUTPUT)
    writer = lines.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint)).foreachBatch(collect)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    files = iter(range(run.first, run.last))
    found: list[tuple[int, int, Any, Any, list[Line]]] = []
    for progress in query.recentProgress:
        place = next(files) if progress["numInputRows"] else None
        given = () if place is None else course.batches[place]
        broadcast = None if course.rules is None else () if place is None else course.rules[place]
        mark = read_instant(progress["eventTime"]["watermark"])
        batch = progress["batchId"]
        found.append((batch, int(mark.timestamp() * 1000), given, broadcast, recorded[batch]))
    if len(found) != len(recorded) or next(files, None) is not None:
        raise Difference(f"{course}: {run} has {len(found)} batches, {len(recorded)} of which have told something")
    return found


def _streams(session: SparkSession, course: Course, run: Run, folder: Path) -> Iterator[DataFrame]:
    """Write the files of a run, and return the inputs."""
    for number, batches in enumerate(zip(*map(course.split, course.batches), strict=True)):
        source, files = Source(INPUT, batches), folder / f"input{number}"
        source.write(files, run.first, run.last)
        yield source.stream(session, files).withWatermark("at", f"{DELAY.seconds} seconds")


def _rules(session: SparkSession, course: Course, run: Run, folder: Path) -> ckpt.BroadcastInput:
    """Write the rules of a run, and return the broadcast input."""
    source, files = Source(RULES, course.rules or ()), folder / "rules"
    source.write(files, run.first, run.last)
    return ckpt.BroadcastInput(source.stream(session, files), order_by="place")


def _compare_lists(course: Course, run: Run, truth: Truth, checkpoint: Path) -> None:
    """Compare what the lists of all partitions have together, and the rules in the checkpoint."""
    with ckpt.reading.open_state(checkpoint, uid="life", state="given") as given:
        lacks, has = Counter(truth.given), Counter(given.to_arrow()["value"].to_pylist())
    with ckpt.reading.open_state(checkpoint, uid="life", state="rules") as state:
        keys, numbers = (state.to_arrow()[name].to_pylist() for name in ("key", "value"))
    rules = {key["key"]: number for key, number in zip(keys, numbers, strict=True)}
    if lacks != has or rules != truth.rules:
        raise Difference(f"{course}: after {run} the lists lack {lacks - has} and have {has - lacks}; rules: {rules}")


def _compare(course: Course, run: Run, batch: int, expected: list[Line], lines: list[Line]) -> None:
    lacks, has = Counter(expected), Counter(lines)
    if lacks != has:
        missing, wrong = sorted((lacks - has).elements()), sorted((has - lacks).elements())
        raise Difference(
            f"{course}: batch {batch} of {run} differs in {len(missing)} and {len(wrong)} lines\n"
            + "".join(f"  expected {line}\n" for line in missing[:_SHOWN])
            + "".join(f"  found    {line}\n" for line in wrong[:_SHOWN])
            + f"again: python -m integration.life --seed {course.seed} --seeds 1"
        )
