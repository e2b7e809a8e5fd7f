"""What must be true of the objects of a store, looked at from outside: no version that may be asked for has a hole."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.manifest import decode
from pyspark_ckpt.state_store.format.names import is_table_object
from pyspark_ckpt.state_store.packs.store_place import is_whole_object


class StoredObjects:
    """The objects of one store as they lie in their place."""

    def __init__(self, place: BlobPlace, tables: dict[Blob, frozenset[str]] | None = None) -> None:
        """Look into ``place``, past any fault. ``tables``: what is known of manifests."""
        self._place = place
        self._tables = {} if tables is None else tables
        self.damaged: set[str] = set()
        """Table files that are there, but cannot be used."""

    def require(self, commits: Iterable[Marker]) -> None:
        """Fail unless each commit has a whole chain: deltas down to a snapshot with all its files, or to version 0."""
        lineage = Lineage.read(self._place)
        for commit in commits:
            hole = self.find_hole(commit, lineage)
            assert hole is None, f"{commit} cannot be restored: nothing is left of {hole}"

    def find_hole(self, commit: Marker, lineage: Lineage) -> Marker | None:
        """Return the first commit without an object on the way down; None if the chain of ``commit`` is whole."""
        listed, at = {blob.name for blob in self._place.list("sst")} - self.damaged, commit
        while at != EMPTY:
            if at in lineage.snapshots and self._tables_of(lineage.snapshots[at]) <= listed:
                return None
            if at not in lineage.deltas:
                return at
            at = lineage.deltas[at][0].parent
        return None

    def find_missing(self, manifest: Blob) -> set[str]:
        """Return the table files of a snapshot that are not there."""
        return set(self._tables_of(manifest) - {blob.name for blob in self._place.list("sst")})

    def litter(self, newest: Marker, keep: int) -> set[str]:
        """Objects that a clean-up which has nothing to wait for would have deleted."""
        lineage = Lineage.read(self._place)
        base = self.base(newest, keep, lineage)
        used = set().union(*(self._tables_of(blob) for blob in lineage.snapshots.values()))
        return (
            {blob.name for marker, blob in lineage.snapshots.items() if marker.version < base.version}
            | {
                blob.name
                for marker, (_, blob) in lineage.deltas.items()
                if marker.version <= base.version and is_whole_object(self._place, blob.name)
            }
            | {blob.name for name, blob in lineage.winners.items() if name.version < base.version}
            | {blob.name for blob in self._place.list("sst") if is_table_object(blob.name) and blob.name not in used}
        )

    def base(self, newest: Marker, keep: int, lineage: Lineage) -> Marker:
        """Return the snapshot that replaces all before it, as far as ``keep`` versions below the newest allow."""
        ancestors = lineage.ancestors(newest)
        bases = [
            marker
            for marker, blob in lineage.snapshots.items()
            if marker in ancestors
            and marker.version <= newest.version - keep
            and self.damaged.isdisjoint(self._tables_of(blob))
        ]
        return max(bases, default=EMPTY)

    def _tables_of(self, manifest: Blob) -> frozenset[str]:
        if manifest not in self._tables:
            self._tables[manifest] = frozenset(decode(self._place.get(manifest.name), manifest.name).objects())
        return self._tables[manifest]
