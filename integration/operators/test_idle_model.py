"""The watermarks of random lives of a query with idle inputs, batch by batch, against the model of the harness."""

from __future__ import annotations

import json
import os
import random
from datetime import datetime, timedelta, timezone
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.operators.idle_queries import START, counted
from integration.operators.providers import OURS
from integration.operators.sources import Source
from pyspark_ckpt.testing.seen_times import SeenTimes, Watermark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

STEPS = int(os.environ.get("CKPT_IDLE_STEPS", "8"))
MINUTE_MS = 60_000
IDLE_AFTER_MS = (10 * MINUTE_MS, 60 * MINUTE_MS, None)
INPUTS = range(len(IDLE_AFTER_MS))
NONE = np.empty(0, np.int64)


class Life:
    """A query over three inputs, the last of which always counts, and what its batches have read."""

    def __init__(self, spark: SparkSession, folder: Path, draw: random.Random) -> None:
        self.checkpoint = folder / "checkpoint"
        self._folder, self._draw = folder, draw
        self._policy = draw.choice(("min", "min", "max"))
        self._spark = OURS.session(spark, **{"spark.sql.streaming.multipleWatermarkPolicy": self._policy})
        self._files: list[list[tuple[tuple[str, datetime], ...]]] = [[] for _ in INPUTS]
        self._read: dict[int, list[np.ndarray]] = {}
        self._passed_ms: dict[int, int] = {}

    def step(self) -> None:
        """Give some inputs a row; fail, run a batch again, let time pass, or none of it; then run the query."""
        self._let_time_pass(self._draw.choice((0, 0, 5, 20, 70)))
        batch = self._newest("offsets") + 1
        self._read[batch] = [self._give(number) for number in INPUTS]
        if any(map(len, self._read[batch])) and self._draw.random() < 0.2:
            with pytest.raises(StreamingQueryException, match="made-up failure"):
                self._run(fails=True)
        self._run(fails=False)
        newest = self._newest("commits")
        if newest >= batch and self._draw.random() < 0.3:
            self._delete(f"commits/{newest}")
            self._run(fails=False)

    def check(self) -> None:
        """Compare what each batch has left with the model."""
        marks = [Watermark("at", 0, idle_after_ms) for idle_after_ms in IDLE_AFTER_MS]
        seen, watermark_ms = SeenTimes.of(marks, takes_latest=self._policy == "max"), 0
        for batch in range(self._newest("commits") + 1):
            offsets, commit = self._json("offsets", batch), self._json("commits", batch)
            assert offsets["batchWatermarkMs"] == watermark_ms, batch
            now_ms = offsets["batchTimestampMs"] + sum(ms for at, ms in self._passed_ms.items() if at < batch)
            seen = seen.see(self._read.get(batch, [NONE] * 3), now_ms)
            watermark_ms = seen.advance(watermark_ms, now_ms)
            assert commit["nextBatchWatermarkMs"] == watermark_ms, batch

    def _let_time_pass(self, minutes: int) -> None:
        """Do to the newest entry what time without rows does."""
        batch = self._newest("commits")
        if minutes == 0 or batch < 0:
            return
        entry = self._json("_ckpt/watermarks", batch)
        for each in entry["inputs"]:
            each["seenMs"] -= minutes * MINUTE_MS
        self._delete(f"_ckpt/watermarks/{batch}")
        (self.checkpoint / "_ckpt" / "watermarks" / str(batch)).write_text(f"v1\n{json.dumps(entry)}")
        self._passed_ms[batch] = self._passed_ms.get(batch, 0) + minutes * MINUTE_MS

    def _give(self, number: int) -> np.ndarray:
        """Give an input a file with a row, or none; return the times of its rows."""
        self._files[number].append(())
        if self._draw.random() < 0.5:
            return NONE
        at = START + timedelta(minutes=10 * len(self._files[number]) + self._draw.randrange(-20, 20))
        self._files[number][-1] = ((f"k{number}", at),)
        place = len(self._files[number])
        Source("k string, at timestamp", tuple(self._files[number])).write(self._input(number), place - 1, place)
        return np.array([(at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)])

    def _run(self, *, fails: bool) -> None:
        def collect(frame: DataFrame, _batch: int) -> None:
            frame.collect()
            if fails:
                raise RuntimeError("made-up failure")

        frames = []
        for number, idle_after_ms in enumerate(IDLE_AFTER_MS):
            self._input(number).mkdir(exist_ok=True)
            frame = Source("k string, at timestamp", ()).stream(self._spark, self._input(number))
            if idle_after_ms is None:
                frames.append(frame.withWatermark("at", "0 seconds"))
            else:
                after = timedelta(milliseconds=idle_after_ms)
                frames.append(ckpt.with_watermark(frame, "at", "0 seconds", idle_after=after))
        near = f.expr("l.k = r.k and l.at between r.at - interval 5 minutes and r.at + interval 5 minutes")
        pairs = frames[0].alias("l").join(frames[1].alias("r"), near, "leftOuter").select("l.k", "l.at")
        union = reduce(DataFrame.union, (pairs, frames[2]))
        writer = counted(union).writeStream.outputMode("append").foreachBatch(collect)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    def _input(self, number: int) -> Path:
        return self._folder / f"input{number}"

    def _newest(self, log: str) -> int:
        return max((int(path.name) for path in (self.checkpoint / log).glob("[0-9]*")), default=-1)

    def _json(self, log: str, batch: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.checkpoint / log / str(batch)).read_text().split("\n")[1])
        return found

    def _delete(self, name: str) -> None:
        path = self.checkpoint / name
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", [int(seed) for seed in os.environ.get("CKPT_IDLE_SEEDS", "5").split(",")])
def test_watermarks_of_a_random_life_are_those_of_the_model(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    life = Life(spark, tmp_path, random.Random(seed))
    for _ in range(STEPS):
        life.step()
        life.check()
