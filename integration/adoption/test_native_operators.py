"""Every operator, first on one of Spark's own providers and then on ours: as if it had never moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators import test_join, test_session_windows
from integration.operators.providers import CHECKPOINT_FORMAT, HDFS_BACKED, OURS, ROCKSDB, Provider
from integration.operators.replay import collect_into, read_state, replay, run, write_inputs
from integration.sample import ALL
from integration.savepoints import test_rescale
from integration.savepoints.test_rescale import without_partitions
from integration.short import has
from pyspark_ckpt.moving_in import adopt
from pyspark_ckpt.pyspark_releases import has_commit_ids_for_all
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from integration.operators.replay import Case, Lines

_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb."
CHANGELOG = {f"{_ROCKSDB}changelogCheckpointing.enabled": "true"}
PROVIDERS = {
    "rocksdb": ROCKSDB,
    "rocksdb with changelog": Provider("changelog", ROCKSDB.provider_class, {**ROCKSDB.settings, **CHANGELOG}),
    "hdfs": HDFS_BACKED,
}
if has_commit_ids_for_all():
    PROVIDERS["rocksdb, format 2"] = Provider("format 2", ROCKSDB.provider_class, {CHECKPOINT_FORMAT: "2", **CHANGELOG})
_REFUSED = {"join, format 1", "transformWithState, Avro"}
CASES = {name: (case, numbers[1]) for name, (case, numbers) in test_rescale.CASES.items() if name not in _REFUSED}
CASES["session windows of two keys"] = (test_session_windows.CASES["two keys"], 5)
ROCKSDB_ALONE = ("join, format 3", "join, format 4", "transformWithState")


def _list_providers(name: str) -> list[str]:
    return [each for each in PROVIDERS if each != "hdfs" or not name.startswith(ROCKSDB_ALONE)]


_ALL = [(name, provider) for name in CASES for provider in _list_providers(name)]
_SAMPLE = [(name, own[number % len(own)]) for number, name in enumerate(CASES) if (own := _list_providers(name))]


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "provider"), _ALL if ALL else _SAMPLE)
def test_a_query_goes_on_with_its_state_as_if_it_had_not_moved(
    name: str, provider: str, spark: SparkSession, tmp_path: Path
) -> None:
    case, partitions = CASES[name]
    before = PROVIDERS[provider]
    expected = replay(spark, case, before, tmp_path / "expected")
    batches, state = _move(spark, case, before, partitions, tmp_path / "actual")
    assert any(expected.batches.values())
    assert batches == expected.batches
    assert without_partitions(state) == without_partitions(expected.state)


def _ours(before: Provider) -> Provider:
    """Our provider. A checkpoint keeps its format, unless this Spark can change it."""
    return OURS if has("4.2") else OURS.in_format(int(before.settings[CHECKPOINT_FORMAT]))


def test_state_without_a_schema_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    case = test_join.CASES["inner, format 1"]
    write_inputs(case, tmp_path, 0, 1)
    run(ROCKSDB.session(spark, **case.settings), case, tmp_path, collect_into({}))
    with pytest.raises(
        InvalidInputError, match=r"\(symmetricHashJoin\) has no schema of its state in .*stateSchemaCheck"
    ):
        adopt(tmp_path / "checkpoint", tmp_path / "adopted")
    assert not (tmp_path / "adopted").exists()


def _move(
    spark: SparkSession, case: Case, before: Provider, partitions: int, folder: Path
) -> tuple[dict[int, Lines], tuple[Lines, ...]]:
    """Run the first files, adopt, and run the others; return the output of each batch, and the state."""
    batches: dict[int, Lines] = {}
    first, *others = case.runs
    write_inputs(case, folder, 0, first)
    session = before.session(spark, **case.settings)
    case.prepare(session, case, folder)
    run(session, case, folder, collect_into(batches))
    adopt(folder / "checkpoint", folder / "adopted", partitions)
    session = _ours(before).session(spark, **case.settings, **{SHUFFLE_PARTITIONS: str(partitions)})
    for more in others:
        write_inputs(case, folder, first, first + more)
        run(session, case, folder, collect_into(batches), "adopted")
        first += more
    return batches, read_state(session, case, folder, "adopted")
