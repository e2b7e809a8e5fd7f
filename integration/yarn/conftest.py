"""One cluster for all tests of this room: it takes a minute to pack what its containers have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.yarn import archive, cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from integration.yarn.cluster import YarnCluster
    from tests.services.hdfs_service import HdfsService


@pytest.fixture(scope="session")
def yarn(hdfs: HdfsService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    """A YARN whose default file system is the HDFS of the tests."""
    packed = archive.pack(tmp_path_factory.mktemp("archive"))
    with cluster.running(tmp_path_factory.mktemp("yarn") / "cluster", hdfs.address, packed) as running:
        yield running
