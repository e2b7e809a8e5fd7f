"""The stores of a checkpoint by the names of their objects: one listing for each store, many at a time.

Nothing is opened. A glance reads the names of the newest versions only, so its cost does not grow with what is kept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyspark_ckpt.state_store.blobs import Blob
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.names import is_table_object, parse
from pyspark_ckpt.state_store.format.remote import POINTER_NAME, store_folder
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.web.recollection import Progress

THREADS = 32
GLANCE_VERSIONS = 12
"""How many versions a glance goes back: by default, one in ten has a snapshot."""
NEWEST_VERSIONS = 110
"""How far back it searches for a snapshot: the default of minBatchesToRetain, and a snapshot below it."""


@dataclass(frozen=True)
class StoreSurvey:
    """What the names in a store's folder show.

    ``commit``: the commit of the newest version, None if it is missing. ``snapshot``: the version of the snapshot
    that a restore begins with, 0 if it begins with nothing, None if it is lost or was not listed. ``deltas`` and
    ``delta_bytes``: what the restore adds. ``lost``: a version in between that has neither a delta nor a snapshot.
    ``rivals``: commits of attempts that lost. ``tables``: not in a glance.
    """

    identity: Identity
    commit: Marker | None
    snapshot: int | None
    deltas: int
    delta_bytes: int
    lost: int | None
    rivals: int
    first_version: int
    tables: int = 0
    table_bytes: int = 0
    objects: int = 0
    size_bytes: int = 0


@dataclass
class VersionSurvey:
    """What was written for one version, in all stores. Times are Unix times of the place."""

    version: int
    deltas: int = 0
    delta_bytes: int = 0
    first_s: float = math.inf
    last_s: float = -math.inf
    winners: int = 0
    snapshots: int = 0
    manifest_bytes: int = 0
    tables: int = 0
    table_bytes: int = 0
    snapshot_s: float = 0.0
    """The longest time from the first table file of a snapshot to its manifest."""

    @property
    def objects(self) -> int:
        """How many objects were written."""
        return self.deltas + self.winners + self.snapshots + self.tables

    @property
    def size_bytes(self) -> int:
        """How many bytes were written."""
        return self.delta_bytes + self.manifest_bytes + self.table_bytes


@dataclass(frozen=True)
class Survey:
    """All stores at one version. ``depth``: how many versions were listed below it; None: all objects."""

    version: int
    depth: int | None
    stores: Sequence[StoreSurvey] = ()
    versions: Mapping[int, VersionSurvey] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether all objects were listed."""
        return self.depth is None

    @property
    def missing(self) -> list[Identity]:
        """The stores that lack the newest version."""
        return [each.identity for each in self.stores if each.commit is None]

    @property
    def broken(self) -> list[StoreSurvey]:
        """The stores that have the newest version but lack an object that its restore needs."""
        return [each for each in self.stores if each.lost is not None]

    @property
    def most_deltas(self) -> int:
        """The most deltas that the restore of a store applies."""
        return max((each.deltas for each in self.stores), default=0)


def survey_stores(
    checkpoint: Checkpoint, version: int, depth: int | None, progress: Progress = lambda _done, _total: None
) -> Survey:
    """List the objects of all stores: of ``depth`` versions, or all if it is None.

    A store whose snapshot is further down is listed down to ``NEWEST_VERSIONS``. Raises FormatError, StorageError.
    """
    stores = [identity for _, identity in checkpoint.stores()]
    found: list[StoreSurvey] = []
    versions: dict[int, VersionSurvey] = {}
    with ThreadPoolExecutor(THREADS, thread_name_prefix="survey") as pool:
        listings = pool.map(lambda each: _list_enough(checkpoint, each, version, depth), stores)
        for done, (identity, (first, blobs)) in enumerate(zip(stores, listings, strict=True), 1):
            lineage = Lineage.of(blobs)
            tables = [blob for blob in blobs if is_table_object(blob.name)]
            found.append(_survey_store(checkpoint, identity, (first, version), lineage, tables, len(blobs)))
            _add_versions(versions, lineage, tables)
            progress(done, len(stores))
    return Survey(version, depth, found, dict(sorted(versions.items(), reverse=True)))


def _list_enough(checkpoint: Checkpoint, identity: Identity, version: int, depth: int | None) -> tuple[int, list[Blob]]:
    """Return the objects of a store, down to its newest snapshot or further, and the oldest version of these."""
    found = _list_store(checkpoint, identity, version, depth)
    if depth is None:
        return 0, found
    if depth < NEWEST_VERSIONS and not any(isinstance(parse(blob.name), Marker) for blob in found):
        depth = NEWEST_VERSIONS
        found = _list_store(checkpoint, identity, version, depth)
    return version - depth, found


def _list_store(checkpoint: Checkpoint, identity: Identity, version: int, depth: int | None) -> list[Blob]:
    """Return the objects of a store. The same listing shows the pointer to a store elsewhere."""
    folder, start = store_folder(identity), f"{max(0, version - (depth or 0)):020d}"

    def shorten(blobs: Iterable[Blob]) -> list[Blob]:
        lead = f"{folder}/"
        return [Blob(blob.name.removeprefix(lead), blob.size_bytes, blob.modified_s) for blob in blobs]

    own = shorten(checkpoint.place.walk(folder) if depth is None else checkpoint.place.list(folder, start=start))
    place = checkpoint.find_place(identity)
    if any(blob.name == POINTER_NAME for blob in own):
        own = place.bare.walk() if depth is None else place.bare.list(start=start)
    return [*own, *(blob for blob in place.list_packed() if blob.name >= start)]


def _survey_store(
    checkpoint: Checkpoint,
    identity: Identity,
    versions: tuple[int, int],
    lineage: Lineage,
    tables: Sequence[Blob],
    objects: int,
) -> StoreSurvey:
    """Survey a store whose objects were listed from the first to the last of ``versions``."""
    first, version = versions
    commit = _find_commit(checkpoint, identity, version, lineage)
    snapshot, deltas, delta_bytes, lost = None, 0, 0, None
    if commit is not None:
        at = commit
        while at != EMPTY and at not in lineage.snapshots and at in lineage.deltas:
            name, blob = lineage.deltas[at]
            deltas, delta_bytes, at = deltas + 1, delta_bytes + blob.size_bytes, name.parent
        snapshot = at.version if at == EMPTY or at in lineage.snapshots else None
        lost = at.version if snapshot is None and at.version >= first else None
    ancestors = set() if commit is None else lineage.ancestors(commit)
    rivals = sum(1 for each in lineage.deltas if each.version <= version and each not in ancestors)
    listed = [*(blob for _, blob in lineage.deltas.values()), *lineage.snapshots.values(), *tables]
    return StoreSurvey(
        identity,
        commit,
        snapshot,
        deltas,
        delta_bytes,
        lost,
        rivals if commit is not None else 0,
        min((each.version for each in (*lineage.deltas, *lineage.snapshots)), default=0),
        len(tables),
        sum(blob.size_bytes for blob in tables),
        objects,
        sum(blob.size_bytes for blob in listed),
    )


def _find_commit(checkpoint: Checkpoint, identity: Identity, version: int, lineage: Lineage) -> Marker | None:
    """Return the commit of a version: the one in the commit log, else one that exists."""
    ids = checkpoint.ids(identity.operator)
    there = lineage.list_commits(version)
    if identity.partition < len(ids):
        return next((each for each in there if each.id in ids[identity.partition]), None)
    return there[-1] if there else None


def _add_versions(versions: dict[int, VersionSurvey], lineage: Lineage, tables: Sequence[Blob]) -> None:
    """Add what one store has written for each version."""

    def of(version: int) -> VersionSurvey:
        return versions.setdefault(version, VersionSurvey(version))

    for commit, (_, blob) in lineage.deltas.items():
        each = of(commit.version)
        each.deltas += 1
        each.delta_bytes += blob.size_bytes
        each.first_s, each.last_s = min(each.first_s, blob.modified_s), max(each.last_s, blob.modified_s)
    for winner in lineage.winners:
        of(winner.version).winners += 1
    by_time = deque(sorted(tables, key=lambda blob: blob.modified_s))
    for number, (commit, manifest) in enumerate(sorted(lineage.snapshots.items(), key=lambda pair: pair[1].modified_s)):
        each, own = of(commit.version), []
        while by_time and by_time[0].modified_s <= manifest.modified_s:  # table files are written before their manifest
            own.append(by_time.popleft())
        if number == 0:  # it also has files of earlier snapshots, whose manifests are deleted
            _, delta = lineage.deltas.get(commit, (None, manifest))
            own = [blob for blob in own if blob.modified_s >= delta.modified_s]
        each.snapshots += 1
        each.manifest_bytes += manifest.size_bytes
        each.tables += len(own)
        each.table_bytes += sum(blob.size_bytes for blob in own)
        if own:
            each.snapshot_s = max(each.snapshot_s, manifest.modified_s - own[0].modified_s)
