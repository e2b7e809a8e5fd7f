"""Every operator, first on this store and then on one of Spark's own providers: as if it had never moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.adoption.test_native_operators import CASES, CHANGELOG, ROCKSDB_ALONE
from integration.operators.providers import HDFS_BACKED, OURS, ROCKSDB, Provider
from integration.operators.replay import collect_into, read_state, replay, run, write_inputs
from integration.sample import ALL
from pyspark_ckpt.moving_out import hand_back
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from integration.operators.replay import Lines
    from pyspark_ckpt.adoption.stores import Provider as Kind

PROVIDERS: dict[str, tuple[Kind, Provider]] = {
    "rocksdb": ("rocksdb", ROCKSDB),
    "rocksdb with changelog": (
        "rocksdb",
        Provider("changelog", ROCKSDB.provider_class, {**ROCKSDB.settings, **CHANGELOG}),
    ),
    "hdfs": ("hdfs", HDFS_BACKED),
}


def _list_providers(name: str) -> list[str]:
    return [each for each in PROVIDERS if each != "hdfs" or not name.startswith(ROCKSDB_ALONE)]


_ALL = [(name, provider) for name in CASES for provider in _list_providers(name)]
_SAMPLE = [(name, own[number % len(own)]) for number, name in enumerate(CASES) if (own := _list_providers(name))]


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "provider"), _ALL if ALL else _SAMPLE)
def test_a_query_goes_on_without_this_store_as_if_it_had_never_been_on_it(
    name: str, provider: str, spark: SparkSession, tmp_path: Path
) -> None:
    case, _ = CASES[name]
    kind, after = PROVIDERS[provider]
    expected = replay(spark, case, after, tmp_path / "expected")
    batches: dict[int, Lines] = {}
    first, *others = case.runs
    folder = tmp_path / "actual"
    write_inputs(case, folder, 0, first)
    session = OURS.session(spark, **case.settings)
    case.prepare(session, case, folder)
    run(session, case, folder, collect_into(batches))
    hand_back(folder / "checkpoint", folder / "handed-back", kind)
    session = after.session(spark, **case.settings)
    for more in others:
        write_inputs(case, folder, first, first + more)
        run(session, case, folder, collect_into(batches), "handed-back")
        first += more
    assert any(expected.batches.values())
    assert batches == expected.batches
    assert read_state(session, case, folder, "handed-back") == expected.state


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(ROCKSDB_ALONE)][:1])
def test_state_that_a_provider_does_not_have_is_refused_by_name(name: str, spark: SparkSession, tmp_path: Path) -> None:
    case, _ = CASES[name]
    write_inputs(case, tmp_path, 0, 1)
    session = OURS.session(spark, **case.settings)
    case.prepare(session, case, tmp_path)
    run(session, case, tmp_path, collect_into({}))
    with pytest.raises(InvalidInputError, match=r"has several states in a store.* needs `provider` 'rocksdb'"):
        hand_back(tmp_path / "checkpoint", tmp_path / "handed-back", "hdfs")
    assert not (tmp_path / "handed-back").exists()
