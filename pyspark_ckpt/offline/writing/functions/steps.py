"""The rows that functions of changes get, one after another: with the columns that ``open_state`` shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.offline.reading.row_location import PLACE
from pyspark_ckpt.offline.reading.rows.keyed_rows import INSTANTS, TIMERS
from pyspark_ckpt.offline.reading.rows.partition_rows import BROADCASTS, OPERATOR_LISTS
from pyspark_ckpt.offline.writing.functions.key_pairs import (
    FORMER_KEY,
    FORMER_TYPE,
    AllKeyPairs,
    KeyChange,
    describe_keys,
)
from pyspark_ckpt.offline.writing.given_columns import AT, KEY, WRITTEN, GivenColumns, WrittenState, with_key
from pyspark_ckpt.offline.writing.native.encoder import NativeEncoder
from pyspark_ckpt.operators.declarations.timers import MICROSECONDS, round_up_ms
from pyspark_ckpt.operators.encoding.column_hash import hash_columns
from pyspark_ckpt.operators.rows.ttl_stamps import NEVER
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.key_groups import HASHES, MAX_PARALLELISM, read_max_parallelism
from pyspark_ckpt.state_store.format.meta import StateMeta

ChangeRows: TypeAlias = Callable[[pa.Table], pa.Table]
Show: TypeAlias = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class Step:
    """A function of a change. ``state``, ``index``: of the rows that it gets. ``key_change``: if it changes the key."""

    function: ChangeRows
    state: StateMeta
    index: StateMeta | None
    key_change: KeyChange | None


def change_rows(
    batches: Iterable[pa.RecordBatch],
    steps: Sequence[Step],
    target: WrittenState,
    pairs: AllKeyPairs,
    *,
    are_shown: bool,
) -> Iterator[pa.Table]:
    """Yield rows as the functions of all steps leave them. ``target``: the state that gets them.

    ``are_shown``: whether they have the columns that ``open_state`` shows. ``pairs`` gets the keys that change.

    Raises InvalidInputError (a function that returns no table, or rows that are not of its state).
    """
    made = [_make(step, target, pairs) for step in steps]
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        for number, (show, apply) in enumerate(made):
            rows = apply(rows if are_shown and not number else show(rows))
        yield rows


def _make(step: Step, target: WrittenState, pairs: AllKeyPairs) -> tuple[Show, ChangeRows]:
    """Return what shows rows to the function of a step, and what applies it to them."""
    before = replace(target, state=step.state, index=step.index)
    if before.is_native:
        encoder = NativeEncoder(before)
        return lambda rows: _show_native(encoder.prepare(rows), before, encoder), lambda rows: _apply(step, rows)
    columns = GivenColumns(before)
    show: Show = lambda rows: _show(columns.take(rows), before)  # noqa: E731 - of two forms
    if step.key_change is None:
        return show, lambda rows: _apply(step, rows)
    change, found = step.key_change, pairs.of(step.key_change)
    after = GivenColumns(replace(before, state=with_key(step.state, change.schema)))

    def apply(rows: pa.Table) -> pa.Table:
        former = describe_keys(rows.column(KEY).combine_chunks().flatten())
        given = _apply(step, rows.append_column(FORMER_KEY, former))
        kept = given.column(FORMER_KEY) if given.column_names.count(FORMER_KEY) == 1 else None
        if kept is None or kept.type != FORMER_TYPE or kept.null_count:
            raise InvalidInputError(
                f"{before.whose}: the function of a ReKey changed or removed the column {FORMER_KEY!r}; its rows "
                f"have {given.column_names}.",
                hint="Leave it as it is: it shows whether two keys become one.",
            )
        given = given.drop_columns([FORMER_KEY])
        found.add(after.take_keys(given).flatten(), kept.combine_chunks())
        return given

    return show, apply


def _apply(step: Step, rows: pa.Table) -> pa.Table:
    found: object = step.function(rows)
    if not isinstance(found, pa.Table):
        change = "Transform" if step.key_change is None else "ReKey"
        raise InvalidInputError(
            f"State {step.state.name!r}: the function of a {change} returned {repr(found)[:200]} of type "
            f"{type(found).__name__}.",
            hint="Return a pyarrow.Table, which may be empty.",
        )
    return found


def _show(taken: pa.Table, state: WrittenState) -> pa.Table:
    """Return rows that ``GivenColumns`` has taken as ``open_state`` shows them."""
    columns = dict(zip(taken.column_names, taken.columns, strict=True))
    if WRITTEN in columns:
        written = columns[WRITTEN].to_numpy()
        life_ms = None if state.ttl is None else state.ttl.duration_ms
        columns[WRITTEN] = _instants(written, written != NEVER)
        expires = written + (life_ms or 0)
        columns["expires_at"] = _instants(expires, (written > 0) & (life_ms is not None))
    if state.kind == TIMERS:
        micros = columns[AT].cast(pa.int64()).to_pylist()
        at, namespace = columns.pop(AT), columns.pop("namespace")
        columns |= {AT: at, "at_ms": pa.array(list(map(round_up_ms, micros)), pa.int64()), "namespace": namespace}
        clock = str(state.state.descriptor.encoder.get("clock", ""))
        columns["clock"] = pa.array([clock] * len(taken), pa.string())
    return pa.table({**columns, **_place(taken, state)})


def _show_native(prepared: pa.Table, state: WrittenState, encoder: NativeEncoder) -> pa.Table:
    """Return rows that an encoder has prepared as ``open_state`` shows them."""
    hashes = encoder.hash_keys(prepared)
    signed = hashes.view(np.int32)
    groups = (hashes.astype(np.int64) * MAX_PARALLELISM // HASHES).astype(np.int32)
    numbers = [(signed % state.partitions).astype(np.int32), groups, signed]
    for field, column in zip(PLACE, numbers, strict=True):
        prepared = prepared.append_column(field, pa.array(column))
    return prepared


def _place(taken: pa.Table, state: WrittenState) -> dict[str, pa.Array]:
    """Return the columns that say where rows are."""
    if state.kind in (OPERATOR_LISTS, BROADCASTS):
        nothing = pa.nulls(len(taken), pa.int32())
        of_list = pc.struct_field(taken[KEY], "partition") if state.kind == OPERATOR_LISTS else nothing
        return {"partition": of_list, "key_group": nothing, "hash": nothing}
    hashes = hash_columns(taken.column(KEY).combine_chunks().flatten(), len(taken))
    groups = read_max_parallelism(state.state.descriptor, state.whose) or MAX_PARALLELISM
    of_key = hashes.astype(np.int64) * groups // HASHES
    return {
        "partition": pa.array((of_key * state.partitions // groups).astype(np.int32)),
        "key_group": pa.array(of_key.astype(np.int32)),
        "hash": pa.array(hashes.view(np.int32)),
    }


def _instants(milliseconds: np.ndarray, there: np.ndarray) -> pa.Array:
    return pa.array(np.where(there, milliseconds, 0) * MICROSECONDS, pa.int64(), mask=~there).cast(INSTANTS)
