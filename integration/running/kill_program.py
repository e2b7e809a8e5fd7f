"""A program that rescales its query again and again, and may be killed at any time. The next one goes on.

Arguments: a folder, how often to rescale, and a seed. What it would keep in a configuration is in ``current.json``: the
checkpoint to start on, and the rescaling that was begun. Where its checkpoints are, what it reads, and which confs it
needs for that is in ``settings.json``; without it, they and its input are in the folder. Its sink keeps a file for each
batch, and sends the rows to a topic, if it has one. A batch that runs again must have the same rows, as a sink needs
that knows batches by their numbers.

Sometimes it does not know of the rescaling that was begun, and starts on the old checkpoint: it must be told where the
query is, or may go on there.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

NUMBERS = (2, 5, 3)


class Program:
    """The program in one process."""

    def __init__(self, folder: Path) -> None:
        """Make a session."""
        self.folder = folder
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
        path = folder / "settings.json"
        settings = json.loads(path.read_text()) if path.exists() else {}
        for key, value in settings.get("conf", {}).items():
            builder = builder.config(key, value)
        self.first = settings.get("checkpoint", str(folder / "query"))
        self.servers, self.topic = settings.get("servers"), settings.get("topic")
        self.spark = ckpt.configure(builder.config("spark.log.level", "ERROR")).getOrCreate()

    def sink(self, frame: DataFrame, batch: int) -> None:
        """Keep a batch. Fail for good if it has other rows than before."""
        rows = sorted([row.user, row.seen] for row in frame.collect())
        path = self.folder / "out" / f"{batch}.json"
        if path.exists() and json.loads(path.read_text()) != rows:
            (self.folder / "wrong").write_text(f"batch {batch}: {path.read_text()} and then {rows}")
        if self.servers:
            values = [(json.dumps({"batch": batch, "user": user, "seen": seen}),) for user, seen in rows]
            self.spark.createDataFrame(values, "value string").write.format("kafka").options(
                **self.kafka, topic=f"{self.topic}-out"
            ).save()
        path.with_suffix(".new").write_text(json.dumps(rows))
        path.with_suffix(".new").rename(path)

    def start(self, checkpoint: str) -> StreamingQuery:
        """Start the query."""
        if self.servers:
            source = self.spark.readStream.format("kafka").options(**self.kafka, subscribe=self.topic)
            source = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=10)
            rows = source.load().selectExpr("CAST(CAST(key AS STRING) AS INT) AS user")
        else:
            files = self.spark.readStream.schema("user int").option("maxFilesPerTrigger", 2)
            rows = files.csv(str(self.folder / "in"))
        counted = rows.groupBy("user").agg(f.count("*").alias("seen"))
        writer = counted.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
        return writer.foreachBatch(self.sink).start()

    @property
    def kafka(self) -> dict[str, str]:
        """Options to reach the broker."""
        return {"kafka.bootstrap.servers": str(self.servers)}

    def read(self) -> dict[str, str | int]:
        """What to go on with."""
        path = self.folder / "current.json"
        if not path.exists():
            return {"checkpoint": self.first, "partitions": NUMBERS[0], "wanted": NUMBERS[0]}
        current: dict[str, str | int] = json.loads(path.read_text())
        return current

    def write(self, checkpoint: str, partitions: int, wanted: int) -> None:
        """Keep what to go on with."""
        path = self.folder / "current.new"
        path.write_text(json.dumps({"checkpoint": checkpoint, "partitions": partitions, "wanted": wanted}))
        path.rename(self.folder / "current.json")

    def start_old(self, checkpoint: str, partitions: int) -> StreamingQuery | None:
        """Start the query where it was before the rescaling; None if it is not there any more."""
        self.spark.conf.set("spark.sql.shuffle.partitions", partitions)
        try:
            return self.start(checkpoint)
        except Exception as told:
            if "[ConflictError] The query is not started on" not in str(told):
                raise
            print("REFUSED", flush=True)
            return None

    def go_on(self, dice: random.Random) -> StreamingQuery:
        """Start the query as the last process has left it."""
        current = self.read()
        checkpoint, partitions, wanted = str(current["checkpoint"]), int(current["partitions"]), int(current["wanted"])
        if wanted != partitions and dice.random() < 0.5:
            query = self.start_old(checkpoint, partitions)
            if query is not None:
                self.write(checkpoint, partitions, partitions)
                return query
        if wanted != partitions:
            try:
                done = ckpt.rescale(checkpoint, self.start, wanted)
            except ckpt.errors.RescaleError:
                raise
            except ckpt.LifecycleError as told:  # the query had not got to its first commit
                if "no committed batch" not in str(told):
                    raise
                wanted = partitions
            except ckpt.InvalidInputError as told:  # it had finished
                found = re.search(r"Start the query on (\S+), with", str(told))
                if found is None:
                    raise
                checkpoint = found[1]
            else:
                self.write(done.checkpoint, wanted, wanted)
                return done.query
            self.write(checkpoint, wanted, wanted)
            partitions = wanted
        self.spark.conf.set("spark.sql.shuffle.partitions", partitions)
        return self.start(checkpoint)

    def run(self, times: int, seed: int) -> None:
        """Rescale so often, then read all input."""
        dice = random.Random(seed)
        query = self.go_on(dice)
        print("RUNNING", flush=True)
        for _ in range(times):
            time.sleep(dice.random())
            current = self.read()
            checkpoint, partitions = str(current["checkpoint"]), int(current["partitions"])
            wanted = dice.choice([number for number in NUMBERS if number != partitions])
            self.write(checkpoint, partitions, wanted)
            print("RESCALES", flush=True)
            try:
                done = ckpt.rescale(query, self.start, wanted)
            except ckpt.LifecycleError as told:
                if "no committed batch" not in str(told):
                    raise
                self.write(checkpoint, partitions, partitions)
                continue
            self.write(done.checkpoint, wanted, wanted)
            query = done.query
        query.processAllAvailable()
        query.stop()
        print("DONE", flush=True)


if __name__ == "__main__":
    Program(Path(sys.argv[1])).run(int(sys.argv[2]), int(sys.argv[3]))
