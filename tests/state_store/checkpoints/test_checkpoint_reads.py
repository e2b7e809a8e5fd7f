"""How much of a checkpoint is read to open it."""

from __future__ import annotations

from pathlib import Path

from pyspark_ckpt.state_store.blobs import BlobPlace, MeteredPlace, Traffic
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import refuse_unnamed_operators
from pyspark_ckpt.state_store.options import parse
from tests.labs.saved_query import written


class Counted(MeteredPlace):
    """A place that notes which objects are read."""

    def __init__(self, place: BlobPlace) -> None:
        super().__init__(place, Traffic())
        self.read: list[str] = []

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self.read.append(name)
        return super().get(name, start, end)


def test_metadata_of_operators_are_read_once(quick_path: Path) -> None:
    checkpoint = Checkpoint(written(quick_path / "query", 2).location, parse({}))
    checkpoint.place = place = Counted(checkpoint.place)
    checkpoint.refuse_other_provider()
    refuse_unnamed_operators(checkpoint, len(checkpoint.operators()))
    assert list(checkpoint.stores()) == list(checkpoint.stores())
    assert place.read.count("state/0/_metadata/metadata") == 1
    checkpoint.look_again()
    assert list(checkpoint.stores())
    assert place.read.count("state/0/_metadata/metadata") == 2
