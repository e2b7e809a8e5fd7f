"""The states of two checkpoints in comparable form, whatever their numbers of partitions are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

from pyspark_ckpt.offline.reading.catalog import without_internal
from pyspark_ckpt.offline.reading.reader import StateReader
from pyspark_ckpt.offline.reading.rows.partition_rows import OPERATOR_LISTS
from pyspark_ckpt.offline.reading.stored_state import Selection
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.format.partition_states import SCOPE, Scope
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.testing.comparison import freeze

States: TypeAlias = Mapping[str, Mapping[Any, Any]]
"""By the name of a state: the contents of each key, and how often they occur."""

_PLACES = {"partition", "key_group", "hash", "written_at", "expires_at", "at_ms"}
"""Columns that differ between equal states: where rows lie, and when they were written."""


def read_states(checkpoint: str) -> dict[str, dict[Any, Any]]:
    """Return all states of the newest version of a checkpoint. Raises FormatError, StorageError.

    An operator list has one key, because its elements go to other partitions at another parallelism. Lists that a
    restore unites are left out, and so are states that expire by processing time, which is never the same twice.
    """
    found: dict[str, dict[Any, Any]] = {}
    where = Checkpoint(checkpoint, parse({}))
    with StateReader(where, Selection()) as reader:
        states = without_internal(reader.states)
    for state in states:
        is_union = state.descriptor.encoder.get(SCOPE) == Scope.UNION.value
        if state.descriptor.internal or is_union or (state.ttl is not None and state.ttl.clock == "processing"):
            continue
        selection = Selection(state.uid, state.operator.number, state.store, state.stored_name)
        with StateReader(where, selection, known=state, include_expired=False) as reader:
            found[state.whose] = _read(reader)
    return found


def _read(reader: StateReader) -> dict[Any, Any]:
    held: dict[Any, Counter[Any]] = {}
    is_list = reader.state.kind == OPERATOR_LISTS
    without = {*_PLACES, "key", *(["index"] if is_list else [])}
    for batch in reader.batches():
        names = [name for name in batch.schema.names if name not in without]
        keys = [None] * len(batch) if is_list else python_values(batch.column("key"))
        rows = zip(*(python_values(batch.column(name)) for name in names), strict=True)
        for key, row in zip(keys, rows, strict=True):
            held.setdefault(freeze(key), Counter())[freeze(row)] += 1
    return {key: dict(rows) for key, rows in held.items()}
