"""Move rows by key groups: a new store is the old one with most of its rows, clipped, plus rows of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark_ckpt.state_store.blobs.transfers import StoredFile
from pyspark_ckpt.state_store.checkpoints.digests import Digest, Digests, combine
from pyspark_ckpt.state_store.checkpoints.layout import overlaps
from pyspark_ckpt.state_store.checkpoints.state_rows import require_counts
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.format.key_groups import find_owned_hashes
from pyspark_ckpt.state_store.format.meta import is_keyed
from pyspark_ckpt.state_store.format.partition_states import find_scope
from pyspark_ckpt.state_store.redistribution.assembly import Assembled, NewStore
from pyspark_ckpt.state_store.redistribution.clipping import Clip, Clipped, ClipTask, OldPartition, group_clips
from pyspark_ckpt.state_store.redistribution.strategies.base import Moved, RunTasks


@dataclass(frozen=True)
class MoveByKeyGroups:
    """Moves rows by clipping. ``key_groups``: of the operator; ``width``: how many tasks run at once.

    ``placed``: for each new partition, files in the checkpoint at ``url`` with states that belong to no key.
    """

    workplace: Workplace
    url: str
    key_groups: int
    width: int
    placed: Mapping[int, Sequence[StoredFile]]

    def move(self, stores: Sequence[StoreVersion], new: Sequence[NewStore], run: RunTasks) -> Moved:
        """See Strategy."""
        old_partitions = [
            OldPartition(store, find_owned_hashes(store.identity.partition, len(stores), self.key_groups), numbers)
            for store, numbers in zip(stores, new[0].merged.numbers, strict=True)
        ]
        uncounted = set(old_partitions)
        clips = [self._clip(each, len(new), old_partitions, uncounted) for each in new]
        groups = group_clips(clips, self.width)
        done: list[list[Clipped]] = run([ClipTask(self.workplace, self.url, group) for group in groups], list[Clipped])
        before: dict[OldPartition, list[Digests]] = {old_partition: [] for old_partition in old_partitions}
        counts: dict[OldPartition, dict[str, int]] = {}
        made: list[Assembled] = []
        for group, results in zip(groups, done, strict=True):
            for clip, result in zip(group, results, strict=True):
                made.append(result.made)
                for old_partition, digests in zip(clip.old_partitions, result.before, strict=True):
                    before[old_partition].append(digests)
                counts |= zip(clip.counted, result.counts, strict=True)
        whole = {old_partition: combine(digests) for old_partition, digests in before.items()}
        for old_partition in uncounted:  # it has no key groups, because there are more partitions than key groups
            states = old_partition.store.meta.states
            keyed = [state for state in states if is_keyed(state) and find_scope(state) is None]
            counts[old_partition] = {state.name: state.rows for state in keyed}
            whole[old_partition] = {state.name: Digest() for state in keyed}
        for old_partition, digests in whole.items():
            require_counts(counts[old_partition], digests, str(old_partition.store.identity))
        return Moved(list(whole.values()), made)

    def _clip(
        self, new: NewStore, partitions: int, old_partitions: Sequence[OldPartition], uncounted: set[OldPartition]
    ) -> Clip:
        """Return how to make a new store. It counts its ``uncounted`` partitions, which are removed from that set."""
        partition = new.identity.partition
        mine = tuple(
            old_partitions[old] for old in overlaps(partition, partitions, len(old_partitions), self.key_groups)
        )
        counted = tuple(old_partition for old_partition in mine if old_partition in uncounted)
        uncounted.difference_update(counted)
        hashes, placed = find_owned_hashes(partition, partitions, self.key_groups), self.placed.get(partition, ())
        return Clip(new, hashes, mine, counted, tuple(placed))
