"""Which commits and snapshots of a store no retained version needs, by its lineage alone. See ``retention``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.names import snapshot_name
from pyspark_ckpt.state_store.packs.lineages import IsBase


@dataclass(frozen=True)
class Retired:
    """Objects to delete, in the order of deletion. The names in one list may be deleted in parallel.

    ``base``: the snapshot that replaces them.
    """

    manifests: list[str]
    commits: list[str]
    base: Marker | None = None


def find_retired(lineage: Lineage, newest: Marker, oldest: int, is_base: Callable[[Marker], bool]) -> Retired:
    """Return the manifests, deltas and winners that no retained version needs. Nothing is deleted here.

    ``newest`` is the last commit that Spark has asked for, ``oldest`` the first version to keep. ``is_base`` returns
    whether a snapshot can replace everything below it.
    """
    ancestors = lineage.ancestors(newest)
    snapshots = sorted((m for m in lineage.snapshots if m in ancestors and m.version <= oldest), reverse=True)
    base = next(filter(is_base, snapshots), None)
    if base is None:
        return Retired([], [])
    losers = {m for m in (*lineage.deltas, *lineage.snapshots) if m.version < oldest and m not in ancestors}
    return Retired(
        manifests=[snapshot_name(m) for m in lineage.snapshots if m.version < base.version or m in losers],
        commits=[str(name) for m, (name, _) in lineage.deltas.items() if m.version <= base.version or m in losers]
        + [str(name) for name in lineage.winners if name.version < base.version],
        base=base,
    )


def first_hole(lineage: Lineage, newest: Marker, oldest: int) -> Marker | None:
    """Return a commit that retained versions need, but that has neither a delta nor a snapshot; None if there is none.

    A chain that ends with a snapshot above ``oldest`` is no hole: retention has run with a smaller number before.
    """
    at = newest
    while at != EMPTY and not (at in lineage.snapshots and at.version <= oldest):
        if at not in lineage.deltas:
            return None if at in lineage.snapshots else at
        at = lineage.deltas[at][0].parent
    return None


def is_at_most(oldest: int) -> IsBase:
    """Return whether a commit is a snapshot of a version that is not above ``oldest``."""
    return lambda lineage, commit: commit in lineage.snapshots and commit.version <= oldest
