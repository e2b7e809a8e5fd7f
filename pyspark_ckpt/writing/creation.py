"""Write a canonical savepoint: states of a source that stay, and states whose rows are given."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark_ckpt.changes import Change, Migration
from pyspark_ckpt.reading.reader import StateReader
from pyspark_ckpt.reading.stored_state import Selection
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_kind
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion, list_operators
from pyspark_ckpt.state_store.checkpoints.query.copying import copy_id, copy_logs, copy_operators, read_logs
from pyspark_ckpt.state_store.checkpoints.query.entries import check_content, read_partitions
from pyspark_ckpt.state_store.checkpoints.query.migrations import (
    MIGRATIONS_FILE,
    AppliedMigration,
    read_migrations,
    write_migrations,
)
from pyspark_ckpt.state_store.checkpoints.query.proof import LogProof, QueryFile
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError
from pyspark_ckpt.state_store.format.names import CHECKPOINT_FOLDER, MIGRATIONS_NAME, WORK_FOLDER
from pyspark_ckpt.state_store.format.remote import query_id
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.canonical import SavedRows
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.redistribution.merged_states import require_equal_states
from pyspark_ckpt.state_store.savepoints.creation import describe_operator, hold_logs, publish
from pyspark_ckpt.state_store.savepoints.nesting import refuse_inside_another, refuse_nested
from pyspark_ckpt.state_store.savepoints.possession import OwnFolder, Possession, explaining_what_is_left
from pyspark_ckpt.state_store.savepoints.savepoint import (
    SAVEPOINT_FORMAT,
    Savepoint,
    SavepointInfo,
    describe_rows,
    read_info,
    refuse_unless_empty,
)
from pyspark_ckpt.writing.draft import Draft
from pyspark_ckpt.writing.explanation import ExplainedChanges, explain
from pyspark_ckpt.writing.first_files import NewQuery, make_first_files
from pyspark_ckpt.writing.functions.key_pairs import AllKeyPairs
from pyspark_ckpt.writing.given_rows import OpenState
from pyspark_ckpt.writing.migrations import ChosenChanges
from pyspark_ckpt.writing.store_draft import StoreDraft, StoredRows
from pyspark_ckpt.writing.store_writing import StoreSource, StoreWriting


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
        with explaining_what_is_left(possession.describe_what_is_left), self._hold() as (version, logs):
            operators, partitions = self._list_operators(version), self._count_partitions(version)
            chosen, draft = self._draft(given, operators, partitions)
            possession.take(version)
            rows = [
                StoreWriting(
                    workplace,
                    store,
                    self._find_source(store, operators, version),
                    place.url,
                    partitions,
                    self.runner,
                    self.progress,
                ).run()
                for store in draft.stores
            ]
            info = self._finish(place, possession, version, logs, draft, chosen.migrations, rows)
        possession.release()
        return info

    def _find_source(self, store: StoreDraft, operators: Sequence[OperatorVersion] | None, version: int) -> StoreSource:
        source = self.source
        opened = self._find_reader(version)
        if not isinstance(source, Checkpoint):
            return StoreSource((), None, "", opened, {})
        place = store.operator.number, store.name
        stores = next(
            stores
            for each in operators or ()
            for name, stores in each.stores.items()
            if (each.operator.number, name) == place
        )
        saved, recorded = None, dict[str, Digest]()
        if isinstance(source, Savepoint):
            saved = next((each for each in source.info.rows if (each.operator, each.name) == place), None)
            recorded = source.info.digests_of(*place)
        return StoreSource(stores, saved, source.place.url, opened, recorded)

    def explain(self, given: Sequence[Change | Migration], samples: int) -> ExplainedChanges:
        """Return what ``run`` would do to states. Writes nothing. Raises as ``write_state``."""
        with self._hold() as (version, _):
            operators, partitions = self._list_operators(version), self._count_partitions(version)
            chosen, draft = self._draft(given, operators, partitions)
            opened, now_ms = self._find_reader(version), round(time.time() * 1000)
            with Workplace(self.options).folder() as folder, AllKeyPairs.below(folder) as pairs:
                states = tuple(explain(draft, Draft(operators), opened, samples, now_ms, partitions, pairs))
        return ExplainedChanges(states, tuple(each.name for each in chosen.new_migrations))

    def _draft(
        self, given: Sequence[Change | Migration], operators: Sequence[OperatorVersion] | None, partitions: int
    ) -> tuple[ChosenChanges, Draft]:
        """Return which changes are made, and the states as they leave them."""
        chosen, draft = ChosenChanges.of(given, self._read_migrations()), Draft(operators)
        write_migrations(chosen.migrations)  # they must fit into the file, which is written last
        for change in chosen.changes:
            draft.apply(change)
        draft.settle(partitions)
        if isinstance(self.source, NewQuery) and not draft.stores:
            raise InvalidInputError("A query that has never run has no state, and no rows are put into it.")
        return chosen, draft

    def _find_reader(self, version: int) -> OpenState:
        """Return what opens a state of the source."""
        source = self.source
        if not isinstance(source, Checkpoint):
            return _refuse_to_read
        return lambda rows: StateReader(
            source, Selection(rows.uid, rows.operator, rows.store, rows.stored_name), version
        )

    @contextmanager
    def _hold(self) -> Iterator[tuple[int, Mapping[str, bytes]]]:
        """Hold the version of the source; yield it with the logs of its batch."""
        if isinstance(self.source, NewQuery):
            yield 1, {}
        elif isinstance(self.source, Savepoint):
            yield self.source.info.version, read_logs(self.source.place, self.source.info.version - 1)
        else:
            with hold_logs(self.source) as held:
                yield held

    def _count_partitions(self, version: int) -> int:
        source = self.source
        return source.partitions if isinstance(source, NewQuery) else read_partitions(source.place, version - 1)

    def _read_migrations(self) -> tuple[AppliedMigration, ...]:
        """Return the migrations of the source. A savepoint says whether it has any, and what is in the file.

        Raises FormatError, StorageError, NotFoundError (the file of a savepoint is missing).
        """
        if not isinstance(self.source, Checkpoint):
            return ()
        place = self.source.place
        if find_kind(place) is FolderKind.SAVEPOINT:
            files = [each for each in read_info(place).files if each.name == MIGRATIONS_FILE]
            proof = LogProof(files)
            for blob in place.list(CHECKPOINT_FOLDER, prefix=MIGRATIONS_NAME):
                proof(blob.name, place.get(blob.name), f"{place.url}/{blob.name}")
            proof.require_all(place)
        return read_migrations(place)

    def _list_operators(self, version: int) -> list[OperatorVersion] | None:
        if isinstance(self.source, NewQuery):
            return None
        operators = (
            self.source.versions() if isinstance(self.source, Savepoint) else list_operators(self.source, version)
        )
        for operator in operators:
            require_equal_states(operator)
        return operators

    def _finish(
        self,
        place: BlobPlace,
        possession: Possession,
        version: int,
        logs: Mapping[str, bytes],
        draft: Draft,
        migrations: tuple[AppliedMigration, ...],
        rows: Sequence[SavedRows],
    ) -> SavepointInfo:
        own = possession.folder
        for blob in place.walk(WORK_FOLDER):
            own.delete(blob.name)
        files = {file.name: file for file in self._write_files(own, draft, logs)}
        if migrations:
            content = write_migrations(migrations)
            own.put(MIGRATIONS_FILE, content)
            files[MIGRATIONS_FILE] = QueryFile.of(MIGRATIONS_FILE, content)
        possession.require()
        info = SavepointInfo(
            format=SAVEPOINT_FORMAT,
            kind="canonical",
            created_ms=round(time.time() * 1000),
            written_by=self.written_by,
            query_id=query_id(place),
            checkpoint=self.source.place.url if isinstance(self.source, Checkpoint) else place.url,
            version=version,
            partitions=read_partitions(place, version - 1),
            operators=tuple(describe_operator(each, {}) for each in _list_saved(place, draft, rows)),
            stores=(),
            files=tuple(files.values()),
            rows=tuple(rows),
        )
        publish(info, place, possession)
        return info

    def _write_files(self, own: OwnFolder, draft: Draft, logs: Mapping[str, bytes]) -> list[QueryFile]:
        source = self.source
        if isinstance(source, NewQuery):
            files = make_first_files(source, draft.stores)
            for name, content in files.items():
                own.put(name, content)
            return [QueryFile.of(name, content) for name, content in files.items()]
        proof = LogProof(source.info.files) if isinstance(source, Savepoint) else check_content
        copied = copy_logs(logs, source.place, own, proof)
        return [*copied, *copy_operators(source.place, own, proof), *copy_id(source.place, own, proof)]


def _refuse_to_read(rows: StoredRows) -> StateReader:
    raise InternalError(f"State {rows.stored_name} of a query that has never run has no rows.")


def _list_saved(place: BlobPlace, draft: Draft, rows: Sequence[SavedRows]) -> list[OperatorVersion]:
    """Return the operators as the savepoint has them."""
    saved = {(each.operator, each.name): each for each in rows}
    found: dict[int, OperatorVersion] = {}
    for store in draft.stores:
        operator = store.operator
        version = describe_rows(saved[operator.number, store.name], place.url)
        known = found.get(operator.number)
        stores = {**(known.stores if known else {}), store.name: (version,)}
        found[operator.number] = OperatorVersion(operator, stores, store.layout)
    return list(found.values())
