"""A query on a cluster whose network is cut in many ways has each row in its sink exactly once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from integration.partitions.cluster import ROOT, Cluster, running
from integration.partitions.network import can_join
from integration.partitions.play import play
from tests.services.hdfs_service import MINI_CLUSTER
from tests.services.s3_server import GATEWAY

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.in_turn]

SEEDS = [int(seed) for seed in os.environ.get("CKPT_PARTITION_SEEDS", "1").split(",")]
NEEDED = {"s3": (GATEWAY, ROOT / ".tools" / "s3a"), "hdfs": (MINI_CLUSTER,)}


@pytest.fixture(scope="module", params=NEEDED)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = request.param
    if not all(path.exists() for path in NEEDED[place]):
        pytest.skip("NOT RUN: needs versitygw, Hadoop's S3A and its mini cluster, which `make services` brings.")
    if not can_join():
        pytest.skip("NOT RUN: needs root on Linux, and the commands ip and tc.")
    with running(tmp_path_factory.mktemp(place), place) as cluster:
        yield cluster


@pytest.mark.parametrize("seed", SEEDS)
def test_the_sink_is_right_although_the_network_is_cut(cluster: Cluster, seed: int) -> None:
    play(cluster, seed)
