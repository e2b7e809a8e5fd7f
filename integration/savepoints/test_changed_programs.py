"""A query that continues from a savepoint in another program: states are matched by uid and name."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.keyed import EVENTS, TOTALS, Totals
from integration.operators.providers import OURS
from integration.operators.replay import collect_into

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from integration.operators.replay import Lines


class Extended(Totals):
    """The same with one state more."""

    most = ckpt.ReducingState("most", "bigint", "max")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        for row in rows:
            self.most.add(row.id)
        for user, count, _ in super().process(ctx, key, rows):
            yield user, count, self.most.get()


class Reduced(ckpt.KeyedProcessor):
    """The same without the sums."""

    rows = ckpt.ValueState("rows", "bigint", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.rows.update(self.rows.value() + len(rows))
        yield key.user, self.rows.value(), None


@pytest.fixture(scope="module")
def saved(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with input, and the savepoint of a query that has read two files of it, and is over."""
    folder = tmp_path_factory.mktemp("saved")
    EVENTS.write(folder / "input", 0, 2)
    _batches(spark, folder, folder / "checkpoint", Totals())
    info = ckpt.savepoint(str(folder / "checkpoint"), str(folder / "savepoint"))
    assert (info.version, info.partitions, [each.uids for each in info.operators]) == (2, 2, [("it",)])
    EVENTS.write(folder / "input", 2, 3)
    return folder


def _batches(
    spark: SparkSession,
    saved: Path,
    checkpoint: Path,
    processor: ckpt.KeyedProcessor,
    uid: str = "it",
    partitions: int = 2,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> dict[int, Lines]:
    """What the batches of a query put out until it has read all input."""
    session = OURS.session(spark, **{SHUFFLE_PARTITIONS: str(partitions), **settings})
    batches: dict[int, Lines] = {}
    query = (
        ckpt.keyed(EVENTS.stream(session, saved / "input"), "user", uid=uid)
        .process(processor, TOTALS)
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(collect_into(batches))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches


def _restored(saved: Path, checkpoint: Path, **how: Any) -> Path:  # noqa: ANN401
    ckpt.restore(str(saved / "savepoint"), str(checkpoint), **how)
    return checkpoint


def test_new_states_start_empty_and_old_ones_go_on(spark: SparkSession, saved: Path, tmp_path: Path) -> None:
    plain = _batches(spark, saved, _restored(saved, tmp_path / "plain"), Totals())
    rescaled = _restored(saved, tmp_path / "more", parallelism=3)
    more = _batches(spark, saved, rescaled, Extended(), partitions=3)
    assert list(plain) == list(more) == [2]
    counts = [sorted(line.split("total")[0] for line in batches[2]) for batches in (plain, more)]
    assert counts[0] == counts[1]
    assert plain != more


def test_state_that_nobody_declares_is_named_unless_it_is_allowed(
    spark: SparkSession, saved: Path, tmp_path: Path
) -> None:
    strict = _restored(saved, tmp_path / "strict")
    with pytest.raises(StreamingQueryException, match=r"has state \['it/total'\]"):
        _batches(spark, saved, strict, Reduced())
    allowed = "spark.sql.streaming.stateStore.ckpt.allowNonRestoredState"
    by_option = _batches(spark, saved, strict, Reduced(), settings={allowed: "true"})
    lenient = _restored(saved, tmp_path / "lenient", allow_non_restored_state=True)
    assert _batches(spark, saved, lenient, Reduced()) == by_option
    assert any("rows=" in line for line in by_option[2])


def test_another_uid_needs_a_map(spark: SparkSession, saved: Path, tmp_path: Path) -> None:
    expected = _batches(spark, saved, _restored(saved, tmp_path / "same"), Totals())
    with pytest.raises(StreamingQueryException, match="the checkpoint has state"):
        _batches(spark, saved, _restored(saved, tmp_path / "unmapped"), Totals(), "views")
    mapped = _restored(saved, tmp_path / "mapped", uid_map={"it": "views"})
    assert _batches(spark, saved, mapped, Totals(), "views") == expected


def test_a_new_query_id_is_another_one_and_batches_go_on(spark: SparkSession, saved: Path, tmp_path: Path) -> None:
    kept, new = (_restored(saved, tmp_path / how, query_id=how) for how in ("keep", "new"))
    old = (saved / "checkpoint" / "metadata").read_text()
    assert (kept / "metadata").read_text() == old != (new / "metadata").read_text()
    assert list(_batches(spark, saved, new, Totals())) == [2]
