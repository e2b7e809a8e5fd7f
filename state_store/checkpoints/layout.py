"""How the partitions of an operator share its keys."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.key_groups import find_owned_groups, read_max_parallelism
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta

SINGLE_OPERATORS = frozenset({"globalLimit", "streamingGlobalLimit"})


class Layout(Enum):
    """How the rows of an operator are spread over its partitions."""

    SINGLE = "one partition"
    REMAINDERS = "remainders of hashes"
    KEY_GROUPS = "key groups"


def find_layout(operator_name: str, partitions: int, partitions_in_use: int, metas: Sequence[StoreMeta]) -> Layout:
    """Return how the stores of an operator, with the given ``metas``, share its rows.

    A lone store without states has had no rows yet, such as that of the second of two keyed operators.
    """
    states = [state for meta in metas for state in meta.states]
    if any(_read_key_groups(state, operator_name) for state in states):
        return Layout.KEY_GROUPS
    is_global = bool(states) and all(map(_has_no_key, states))
    is_alone = partitions_in_use == 1 and (partitions > 1 or is_global)
    return Layout.SINGLE if is_alone or operator_name in SINGLE_OPERATORS else Layout.REMAINDERS


def keeps_one_partition(operator_name: str, states: Sequence[StateMeta]) -> bool:
    """Return whether an operator keeps all of its state in one partition: it has no keys, or no states yet."""
    return operator_name in SINGLE_OPERATORS or all(map(_has_no_key, states))


def count_key_groups(operator_name: str, metas: Sequence[StoreMeta]) -> int:
    """Return the number of key groups of a keyed operator from the ``metas`` of its stores. Raises FormatError."""
    found = {number for meta in metas for state in meta.states if (number := _read_key_groups(state, operator_name))}
    if len(found) != 1:
        raise FormatError(
            f"All states of the keyed operator {operator_name} must have the same number of key groups, but they have "
            f"{sorted(found)} key groups."
        )
    return found.pop()


def _read_key_groups(state: StateMeta, operator_name: str) -> int | None:
    return read_max_parallelism(state.descriptor, f"State {state.name!r} of the operator {operator_name}")


def _has_no_key(state: StateMeta) -> bool:
    schema = state.descriptor.key_schema
    return isinstance(schema, dict) and schema.get("fields") == []


def overlaps(partition: int, partitions: int, old_partitions: int, max_parallelism: int) -> list[int]:
    """Return the old partitions of a keyed operator that have rows of a new one."""
    first, end = find_owned_groups(partition, partitions, max_parallelism)
    return [
        old
        for old in range(old_partitions)
        if (groups := find_owned_groups(old, old_partitions, max_parallelism))[0] < end and first < groups[1]
    ]
