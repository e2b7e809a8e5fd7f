"""Fixtures of the fast tests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from integration.sample import ALL
from pyspark_ckpt.state_store.blobs import MeteredPlace, Traffic, place_at
from pyspark_ckpt.state_store.checkpoints import workplace as store_version_module
from tests.labs.lab import Lab
from tests.labs.scratch import IN_MEMORY
from tests.services.cloud_services import azure, cloud, gcs, no_machine
from tests.services.hdfs_service import hdfs
from tests.services.s3_server import s3

__all__ = ["azure", "cloud", "gcs", "hdfs", "no_machine", "s3"]

MakeLab = Callable[..., Lab]

EXAMPLES = 100 if ALL else 30
settings.register_profile("ckpt", deadline=None, max_examples=EXAMPLES)  # a machine may be busy
settings.load_profile("ckpt")


@pytest.fixture
def quick_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, and one for temporary files, where RocksDB need not wait for a disk."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.exists() else None) as folder:
        (Path(folder) / "temporary").mkdir()
        monkeypatch.delenv("TMPDIR", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", str(Path(folder) / "temporary"))
        (Path(folder) / "here").mkdir()
        yield Path(folder) / "here"


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[MakeLab]:
    """Make a checkpoint with a running server, with options of the test's choice."""
    made: list[Lab] = []

    def make(**options: str) -> Lab:
        made.append(Lab(tmp_path, **options))
        return made[-1]

    yield make
    for lab in made:
        lab.server.stores.shut_down()


@pytest.fixture
def lab(make_lab: MakeLab) -> Lab:
    """A checkpoint and a running server; its grace period is over at once."""
    return make_lab(retentionGracePeriod="0")


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    """Of all places in which offline work looks for state."""
    counted = Traffic()
    monkeypatch.setattr(store_version_module, "place_at", lambda *where: MeteredPlace(place_at(*where), counted))
    return counted
