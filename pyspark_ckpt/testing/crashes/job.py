"""The job of one life of a query that ``crash`` kills."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from pyspark_ckpt.operators.declarations.programs import dump_program, load_program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

STARTED = "started"
BATCH = "batch={:09d}"
COMPLETE = "_SUCCESS"


@dataclass(frozen=True)
class Job:
    """The job of one life. ``inputs``: the schema and the folder of each input."""

    build: Callable[..., DataFrame]
    inputs: Mapping[str, tuple[StructType, str]]
    mode: str
    conf: Mapping[str, str]
    checkpoint: str
    output: str

    def write(self, path: Path) -> None:
        """Write the job into a file. Raises as ``dump_program``."""
        path.write_bytes(dump_program(self))

    @classmethod
    def read(cls, path: Path) -> Job:
        """Return the job in a file."""
        job: Job = load_program(path.read_bytes())
        return job

    def run(self, spark: SparkSession) -> None:
        """Run the query to the end of its input. Each attempt of a batch has a folder of its own for its output."""
        frames = {
            name: spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(folder)
            for name, (schema, folder) in self.inputs.items()
        }

        def write(rows: DataFrame, batch: int) -> None:
            rows.coalesce(1).write.parquet(str(Path(self.output) / BATCH.format(batch) / uuid.uuid4().hex))

        writer = self.build(**frames).writeStream.outputMode(self.mode).foreachBatch(write)
        query = writer.option("checkpointLocation", self.checkpoint).trigger(availableNow=True).start()
        sys.stdout.write(f"{STARTED}\n")
        sys.stdout.flush()
        query.awaitTermination()

    def read_output(self) -> list[dict[str, Any]]:
        """Return the rows of the output, batch by batch: those of the last attempt that was complete."""
        found: list[dict[str, Any]] = []
        for batch in sorted(Path(self.output).iterdir()):
            complete = sorted(batch.glob(f"*/{COMPLETE}"), key=lambda path: path.stat().st_mtime_ns)
            files = sorted(complete[-1].parent.glob("*.parquet")) if complete else []
            found += [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
        return found
