"""The source of a restore: the operators of a savepoint or a checkpoint at one version, and how to recognise them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import xxhash

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion, list_operators
from pyspark_ckpt.state_store.checkpoints.query.copying import read_logs
from pyspark_ckpt.state_store.checkpoints.query.entries import read_partitions, require_partitions
from pyspark_ckpt.state_store.checkpoints.query.files import LOGS
from pyspark_ckpt.state_store.checkpoints.query.proof import QueryFile
from pyspark_ckpt.state_store.errors import ConflictError, NotFoundError
from pyspark_ckpt.state_store.redistribution.canonical import SavedRows
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.redistribution.strategies.base import Strategy
from pyspark_ckpt.state_store.savepoints.savepoint import NAME, Savepoint


class OtherStores(Protocol):
    """Stores of another kind than ours, from which a checkpoint is made."""

    def strategy(self, operator: OperatorVersion, url: str) -> Strategy:
        """Return how the stores of an operator are moved. ``url``: of the target."""
        ...

    def count_rows(
        self, operator: OperatorVersion, partitions: int, runner: Runner, progress: Progress
    ) -> Sequence[int]:
        """Count the rows of each new partition of an operator. Raises as ``Strategy.move``."""
        ...

    def describe_operators(self, partitions: int) -> Mapping[str, bytes]:
        """Return files of operators that the source lacks, by name. ``partitions``: how many they have now."""
        ...


@dataclass(frozen=True)
class RestoreSource:
    """The operators of a checkpoint or savepoint that have state, all at one ``version``.

    URL and version do not identify it: another savepoint may replace it in its folder, and a query may be rolled back
    and run its batch again. Its ``digest`` does.
    """

    checkpoint: Checkpoint
    version: int
    operators: Sequence[OperatorVersion]
    others: OtherStores | None = None
    """Set if the stores are not of this kind."""
    files: Sequence[QueryFile] | None = None
    """The expected content of Spark's files, if it is known."""
    saved_rows: Mapping[tuple[int, str], SavedRows] = field(default_factory=dict)
    """By operator and store, if it is a canonical savepoint."""
    held_logs: Mapping[str, bytes] | None = None
    """The logs of its batch, if the query may run and delete them."""

    @classmethod
    def of_checkpoint(
        cls, checkpoint: Checkpoint, version: int, held_logs: Mapping[str, bytes] | None = None
    ) -> RestoreSource:
        """Open a checkpoint at a version. Raises FormatError, NotFoundError, StorageError."""
        return cls(checkpoint, version, list_operators(checkpoint, version), held_logs=held_logs)

    @classmethod
    def of_savepoint(cls, savepoint: Savepoint) -> RestoreSource:
        """Open a savepoint. Raises FormatError, NotFoundError, StorageError."""
        info = savepoint.info
        saved = {(rows.operator, rows.name): rows for rows in info.rows}
        return cls(savepoint, info.version, savepoint.versions(), files=info.files, saved_rows=saved)

    def read_logs(self) -> Mapping[str, bytes]:
        """Return the logs that a query needs to continue. Raises as ``copying.read_logs``."""
        return read_logs(self.checkpoint.place, self.version - 1) if self.held_logs is None else self.held_logs

    @property
    def url(self) -> str:
        """The folder."""
        return self.checkpoint.place.url

    @property
    def taken_from(self) -> str:
        """The URL of the checkpoint that a savepoint was taken from; empty if this is no savepoint."""
        return self.checkpoint.info.checkpoint if isinstance(self.checkpoint, Savepoint) else ""

    def count_partitions(self) -> int:
        """Return the number of partitions of its stateful operators. Raises FormatError, StorageError."""
        place, name = self.checkpoint.place, f"offsets/{self.version - 1}"
        if self.held_logs is not None:
            return require_partitions(self.held_logs[name], f"{place.url}/{name}")
        return read_partitions(place, self.version - 1)

    def get_saved(self, operator: OperatorVersion, name: str) -> SavedRows | None:
        """Return the rows of a store, if this is a canonical savepoint."""
        return self.saved_rows.get((operator.operator.number, name))

    def get_recorded(self, operator: OperatorVersion, name: str) -> dict[str, Digest]:
        """Return the recorded digests of a store's states in a savepoint."""
        if not isinstance(self.checkpoint, Savepoint):
            return {}
        return self.checkpoint.info.digests_of(operator.operator.number, name)

    def digest(self) -> str:
        """Return what tells it from another source at its URL. Raises NotFoundError (a log is gone), StorageError."""
        return self._digest(self.held_logs)

    def _digest(self, held_logs: Mapping[str, bytes] | None) -> str:
        place = self.checkpoint.place
        if isinstance(self.checkpoint, Savepoint):
            return xxhash.xxh3_128_hexdigest(place.get(NAME))
        names = [f"{log}/{self.version - 1}" for log in LOGS]
        logs = [place.get(name) if held_logs is None else held_logs[name] for name in names]
        commits = [
            f"{store.identity.short} {store.meta.id}"
            for operator in self.operators
            for stores in operator.stores.values()
            for store in stores
        ]
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode([self.checkpoint.query_id, commits, logs]))

    def require_unchanged(self, digest: str) -> None:
        """Raise ConflictError if the source at its URL no longer has this ``digest``; StorageError."""
        try:
            found = self._digest(None)
        except NotFoundError:
            if not isinstance(self.checkpoint, Savepoint):  # the query runs: it has deleted logs after they were copied
                return
            found = ""
        if found != digest:
            raise ConflictError(
                f"{self.url} was deleted or replaced while it was being restored.",
                hint="To restore the present content, name a new folder.",
            )
