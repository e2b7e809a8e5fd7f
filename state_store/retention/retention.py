"""Delete what nobody can restore or read any more.

Retention keeps:

- the versions that Spark may still ask for: the newest one that Spark is known to have committed, everything above it,
  and ``min_versions_to_retain`` versions below it;
- the versions that are pinned;
- the newest complete snapshot at or below the oldest of these versions, on their lineage;
- all deltas from that snapshot on;
- every table file that a remaining manifest refers to.

Siblings that lost are kept until their version is older than all of these: only then has the commit log decided.

The order of deletion makes a crash harmless: first manifests, then deltas and winners, then table files. A manifest
never refers to a deleted file.

A delta in a pack is not deleted. The store says instead, in an object of its own, up to which version a snapshot
replaces its commits. ``packs`` deletes a pack when all its stores have said so.

A process that has decided to delete table files may be arbitrarily slow, and so may one that makes a snapshot of them.
Either may be suspended for an hour and continue, and there may be several of each. So the rule is an order of steps,
not a clock::

    deleting table file X              making snapshot S, which needs X         deleting what S replaces

    1 X is in no manifest
    2 posts a notice: "X may go"       a X is there, and in no notice           A the manifest of S is there
    3 lists the manifests again        b writes the manifest of S               B lists the notices: X is in none
      none refers to X                 c X is there, else takes S back          C lists the table files: X is there
    4 deletes X                                                                 D deletes what is below S
    5 withdraws the notice

D is safe, whenever it happens. Take the notice of any deletion of X. If it was posted after B, then step 3 comes after
A, sees the manifest of S, and X stays. If it was posted before B, there are two cases. Either it is still there at B,
and S replaces nothing; or it was withdrawn before B, after X was deleted, and C does not find X.

A missing table file stays missing, because names are used once. If a file of S was missing at c, no process relied on
S, and S may be taken back. Only manifests that another snapshot replaces are deleted. (``scrub`` rewrites a lost table
file under its name, but only for a manifest that is a day old. No process takes back such an old snapshot: its
maker does that within ``TAKE_BACK_S`` or never.)

The remaining rules add distance, in case of a stale listing or a request that arrives late.

- A table file is deleted only after two looks, a grace period apart in this process, have both found it unreachable,
  and only if the file itself is older than the grace period. Snapshots in progress are therefore seldom hit. (With a
  grace period of 0 they are hit, and made again.)
- Step 3 is repeated for every table file whose delete has not begun within ``BOUND_S``.
- A snapshot replaces nothing until it has existed for ``SETTLED_S`` (or the grace period, if shorter).
- A service that ignores conditions lets two processes put S, each with table files of its own. The second manifest
  replaces the first, on which another process may rely by then. On such a service no process takes S back, or puts it
  once it has seen it. S replaces nothing until it has existed for ``CARELESS_S``, whatever the grace period. Until then
  its manifest is read each time.
- The notice of a dead process stays until it is a day old and all its table files are gone. The same holds for the
  notice of a clean-up with a failed delete: a place that did not answer may carry out the request later, and after
  step 5 no process would know of it.

All ages are by the time of the place. The objects that a snapshot replaces are deleted only after the table files of
the snapshot were read: see ``confirmation``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.blobs.base.place_clock import PlaceTimes, boot_s
from pyspark_ckpt.state_store.blobs.exclusive import is_exclusive
from pyspark_ckpt.state_store.errors import CkptError, FormatError, StorageError
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.manifest import ManifestFile, read_manifest
from pyspark_ckpt.state_store.format.names import (
    TABLE_FOLDER,
    ReplacedName,
    is_table_object,
    new_id,
    snapshot_name,
)
from pyspark_ckpt.state_store.format.notices import FOLDER as NOTICE_FOLDER
from pyspark_ckpt.state_store.format.notices import Notices
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.packs.lineages import extend
from pyspark_ckpt.state_store.packs.store_place import StorePlace, is_whole_object
from pyspark_ckpt.state_store.retention.confirmation import Confirmations
from pyspark_ckpt.state_store.retention.pins import Pins
from pyspark_ckpt.state_store.retention.retired import Retired, find_retired, first_hole, is_at_most

UPLOAD_S = 60.0
"""A temporary file younger than this may be an upload in progress, whatever the grace period."""

SETTLED_S = 60.0
"""A snapshot replaces nothing until its manifest is this old (or as old as the grace period, if shorter)."""

CARELESS_S = 600.0
"""The same where a manifest may be overwritten: longer than the time from a look to the end of a write."""

BOUND_S = 30.0
"""A delete of a table file needs another look if it has not begun this long after the look that allowed it."""

NOTICE_S = 86400.0
"""How long the notice of a dead process stays, even if all its table files are gone."""

CONFIRMED_BYTES = 1 << 30
"""How much of the snapshots one clean-up of a running query reads. The next clean-up continues."""


@dataclass(frozen=True)
class Garbage:
    """Objects that can no longer be restored or read, in the order of deletion.

    ``replaced``: up to this version, the commits of the store are not needed.
    """

    blobs: tuple[Blob, ...]
    replaced: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them."""
        return sum(blob.size_bytes for blob in self.blobs)


@dataclass(frozen=True)
class _Look:
    """The contents of a folder, in the order of listing. ``doomed``: the names in notices, None if that is unknown."""

    lineage: Lineage
    doomed: frozenset[str] | None
    tables: Mapping[str, Blob]


class Retention:
    """Cleans up one store."""

    def __init__(
        self,
        place: BlobPlace,
        pins: Pins,
        grace_s: float,
        pool: Executor,
        failpoints: FailPoints,
        log: StoreLog,
        clock: Callable[[], float] = boot_s,
        confirmations: Confirmations | None = None,
        times: PlaceTimes | None = None,
        make_id: Callable[[], str] = new_id,
    ) -> None:
        """Delete in ``place`` with the threads of ``pool``. ``clock`` advances the time of the place.

        ``times``: the known times of places. ``make_id`` returns ids for notices.
        """
        self._place = place
        self._pins = pins
        self._grace_s = grace_s
        self._pool = pool
        self._failpoints = failpoints
        self._log = log
        self._ticks = clock
        self._clock = (times or PlaceTimes(clock)).make_clock(place)
        self._notices = Notices(place, make_id)
        self._own_notice: tuple[str, frozenset[str]] | None = None
        self._confirmations = confirmations or Confirmations(place, log)
        self._unreachable_since: dict[str, float] = {}
        self._files: dict[Blob, Mapping[str, ManifestFile]] = {}
        self._cleaned: tuple[Marker, int] | None = None
        self._is_careless = False
        self._had_packs: bool | None = None
        self.has_lost_newest = False
        """Whether the last ``clean`` found that the newest version can no longer be restored."""

    def clean(self, newest: Marker, min_versions: int, confirmed_bytes: float = math.inf) -> int:
        """Delete what is retired; return the number of objects. Raises StorageError.

        A failure midway leaves garbage, and never deletes a needed object; the next call continues. Costs nothing if
        nothing was committed and no snapshot was made since the last call. At most ``confirmed_bytes`` of a snapshot
        are read. Everything that it replaces stays until all of it was read.
        """
        if self._cleaned == (newest, min_versions) and not self._unreachable_since:
            return 0
        self._confirmations.allow(confirmed_bytes)
        self._is_careless = not is_exclusive(self._place)
        look = self._look(tidies=True)
        oldest = self._oldest(newest, min_versions, tidies=True)
        extend(look.lineage, self._place, newest, is_at_most(oldest), passes_damage=True)
        self.has_lost_newest = look.lineage.is_lost(newest)
        gone = self._find_retired(look, newest, oldest)
        self._say_replaced(look.lineage, gone)
        count = len(self._delete(gone.manifests))
        packed = [name for name in gone.commits if not is_whole_object(self._place, name)]
        count += len(self._delete(gone.commits)) - len(packed)
        if not self._has_hole(look.lineage, newest, oldest):
            count += self._delete_tables(look.tables.values())
        count += self._place.discard_unfinished(max(self._grace_s, UPLOAD_S))
        self._confirmations.keep_only(look.tables, set().union(*self._files.values()))
        self._cleaned = None if self._confirmations.is_exhausted else (newest, min_versions)
        return count

    def find(self, newest: Marker, min_versions: int) -> Garbage:
        """Return what ``clean`` would delete: table files after two looks, a grace period apart. Raises StorageError.

        Nothing is deleted or written.
        """
        look = self._look(tidies=False)
        lineage = look.lineage
        oldest = self._oldest(newest, min_versions, tidies=False)
        extend(lineage, self._place, newest, is_at_most(oldest), passes_damage=True)
        gone = self._find_retired(look, newest, oldest)
        blobs = {blob.name: blob for _, blob in lineage.deltas.values()}
        blobs |= {blob.name: blob for blob in (*lineage.snapshots.values(), *lineage.winners.values())}
        kept = [blob for blob in lineage.snapshots.values() if blob.name not in gone.manifests]
        has_hole = self._has_hole(lineage, newest, oldest)
        reachable = None if has_hole else self._reachable(kept) if look.tables else set()
        now = self._clock()
        unreachable = [
            blob
            for blob in look.tables.values()
            if reachable is not None and blob.name not in reachable and self._is_old(blob, now)
        ]
        unfinished = self._place.find_unfinished(max(self._grace_s, UPLOAD_S))
        whole = [name for name in (*gone.manifests, *gone.commits) if is_whole_object(self._place, name)]
        replaced = 0 if gone.base is None else gone.base.version
        return Garbage((*(blobs[name] for name in whole), *unreachable, *unfinished), replaced)

    @property
    def is_waiting(self) -> bool:
        """Whether unreachable table files were seen that may be deleted a grace period later."""
        return bool(self._unreachable_since)

    def look_again(self) -> None:
        """Let the next ``clean`` look even if nothing was committed: a new snapshot may have retired more."""
        self._cleaned = None

    def _look(self, *, tidies: bool) -> _Look:
        """List all commits and snapshots, then the notices, then all table files: steps A, B and C of the module."""
        lineage = Lineage.read(self._place)
        try:
            notices = self._notices.read()
        except FormatError as problem:
            self._log.warn_of_standing(
                "everything below snapshots is kept while a notice of deletion is damaged; delete the notice, in "
                "%s/%s, when no process works on this checkpoint: %s",
                self._place.url,
                NOTICE_FOLDER,
                problem,
            )
            return _Look(lineage, None, self._tables())
        tables = self._tables()
        for notice, names in notices.items() if tidies else ():
            if names.isdisjoint(tables) and self._clock() - notice.modified_s >= NOTICE_S:
                self._notices.withdraw(notice.name)
        return _Look(lineage, frozenset().union(*notices.values()), tables)

    def _tables(self) -> dict[str, Blob]:
        return {blob.name: blob for blob in self._place.list(TABLE_FOLDER) if is_table_object(blob.name)}

    def _oldest(self, newest: Marker, min_versions: int, *, tidies: bool) -> int:
        """Return the first version to keep."""
        pinned = self._pins.oldest(tidies=tidies)
        oldest = newest.version - min_versions
        return oldest if pinned is None else min(oldest, pinned)

    def _find_retired(self, look: _Look, newest: Marker, oldest: int) -> Retired:
        is_base = self._is_base
        return find_retired(look.lineage, newest, oldest, lambda marker: is_base(look.lineage.snapshots[marker], look))

    def _say_replaced(self, lineage: Lineage, gone: Retired) -> None:
        """Say which snapshot replaces commits in packs, if there are any among those that are retired."""
        if gone.base is None or not self._has_packed(lineage, gone):
            return
        name = ReplacedName(gone.base)
        if name not in lineage.replaced:
            self._place.put(str(name), b"")
        for other in lineage.replaced.keys() - {name}:
            self._place.delete(str(other))

    def _has_packed(self, lineage: Lineage, gone: Retired) -> bool:
        """Return whether retired commits may be in packs. Those from before this process are found by one listing."""
        if lineage.replaced or not all(is_whole_object(self._place, name) for name in gone.commits):
            return True
        if self._had_packs is None and isinstance(self._place, StorePlace):
            self._had_packs = bool(self._place.packs.list())
        return bool(self._had_packs)

    def _has_hole(self, lineage: Lineage, newest: Marker, oldest: int) -> bool:
        """Return whether something that retained versions need is missing. If restored, it needs its table files."""
        hole = first_hole(lineage, newest, oldest)
        if hole is not None:
            self._log.warn_of_standing(
                "no table file is deleted while both %s/%s and the delta of %s are missing: retained versions need one "
                "of them; restore one from a backup of the checkpoint",
                self._place.url,
                snapshot_name(hole),
                hole,
            )
        return hole is not None

    def _is_base(self, manifest: Blob, look: _Look) -> bool:
        """Return whether a snapshot has settled, its table files are intact, and no notice names any of them."""
        settled_s = CARELESS_S if self._is_careless else min(self._grace_s, SETTLED_S)
        if look.doomed is None or self._clock() - manifest.modified_s < settled_s:
            return False
        try:
            files = self._read_files(manifest)
            missing = sorted(files.keys() - look.tables.keys())
            doomed = sorted(files.keys() & look.doomed)
            if not missing and not doomed:
                return self._confirmations.confirm_all(files, look.tables, manifest.name)
        except CkptError as problem:
            self._log.warn_of_standing("everything below a snapshot that cannot be read is kept: %s", problem)
            return False
        age_s = self._clock() - manifest.modified_s
        self._confirmations.note_missing({name: files[name] for name in missing}, age_s)
        what = "it lacks" if missing else "a process may be about to delete"
        self._log.warn_of_standing(
            "everything below snapshot %s is kept: %s %s", manifest.name, what, ", ".join(missing or doomed)
        )
        return False

    def _delete_tables(self, tables: Collection[Blob]) -> int:
        """Delete the table files that were unreachable a grace period ago and still are; return how many."""
        due, count = self._due(tables), 0
        while due:
            notice = self._post(due)
            looked = self._ticks()
            reachable = self._reachable(Lineage.read(self._place).snapshots.values())
            wanted = due if reachable is None else due & reachable
            try:
                deleted = self._delete(sorted(due - wanted), looked + BOUND_S)
            except CkptError:
                self._own_notice = None
                raise
            self._notices.withdraw(notice)
            self._own_notice = None
            for name in deleted | wanted:
                del self._unreachable_since[name]
            count += len(deleted)
            due -= deleted | wanted
        return count

    def _post(self, due: set[str]) -> str:
        """Return the name of this process's notice of all of ``due``. A failed clean-up may have left one."""
        if self._own_notice is None or not due <= self._own_notice[1]:
            self._own_notice = self._notices.post(sorted(due)), frozenset(due)
        return self._own_notice[0]

    def _due(self, tables: Collection[Blob]) -> set[str]:
        """Return the table files that were unreachable a grace period ago and still are."""
        # Read the manifests after the listing, so that a new one is seen.
        reachable = self._reachable(Lineage.read(self._place).snapshots.values()) if tables else set()
        if reachable is None:
            return set()
        now = self._clock() if tables else 0.0
        since = {
            blob.name: self._unreachable_since.get(blob.name, now) for blob in tables if blob.name not in reachable
        }
        self._unreachable_since = since
        return {blob.name for blob in tables if blob.name in since and self._is_due(blob, since[blob.name], now)}

    def _is_due(self, blob: Blob, since: float, now: float) -> bool:
        return now - since >= self._grace_s and self._is_old(blob, now)

    def _is_old(self, blob: Blob, now: float) -> bool:
        return now - blob.modified_s >= self._grace_s

    def _reachable(self, manifests: Iterable[Blob]) -> set[str] | None:
        """Return every table file that a manifest refers to; None if a manifest cannot be read."""
        known = {}
        for manifest in manifests:
            try:
                known[manifest] = self._read_files(manifest)
            except CkptError as problem:
                self._log.warn_of_standing("no table file is deleted while a snapshot cannot be read: %s", problem)
                return None
        self._files = known
        return set().union(*known.values())

    def _read_files(self, manifest: Blob) -> Mapping[str, ManifestFile]:
        """Return the table files of a manifest, read once for its age and size: its name may have been used before.

        A manifest that may still be overwritten is read each time: the other one may have the same age and size.
        """
        known = self._files.get(manifest)
        if known is None or (self._is_careless and self._clock() - manifest.modified_s < CARELESS_S):
            (commit,) = Lineage.of([manifest]).snapshots
            known = self._files[manifest] = read_manifest(self._place, commit)[1].objects()
        return known

    def _delete(self, names: Collection[str], until: float = math.inf) -> set[str]:
        """Delete objects; return those that are gone. No delete begins after ``until``, by this machine's clock."""
        if names:
            self._failpoints.hit("cleanup.before_delete")
        away: list[CkptError] = []

        def delete(name: str) -> bool | CkptError:
            outcome = away[0] if away else self._try_delete(name, until)
            if isinstance(outcome, StorageError) and outcome.waited_s:  # spare the others the same wait
                away.append(outcome)
            return outcome

        outcomes = dict(zip(names, self._pool.map(delete, names), strict=True))
        problems = {name: problem for name, problem in outcomes.items() if isinstance(problem, CkptError)}
        for name, problem in problems.items():
            self._log.warning("could not delete %s: %s", name, problem)
        if problems:
            raise next(iter(problems.values()))
        return {name for name, is_gone in outcomes.items() if is_gone}

    def _try_delete(self, name: str, until: float) -> bool | CkptError:
        """Delete an object; return whether it is gone, or the error. False: the look that allowed it is too old."""
        if self._ticks() > until:
            return False
        try:
            self._place.delete(name)
        except CkptError as problem:
            return problem
        return True
