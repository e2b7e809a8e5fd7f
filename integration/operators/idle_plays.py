"""A query over two inputs that can be idle, run by run."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from integration.operators.idle_queries import START
from integration.operators.providers import OURS, Provider
from integration.operators.sources import Source
from integration.progress import read_instant, recent_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "k string, at timestamp"
HOUR = timedelta(hours=1)


def at(minute: int) -> datetime:
    return START + timedelta(minutes=minute)


@dataclass
class Play:
    """A query over two folders of files, run by run. Rows are (key, minute)."""

    spark: SparkSession
    folder: Path
    query: Callable[[DataFrame, DataFrame], DataFrame]
    provider: Provider = OURS
    settings: Mapping[str, str] = field(default_factory=dict)
    checkpoint: str = "checkpoint"
    files: tuple[list[Any], list[Any]] = field(default_factory=lambda: ([], []))
    out: list[tuple[Any, ...]] = field(default_factory=list)
    names: tuple[str, ...] = ()
    fails: bool = False
    pause_s: float = 0
    collect: Callable[[DataFrame, int], None] | None = None

    def give(self, *rows: Sequence[tuple[str, int]]) -> None:
        """Add a file to each input that has rows."""
        for number, (of_input, files) in enumerate(zip(rows, self.files, strict=True)):
            if of_input:
                files.append(tuple((key, at(minute)) for key, minute in of_input))
            source = Source(SCHEMA, tuple(files))
            source.write(self.folder / f"input{number}", len(files) - bool(of_input), len(files))

    def start(self, **trigger: Any) -> StreamingQuery:  # noqa: ANN401
        """Start the query where it has stopped."""
        session = self.provider.session(self.spark, **self.settings)
        frames = []
        for number in range(2):
            reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
            named = reader.name(self.names[number]) if self.names else reader
            frames.append(named.parquet(str(self.folder / f"input{number}")))
        frame = self.query(*frames)
        writer = frame.writeStream.outputMode("append").foreachBatch(self.collect or self._collect)
        return writer.option("checkpointLocation", str(self.folder / self.checkpoint)).trigger(**trigger).start()

    def run(self, *rows: Sequence[tuple[str, int]]) -> int | None:
        """Give rows, run the query until it has read them, and return its last watermark, in minutes."""
        self.give(*rows)
        query = self.start(availableNow=True)
        query.awaitTermination()
        return minutes(query)

    def take(self) -> list[tuple[Any, ...]]:
        """Return the rows that have come out since the last call."""
        taken, self.out = sorted(self.out, key=repr), []
        return taken

    def let_an_hour_pass(self) -> None:
        """Do to the checkpoint of a stopped query what an hour without rows does."""
        self.move_seen_times(-HOUR)

    def move_seen_times(self, by: timedelta) -> None:
        """Move the times at which the inputs have had rows last."""
        path = self.newest()
        version, text = path.read_text().split("\n")
        entry = json.loads(text)
        for each in entry["inputs"]:
            each["seenMs"] += by // timedelta(milliseconds=1)
        path.write_text(f"{version}\n{json.dumps(entry)}")

    def newest(self) -> Path:
        """The newest file about inputs."""
        return max(self.stored(), key=lambda path: int(path.name))

    def stored(self) -> list[Path]:
        """The files about inputs."""
        return list((self.folder / self.checkpoint / "_ckpt" / "watermarks").glob("[0-9]*"))

    def _collect(self, frame: DataFrame, _batch: int) -> None:
        if self.fails:
            raise RuntimeError("made-up failure of the sink")
        time.sleep(self.pause_s)
        self.out += map(tuple, frame.collect())


def minutes(query: StreamingQuery) -> int | None:
    """The last watermark, in minutes after START; None if there is none yet."""
    watermarks = [each for progress in recent_progress(query) if (each := progress.eventTime.get("watermark"))]
    if not watermarks:
        return None
    found = read_instant(watermarks[-1])
    return (found - START) // timedelta(minutes=1)


def wait_for(query: StreamingQuery, minute: int) -> None:
    deadline = time.monotonic() + 60
    while minutes(query) != minute:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, minutes(query)
        time.sleep(0.05)
