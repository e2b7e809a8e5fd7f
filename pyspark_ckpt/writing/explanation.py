"""What changes of state would do: rows before and after, and samples. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from pyspark_ckpt.state_store.display import html_table
from pyspark_ckpt.state_store.format.meta import StateMeta
from pyspark_ckpt.writing.draft import Draft
from pyspark_ckpt.writing.given_rows import OpenState, list_batches
from pyspark_ckpt.writing.store_draft import GivenRows, StoreDraft, StoredRows, is_spark_frame
from pyspark_ckpt.writing.tasks import make_encoder

Outcome: TypeAlias = Literal["stays", "written", "dropped"]


@dataclass(frozen=True)
class ExplainedState:
    """What becomes of a state. ``former``: its uid and name in the source, if it is there.

    ``rows_before``, ``rows_after``: of the state. Before, the head of each list counts as a row. ``sample``: of the
    rows that would be written, as they are given or as a function returns them.
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
    draft: Draft, before: Draft, open_state: OpenState, samples: int, now_ms: int, partitions: int
) -> Iterator[ExplainedState]:
    """Yield what becomes of each state of the source, as ``before`` has it. Raises as ``write_state``."""
    left = {(store.operator.number, state.name): state for store in before.stores for state in _list_states(store)}
    known = set(left)
    for store in draft.stores:
        for state in _list_states(store):
            given = store.written.get(state.name)
            former = store.kept.get(state.name)
            if isinstance(given, StoredRows):
                former = given.stored_name
            elif given is not None and (store.operator.number, state.name) in known:
                former = state.name
            old = None if former is None else left.pop((store.operator.number, former), None)
            rows = 0 if old is None else old.rows
            uid, name = _name(store, state)
            if given is None:
                yield ExplainedState(uid, name, "stays", former, rows, rows)
            else:
                after, sample = _encode(store, state.name, given, open_state, samples, now_ms, partitions)
                yield ExplainedState(uid, name, "written", former, rows, after, sample)
    for state in left.values():
        uid, _, name = state.name.partition("/")  # Spark's own states are never dropped
        yield ExplainedState(uid, name, "dropped", state.name, state.rows, 0)


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
) -> tuple[int, pa.Table | None]:
    """Encode all rows that would be written, of a Spark frame a sample; return their number and some of them."""
    encoder = make_encoder(store.find_written(name, now_ms, partitions))
    if isinstance(given, GivenRows) and is_spark_frame(given.rows) and not given.functions:
        frame: Any = given.rows
        some = pa.Table.from_pandas(frame.limit(max(1, samples)).toPandas(), preserve_index=False)
        list(encoder.encode(encoder.prepare(some)))
        return frame.count(), some.slice(0, samples)
    rows, sample = 0, None
    for batch in list_batches(given, open_state):
        table = pa.Table.from_batches([batch])
        list(encoder.encode(encoder.prepare(table)))
        rows += len(table)
        sample = table.slice(0, samples) if sample is None else sample
    return rows, sample
