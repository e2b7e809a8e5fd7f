"""A batch that was planned by a clock that is ahead is refused, or noticed while processing time stands still."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import pyspark_ckpt as ckpt
from integration.operators.providers import OURS
from integration.operators.replay import Case, run, write_inputs
from integration.operators.sources import Source
from integration.operators.test_group_states import Count, count_on
from integration.progress import recent_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_USERS = Source("user int", tuple(((1,), (2,)) for _ in range(4)))
_HOUR_MS = 3_600_000


class Waits(ckpt.KeyedProcessor):
    """Counts rows, and has a timer of processing time."""

    count = ckpt.ValueState("count", "bigint", default=0)
    soon = ckpt.Timers("soon", clock="processing")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.count.update(self.count.value() + len(rows))
        self.soon.register(ctx.processing_time_ms + _HOUR_MS)
        yield key.user, self.count.value()

    def on_timer(self, _ctx: ckpt.Context, _key: Any, _timer: ckpt.Timer) -> None:  # noqa: ANN401
        """Fires after an hour."""


def _keyed(frames: Sequence[DataFrame]) -> DataFrame:
    return ckpt.keyed(frames[0], "user", uid="it").process(Waits(), "user int, n bigint", "update")


def _with_states(frames: Sequence[DataFrame]) -> DataFrame:
    called = ckpt.with_states(count_on, Count(), uid="it")
    return frames[0].groupBy("user").applyInPandasWithState(called, "rows bigint", "n int", "update", "NoTimeout")


def _collect(frame: DataFrame) -> None:
    frame.collect()


class _StoppedError(Exception):
    """The program ends with its batch."""


def _plan_ahead(spark: SparkSession, case: Case, folder: Path, ahead_ms: int) -> Path:
    """Run a batch, and plan another one by a clock that is ahead; return its entry in the log."""
    write_inputs(case, folder, 0, 1)
    run(OURS.session(spark), case, folder, lambda frame, _: _collect(frame))
    write_inputs(case, folder, 1, 2)

    def stop(_frame: DataFrame, _batch: int) -> None:
        raise _StoppedError

    with pytest.raises(StreamingQueryException, match="_StoppedError"):
        run(OURS.session(spark), case, folder, stop)
    entry = folder / "checkpoint" / "offsets" / "1"
    version, metadata, *sources = entry.read_text(encoding="utf-8").split("\n")
    planned = json.loads(metadata)
    planned["batchTimestampMs"] = time.time_ns() // 1_000_000 + ahead_ms
    entry.write_text("\n".join([version, json.dumps(planned), *sources]), encoding="utf-8")
    entry.with_name(".1.crc").unlink(missing_ok=True)
    return entry


def _collected(found: list[tuple[Any, ...]]) -> Callable[[DataFrame, int], None]:
    return lambda frame, _: found.extend(map(tuple, frame.collect()))


@pytest.mark.parametrize("query", [_keyed, _with_states])
def test_a_batch_of_a_far_future_is_refused_and_planned_again_when_its_entry_is_deleted(
    query: Any,  # noqa: ANN401
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    case = Case(query, (_USERS,), output_mode="update")
    entry = _plan_ahead(spark, case, tmp_path, 1000 * 24 * _HOUR_MS)
    for _ in range(2):
        with pytest.raises(StreamingQueryException) as refused:
            run(OURS.session(spark), case, tmp_path, _collected([]))
        assert "batch 1 was planned at" in str(refused.value)
        assert "delete the entry 1 from the folder offsets" in str(refused.value)
    entry.unlink()
    found: list[tuple[Any, ...]] = []
    finished = run(OURS.session(spark), case, tmp_path, _collected(found))
    assert sorted(row[-1] for row in found) == [2, 2], "each user has had a row in both batches"
    assert recent_progress(finished)[0].batchId == 1


def test_partitions_are_counted_while_their_clock_stands_still(spark: SparkSession, tmp_path: Path) -> None:
    case = Case(_keyed, (_USERS,), output_mode="update")
    _plan_ahead(spark, case, tmp_path, 23 * _HOUR_MS)
    write_inputs(case, tmp_path, 2, 3)
    finished = run(OURS.session(spark), case, tmp_path, _collected([]))
    behind = [progress.stateOperators[0].customMetrics["ckptClocksBehind"] for progress in recent_progress(finished)]
    assert behind[0] == 0, "nothing is behind in the batch that is ahead"
    assert behind[-1] >= 1
