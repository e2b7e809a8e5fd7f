"""Write a canonical savepoint: states of a source that stay, and states whose rows are given."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark_ckpt.offline.reading.reader import StateReader
from pyspark_ckpt.offline.writing.drafts.changes import Change, Migration
from pyspark_ckpt.offline.writing.drafts.draft import Draft
from pyspark_ckpt.offline.writing.drafts.migrations import ChosenChanges
from pyspark_ckpt.offline.writing.drafts.store_draft import StoreDraft, StoredRows
from pyspark_ckpt.offline.writing.explanation import ExplainedChanges, explain
from pyspark_ckpt.offline.writing.first_files import NewQuery, make_first_files
from pyspark_ckpt.offline.writing.first_look import look_at_rows
from pyspark_ckpt.offline.writing.functions.key_pairs import AllKeyPairs
from pyspark_ckpt.offline.writing.held_state import HeldState, hold_state
from pyspark_ckpt.offline.writing.store_writing import StoreSource, StoreWriting
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.query.copying import copy_id, copy_logs, copy_operators
from pyspark_ckpt.state_store.checkpoints.query.entries import read_partitions
from pyspark_ckpt.state_store.checkpoints.query.migrations import (
    MIGRATIONS_FILE,
    AppliedMigration,
    write_migrations,
)
from pyspark_ckpt.state_store.checkpoints.query.proof import QueryFile
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError
from pyspark_ckpt.state_store.format.names import WORK_FOLDER
from pyspark_ckpt.state_store.format.remote import query_id
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.canonical import SavedRows
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.savepoints.creation import describe_operator, publish
from pyspark_ckpt.state_store.savepoints.nesting import refuse_inside_another, refuse_nested
from pyspark_ckpt.state_store.savepoints.possession import OwnFolder, Possession, explaining_what_is_left
from pyspark_ckpt.state_store.savepoints.savepoint import (
    SAVEPOINT_FORMAT,
    SavepointInfo,
    describe_rows,
    refuse_unless_empty,
)


@dataclass(frozen=True)
class Writing:
    """One call of ``write_state``. ``source``: a checkpoint or savepoint, or a query that has never run."""

    source: Checkpoint | NewQuery
    target: str
    options: Options
    runner: Runner
    progress: Progress
    written_by: str

    def run(self, given: Sequence[Change | Migration]) -> SavepointInfo:
        """Write the savepoint. Raises as ``write_state``."""
        workplace = Workplace(replace(self.options, remote=""))
        place = workplace.resolve(self.target)
        if isinstance(self.source, Checkpoint):
            refuse_nested(place, self.source, "a savepoint")
        else:
            refuse_inside_another(place, workplace, "a savepoint")
        refuse_unless_empty(place, "a savepoint")
        possession = Possession(place, self.source.place if isinstance(self.source, Checkpoint) else None)
        with explaining_what_is_left(possession.describe_what_is_left), self._hold() as held:
            partitions = _count_partitions(held)
            chosen, draft = _draft(given, held, partitions)
            look_at_rows(draft.stores, partitions, workplace)
            possession.take(1 if isinstance(held, NewQuery) else held.version)
            rows = [
                StoreWriting(
                    workplace,
                    store,
                    NO_STORE if isinstance(held, NewQuery) else held.find_store(store.operator.number, store.name),
                    place.url,
                    partitions,
                    self.runner,
                    self.progress,
                ).run()
                for store in draft.stores
            ]
            info = self._finish(place, possession, held, draft, chosen.migrations, rows)
        possession.release()
        return info

    def explain(self, given: Sequence[Change | Migration], samples: int) -> ExplainedChanges:
        """Return what ``run`` would do to states. Writes nothing. Raises as ``write_state``."""
        with self._hold() as held:
            partitions = _count_partitions(held)
            chosen, draft = _draft(given, held, partitions)
            opened = NO_STORE.open_state if isinstance(held, NewQuery) else held.open_state
            before, now_ms = Draft(None if isinstance(held, NewQuery) else held.operators), round(time.time() * 1000)
            with Workplace(self.options).folder() as folder, AllKeyPairs.below(folder) as pairs:
                states = tuple(explain(draft, before, opened, samples, now_ms, partitions, pairs))
                pairs.require_distinct()
        return ExplainedChanges(states, tuple(each.name for each in chosen.new_migrations))

    @contextmanager
    def _hold(self) -> Iterator[HeldState | NewQuery]:
        """Hold the version of the source, if there is one."""
        if isinstance(self.source, NewQuery):
            yield self.source
            return
        with hold_state(self.source) as held:
            yield held

    def _finish(
        self,
        place: BlobPlace,
        possession: Possession,
        held: HeldState | NewQuery,
        draft: Draft,
        migrations: tuple[AppliedMigration, ...],
        rows: Sequence[SavedRows],
    ) -> SavepointInfo:
        return publish_rows(
            place,
            possession,
            *((1, place.url) if isinstance(held, NewQuery) else (held.version, held.source.place.url)),
            self.written_by,
            draft.stores,
            rows,
            _write_all(possession.folder, draft, held),
            migrations,
        )


def _count_partitions(held: HeldState | NewQuery) -> int:
    return held.partitions if isinstance(held, NewQuery) else held.count_partitions()


def _draft(
    given: Sequence[Change | Migration], held: HeldState | NewQuery, partitions: int
) -> tuple[ChosenChanges, Draft]:
    """Return which changes are made, and the states as they leave them."""
    before, operators = ((), None) if isinstance(held, NewQuery) else (held.read_migrations(), held.operators)
    chosen, draft = ChosenChanges.of(given, before), Draft(operators)
    write_migrations(chosen.migrations)  # they must fit into the file, which is written last
    for change in chosen.changes:
        draft.apply(change)
    draft.settle(partitions)
    if operators is None and not draft.stores:
        raise InvalidInputError("A query that has never run has no state, and the changes put no rows into it.")
    return chosen, draft


def _write_all(own: OwnFolder, draft: Draft, held: HeldState | NewQuery) -> list[QueryFile]:
    """Write the files of the query."""
    if isinstance(held, NewQuery):
        return write_files(own, make_first_files(held, draft.stores))
    place, proof = held.source.place, held.make_proof()
    copied = copy_logs(held.logs, place, own, proof)
    return [*copied, *copy_operators(place, own, proof), *copy_id(place, own, proof)]


def write_files(own: OwnFolder, files: Mapping[str, bytes]) -> list[QueryFile]:
    """Write files of a query in their order. Raises StorageError, ConflictError."""
    for name, content in files.items():
        own.put(name, content)
    return [QueryFile.of(name, content) for name, content in files.items()]


def publish_rows(
    place: BlobPlace,
    possession: Possession,
    version: int,
    checkpoint: str,
    written_by: str,
    stores: Sequence[StoreDraft],
    rows: Sequence[SavedRows],
    files: Sequence[QueryFile],
    migrations: tuple[AppliedMigration, ...],
) -> SavepointInfo:
    """Complete a canonical savepoint whose ``rows`` and ``files`` are written, with the ``migrations`` of its state.

    ``checkpoint``: the URL of its source. Raises ConflictError (it was deleted), StorageError.
    """
    listed = {file.name: file for file in files}
    if migrations:  # in place of those that were copied
        (listed[MIGRATIONS_FILE],) = write_files(possession.folder, {MIGRATIONS_FILE: write_migrations(migrations)})
    for blob in place.walk(WORK_FOLDER):
        possession.folder.delete(blob.name)
    possession.require()
    info = SavepointInfo(
        format=SAVEPOINT_FORMAT,
        kind="canonical",
        created_ms=round(time.time() * 1000),
        written_by=written_by,
        query_id=query_id(place),
        checkpoint=checkpoint,
        version=version,
        partitions=read_partitions(place, version - 1),
        operators=tuple(describe_operator(each, {}) for each in _list_saved(place, stores, rows)),
        stores=(),
        files=tuple(listed.values()),
        rows=tuple(rows),
    )
    publish(info, place, possession)
    return info


def _refuse_to_read(rows: StoredRows) -> StateReader:
    raise InternalError(f"State {rows.stored_name} of a query that has never run has no rows.")


NO_STORE = StoreSource((), None, "", _refuse_to_read, {})
"""The source of a new store: nothing."""


def _list_saved(place: BlobPlace, stores: Sequence[StoreDraft], rows: Sequence[SavedRows]) -> list[OperatorVersion]:
    """Return the operators as the savepoint has them."""
    saved = {(each.operator, each.name): each for each in rows}
    found: dict[int, OperatorVersion] = {}
    for store in stores:
        operator = store.operator
        version = describe_rows(saved[operator.number, store.name], place.url)
        known = found.get(operator.number)
        whole = {**(known.stores if known else {}), store.name: (version,)}
        found[operator.number] = OperatorVersion(operator, whole, store.layout)
    return list(found.values())
