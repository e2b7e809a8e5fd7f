"""Programs whose operator gets its first timers, or loses all, while its state lives."""

from __future__ import annotations

import tarfile
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.sources import Source
from pyspark_ckpt.state_store.options import PREFIX
from tests.compat.queries import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.replay import Lines

FROZEN = Path(__file__).parent / "without_timers.tar.gz"
"""Two batches of Plain in format 2, by the first release: its record has no column for a time-out."""
OUT = "user bigint, shown string"
PAUSE_MS = 15 * 60_000
BATCH_MS = 10 * 60_000
START_MS = 1_700_000_000_000
BATCH_ROWS = 12
USERS = range(5)
PARTITIONS = 2


class Plain(ckpt.KeyedProcessor):
    """Counts the rows of a user."""

    rows = ckpt.ValueState("rows", "bigint", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.rows.update(self.rows.value() + len(rows))
        yield key.user, f"{self.rows.value()} rows"


class Timed(Plain):
    """Sets a timer with each batch, which says for which batch it was."""

    due = ckpt.Timers("due", clock="event")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        begin_ms = int(min(row.at for row in rows).timestamp() * 1000) // BATCH_MS * BATCH_MS
        self.due.register(begin_ms + PAUSE_MS)
        yield from super().process(ctx, key, rows)

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        yield key.user, f"timer {timer.at_ms - PAUSE_MS}"


class TimedByBothClocks(Timed):
    """The same, where Spark's time-outs are those of processing time."""

    unused = ckpt.Timers("unused", clock="processing")


class Expiring(Plain):
    """With a state that expires by the watermark."""

    last = ckpt.ValueState("last", "bigint", ttl=ckpt.Ttl("15 minutes", clock="event"))

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        yield key.user, f"last {self.last.value()}"
        self.last.update(len(rows))
        yield from super().process(ctx, key, rows)


def play(
    spark: SparkSession, processor: Plain, checkpoint: Path, checkpoint_format: int = 2, partitions: int = PARTITIONS
) -> dict[int, list[tuple[int, str]]]:
    """Run one more batch with rows, and those without that it brings about: their output rows."""
    session = spark.newSession()
    settings: Mapping[str, str] = {
        "spark.sql.streaming.stateStore.providerClass": ckpt.session.PROVIDER_CLASS,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": str(checkpoint_format),
        "spark.sql.streaming.stateStore.ckpt.allowNonRestoredState": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(partitions),
    }
    for name, value in settings.items():
        session.conf.set(name, value)
    shown: dict[int, list[tuple[int, str]]] = {}
    frame = ckpt.keyed(counted(session).withWatermark("at", "1 minute"), "user", uid="it").process(processor, OUT)
    query = (
        frame.writeStream.outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda rows, batch: shown.update({batch: sorted(map(tuple, rows.collect()))}))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return shown


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    """The checkpoint of the first release, after two batches."""
    with tarfile.open(FROZEN) as archive:
        archive.extractall(tmp_path / "frozen", filter="data")
    return tmp_path / "frozen"


def _name_timer(batch: int) -> str:
    """What a timer for a batch with rows shows when it fires."""
    return f"timer {(START_MS + batch * BATCH_MS) // BATCH_MS * BATCH_MS}"


def _count_rows(batches: int) -> list[tuple[int, str]]:
    """What Plain shows in the last of so many batches with rows."""
    counts = Counter(value % len(USERS) for value in range(batches * BATCH_ROWS))
    return [(user, f"{counts[user]} rows") for user in USERS]


def _require_timers(shown: list[tuple[int, str]], batches: Sequence[int]) -> None:
    """Each user's timers for these batches with rows have fired, in this order and once."""
    for user in USERS:
        fired = [text for who, text in shown if who == user and text.startswith("timer")]
        assert fired == [_name_timer(batch) for batch in batches], user


def _play_all(
    spark: SparkSession, programs: Sequence[Plain], checkpoint: Path, first: int, **more: int
) -> list[tuple[int, str]]:
    """Run one batch with rows by each program, from batch ``first`` on; check its counts and return all output."""
    found: list[tuple[int, str]] = []
    for number, program in enumerate(programs, first):
        shown = [row for rows in play(spark, program, checkpoint, **more).values() for row in rows]
        assert [row for row in shown if row[1].endswith("rows")] == _count_rows(number + 1)
        found += shown
    return found


@pytest.mark.in_turn
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_timers_are_added_removed_and_found_again(checkpoint_format: int, spark: SparkSession, tmp_path: Path) -> None:
    programs = [Plain(), Timed(), Timed(), Plain(), Plain(), Timed(), TimedByBothClocks(), Plain(), Timed(), Timed()]
    shown = _play_all(spark, programs, tmp_path / "checkpoint", 0, checkpoint_format=checkpoint_format)
    _require_timers(shown, [1, 2, 5, 6])


def test_a_checkpoint_of_the_first_release_gets_timers_and_loses_them(spark: SparkSession, frozen: Path) -> None:
    shown = _play_all(spark, [Plain(), Timed(), Timed(), Plain(), Plain(), Timed(), Timed(), Timed()], frozen, 2)
    _require_timers(shown, [3, 4, 7])
    assert spark.read.format("statestore").load(str(frozen)).select("value.groupState.*").count() == PARTITIONS


def test_an_operator_gets_timers_before_and_after_a_rescale(spark: SparkSession, frozen: Path, tmp_path: Path) -> None:
    """With eight partitions, some have no rows of five users."""
    ckpt.restore(str(frozen), str(tmp_path / "eight"), parallelism=8)
    shown = _play_all(spark, [Timed(), Timed()], tmp_path / "eight", 2, partitions=8)
    ckpt.restore(str(tmp_path / "eight"), str(tmp_path / "three"), parallelism=3)
    shown += _play_all(spark, [Plain(), Timed(), Timed()], tmp_path / "three", 4, partitions=3)
    _require_timers(shown, [2, 3])
    saved = tmp_path / "saved"
    ckpt.savepoint(str(tmp_path / "three"), str(saved), kind="canonical")
    ckpt.restore(str(saved), str(tmp_path / "two"), parallelism=PARTITIONS)
    _require_timers(_play_all(spark, [Timed()], tmp_path / "two", 7), [5])


def test_a_state_gets_a_time_to_live_by_the_watermark(spark: SparkSession, frozen: Path) -> None:
    shown = _play_all(spark, [Expiring(), Expiring(), Plain(), Plain(), Expiring()], frozen, 2)
    last = [[text for who, text in shown if who == user and text.startswith("last")] for user in USERS]
    assert [texts[0] for texts in last] == ["last None"] * len(USERS)
    assert all(texts[1] in ("last 2", "last 3") for texts in last)
    assert [texts[2] for texts in last] == ["last None"] * len(USERS), "its life has ended in the meantime"


def _second(year: int, second: int) -> datetime:
    return datetime(year, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=second)


@pytest.mark.parametrize(
    ("programs", "year"), [((TimedByBothClocks(), Timed()), 2020), ((Timed(), TimedByBothClocks()), 2100)]
)
def test_partitions_without_rows_fire_timers_that_a_program_with_another_clock_of_time_outs_has_left(
    programs: Sequence[Timed], year: int, spark: SparkSession, tmp_path: Path
) -> None:
    batches = ([(user, _second(year, 0)) for user in USERS], *([(0, _second(year, at))] for at in (9000, 9001)))
    source = Source("user bigint, at timestamp", tuple(map(tuple, batches)))
    shown: dict[int, Lines] = {}
    for program, first, last in zip(programs, (0, 1), (1, 3), strict=True):

        def query(frames: Sequence[DataFrame], processor: Timed = program) -> DataFrame:
            timed = frames[0].withWatermark("at", "1 minute")
            return ckpt.keyed(timed, "user", uid="it").process(processor, OUT)

        case = Case(query, (source,), "update")
        write_inputs(case, tmp_path, first, last)
        session = OURS.session(spark, **{SHUFFLE_PARTITIONS: "4", f"{PREFIX}allowNonRestoredState": "true"})
        run(session, case, tmp_path, collect_into(shown))
    due = int(_second(year, 0).timestamp() * 1000) // BATCH_MS * BATCH_MS
    fired = sorted(line for batch in shown.values() for line in batch if "timer" in line)
    assert fired == [f"Row(user={user}, shown='timer {due}')" for user in USERS]
