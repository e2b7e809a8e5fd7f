"""Copies of a broadcast state are compared in both directions: one that lacks the state has no entries."""

from __future__ import annotations

from pyspark_ckpt.state_store.attempts.agreement import find_differences
from pyspark_ckpt.state_store.format.meta import Descriptor, StateMeta
from pyspark_ckpt.state_store.format.partition_states import encode_sum
from pyspark_ckpt.state_store.identity import Identity

FIRST, SECOND = Identity(0, 0, "default"), Identity(0, 1, "default")


def copy_of(rows: int) -> tuple[StateMeta, ...]:
    return (StateMeta(0x4000, "it/rules", rows, Descriptor(), encode_sum(rows)),)


def test_copies_are_compared_in_both_directions() -> None:
    assert list(find_differences((FIRST, copy_of(3)), (SECOND, copy_of(3)))) == []
    assert list(find_differences((FIRST, ()), (SECOND, copy_of(0)))) == []
    for one, other in ((copy_of(3), ()), ((), copy_of(3)), (copy_of(3), copy_of(2))):
        (difference,) = find_differences((FIRST, one), (SECOND, other))
        assert difference.startswith("The copies of broadcast state 'it/rules' differ: partition 0 has ")
