"""Write a canonical savepoint: states of a source that stay, and states whose rows are given."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from pyspark_ckpt.changes import Change
from pyspark_ckpt.reading.reader import StateReader
from pyspark_ckpt.reading.stored_state import Selection
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint, Operator
from pyspark_ckpt.state_store.checkpoints.digests import Digest, combine, require_equal
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion, list_operators
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.query.copying import copy_id, copy_logs, copy_operators, read_logs
from pyspark_ckpt.state_store.checkpoints.query.entries import check_content, read_partitions
from pyspark_ckpt.state_store.checkpoints.query.proof import LogProof, QueryFile
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.format.key_groups import MAX_PARALLELISM
from pyspark_ckpt.state_store.format.names import WORK_FOLDER
from pyspark_ckpt.state_store.format.partition_states import Scope, find_scope
from pyspark_ckpt.state_store.format.spark_groups import GroupTimesRow
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import seal
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.assembly import run_files
from pyspark_ckpt.state_store.redistribution.canonical import RANGE_BYTES, Exported, SavedRows
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.redistribution.merged_states import require_equal_states
from pyspark_ckpt.state_store.redistribution.splitting import Split, SplitTask
from pyspark_ckpt.state_store.savepoints.creation import describe_operator, hold_logs
from pyspark_ckpt.state_store.savepoints.nesting import refuse_inside_another, refuse_nested
from pyspark_ckpt.state_store.savepoints.possession import OwnFolder, Possession, explaining_what_is_left
from pyspark_ckpt.state_store.savepoints.savepoint import (
    NAME,
    SAVEPOINT_FORMAT,
    Savepoint,
    SavepointInfo,
    refuse_unless_empty,
)
from pyspark_ckpt.writing.draft import GROUPS, Draft, GivenRows, StoreDraft
from pyspark_ckpt.writing.first_files import NewQuery, make_first_files
from pyspark_ckpt.writing.given_rows import is_spark_frame, list_batches
from pyspark_ckpt.writing.tasks import Encoded, EncodeRows, JoinTask, KeepTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNKNOWN_BYTES = 1 << 30
"""The size that rows are taken to have whose size nobody knows before they are read."""
DUE_AT_ONCE_MS = 0
"""When Spark is to call a partition with new timers: as soon as it has a clock. The operator then says when next."""


@dataclass(frozen=True)
class Writing:
    """One call of ``write_state``. ``source``: a checkpoint or savepoint, or a query that has never run."""

    source: Checkpoint | NewQuery
    target: str
    options: Options
    runner: Runner
    progress: Progress
    written_by: str

    def run(self, changes: Sequence[Change]) -> SavepointInfo:
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
            operators = self._list_operators(version)
            draft = Draft(operators)
            for change in changes:
                draft.apply(change)
            if isinstance(self.source, NewQuery) and not draft.stores:
                raise InvalidInputError("A query that has never run has no state, and no rows are put into it.")
            possession.take(version)
            stores = {(each.operator.number, each.name): each for each in draft.stores}
            sources = {(each.operator.number, name): each for each in operators or () for name in each.stores}
            rows = [
                _StoreWriting(self, workplace, place, version, store, sources.get(key)).run()
                for key, store in stores.items()
            ]
            info = self._finish(place, possession, version, logs, draft, rows)
        possession.release()
        return info

    def open_source(self, version: int, uid: str, name: str) -> StateReader:
        """Open a state of the source. Raises as ``open_state``."""
        if not isinstance(self.source, Checkpoint):
            raise LifecycleError("A query that has never run has no rows.")
        return StateReader(self.source, Selection(uid=uid, state=name), version)

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

    def _list_operators(self, version: int) -> list[OperatorVersion] | None:
        if isinstance(self.source, NewQuery):
            return None
        operators = self.source.versions() if isinstance(self.source, Savepoint) else list_operators(self.source, version)
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
        rows: Sequence[SavedRows],
    ) -> SavepointInfo:
        own = possession.folder
        for blob in place.walk(WORK_FOLDER):
            own.delete(blob.name)
        files = self._write_files(own, draft, logs)
        possession.require()
        info = SavepointInfo(
            format=SAVEPOINT_FORMAT,
            kind="canonical",
            created_ms=round(time.time() * 1000),
            written_by=self.written_by,
            query_id=_read_id(place),
            checkpoint=self.source.place.url if isinstance(self.source, Checkpoint) else place.url,
            version=version,
            partitions=read_partitions(place, version - 1),
            operators=tuple(describe_operator(each, {}) for each in _list_saved(place, draft, rows)),
            stores=(),
            files=tuple(files),
            rows=tuple(rows),
        )
        own.put(NAME, seal(info))
        possession.require()
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


@dataclass(frozen=True)
class _StoreWriting:
    """The rows of one store."""

    writing: Writing
    workplace: Workplace
    place: BlobPlace
    version: int
    draft: StoreDraft
    source: OperatorVersion | None

    def run(self) -> SavedRows:
        """Write the files of all ranges. Raises as ``write_state``."""
        what = f"operator {self.draft.operator.number}, store {self.draft.name!r}"
        ranges = self._count_ranges()
        splits = self._keep(ranges)
        now_ms = round(time.time() * 1000)
        encoded = {
            name: self._encode(name, given, ranges, number, now_ms)
            for number, (name, given) in enumerate(self.draft.written.items())
        }
        runs = [split.runs for split in (*splits, *(each.split for each in encoded.values()))]
        lists = tuple(
            (name, state.state.number) for name in encoded if (state := self.draft.find_written(name, 0)).is_list
        )
        tasks = [
            JoinTask(
                self.workplace,
                Identity(self.draft.operator.number, each, self.draft.name),
                self.draft.meta.states,
                self.place.url,
                run_files(runs, each),
                lists,
            )
            for each in range(ranges)
        ]
        done: list[Exported] = self.writing.runner(tasks, self.writing.progress)
        after = combine(each.digests for each in done)
        added = combine(each.added for each in done)
        for name, each in encoded.items():
            self._require_given(name, each.given, after.get(name, Digest()), added.get(name, Digest()))
        names = {old: new for new, old in self.draft.kept.items()}
        kept = combine({names[name]: each for name, each in split.digests.items()} for split in splits)
        before = combine([kept, *(each.split.digests for each in encoded.values()), added])
        require_equal(before, after, what)
        return self._save(done, after, splits, encoded)

    def _count_ranges(self) -> int:
        kept = sum(each.size_bytes for each in self._stores) if self.draft.kept else 0
        given = sum(map(_guess_bytes, self.draft.written.values()))
        return max(1, min(MAX_PARALLELISM, (kept + given) // RANGE_BYTES))

    @property
    def _stores(self) -> Sequence[StoreVersion]:
        return () if self.source is None else self.source.stores[self.draft.name]

    @property
    def _left_out(self) -> frozenset[str]:
        """The names of states of the source whose rows do not stay."""
        states = {state.name for store in self._stores for state in store.meta.states}
        return frozenset(states - set(self.draft.kept.values()))

    def _keep(self, ranges: int) -> list[Split]:
        """Split the rows that stay."""
        saved, source = self._find_saved(), self.writing.source
        is_keyed = self.draft.layout is Layout.KEY_GROUPS
        tasks: list[Any] = []
        if saved is not None and isinstance(source, Checkpoint):
            tasks = [
                KeepTask(self.workplace, source.place.url, saved, each, self.place.url, ranges, self._left_out)
                for each in range(len(saved.files))
            ]
        else:
            tasks = [
                SplitTask(
                    self.workplace,
                    store,
                    self.place.url,
                    ranges,
                    numbers,
                    MAX_PARALLELISM,
                    is_keyed,
                    store is self._stores[0],
                    self._left_out,
                )
                for store, numbers in zip(self._stores, self.draft.numbers, strict=True)
            ]
        splits: list[Split] = self.writing.runner(tasks, self.writing.progress)
        return splits

    def _find_saved(self) -> SavedRows | None:
        source = self.writing.source
        if not isinstance(source, Savepoint) or source.info.kind != "canonical":
            return None
        return next(
            each
            for each in source.info.rows
            if (each.operator, each.name) == (self.draft.operator.number, self.draft.name)
        )

    def _encode(self, name: str, given: Any, ranges: int, number: int, now_ms: int) -> Encoded:
        state = self.draft.find_written(name, now_ms)
        identity = Identity(self.draft.operator.number, number, self.draft.name)
        encode = EncodeRows(self.workplace, state, identity, self.place.url, ranges)
        if isinstance(given, GivenRows) and is_spark_frame(given.rows) and not given.functions:
            return _encode_in_spark(given.rows, encode)
        return encode(list_batches(given, partial(self.writing.open_source, self.version)))

    def _require_given(self, name: str, given: int, found: Digest, heads: Digest) -> None:
        """Raise InvalidInputError if there are fewer rows than were given: some of them have the same place."""
        if found.rows - heads.rows != given:
            raise InvalidInputError(
                f"State {name!r}: {given:,} rows were given for {found.rows - heads.rows:,} places: some have the same "
                "key, and the same index or map_key if it has one.",
                hint="Give one row for each value, element or entry. The target is not usable: delete it.",
            )

    def _save(
        self,
        done: Sequence[Exported],
        digests: Mapping[str, Digest],
        splits: Sequence[Split],
        encoded: Mapping[str, Encoded],
    ) -> SavedRows:
        meta = msgspec.structs.replace(
            self.draft.meta,
            states=tuple(
                msgspec.structs.replace(
                    state,
                    rows=digests.get(state.name, Digest()).rows if state.is_counted else 0,
                    digest=digests[state.name].sum
                    if find_scope(state) is Scope.BROADCAST and state.name in encoded
                    else state.digest,
                )
                for state in self.draft.meta.states
            ),
        )
        saved = self._find_saved()
        times = [value for split in splits for value in split.spark_rows] + list(saved.spark_rows if saved else ())
        due = [each.earliest_ms for each in encoded.values() if each.earliest_ms is not None]
        if due:  # no timer counts as fired already
            times.append(GroupTimesRow(min(due) - 1, min(due) - 1, DUE_AT_ONCE_MS).encode())
        return SavedRows(
            self.draft.operator.number,
            self.draft.name,
            self.draft.layout.value,
            meta,
            tuple(each.file for each in done),
            dict(digests),
            tuple(times),
        )


def _encode_in_spark(frame: DataFrame, encode: EncodeRows) -> Encoded:
    """Encode the rows of a Spark frame in the tasks of a job. Raises InvalidInputError, and what Spark raises."""
    if frame.isStreaming:
        raise InvalidInputError(
            "Rows are given as a stream.", hint="Give a frame that is not a stream: spark.read in place of readStream."
        )

    def encode_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"encoded": [msgspec.json.encode(encode(batches))]})

    done = [
        msgspec.json.decode(row.encoded, type=Encoded)
        for row in frame.mapInArrow(encode_partition, "encoded binary").collect()
    ]
    runs: dict[int, list[Any]] = {}
    for each in done:
        for number, files in each.split.runs.items():
            runs.setdefault(number, []).extend(files)
    due = [each.earliest_ms for each in done if each.earliest_ms is not None]
    split = Split(combine(each.split.digests for each in done), runs)
    return Encoded(split, sum(each.given for each in done), min(due, default=None))


def _guess_bytes(given: Any) -> int:
    rows = given.rows if isinstance(given, GivenRows) else None
    return rows.nbytes if isinstance(rows, (pa.Table, pa.RecordBatch)) else UNKNOWN_BYTES


def _list_saved(place: BlobPlace, draft: Draft, rows: Sequence[SavedRows]) -> list[OperatorVersion]:
    """Return the operators as the savepoint has them."""
    saved = {(each.operator, each.name): each for each in rows}
    found: dict[int, OperatorVersion] = {}
    for store in draft.stores:
        operator = store.operator
        each = saved[operator.number, store.name]
        version = StoreVersion(
            Identity(operator.number, 0, store.name),
            place.url,
            each.meta,
            len(each.files),
            sum(file.size_bytes for file in each.files),
        )
        known = found.get(operator.number)
        stores = {**(known.stores if known else {}), store.name: (version,)}
        found[operator.number] = OperatorVersion(operator, stores, store.layout)
    return list(found.values())


def _read_id(place: BlobPlace) -> str:
    return str(json.loads(place.get("metadata"))["id"])
