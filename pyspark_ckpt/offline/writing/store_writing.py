"""Write the rows of one store of a savepoint: those that stay, and those that are given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from pyspark_ckpt.offline.writing.drafts.store_draft import (
    GivenRows,
    StoreDraft,
    StoredRows,
    is_spark_frame,
    require_not_streaming,
)
from pyspark_ckpt.offline.writing.functions.key_pairs import KeyChange
from pyspark_ckpt.offline.writing.functions.sent_function import FunctionFailedError, raising_as_functions_do
from pyspark_ckpt.offline.writing.given_columns import WrittenState
from pyspark_ckpt.offline.writing.given_rows import OpenState, guess_bytes, list_given
from pyspark_ckpt.offline.writing.native.followers import Follower
from pyspark_ckpt.offline.writing.tasks import CompareKeys, Encoded, EncodeRows, EncodeStored, JoinTask, join_encoded
from pyspark_ckpt.state_store.blobs.transfers import StoredFile
from pyspark_ckpt.state_store.checkpoints.digests import Digest, Digests, combine, require_equal
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.key_groups import MAX_PARALLELISM
from pyspark_ckpt.state_store.format.meta import StoreMeta
from pyspark_ckpt.state_store.format.partition_states import Scope, find_scope
from pyspark_ckpt.state_store.format.spark_groups import make_times_before
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.redistribution.assembly import run_files
from pyspark_ckpt.state_store.redistribution.canonical import RANGE_BYTES, Exported, ImportTask, SavedRows
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.redistribution.splitting import Split, SplitTask
from pyspark_ckpt.state_store.redistribution.store_digests import require_recorded

T = TypeVar("T")

TASKS_A_CORE = 4
"""Each task reads many partitions of a state that is not large: more tasks would spend their time on opening it."""


@dataclass(frozen=True)
class StoreSource:
    """What a store has so far: its versions in all partitions, or its rows in the canonical savepoint at ``url``.

    ``open_state`` opens one of its states. ``recorded``: the digests of its states, if the source is a
    savepoint that has them.
    """

    stores: Sequence[StoreVersion]
    saved: SavedRows | None
    url: str
    open_state: OpenState
    recorded: Digests


@dataclass(frozen=True)
class _Unjoined:
    """The rows of a store before they are joined.

    ``splits``: those that stay. ``encoded``: those of the states that are ``written``, by the names of these.
    """

    written: Mapping[str, WrittenState]
    splits: Sequence[Split]
    encoded: Mapping[str, Encoded]

    @property
    def runs(self) -> list[Mapping[int, Sequence[StoredFile]]]:
        """The runs of all of them, by range."""
        return [split.runs for split in (*self.splits, *(each.split for each in self.encoded.values()))]

    @property
    def with_values(self) -> frozenset[str]:
        """The names of written states whose keys have several values."""
        return frozenset(state for state, each in self.written.items() if each.is_joined)


@dataclass(frozen=True)
class StoreWriting:
    """The rows of one store, as ``draft`` has it, below the URL ``target``. ``partitions``: of the savepoint."""

    workplace: Workplace
    draft: StoreDraft
    source: StoreSource
    target: str
    partitions: int
    runner: Runner
    progress: Progress

    def run(self) -> SavedRows:
        """Write the files of all ranges. Raises as ``write_state``."""
        now_ms = round(time.time() * 1000)
        written = {state: self.draft.find_written(state, now_ms, self.partitions) for state in self.draft.written}
        with raising_as_functions_do():
            splits, encoded = self._split(written)
        followers = tuple(
            Follower(written[leader], self.draft.find_written(state, now_ms, self.partitions))
            for state, leader in self.draft.following.items()
        )
        rows = _Unjoined(written, splits, encoded)
        done = self._join(rows, followers)
        digests = self._prove(rows, done)
        return SavedRows(
            self.draft.operator.number,
            self.draft.name,
            self.draft.layout.value,
            _count_rows(self.draft, digests),
            tuple(each.file for each in done),
            dict(digests),
            tuple(self._list_times(rows)),
        )

    def _join(self, rows: _Unjoined, followers: tuple[Follower, ...]) -> list[Exported]:
        """Write the files of all ranges, once it is proved that no two keys became one. Raises as the tasks."""
        lists = tuple((state, each.state.number) for state, each in rows.written.items() if each.is_list)
        tasks = [
            JoinTask(
                self.workplace,
                Identity(self.draft.operator.number, each, self.draft.name),
                self.draft.meta.states,
                self.target,
                run_files(rows.runs, each),
                lists,
                rows.with_values,
                followers,
            )
            for each in range(self._ranges)
        ]
        compare = CompareKeys.list_all(
            self.workplace, self.target, self._key_changes, join_encoded([*rows.encoded.values()])
        )
        done: list[Exported] = self.runner([*compare, *tasks], self.progress)[len(compare) :]
        return done

    def _prove(self, rows: _Unjoined, done: Sequence[Exported]) -> Mapping[str, Digest]:
        """Return the digests of all states, which are those of the rows that were read and given.

        Raises InvalidInputError (two rows for one place), FormatError (others were read than were written before).
        """
        after, added = combine(each.digests for each in done), combine(each.added for each in done)
        values = combine(each.joined for each in done)
        for state, each in rows.encoded.items():
            found = values if state in rows.with_values else after
            heads = added.get(state, Digest())
            _require_given(state, each.given, found.get(state, Digest()).rows - heads.rows)
        what = f"operator {self.draft.operator.number}, store {self.draft.name!r}"
        read = combine(split.digests for split in rows.splits)
        require_recorded(self._list_recorded(), read, f"{self.source.url}, {what}")
        new_names = {old: new for new, old in self.draft.kept.items()}
        kept = combine({new_names[old]: each for old, each in split.digests.items()} for split in rows.splits)
        before = combine([kept, *(each.split.digests for each in rows.encoded.values()), added])
        require_equal(before, {**after, **values}, what)
        return after

    def _list_times(self, rows: _Unjoined) -> list[bytes]:
        """Return the rows that Spark keeps for a keyed operator, with the earliest timers of the states written."""
        times = [value for split in rows.splits for value in split.spark_rows]
        if self.source.saved is not None and self.draft.layout is Layout.KEY_GROUPS:
            times += self.source.saved.spark_rows
        due_ms: dict[str, int] = {}
        for state, each in rows.encoded.items():
            if each.earliest_ms is not None:
                clock = str(rows.written[state].state.descriptor.encoder["clock"])
                due_ms[clock] = min(each.earliest_ms, due_ms.get(clock, each.earliest_ms))
        if due_ms:
            times.append(make_times_before(due_ms, times, f"operator {self.draft.operator.number}"))
        return times

    @property
    def _key_changes(self) -> list[KeyChange]:
        steps = [step.key_change for given in self.draft.written.values() for step in given.steps]
        return list({change.id: change for change in steps if change is not None}.values())

    def _list_recorded(self) -> dict[str, Digest]:
        """Return the recorded digests of the states that stay, but for those that are read in part."""
        found = {}
        for state in self.draft.meta.states:
            old = self.draft.kept.get(state.name, "")
            is_of_spark = self.draft.layout is Layout.KEY_GROUPS and state.uid is None
            if old in self.source.recorded and not is_of_spark and find_scope(state) is not Scope.BROADCAST:
                found[old] = self.source.recorded[old]
        return found

    @cached_property
    def _ranges(self) -> int:
        """How many files the rows get."""
        written = self.draft.written.values()
        is_read = self.draft.kept or any(isinstance(each, StoredRows) for each in written)
        kept = sum(each.size_bytes for each in self.source.stores) if is_read else 0
        given = sum(guess_bytes(each.rows) for each in written if isinstance(each, GivenRows))
        return max(1, min(MAX_PARALLELISM, (kept + given) // RANGE_BYTES))

    def _split(self, written: Mapping[str, WrittenState]) -> tuple[list[Split], dict[str, Encoded]]:
        """Split the rows that stay, and encode those of other states, by their names.

        All tasks that read the source are one job. Rows that are given are encoded before it.
        """
        encoded: dict[str, list[Encoded]] = {state: [] for state in written}
        kept, most = self._keep(), max(self._ranges, self.runner.width * TASKS_A_CORE)
        changed: list[tuple[str, EncodeStored]] = []
        for part, (state, given) in enumerate(self.draft.written.items()):
            identity = Identity(self.draft.operator.number, part, self.draft.name)
            encode = EncodeRows(self.workplace, written[state], identity, self.target, self._ranges)
            if isinstance(given, StoredRows):
                with self.source.open_state(given) as opened:
                    changed += [(state, task) for task in EncodeStored.list_all(encode, given, opened, most)]
            elif is_spark_frame(given.rows):
                act = partial(encode.change, given=replace(given, rows=()))
                encoded[state] = run_in_spark(given.rows, act, Encoded)
            else:
                encoded[state] = [encode.change(list_given(given.rows), given)]
        done: list[Any] = self.runner([*kept, *(task for _, task in changed)], self.progress)
        for (state, _), each in zip(changed, done[len(kept) :], strict=True):
            encoded[state].append(each)
        return done[: len(kept)], {state: join_encoded(each) for state, each in encoded.items()}

    def _keep(self) -> list[Any]:
        """Return the tasks that split the rows that stay."""
        source, target = self.source, self.target
        states = {state.name for store in source.stores for state in store.meta.states}
        left_out = frozenset(states - set(self.draft.kept.values()))
        if source.saved is not None:
            return [
                ImportTask(
                    self.workplace,
                    source.url,
                    source.saved,
                    each,
                    target,
                    self._ranges,
                    MAX_PARALLELISM,
                    writes_placed=True,
                    left_out=left_out,
                )
                for each in range(len(source.saved.files))
            ]
        is_keyed = self.draft.layout is Layout.KEY_GROUPS
        return [
            SplitTask(
                self.workplace,
                store,
                target,
                self._ranges,
                numbers,
                MAX_PARALLELISM,
                is_keyed,
                writes_copies=store is source.stores[0],
                left_out=left_out,
            )
            for store, numbers in zip(source.stores, self.draft.numbers, strict=True)
        ]


def _require_given(name: str, given: int, places: int) -> None:
    """Raise InvalidInputError if there are fewer rows than were given: some of them have the same place."""
    if places != given:
        raise InvalidInputError(
            f"State {name!r}: {given:,} rows were given for {places:,} places: some have the same key, and the same "
            "index or map_key if they have one.",
            hint="Give one row for each value, element or entry.",
        )


def _count_rows(draft: StoreDraft, digests: Mapping[str, Digest]) -> StoreMeta:
    """Return the metadata of a store with these rows."""
    states = []
    for state in draft.meta.states:
        found = digests.get(state.name, Digest())
        is_copy = find_scope(state) is Scope.BROADCAST  # only such states have a digest in the metadata
        digest = found.sum if is_copy and found.sum is not None else state.digest
        states.append(msgspec.structs.replace(state, rows=found.rows if state.is_counted else 0, digest=digest))
    return msgspec.structs.replace(draft.meta, states=tuple(states))


def run_in_spark(frame: Any, act: Callable[[Iterator[pa.RecordBatch]], T], kind: type[T]) -> list[T]:  # noqa: ANN401 - a frame of Spark or of Connect
    """Call ``act`` with the rows of each partition of a Spark frame, in the tasks of a job; return its results.

    ``kind``: the type of a result, which goes through JSON. Raises InvalidInputError, also what ``act`` raises of it,
    and what Spark raises.
    """
    require_not_streaming(frame)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"outcome": [msgspec.json.encode(_try(act, batches))]})

    rows = frame.mapInArrow(run, "outcome binary").collect()
    outcomes = [msgspec.json.decode(row.outcome, type=_Outcome) for row in rows]
    for each in outcomes:
        if each.refusal is not None:
            raise each.refusal.make_error()
    return [msgspec.json.decode(each.result, type=kind) for each in outcomes if each.result is not None]


class _Refusal(msgspec.Struct, frozen=True):
    """What is wrong with rows, or with a function, which may have raised an error: see FunctionFailedError."""

    message: str
    hint: str
    dumped: bytes | None

    def make_error(self) -> InvalidInputError:
        """Return what the task has raised."""
        if self.dumped is None:
            return InvalidInputError(self.message, hint=self.hint)
        return FunctionFailedError(self.message, hint=self.hint, dumped=self.dumped)


class _Outcome(msgspec.Struct, frozen=True):
    """A task's outcome for the rows of a Spark frame: a ``result`` in JSON, or a refusal."""

    result: bytes | None = None
    refusal: _Refusal | None = None


def _try(act: Callable[[Iterator[pa.RecordBatch]], object], batches: Iterator[pa.RecordBatch]) -> _Outcome:
    """Call ``act``. Spark repeats a task that raises an error, so wrong rows raise none here."""
    try:
        return _Outcome(result=msgspec.json.encode(act(batches)))
    except InvalidInputError as problem:
        for _ in batches:  # Spark wants all rows to be read
            pass
        dumped = problem.dumped if isinstance(problem, FunctionFailedError) else None
        return _Outcome(refusal=_Refusal(problem.message, problem.hint, dumped))
