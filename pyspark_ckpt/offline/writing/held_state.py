"""The state of a checkpoint or savepoint at one version, which stays there while it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark_ckpt.offline.reading.reader import StateReader
from pyspark_ckpt.offline.reading.sources import state_at
from pyspark_ckpt.offline.reading.stored_state import Selection
from pyspark_ckpt.offline.writing.drafts.store_draft import StoredRows
from pyspark_ckpt.offline.writing.store_writing import StoreSource
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_kind
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion, list_operators
from pyspark_ckpt.state_store.checkpoints.query.content import ContentRewrite, check_content
from pyspark_ckpt.state_store.checkpoints.query.copying import read_logs
from pyspark_ckpt.state_store.checkpoints.query.entries import (
    decode_json,
    is_log,
    require_partitions,
    split_lines,
)
from pyspark_ckpt.state_store.checkpoints.query.migrations import MIGRATIONS_FILE, AppliedMigration, read_migrations
from pyspark_ckpt.state_store.checkpoints.query.proof import LogProof
from pyspark_ckpt.state_store.format.names import CHECKPOINT_FOLDER, MIGRATIONS_NAME
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.merged_states import require_equal_states
from pyspark_ckpt.state_store.savepoints.creation import hold_logs
from pyspark_ckpt.state_store.savepoints.savepoint import Savepoint, read_info


@dataclass(frozen=True)
class HeldState:
    """All operators of ``source`` at ``version``, and the ``logs`` of its batch by name."""

    source: Checkpoint
    version: int
    logs: Mapping[str, bytes]
    operators: Sequence[OperatorVersion]

    def find_entry(self, log: str) -> tuple[bytes, str]:
        """Return the entry of the batch in a log, ``offsets`` or ``commits``, and where it is."""
        name = f"{log}/{self.version - 1}"
        return self.logs[name], f"{self.source.place.url}/{name}"

    def decode_entry(self, log: str) -> dict[str, Any]:
        """Return the JSON of the entry of the batch in a log. Raises FormatError."""
        content, where = self.find_entry(log)
        return decode_json(split_lines(content, where)[1], where)

    def count_partitions(self) -> int:
        """Return the number of partitions of the batch. Raises FormatError."""
        return require_partitions(*self.find_entry("offsets"))

    def open_state(self, rows: StoredRows) -> StateReader:
        """Open a state for reading. Raises as ``open_state`` of the package."""
        return StateReader(self.source, Selection(rows.uid, rows.operator, rows.store, rows.stored_name), self.version)

    def find_store(self, operator: int, name: str) -> StoreSource:
        """Return what there is of a store, by the number of its operator and its name."""
        stores = next(each.stores[name] for each in self.operators if each.operator.number == operator)
        saved, recorded = None, dict[str, Digest]()
        if isinstance(self.source, Savepoint):
            rows = self.source.info.rows
            saved = next((each for each in rows if (each.operator, each.name) == (operator, name)), None)
            recorded = self.source.info.digests_of(operator, name)
        return StoreSource(stores, saved, self.source.place.url, self.open_state, recorded)

    def make_proof(self, change: ContentRewrite = check_content, below: str = "") -> ContentRewrite | LogProof:
        """Return a rewrite for copied files of the query. It checks that files of a savepoint are as it lists them.

        ``below``: how the names of the copied files begin.
        """
        if not isinstance(self.source, Savepoint):
            return change
        return LogProof((each for each in self.source.info.files if each.name.startswith(below)), change)

    def read_migrations(self) -> tuple[AppliedMigration, ...]:
        """Return the migrations of the state. A savepoint says whether it has any, and what is in the file.

        Raises FormatError, StorageError, NotFoundError (the file of a savepoint is missing).
        """
        place = self.source.place
        if find_kind(place) is FolderKind.SAVEPOINT:
            files = [each for each in read_info(place).files if each.name == MIGRATIONS_FILE]
            proof = LogProof(files)
            for blob in place.list(CHECKPOINT_FOLDER, prefix=MIGRATIONS_NAME):
                proof(blob.name, place.get(blob.name), f"{place.url}/{blob.name}")
            proof.require_all(place)
        return read_migrations(place)


def open_whole(location: str, options: Options) -> Checkpoint:
    """Open a checkpoint, or a savepoint of either kind as one: its files must be those that it lists.

    Raises InvalidInputError (neither of them, or an unfinished savepoint), FormatError, StorageError.
    """
    opened = state_at(location, options)
    if isinstance(opened, Savepoint) or find_kind(opened.place) is not FolderKind.SAVEPOINT:
        return opened
    return Savepoint(location, options)


@contextmanager
def hold_state(source: Checkpoint) -> Iterator[HeldState]:
    """Hold the version of a savepoint, or the newest one of a checkpoint, whose query may be running.

    Raises InvalidInputError (partitions disagree, a query was started in a savepoint), LifecycleError (no batch yet),
    NotFoundError, FormatError, StorageError.
    """
    if isinstance(source, Savepoint):
        version, operators = source.info.version, source.versions()
        _require_equal(operators)
        yield HeldState(source, version, _read_saved_logs(source), operators)
        return
    with hold_logs(source) as (version, logs):
        operators = list_operators(source, version)
        _require_equal(operators)
        yield HeldState(source, version, logs, operators)


def _read_saved_logs(source: Savepoint) -> dict[str, bytes]:
    """Return the logs of a savepoint, which must be those that it was taken with."""
    logs = read_logs(source.place, source.info.version - 1)
    proof = LogProof(file for file in source.info.files if is_log(file.name))
    for name, content in logs.items():
        proof(name, content, f"{source.place.url}/{name}")
    proof.require_all(source.place)
    return logs


def _require_equal(operators: Sequence[OperatorVersion]) -> None:
    for operator in operators:
        require_equal_states(operator)
