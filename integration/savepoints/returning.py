"""A query that goes back to an older savepoint after its sink has had later batches."""

from __future__ import annotations

import copy
import json
import os
import shutil
from typing import TYPE_CHECKING, Literal

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import OURS
from integration.savepoints.sinks import KINDS
from integration.short import has

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from integration.operators.providers import Provider

FIRST_S = 1_700_000_000
FORMATS: list[Literal[1, 2]] = [1, 2] if has("4.1") else [1]


class Files:
    """A query that reads files and lets each user through once. File N has the users N and N - 1.

    So a user that is there twice shows that a batch has left no state, and one that is missing, that it was lost.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        checkpoint_format: int,
        sink: Callable[[DataStreamWriter, Path], DataStreamWriter] = KINDS["files"].write,
        later: tuple[int, ...] = (3,),
        program: Callable[[DataFrame], DataFrame] = lambda rows: rows.dropDuplicates(["user"]),
    ) -> None:
        """Run the batches 0 to 2, take a savepoint, and run those of ``later``, each of one file.

        ``sink``: what is done with the writer of the query, and a folder for the rows.
        """
        self.program = program
        self._spark, self._sink = spark, sink
        self._input = folder / "input"
        self._input.mkdir()
        self.folder = folder
        self.use(OURS.in_format(checkpoint_format))
        self.put(0, 1, 2)
        self.run("old", maxFilesPerTrigger="1")
        ckpt.savepoint(folder / "old", folder / "saved")
        if later:
            self.put(*later)
            self.run("old", maxFilesPerTrigger="1")

    def use(self, provider: Provider) -> None:
        """Run in a new session, on a provider."""
        self._provider = provider
        self.session = provider.session(self._spark.newSession(), **{SHUFFLE_PARTITIONS: "2"})

    def copy(self, folder: Path) -> Files:
        """The same query with the same input; its checkpoint, savepoint and sink are copies in ``folder``."""
        other = copy.copy(self)
        other.folder = folder
        other.use(self._provider)
        for name in ("old", "saved", "output"):
            shutil.copytree(self.folder / name, folder / name)
        return other

    def put(self, *files: int) -> None:
        """Give the query files to read, one after another."""
        for file in files:
            lines = [json.dumps({"user": user}) for user in (file, max(file - 1, 0))]
            (self.folder / "file").write_text("\n".join(lines))
            os.utime(self.folder / "file", (FIRST_S + file, FIRST_S + file))  # the source reads them in this order
            (self.folder / "file").rename(self._input / f"{file}.json")

    def start(self, checkpoint: str, trigger: str = "availableNow", **options: str) -> StreamingQuery:
        """Process what there is, or a batch of it."""
        rows = self.session.readStream.schema("user long").options(**options).json(str(self._input))
        writer = self._sink(self.program(rows).writeStream, self.folder / "output")
        return writer.option("checkpointLocation", checkpoint).trigger(**{trigger: True}).start()

    def run(self, checkpoint: str, trigger: str = "availableNow", **options: str) -> None:
        """Do so to the end. ``checkpoint``: its name."""
        self.start(str(self.folder / checkpoint), trigger, **options).awaitTermination()

    def forget_commit(self, batch: int) -> None:
        """Leave what a driver leaves in ``old`` that dies after the sink has its last batch, before the commit."""
        commits = self.folder / "old" / "commits"
        assert max(int(each.name) for each in commits.iterdir() if each.name.isdigit()) == batch
        (commits / f"{batch}").unlink()
        (commits / f".{batch}.crc").unlink(missing_ok=True)

    def users(self) -> list[int]:
        """The rows of Spark's sink of files."""
        return sorted(KINDS["files"].read(self.folder / "output")["files"])
