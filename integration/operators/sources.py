"""Deterministic input: one parquet file per micro-batch, written without a Spark job."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import _parse_datatype_string

from pyspark_ckpt.operators.types.value_types import make_handed_schema

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Rows = tuple[tuple[Any, ...], ...]

_FIRST_FILE_TIME_S = 1_700_000_000


@dataclass(frozen=True)
class Source:
    """A stream in miniature: ``batches[i]`` are the rows of its i-th file, so of the i-th micro-batch with data."""

    schema: str
    batches: tuple[Rows, ...]

    def write(self, folder: Path, first: int, last: int) -> None:
        """Write files ``first`` to ``last - 1``. Their times rise with their number: Spark reads them in that order."""
        folder.mkdir(parents=True, exist_ok=True)
        arrow_schema = make_handed_schema(cast("StructType", _parse_datatype_string(self.schema)))
        for number in range(first, min(last, len(self.batches))):
            columns = [
                pa.array(_column(self.batches[number], position), type=field.type)
                for position, field in enumerate(arrow_schema)
            ]
            staged = folder / f".{number:04d}.staged"
            pq.write_table(pa.Table.from_arrays(columns, schema=arrow_schema), staged)
            os.utime(staged, (_FIRST_FILE_TIME_S + number, _FIRST_FILE_TIME_S + number))
            staged.rename(folder / f"{number:04d}.parquet")

    def stream(self, spark: SparkSession, folder: Path) -> DataFrame:
        """The files as a streaming frame, one file a micro-batch."""
        return spark.readStream.schema(self.schema).option("maxFilesPerTrigger", "1").parquet(str(folder))


def _column(rows: Sequence[tuple[Any, ...]], position: int) -> list[Any]:
    return [row[position] for row in rows]
