"""What the source of a restore holds. Its URL and its version do not say that.

A savepoint may be deleted and another taken in its folder; a query may be rolled back, and run its batch again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec
import xxhash

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.query_log import LOGS
from pyspark_ckpt.state_store.errors import ConflictError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.savepoints.savepoint import Savepoint, SavepointInfo, read_info


class Origin:
    """A source as it was when it was opened: a savepoint, or a checkpoint at one version."""

    def __init__(self, source: Checkpoint, version: int, operators: Sequence[OperatorVersion]) -> None:
        """``operators``: those of the source. Raises NotFoundError (a log is missing), StorageError."""
        self._source, self._version = source, version
        self._commits = [
            f"{store.identity.short} {store.meta.id}"
            for operator in operators
            for stores in operator.stores.values()
            for store in stores
        ]
        self.digest = _digest_savepoint(source.info) if isinstance(source, Savepoint) else self._digest_checkpoint()
        """What tells it from another source at its URL."""

    def require_unchanged(self) -> None:
        """Raise ConflictError if something else is at the URL of the source now; FormatError, StorageError."""
        digest = ""
        if isinstance(self._source, Savepoint):
            with suppress(InvalidInputError):  # there is no savepoint
                digest = _digest_savepoint(read_info(self._source.place))
        else:
            try:
                digest = self._digest_checkpoint()
            except NotFoundError:  # the query runs, and has deleted its old logs, which were copied before
                return
        if digest != self.digest:
            raise ConflictError(
                f"{self._source.place.url} was deleted or replaced while it was being restored.",
                hint="To restore what is there now, name a new folder.",
            )

    def _digest_checkpoint(self) -> str:
        place = self._source.place
        logs = [place.get(f"{log}/{self._version - 1}") for log in LOGS]
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode([self._source.query_id, self._commits, logs]))


def _digest_savepoint(info: SavepointInfo) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(info))
