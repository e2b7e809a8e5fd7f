"""Move rows by key groups: a new store is the old one with most of its rows, clipped, plus rows of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_ckpt.state_store.checkpoints.digests import Digest, Digests, combine
from pyspark_ckpt.state_store.checkpoints.layout import overlaps
from pyspark_ckpt.state_store.checkpoints.state_rows import require_counts
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.format.key_groups import find_owned_hashes
from pyspark_ckpt.state_store.format.meta import is_keyed
from pyspark_ckpt.state_store.redistribution.assembly import Assembled, NewStore
from pyspark_ckpt.state_store.redistribution.clipping import Clip, Clipped, ClipTask, Part, group_clips
from pyspark_ckpt.state_store.redistribution.strategies.base import Moved, RunTasks


@dataclass(frozen=True)
class MoveByKeyGroups:
    """Moves rows by clipping. ``key_groups``: of the operator; ``width``: how many tasks run at once."""

    workplace: Workplace
    key_groups: int
    width: int

    def move(self, stores: Sequence[StoreVersion], new: Sequence[NewStore], run: RunTasks) -> Moved:
        """See Strategy."""
        parts = [
            Part(store, find_owned_hashes(store.identity.partition, len(stores), self.key_groups), numbers)
            for store, numbers in zip(stores, new[0].merged.numbers, strict=True)
        ]
        uncounted = set(parts)
        clips = [self._clip(each, len(new), parts, uncounted) for each in new]
        groups = group_clips(clips, self.width)
        done: list[list[Clipped]] = run([ClipTask(self.workplace, group) for group in groups], list[Clipped])
        before: dict[Part, list[Digests]] = {part: [] for part in parts}
        counts: dict[Part, dict[str, int]] = {}
        made: list[Assembled] = []
        for group, results in zip(groups, done, strict=True):
            for clip, result in zip(group, results, strict=True):
                made.append(result.made)
                for part, digests in zip(clip.parts, result.before, strict=True):
                    before[part].append(digests)
                counts |= zip(clip.counted, result.counts, strict=True)
        whole = {part: combine(digests) for part, digests in before.items()}
        for part in uncounted:  # it has no key groups, because there are more partitions than key groups
            keyed = [state for state in part.store.meta.states if is_keyed(state)]
            counts[part] = {state.name: state.rows for state in keyed}
            whole[part] = {state.name: Digest() for state in keyed}
        for part, digests in whole.items():
            require_counts(counts[part], digests, str(part.store.identity))
        return Moved(list(whole.values()), made)

    def _clip(self, new: NewStore, partitions: int, parts: Sequence[Part], uncounted: set[Part]) -> Clip:
        """Return how to make a new store. It counts its ``uncounted`` parts, which are removed from that set."""
        partition = new.identity.partition
        mine = tuple(parts[old] for old in overlaps(partition, partitions, len(parts), self.key_groups))
        counted = tuple(part for part in mine if part in uncounted)
        uncounted.difference_update(counted)
        return Clip(new, find_owned_hashes(partition, partitions, self.key_groups), mine, counted)
