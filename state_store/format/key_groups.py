"""Key groups: the units in which state moves between partitions.

A row's group is ``hash * max_parallelism >> 32``, of the unsigned hash in its key. Keyed operators give partition p of
n the contiguous groups g with ``g * n // max_parallelism == p``, as in Flink (KeyGroupRangeAssignment). Spark places
the rows of its own operators by the remainder of the hash, so that each of their partitions has rows of all groups.
"""

from __future__ import annotations

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.meta import Descriptor, StoreMeta

MAX_PARALLELISM = 32768
HASHES = 1 << 32


def find_owned_groups(partition: int, partitions: int, max_parallelism: int) -> tuple[int, int]:
    """First group of a keyed operator's partition, and the one behind its last."""
    first, end = partition * max_parallelism, (partition + 1) * max_parallelism
    return -(-first // partitions), -(-end // partitions)


def remainder_of(key_hash: int, partitions: int) -> int:
    """The partition in which Spark places rows of a hash, which is given without a sign."""
    return (key_hash - HASHES if key_hash >> 31 else key_hash) % partitions


def hashes_of(groups: tuple[int, int], max_parallelism: int) -> tuple[int, int]:
    """First hash of a range of groups, and the one behind its last."""
    first, end = (-(-group * HASHES // max_parallelism) for group in groups)
    return first, end


def find_owned_hashes(partition: int, partitions: int, max_parallelism: int) -> tuple[int, int]:
    """First hash of a keyed operator's partition, and the one behind its last."""
    return hashes_of(find_owned_groups(partition, partitions, max_parallelism), max_parallelism)


def max_parallelism_of(descriptor: Descriptor, what: str) -> int | None:
    """The number of key groups of the state ``what`` of a keyed operator; None of Spark's own. Raises FormatError."""
    groups = descriptor.encoder.get("max_parallelism")
    if groups is not None and not (isinstance(groups, int) and 0 < groups <= MAX_PARALLELISM):
        raise FormatError(f"{what} is stored with the max_parallelism {groups!r}, which is not a number of key groups.")
    return groups


def describe_groups(meta: StoreMeta, partition: int) -> tuple[int, tuple[int, int]]:
    """Max parallelism of a store, and the groups that its rows can be of. Raises FormatError."""
    for state in meta.states:
        groups = max_parallelism_of(state.descriptor, f"State {state.name!r}")
        if groups is not None and meta.num_partitions:
            return groups, find_owned_groups(partition, meta.num_partitions, groups)
    return MAX_PARALLELISM, (0, MAX_PARALLELISM)
