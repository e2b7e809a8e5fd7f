"""The plan of a restore: which stores, into how many partitions, under which uids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.canonical import SavedRows
from pyspark_ckpt.state_store.savepoints.savepoint import SavepointInfo


@dataclass(frozen=True)
class RestorePlan:
    """One restore. ``place``: the target; ``operators``: all operators that have state."""

    options: Options
    workplace: Workplace
    place: BlobPlace
    source_url: str
    operators: Sequence[OperatorVersion]
    old_partitions: int
    partitions: int
    uid_map: Mapping[str, str]
    saved_rows: Mapping[tuple[int, str], SavedRows]
    """By operator and store, if the source is a canonical savepoint; else empty."""
    info: SavepointInfo | None
    """The content of ``savepoint.json`` if the source is a savepoint."""

    def get_saved(self, operator: OperatorVersion, name: str) -> SavedRows | None:
        """Return the rows of a store, if the source is a canonical savepoint."""
        return self.saved_rows.get((operator.operator.number, name))

    def get_recorded(self, operator: OperatorVersion, name: str) -> dict[str, Digest]:
        """Return the digests of a store's states that the source savepoint has recorded."""
        return {} if self.info is None else self.info.digests_of(operator.operator.number, name)

    def count_partitions(self, operator: OperatorVersion) -> int:
        """Return how many partitions of the operator will have state."""
        return 1 if operator.layout is Layout.SINGLE else self.partitions

    def is_copied(self, operator: OperatorVersion) -> bool:
        """Return whether the operator's stores are copied as they are."""
        is_renamed = any(uid in self.uid_map for uid in operator.uids)
        return self.partitions == self.old_partitions and not is_renamed and not self.saved_rows
