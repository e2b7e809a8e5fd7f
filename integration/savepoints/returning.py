"""A query that goes back to an older savepoint after its sink has had later batches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import OURS
from integration.short import has

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMATS = [1, 2] if has("4.1") else [1]


class Files:
    """A query that reads files and lets each user through once. File N has the users N and N - 1.

    So a user that is there twice shows that a batch has left no state, and one that is missing, that it was lost.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        checkpoint_format: int,
        sink: Callable[[DataStreamWriter], DataStreamWriter] | None = None,
        later: tuple[int, ...] = (3,),
    ) -> None:
        """Run the batches 0 to 2, take a savepoint, and run those of ``later``, each of one file.

        ``sink``: what is done with the writer of the query; None for Spark's sink of files.
        """
        self.session = OURS.in_format(checkpoint_format).session(spark.newSession(), **{SHUFFLE_PARTITIONS: "2"})
        self.folder = folder
        self.sink = sink or (lambda writer: writer.format("json").option("path", str(folder / "output")))
        (folder / "input").mkdir()
        self.put(0, 1, 2)
        self.run("old", maxFilesPerTrigger="1")
        ckpt.savepoint(folder / "old", folder / "saved")
        self.put(*later)
        self.run("old", maxFilesPerTrigger="1")

    def put(self, *files: int) -> None:
        """Give the query files to read, one after another."""
        for file in files:
            lines = [json.dumps({"user": user}) for user in (file, max(file - 1, 0))]
            (self.folder / "file").write_text("\n".join(lines))
            (self.folder / "file").rename(self.folder / "input" / f"{file}.json")

    def run(self, checkpoint: str, trigger: str = "availableNow", **options: str) -> None:
        """Process what there is, or a batch of it."""
        rows = self.session.readStream.schema("user long").options(**options).json(str(self.folder / "input"))
        writer = self.sink(rows.dropDuplicates(["user"]).writeStream)
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint)).trigger(**{trigger: True})
        query = writer.start()
        query.awaitTermination()

    def users(self) -> list[int]:
        """The rows of Spark's sink of files."""
        rows = self.session.read.schema("user long").json(str(self.folder / "output")).collect()
        return sorted(row.user for row in rows)
