"""Queries whose local files are damaged or removed while they run: the results are those of a query left alone."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from integration.operators.keyed import EVENTS, TOTALS, Totals, VectorTotals, keyed, play
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.replay import Lines

MAX_STARTS = 6
"""A local master tries no task again: a query that fails is started again by its user."""


def native(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].groupBy("user").agg(f.count("*").alias("rows"), f.sum("id").alias("total"))


QUERIES = {
    "native": native,
    "keyed": keyed(Totals(), TOTALS),
    "vectors": keyed(VectorTotals(), TOTALS),
}


def local_folders(spark: SparkSession) -> list[Path]:
    """Those of the state servers of this session."""
    jvm = spark._jvm
    assert jvm is not None
    blocks = jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager().localDirsString()
    return [path for block in blocks for path in Path(block).parent.rglob("ckpt-*/server") if path.is_dir()]


def flip_tables(folder: Path) -> None:
    """Change a byte in each tenth of each table file."""
    for path in folder.glob("stores/*/*/db/*.sst"):
        with suppress(FileNotFoundError), path.open("r+b") as file:  # what is being tidied up
            content = bytearray(file.read())
            for at in range(len(content) // 20, len(content), max(1, len(content) // 10)):
                content[at] ^= 4
            file.seek(0)
            file.write(content)


def remove_tables(folder: Path) -> None:
    for path in folder.glob("stores/*/*/db/*.sst"):
        path.unlink(missing_ok=True)


def remove_stores(folder: Path) -> None:
    shutil.rmtree(folder / "stores", ignore_errors=True)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(name, damage, marks=() if (n + m) % 3 else pytest.mark.matrix, id=f"{name}-{damage.__name__}")
        for n, name in enumerate(QUERIES)
        for m, damage in enumerate((flip_tables, remove_tables, remove_stores))
    ],
)
def test_results_are_those_of_a_query_without_damage(
    name: str, damage: Callable[[Path], None], spark: SparkSession, tmp_path: Path
) -> None:
    expected = play(spark, native, EVENTS, tmp_path / "whole")
    case = Case(QUERIES[name], (EVENTS,), output_mode="update")
    write_inputs(case, tmp_path / "damaged", 0, len(EVENTS.batches))
    batches: dict[int, Lines] = {}
    damaged: list[int] = []
    collect = collect_into(batches)

    def collect_and_damage(frame: DataFrame, batch_id: int) -> Any:  # noqa: ANN401
        collect(frame, batch_id)
        if batch_id % 2 and batch_id not in damaged:
            damaged.append(batch_id)
            for folder in local_folders(spark):
                damage(folder)

    for _ in range(MAX_STARTS):
        try:
            run(OURS.session(spark), case, tmp_path / "damaged", collect_and_damage)
            break
        except StreamingQueryException as failed:
            last = failed
    else:
        raise last
    assert len(damaged) > 1
    assert batches == expected
