"""Queries of which one half runs on one provider and the other half, after a move, on another."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeAlias

from integration.operators import test_session_windows
from integration.operators.providers import ROCKSDB, Provider
from integration.operators.replay import collect_into, read_state, run, write_inputs
from integration.sample import ALL
from integration.savepoints import test_rescale

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from integration.operators.replay import Case, Lines

Move: TypeAlias = "Callable[[Path, Path], object]"
"""Makes a checkpoint from another one."""

_REFUSED = {"join, format 1", "transformWithState, Avro"}
CASES = {name: (case, numbers[1]) for name, (case, numbers) in test_rescale.CASES.items() if name not in _REFUSED}
CASES["session windows of two keys"] = (test_session_windows.CASES["two keys"], 5)
"""The operators, and another number of partitions for each."""
ROCKSDB_ALONE = ("join, format 3", "join, format 4", "transformWithState")
"""How the names of those begin that Spark's HDFS-backed provider does not have."""
CHANGELOG = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}
WITH_CHANGELOG = Provider("changelog", ROCKSDB.provider_class, {**ROCKSDB.settings, **CHANGELOG})


def pair(providers: Collection[str]) -> list[tuple[str, str]]:
    """Pairs of an operator and a provider: all of them, or one for each operator."""

    def list_providers(name: str) -> list[str]:
        return [each for each in providers if each != "hdfs" or not name.startswith(ROCKSDB_ALONE)]

    if ALL:
        return [(name, provider) for name in CASES for provider in list_providers(name)]
    return [(name, own[number % len(own)]) for number, name in enumerate(CASES) if (own := list_providers(name))]


def play(
    spark: SparkSession, case: Case, providers: tuple[Provider, Provider], move: Move, folder: Path, **settings: str
) -> tuple[dict[int, Lines], tuple[Lines, ...]]:
    """Run the first files, move, and run the others; return the output of each batch, and the state.

    ``providers``: before and after the move; ``settings``: of the session after it.
    """
    batches: dict[int, Lines] = {}
    before, after = providers
    first, *others = case.runs
    write_inputs(case, folder, 0, first)
    session = before.session(spark, **case.settings)
    run(session, case, folder, collect_into(batches))
    move(folder / "checkpoint", folder / "moved")
    session = after.session(spark, **case.settings, **settings)
    for more in others:
        write_inputs(case, folder, first, first + more)
        run(session, case, folder, collect_into(batches), "moved")
        first += more
    return batches, read_state(session, case, folder, "moved")
