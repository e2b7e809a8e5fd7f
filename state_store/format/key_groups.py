"""Key groups: the units in which state moves between partitions.

The group of a row is ``hash * max_parallelism >> 32``, with the unsigned hash in its key. In keyed operators, partition
p of n has the contiguous groups g with ``g * n // max_parallelism == p``, as in Flink (KeyGroupRangeAssignment). Spark
places the rows of its own operators by the remainder of the hash, so each of their partitions has rows of all groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.meta import Descriptor, StoreMeta

if TYPE_CHECKING:
    from numpy.typing import NDArray

Hashes = TypeVar("Hashes", int, "NDArray[Any]")

MAX_PARALLELISM = 32768
HASHES = 1 << 32


def find_owned_groups(partition: int, partitions: int, max_parallelism: int) -> tuple[int, int]:
    """Return the first group of a keyed operator's partition, and the one after its last."""
    first, end = partition * max_parallelism, (partition + 1) * max_parallelism
    return -(-first // partitions), -(-end // partitions)


def find_spark_partition(key_hash: int, partitions: int) -> int:
    """Return the partition in which Spark places rows with an unsigned hash."""
    return (key_hash - HASHES if key_hash >> 31 else key_hash) % partitions


def find_keyed_partition(key_hash: Hashes, partitions: int, max_parallelism: int) -> Hashes:
    """Return the partition of a keyed operator that owns an unsigned hash; for an array, of each hash."""
    return key_hash * max_parallelism // HASHES * partitions // max_parallelism


def find_hashes(groups: tuple[int, int], max_parallelism: int) -> tuple[int, int]:
    """Return the first hash of a range of groups, and the one after its last."""
    first, end = (-(-group * HASHES // max_parallelism) for group in groups)
    return first, end


def find_owned_hashes(partition: int, partitions: int, max_parallelism: int) -> tuple[int, int]:
    """Return the first hash of a keyed operator's partition, and the one after its last."""
    return find_hashes(find_owned_groups(partition, partitions, max_parallelism), max_parallelism)


def read_max_parallelism(descriptor: Descriptor, what: str) -> int | None:
    """Return the number of key groups of the state ``what``; None for a state of Spark's own. Raises FormatError."""
    groups = descriptor.encoder.get("max_parallelism")
    if groups is not None and not (isinstance(groups, int) and 0 < groups <= MAX_PARALLELISM):
        raise FormatError(f"{what} is stored with max_parallelism {groups!r}; it must be 1 to {MAX_PARALLELISM}.")
    return groups


def describe_groups(meta: StoreMeta, partition: int) -> tuple[int, tuple[int, int]]:
    """Return the max parallelism of a store, and the range of groups that its rows can have. Raises FormatError."""
    for state in meta.states:
        groups = read_max_parallelism(state.descriptor, f"State {state.name!r}")
        if groups is not None and meta.num_partitions:
            return groups, find_owned_groups(partition, meta.num_partitions, groups)
    return MAX_PARALLELISM, (0, MAX_PARALLELISM)
