"""What a Python worker takes while a batch, or one key's list, is many times larger than what it may take."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.keyed import keyed
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.sources import Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

    from integration.operators.replay import Lines

LIMIT_MB = 16
ROWS = 300_000
ROW_BYTES = 600
MAX_MB = 150  # Spark's own batches of 10,000 rows take most of it, at Python's side and in Arrow

OUTPUT_BYTES = 100_000
OUTPUT_ROWS = 6_000
MAX_HELD_MB = 250  # several copies of what Spark's worker holds before it hands it over

WRITTEN = 120_000
WRITTEN_BYTES = 600
MAX_WRITTEN_MB = 120

_OUT = "rows bigint, peak_mb bigint"
_SIZES = Source("keys long", (((1_000,),), ((ROWS,),), ((ROWS,),)))


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


class ManyKeys(ckpt.VectorProcessor):
    """Keeps a number for each key."""

    rows = ckpt.ReducingState("rows", "bigint", "sum")

    def process_batch(self, ctx: ckpt.VectorContext, batch: Any) -> Any:  # noqa: ANN401
        import numpy as np
        import pyarrow as pa

        self.rows.add_rows(ctx.keys, ctx.key_index, pa.array(np.ones(len(batch), np.int64)))
        return pa.table({"rows": [len(batch)], "peak_mb": [_peak_mb()]})


class LongList(ckpt.KeyedProcessor):
    """Keeps all rows of its only key, and reads them again."""

    rows = ckpt.ListState("rows", "string")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        for row in rows:
            self.rows.add(row.text)
        yield sum(1 for _ in self.rows.get()), _peak_mb()


class Much:
    """A list and a map, whose reads write as well."""

    elements = ckpt.ListState("elements", "string")
    entries = ckpt.MapState("entries", "bigint", "string", ttl=ckpt.Ttl("1 day", refresh="on_read_and_write"))


def write_much(states: Any, keys: int) -> int:  # noqa: ANN401
    """Replace what there is by so many elements and entries, unless by none; how many of them are there."""
    if keys:
        states.entries.put_all({0: "", -1: ""})
        states.elements.clear()
    for number in range(keys):
        states.elements.add(f"{number:<{WRITTEN_BYTES}}")
        states.entries.put(number, f"{number:<{WRITTEN_BYTES}}")
    states.entries.remove(-1)
    entries = zip(states.entries.items(), states.elements.get(), strict=True)
    return sum(number == int(text) == int(element) for (number, text), element in entries)


class MuchWritten(Much, ckpt.KeyedProcessor):
    """Writes much for each row."""

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        for row in rows:
            yield write_much(self, row.keys), _peak_mb()


def much_written(
    _key: Any,  # noqa: ANN401
    frames: Iterator[pd.DataFrame],
    _state: GroupState,
    states: Any,  # noqa: ANN401
) -> Iterator[pd.DataFrame]:
    """The same, of a group of Spark's."""
    import pandas as pd

    for frame in frames:
        yield pd.DataFrame({"rows": [write_much(states, keys) for keys in frame["keys"]], "peak_mb": [_peak_mb()]})


def _much_of_group(frames: Sequence[DataFrame]) -> DataFrame:
    groups = frames[0].selectExpr("1 as one", "keys").groupBy("one")
    function = ckpt.with_states(much_written, Much(), uid="it")
    return groups.applyInPandasWithState(function, _OUT, "n bigint", "update", "NoTimeout")


def _much_of_key(frames: Sequence[DataFrame]) -> DataFrame:
    return keyed(MuchWritten(), _OUT, "one")([frames[0].selectExpr("1 as one", "keys")])


class MuchOutput(ckpt.KeyedProcessor):
    """Says a long text for each row."""

    rows = ckpt.ValueState("rows", "bigint")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        for _ in rows:
            yield "x" * OUTPUT_BYTES, _peak_mb()


def _texts(frame: DataFrame) -> DataFrame:
    """As many rows as the only row says, each with a text of its own."""
    number = f.explode(f.sequence(f.lit(1).cast("long"), "keys")).alias("number")
    return frame.select(number).select("number", f.rpad(f.col("number").cast("string"), ROW_BYTES, "x").alias("text"))


def _play(spark: SparkSession, query: Any, source: Source, folder: Path) -> list[tuple[int, int]]:  # noqa: ANN401
    """Rows and peak of every batch, in one worker for all of them."""
    settings = {SHUFFLE_PARTITIONS: "1", "spark.sql.streaming.stateStore.ckpt.workerMemory": f"{LIMIT_MB}m"}
    case = Case(query, (source,), output_mode="update")
    write_inputs(case, folder, 0, len(source.batches))
    batches: dict[int, Lines] = {}
    run(OURS.session(spark, **settings), case, folder, collect_into(batches))
    found = []
    for number in sorted(batches):
        numbers = [tuple(int(part.split("=")[1]) for part in line[4:-1].split(", ")) for line in batches[number]]
        found.append((sum(rows for rows, _ in numbers), max(peak for _, peak in numbers)))
    return found


@pytest.mark.in_turn
def test_a_batch_of_many_keys_takes_little_memory(spark: SparkSession, tmp_path: Path) -> None:
    query = keyed(ManyKeys(), _OUT, "number")
    found = _play(spark, lambda frames: query([_texts(frames[0])]), _SIZES, tmp_path)
    assert [rows for rows, _ in found] == [1_000, ROWS, ROWS]
    assert max(peak for _, peak in found) - found[0][1] < MAX_MB < ROWS * ROW_BYTES >> 20


def test_a_batch_of_much_output_takes_little_memory(spark: SparkSession, tmp_path: Path) -> None:
    query = keyed(MuchOutput(), "text string, peak_mb bigint", "number")
    source = Source("keys long", (((100,),), ((OUTPUT_ROWS,),)))

    def lengths(frames: Sequence[DataFrame]) -> DataFrame:
        return query([_texts(frames[0])]).selectExpr("length(text) as rows", "peak_mb")

    found = _play(spark, lengths, source, tmp_path)
    assert [size for size, _ in found] == [100 * OUTPUT_BYTES, OUTPUT_ROWS * OUTPUT_BYTES]
    assert found[1][1] - found[0][1] < MAX_HELD_MB < OUTPUT_ROWS * OUTPUT_BYTES >> 20


@pytest.mark.in_turn
@pytest.mark.parametrize("query", [_much_of_key, pytest.param(_much_of_group, marks=pytest.mark.matrix)])
def test_a_key_that_writes_much_takes_little_memory(query: Any, spark: SparkSession, tmp_path: Path) -> None:  # noqa: ANN401
    source = Source("keys long", (((1_000,),), ((WRITTEN,),), ((0,),)))
    found = _play(spark, query, source, tmp_path)
    assert [rows for rows, _ in found] == [1_000, WRITTEN, WRITTEN]
    assert found[-1][1] - found[0][1] < MAX_WRITTEN_MB < 2 * WRITTEN * WRITTEN_BYTES >> 20


@pytest.mark.matrix
def test_a_key_with_a_long_list_takes_little_memory(spark: SparkSession, tmp_path: Path) -> None:
    batches = 10
    query = keyed(LongList(), _OUT, "one")
    source = Source("keys long", tuple(((ROWS // batches,),) for _ in range(batches)))
    found = _play(spark, lambda frames: query([_texts(frames[0]).selectExpr("1 as one", "text")]), source, tmp_path)
    assert [rows for rows, _ in found] == [ROWS // batches * (n + 1) for n in range(batches)]
    assert found[-1][1] - found[1][1] < MAX_MB < ROWS * ROW_BYTES >> 20
