"""What a state is, over all partitions: its stored rows, its types, and where its rows are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyspark_ckpt.offline.descriptions.operators import key_text, type_text
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.store_contents import count_rows_by_hash
from pyspark_ckpt.state_store.format.key_groups import MAX_PARALLELISM
from pyspark_ckpt.state_store.format.meta import StateMeta
from pyspark_ckpt.state_store.format.partition_states import Scope, find_scope
from pyspark_ckpt.state_store.identity import Identity

GROUP_RANGES = 32
STORES_AT_ONCE = 8


def count_rows(states: Sequence[StateMeta]) -> int | None:
    """Return the stored rows of one state in all partitions; None for an expiry index, whose rows nobody counts."""
    return sum(each.rows for each in states) if all(each.is_counted for each in states) else None


def describe_types(state: StateMeta) -> tuple[str, str]:
    """Return the types of keys and values."""
    keys = state.descriptor.key_schema
    shown = type_text(keys) if state.uid is None else key_text(keys)
    if (scope := find_scope(state)) is not None:
        shown = "map key" if scope is Scope.BROADCAST else "partition"
    return shown, type_text(state.descriptor.value_schema)


def count_by_groups(
    checkpoint: Checkpoint,
    identities: Sequence[Identity],
    version: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, int]:
    """Return the number of rows in each range of key groups; each one is a range of hashes. All rows are read."""
    rows: Counter[int] = Counter()
    with ThreadPoolExecutor(STORES_AT_ONCE, thread_name_prefix="key-groups") as pool:
        counted = pool.map(lambda each: count_rows_by_hash(checkpoint, each, version, GROUP_RANGES), identities)
        for done, some in enumerate(counted, 1):
            rows.update(some)
            progress(done, len(identities))
    width = MAX_PARALLELISM // GROUP_RANGES
    return {f"{part * width}..{(part + 1) * width - 1}": rows[part] for part in range(GROUP_RANGES)}
