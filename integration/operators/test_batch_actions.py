"""A foreachBatch function may run its action in any thread: state is as safe as in the query's own one."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.actions import WAYS
from integration.operators.batch_plays import DONE, SEEN, perform
from integration.operators.batch_stage import ACTIONS, AT_ONCE, QUERIES
from integration.operators.providers import BACKEND
from integration.sample import sampled
from integration.short import has

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FORMATS = [1, 2] if has("4.1") else [1]
EVERY = [
    (play, way, version) for play, way, version in product(SEEN, WAYS, FORMATS) if play != "unnumbered" or version == 1
]
LEFT_OUT = [each for each in EVERY if each[1] != "thread" and each[0] != "corrected"]
OPERATORS = [each for each in QUERIES if each != "processor" or has("4.1")]


def play(spark: SparkSession, folder: Path, **how: Any) -> Any:  # noqa: ANN401 - JSON
    """Return what a play tells in a session of its own."""
    session = spark.newSession()
    session.conf.set(SHUFFLE_PARTITIONS, "2")
    (found,) = perform(session, folder, [how])
    return found


@pytest.mark.in_turn
@pytest.mark.parametrize("case", sampled(EVERY, LEFT_OUT), ids=lambda case: "-".join(map(str, case)))
def test_state_is_safe_when_an_action_runs_in_any_thread(
    case: tuple[str, str, int], spark: SparkSession, tmp_path: Path
) -> None:
    name, way, version = case
    assert play(spark, tmp_path, play=name, way=way, format=version) == SEEN[name]


@pytest.mark.in_turn
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("query", [each for each in OPERATORS if each != "aggregation"])
def test_every_operator_goes_on_when_an_action_runs_in_any_thread(
    query: str, way: str, spark: SparkSession, tmp_path: Path
) -> None:
    found = play(spark, tmp_path, play="continued", way=way, format=FORMATS[-1], query=query)
    assert found == SEEN["continued"]


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_finds_its_state_in_memory_when_an_action_runs_in_any_thread(
    way: str, spark: SparkSession, tmp_path: Path
) -> None:
    conf = {BACKEND: "memory"}
    found = play(spark, tmp_path, play="resident", way=way, format=FORMATS[-1], conf=conf)
    assert found == {"ended": DONE, "totals": [1, 11, 111, 1111, 11111], "in memory": True}


@pytest.mark.in_turn
@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("query", OPERATORS)
def test_actions_on_one_frame_agree_when_they_run_at_the_same_time(
    query: str, version: int, spark: SparkSession, tmp_path: Path
) -> None:
    assert ACTIONS > 1
    found = play(spark, tmp_path, play="long", way=AT_ONCE, format=version, query=query)
    assert found == {"ended": DONE, "totals": [*range(1, 13)]}
