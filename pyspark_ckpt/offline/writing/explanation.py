"""What changes of state would do: rows before and after, and samples. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from pyspark_ckpt.offline.reading.rows.keyed_rows import LISTS
from pyspark_ckpt.offline.reading.rows.partition_rows import BROADCASTS
from pyspark_ckpt.offline.writing.drafts.draft import Draft
from pyspark_ckpt.offline.writing.drafts.store_draft import GivenRows, StoreDraft, StoredRows, is_spark_frame
from pyspark_ckpt.offline.writing.functions.key_pairs import AllKeyPairs
from pyspark_ckpt.offline.writing.functions.sent_function import raising_as_functions_do
from pyspark_ckpt.offline.writing.given_columns import WrittenState
from pyspark_ckpt.offline.writing.given_rows import OpenState, change_batches, list_batches
from pyspark_ckpt.offline.writing.store_writing import run_in_spark
from pyspark_ckpt.offline.writing.tasks import make_encoder
from pyspark_ckpt.state_store.display import html_table
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.meta import StateMeta

Outcome: TypeAlias = Literal["stays", "written", "dropped"]


@dataclass(frozen=True)
class ExplainedState:
    """What becomes of a state. ``former``: its uid and name in the source, if it is there.

    ``rows_before``, ``rows_after``: of the state. Before, the head of each list counts as a row. ``sample``: of the
    rows that would be written, as they are given or as a function returns them. Elements of lists are counted, and one
    copy of a broadcast state; of a list that stays, its stored rows, of which each key has one more.
    """

    uid: str
    name: str
    outcome: Outcome
    former: str | None
    rows_before: int
    rows_after: int
    sample: pa.Table | None = field(default=None, repr=False)

    def __str__(self) -> str:
        name = f"{self.uid}/{self.name}"
        former = f", formerly {self.former}" if self.former not in (None, name) else ""
        return f"{name}: {self.outcome}, {self.rows_before:,} rows before, {self.rows_after:,} after{former}"


@dataclass(frozen=True)
class ExplainedChanges:
    """What changes would do to the states of keyed operators; ``migrations``: the names of those that would be made."""

    states: tuple[ExplainedState, ...]
    migrations: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.states), *(f"migration {name!r}" for name in self.migrations)])

    def _repr_html_(self) -> str:
        header = ("uid", "state", "outcome", "formerly", "rows before", "rows after")
        rows = ((e.uid, e.name, e.outcome, e.former or "", e.rows_before, e.rows_after) for e in self.states)
        return html_table("", header, rows)


def explain(
    draft: Draft,
    before: Draft,
    open_state: OpenState,
    samples: int,
    now_ms: int,
    partitions: int,
    pairs: AllKeyPairs,
) -> Iterator[ExplainedState]:
    """Yield what becomes of each state of the source, as ``before`` has it. ``pairs`` gets the keys that change.

    Raises as ``write_state``, and InvalidInputError for rows that can be read only once.
    """
    for store in draft.stores:
        for name, rows in store.written.items():
            if isinstance(rows, GivenRows) and isinstance(rows.rows, (Iterator, pa.RecordBatchReader)):
                raise InvalidInputError(
                    f"The rows of {name!r} are a reader. It can be read only once, and this would use it up.",
                    hint="Give a table, or give a new reader only to write_state.",
                )
    left = {
        (store.operator.number, store.name, state.name): (store, state)
        for store in before.stores
        for state in store.meta.states
        if state.is_counted
    }
    for store in draft.stores:
        for state in _list_states(store):
            given, former = store.written.get(state.name), store.formers.get(state.name)
            old = None if former is None else left.pop((store.operator.number, store.name, former))
            uid, name = _name(store, state)
            if former is not None and state.uid is None:
                former = f"{uid}/{former}"
            if given is None:
                count = 0 if old is None else _count(*old, open_state, counts_lists=False)
                yield ExplainedState(uid, name, "stays", former, count, count)
            else:
                count = 0 if old is None else _count(*old, open_state)
                after, sample = _encode(store, state.name, given, open_state, samples, now_ms, partitions, pairs)
                yield ExplainedState(uid, name, "written", former, count, after, sample)
    for store, state in left.values():
        if state.uid is not None:
            uid, name = _name(store, state)
            yield ExplainedState(uid, name, "dropped", state.name, _count(store, state, open_state), 0)


def _count(store: StoreDraft, state: StateMeta, open_state: OpenState, *, counts_lists: bool = True) -> int:
    """Return how many rows a state of the source has, as they are shown."""
    kind = state.descriptor.encoder.get("kind")
    if kind == BROADCASTS or state.descriptor.multiple_values or (kind == LISTS and counts_lists):
        name = state.name if state.uid is None else state.name.removeprefix(f"{state.uid}/")
        with open_state(StoredRows(store.operator.number, store.name, state.uid, name)) as opened:
            return opened.count()
    return state.rows


def _list_states(store: StoreDraft) -> list[StateMeta]:
    """Return the states of keyed operators, and those of Spark's that get rows."""
    return [
        state
        for state in store.meta.states
        if state.is_counted and (state.uid is not None or state.name in store.written)
    ]


def _name(store: StoreDraft, state: StateMeta) -> tuple[str, str]:
    if state.uid is None:
        return f"operator {store.operator.number}", state.name
    uid, _, name = state.name.partition("/")
    return uid, name


def _encode(
    store: StoreDraft,
    name: str,
    given: GivenRows | StoredRows,
    open_state: OpenState,
    samples: int,
    now_ms: int,
    partitions: int,
    pairs: AllKeyPairs,
) -> tuple[int, pa.Table | None]:
    """Encode all rows that would be written; return their number and some of them."""
    target = store.find_written(name, now_ms, partitions)
    with raising_as_functions_do():
        if isinstance(given, GivenRows) and is_spark_frame(given.rows):
            frame: Any = given.rows
            check = partial(_check_partition, given=replace(given, rows=()), target=target, samples=samples)
            done = run_in_spark(frame, check, _Checked)
            return sum(each.rows for each in done), next((each.load() for each in done if each.rows), None)
        return _take(_check(list_batches(given, open_state, target, pairs), target), samples)


class _Checked(msgspec.Struct, frozen=True):
    """The rows of a partition of a Spark frame: their number, and some of them as an Arrow stream."""

    rows: int
    sample: bytes

    def load(self) -> pa.Table:
        """Return some of the rows."""
        return pa.ipc.open_stream(self.sample).read_all()


def _check_partition(
    batches: Iterator[pa.RecordBatch], given: GivenRows, target: WrittenState, samples: int
) -> _Checked:
    """Make and encode the rows of a partition of a Spark frame. Raises as ``change_batches``."""
    with TemporaryDirectory() as folder, AllKeyPairs.below(Path(folder)) as pairs:
        count, sample = _take(_check(change_batches(batches, given, target, pairs), target), samples)
        pairs.require_distinct()
    file = pa.BufferOutputStream()
    if sample is not None:
        with pa.ipc.new_stream(file, sample.schema) as stream:
            stream.write_table(sample)
    return _Checked(count, file.getvalue().to_pybytes())


def _take(tables: Iterable[pa.Table], samples: int) -> tuple[int, pa.Table | None]:
    """Return how many rows tables have, and some of the first ones."""
    count = 0
    sample: pa.Table | None = None
    for table in tables:
        count += len(table)
        sample = table.slice(0, samples) if sample is None or not len(sample) else sample
    return count, sample


def _check(batches: Iterable[pa.RecordBatch], target: WrittenState) -> Iterator[pa.Table]:
    """Yield rows that can be encoded. Raises InvalidInputError."""
    encoder = make_encoder(target)
    for batch in batches:
        table = pa.Table.from_batches([batch])
        list(encoder.encode(encoder.prepare(table)))
        yield table
