"""``compare``: one case on Spark's own provider and on the provider under test."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import pytest

from integration.conftest import PARTITIONS, SHUFFLE_PARTITIONS
from integration.operators.placement import partition_of, stored_rows
from integration.operators.providers import BY_NAME, HDFS_BACKED, OURS, Provider
from integration.operators.replay import Case, Recording, replay_both

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

Compare: TypeAlias = Callable[..., Recording]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--provider",
        choices=sorted(BY_NAME),
        default=OURS.name,
        help="the provider under test; one of Spark's own checks the matrix itself",
    )


@pytest.fixture(scope="session")
def provider(request: pytest.FixtureRequest) -> Provider:
    """The provider under test."""
    return BY_NAME[request.config.getoption("--provider")]


@pytest.fixture
def compare(spark: SparkSession, provider: Provider, tmp_path: Path) -> Compare:
    """Replay a case on both providers and fail on the first difference in output, row counts or state."""

    def on_both(case: Case, reference: Provider = HDFS_BACKED) -> Recording:
        expected, actual = replay_both(spark, case, reference, provider, tmp_path)
        assert any(expected.batches.values()), "a case without output proves nothing"
        assert actual.batches == expected.batches
        assert actual.counts == expected.counts
        assert actual.state == expected.state
        if provider.provider_class == OURS.provider_class:
            partitions = int(case.settings.get(SHUFFLE_PARTITIONS, PARTITIONS))
            rows = list(stored_rows(tmp_path / "actual" / "checkpoint"))
            assert [row for row in rows if partition_of(row.partition_hash, partitions) != row.partition] == []
        return actual

    return on_both
