"""One cluster for all tests of this room: it takes a minute to pack what its containers have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hdfs_native import WriteOptions

from integration.yarn import archive, cluster, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from integration.yarn.cluster import Mode, YarnCluster
    from tests.services.hdfs_service import HdfsService


@pytest.fixture(scope="session")
def yarn(hdfs: HdfsService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    """A YARN whose default file system is the HDFS of the tests."""
    if hdfs.orders is None:
        pytest.skip("NOT RUN: needs the mini cluster of HDFS: its folders can be given to another user.")
    home = f"/user/{rows.USER}"
    hdfs.client.mkdirs(home, create_parent=True)
    hdfs.client.set_owner(home, rows.USER)
    packed = archive.pack(tmp_path_factory.mktemp("archive"))
    uploaded = f"{hdfs.new_folder()}/{packed.name}"
    with hdfs.client.create(hdfs.path(uploaded), WriteOptions()) as file:
        file.write(packed.read_bytes())
    archives: dict[Mode, str] = {"client": str(packed), "cluster": uploaded}
    with cluster.running(tmp_path_factory.mktemp("yarn") / "cluster", hdfs.address, archives) as running:
        yield running
