"""States that live by event time: the same results, however many files come in a batch."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

BEGIN = datetime(2024, 3, 30, 20, tzinfo=timezone.utc)
"""A night in which clocks are set forward."""
FILES, ROWS, STEP = 12, 3, timedelta(minutes=10)
COLUMNS, OUT = "k string, at timestamp", "k string, n bigint, pages bigint"
HOUR = ckpt.Ttl("1 hour", clock="event")


class Count(ckpt.KeyedProcessor):
    """Counts rows, which never pause for an hour, and keeps the instants of the last hour."""

    count = ckpt.ValueState("count", "bigint", ttl=HOUR)
    pages = ckpt.MapState("pages", "timestamp", "bigint", ttl=HOUR)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.count.update((self.count.value() or 0) + len(rows))
        for row in rows:
            self.pages.put(row.at, 1)
        yield key.k, self.count.value(), len(list(self.pages.items()))


class VectorCount(ckpt.VectorProcessor):
    """The same for many keys at once."""

    count = ckpt.ValueState("count", "bigint", ttl=HOUR)
    pages = ckpt.MapState("pages", "timestamp", "bigint", ttl=HOUR)
    due = ckpt.Timers("due", clock="event")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        """Count."""
        more = pa.array(np.bincount(ctx.key_index, minlength=len(ctx.keys)))
        counts = pc.add(pc.fill_null(self.count.get(ctx.keys), 0), more)
        self.count.put(ctx.keys, counts)
        ones = pa.array([1] * len(batch), pa.int64())
        self.pages.put_entries(ctx.keys, ctx.key_index, batch["at"], ones)
        return pa.table({"k": ctx.keys.column("k"), "n": counts, "pages": pa.array([0] * len(ctx.keys), pa.int64())})

    def process_timers(self, _ctx: ckpt.VectorContext, _timers: pa.Table) -> None:
        """There are none."""


class Pages:
    """States of a function for groups."""

    count = ckpt.ValueState("count", "bigint", ttl=HOUR)


def count_group(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], _state: GroupState, pages: Pages
) -> Iterator[pd.DataFrame]:
    """Count the rows of a group."""
    import pandas as pd

    n = sum(map(len, frames))
    pages.count.update((pages.count.value() or 0) + n)
    yield pd.DataFrame({"k": [key[0]], "n": [pages.count.value()], "pages": [0]})


def run_keyed(frame: DataFrame) -> DataFrame:
    return ckpt.keyed(frame, "k", uid="it").process(Count(), OUT)


def run_vector(frame: DataFrame) -> DataFrame:
    return ckpt.keyed(frame, "k", uid="it").process(VectorCount(), OUT)


def run_groups(frame: DataFrame) -> DataFrame:
    function = ckpt.with_states(count_group, Pages(), uid="it", event_time="at")
    return frame.groupBy("k").applyInPandasWithState(function, OUT, "n long", "update", "NoTimeout")


def play(spark: SparkSession, folder: Path, files: int, operator: Callable[[DataFrame], DataFrame]) -> list[Any]:
    """Run a query with so many files in a batch. Return its rows in order."""
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.providerClass", ckpt.session.PROVIDER_CLASS)
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    shown: list[Any] = []
    given = session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", files).json(str(folder / "rows"))
    query = (
        operator(given.withWatermark("at", "0 seconds"))
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(folder / f"checkpoint-{files}"))
        .foreachBatch(lambda rows, _: shown.extend(sorted(map(tuple, rows.collect()))))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return shown


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Files with rows of one key, each ten minutes after the one before."""
    (tmp_path / "rows").mkdir()
    for number in range(FILES):
        instants = [BEGIN + STEP * (number * ROWS + place) for place in range(ROWS)]
        lines = [json.dumps({"k": "a", "at": at.isoformat()}) for at in instants]
        path = tmp_path / "rows" / f"{number:03}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (number, number))  # Spark takes files in the order of their times
    return tmp_path


@pytest.mark.in_turn
@pytest.mark.parametrize("operator", [run_keyed, run_vector, run_groups])
@pytest.mark.parametrize("files", [1, 3])
def test_a_count_goes_on_when_a_batch_is_longer_than_a_life(
    files: int, operator: Callable[[DataFrame], DataFrame], spark: SparkSession, rows: Path
) -> None:
    shown = play(spark, rows, files, operator)
    assert [n for _, n, _ in shown] == list(range(files * ROWS, FILES * ROWS + 1, files * ROWS))
    if operator is run_keyed:
        assert [pages for _, _, pages in shown][1:] == [6] * (FILES // files - 1)


def test_entries_have_the_times_of_their_rows_when_all_come_in_one_batch(spark: SparkSession, rows: Path) -> None:
    for files, operator in ((12, run_keyed), (4, run_vector)):
        play(spark, rows, files, operator)
        with ckpt.reading.open_state(str(rows / f"checkpoint-{files}"), uid="it", state="pages") as state:
            found = state.to_arrow()
        at = found["map_key"].cast(pa.timestamp("us", "UTC"))
        assert found["written_at"].to_pylist() == at.to_pylist()
