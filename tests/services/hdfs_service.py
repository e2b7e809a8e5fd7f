"""A real HDFS for tests: a given one, or Hadoop's own mini cluster in a JVM."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hdfs_native import Client

from tests.services import java_program
from tests.services.java_program import next_line, tell

ADDRESS = "PYSPARK_CKPT_TEST_HDFS"
PROGRAM = Path(__file__).with_name("MiniHdfs.java")
MINI_CLUSTER = Path(__file__).parents[2] / ".tools" / "hdfs"

_RUNNING = pytest.StashKey["HdfsService"]()


@dataclass(frozen=True)
class HdfsService:
    """A running HDFS, a folder in it and a client of the test's own; ``orders``: it is the mini cluster."""

    address: str
    folder: str
    client: Client
    orders: subprocess.Popen[str] | None = None

    @property
    def options(self) -> dict[str, str]:
        """Options of ours to reach it: none."""
        return {}

    def new_folder(self) -> str:
        """A folder that nobody uses."""
        return f"{self.address}{self.folder}/{uuid.uuid4().hex}"

    def path(self, uri: str) -> str:
        """The path in a URI of this service."""
        return uri.removeprefix(self.address)

    def files(self, uri: str) -> list[str]:
        """All files below a folder."""
        return [entry.path for entry in self.client.list_status(self.path(uri), recursive=True) if not entry.isdir]

    @contextmanager
    def in_safe_mode(self) -> Iterator[None]:
        """While the block runs, the name node refuses writes."""
        self._order("enter safe mode")
        try:
            yield
        finally:
            self._order("leave safe mode")

    @contextmanager
    def without_data_node(self) -> Iterator[None]:
        """While the block runs, the only data node is gone."""
        self._order("stop data node")
        try:
            yield
        finally:
            self._order("start data node")

    @contextmanager
    def without_name_node(self) -> Iterator[None]:
        """While the block runs, the name node is gone."""
        self._order("stop name node")
        try:
            yield
        finally:
            self._order("start name node")

    def restart_name_node(self) -> None:
        """Stop the name node and start it again, with what it had on its disk."""
        self._order("restart name node")

    def _order(self, order: str) -> None:
        if self.orders is None:
            pytest.skip(f"NOT RUN: an order for the name node ({order}), which the HDFS of {ADDRESS} does not take.")
        tell(self.orders.stdin, order)
        assert next_line(self.orders) == order


@contextmanager
def running(folder: Path) -> Iterator[HdfsService]:
    """A service; ``folder`` is where the mini cluster keeps it. Skips the test if there is none."""
    if given := os.environ.get(ADDRESS):
        scheme, _, rest = given.partition("://")
        authority, _, path = rest.partition("/")
        service = HdfsService(f"{scheme}://{authority}", f"/{path.strip('/')}/{uuid.uuid4().hex}", Client(given))
        try:
            yield service
        finally:
            service.client.delete(service.folder, recursive=True)
    elif jars := sorted(MINI_CLUSTER.glob("*.jar")):
        log = folder.parent / f"{folder.name}.log"
        with java_program.running(PROGRAM, jars, folder, log) as process:
            address = next_line(process)
            yield HdfsService(address, "/tests", Client(address), process)
    else:
        pytest.skip(
            f"NOT RUN: needs Hadoop's mini cluster, which make fetches by Maven, or {ADDRESS}=hdfs://host:port/folder."
        )


@pytest.fixture(scope="session")
def hdfs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HdfsService:
    """A real HDFS: one for the whole run of pytest, however many folders of tests ask for it."""
    stash = request.config.stash
    if _RUNNING not in stash:
        stack = ExitStack()
        stash[_RUNNING] = stack.enter_context(running(tmp_path_factory.mktemp("hdfs") / "data"))
        request.config.add_cleanup(stack.close)
    return stash[_RUNNING]
