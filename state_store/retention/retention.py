"""Delete what nobody can ask for any more.

Kept are: the versions Spark may still ask for (``min_versions_to_retain`` below the newest one that Spark
is known to have committed, and everything above) and those that are pinned, the newest complete snapshot at or
below the oldest of them, on their lineage, all deltas from that snapshot on, and every table file that a
remaining manifest refers to.
Siblings that lost are kept until their version is older than that: only then has the commit log decided.

The order makes a crash harmless: first manifests, then deltas and winners, then table files; a manifest
never refers to a deleted file.

Nothing says how slow a process may be that has decided to delete table files, or one that makes a snapshot of them:
either may be suspended for an hour and go on, and there may be several of each. So no clock decides, but an order::

    who deletes table file X           who makes snapshot S, which needs X      who deletes what S replaces

    1 X is in no manifest
    2 posts a notice: "X may go"       a X is there, and in no notice           A the manifest of S is there
    3 lists the manifests again        b writes the manifest of S               B lists the notices: X is in none
      none refers to X                 c X is there, else takes S back          C lists the table files: X is there
    4 deletes X                                                                 D deletes what is below S
    5 withdraws the notice

D is safe, whenever it happens. If the notice of any deletion of X was posted after B, then 3 comes after A, sees the
manifest of S, and X stays. If it was posted before B, then either it is still there at B, and S replaces nothing; or
it was withdrawn before B, after X had gone, and C does not find X. What is missing stays missing, for names are used
once: so S, of which something was missing at c, was relied on by nobody and may be taken back. Of manifests only those
go that another snapshot replaces. (``scrub`` writes a lost table file again under its name, but only for a manifest
that is a day old, which nobody is about to take back: who makes a snapshot does that within ``TAKE_BACK_S`` or never.)

The rest is distance, against what is not to happen: a listing that lags behind, a request that lands late.

- A table file goes only after two looks, a grace period apart in this process, both found it unreachable, and if it is
  older than the grace period itself: so snapshots in progress are seldom hit (with a grace period of 0 they are, and
  are made again).
- 3 is repeated for every table file whose delete has not begun ``BOUND_S`` after it.
- A snapshot replaces nothing before it has stood for ``SETTLED_S`` (or the grace period, if shorter).
- A service that ignores conditions lets two processes put S, each with table files of its own: the second manifest
  replaces the first, on which somebody may rely by then. So there nobody takes S back, nobody puts it who sees that it
  is there, and it replaces nothing before it has stood for ``CARELESS_S``, whatever the grace period; until then its
  manifest is read each time.
- A notice of a process that died stays until a day after it was posted, and all its table files are gone. So does
  that of a clean-up of which a delete has failed: what was asked of a place that did not answer may be carried out
  later, and after 5 nobody would know.

All ages are by the time of the place. What a snapshot is to replace goes only after its table files were read, see
``confirmation``.
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
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.manifest import ManifestFile, read_manifest
from pyspark_ckpt.state_store.format.names import TABLE_FOLDER, is_table_object, snapshot_name
from pyspark_ckpt.state_store.format.notices import FOLDER as NOTICE_FOLDER
from pyspark_ckpt.state_store.format.notices import Notices
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.retention.confirmation import Confirmations
from pyspark_ckpt.state_store.retention.pins import Pins

UPLOAD_S = 60.0
"""A temporary file younger than this may be an upload in progress, whatever the grace period."""

SETTLED_S = 60.0
"""A snapshot replaces nothing before its manifest has this age (or that of the grace period, if shorter)."""

CARELESS_S = 600.0
"""The same where a manifest may be replaced: longer than it takes from a look to the end of a write."""

BOUND_S = 30.0
"""A delete of a table file that has not begun so long after the look that allowed it needs another look."""

NOTICE_S = 86400.0
"""So long the notice of a process that died stays, though all its table files are gone."""

CONFIRMED_BYTES = 1 << 30
"""So much of the snapshots is read in one clean-up of a running query; the next one goes on."""


@dataclass(frozen=True)
class Retired:
    """Objects to delete, in the order of deletion; the names within one list may go in parallel."""

    manifests: list[str]
    commits: list[str]


@dataclass(frozen=True)
class Garbage:
    """Objects that nobody can ask for any more, in the order of deletion."""

    blobs: tuple[Blob, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them."""
        return sum(blob.size_bytes for blob in self.blobs)


def find_retired(lineage: Lineage, newest: Marker, oldest: int, is_base: Callable[[Marker], bool]) -> Retired:
    """Manifests, deltas and winners that no retained version needs; nothing is deleted here.

    ``newest`` is the last commit that Spark has asked for, ``oldest`` the first version to keep; ``is_base`` says
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
    )


def first_hole(lineage: Lineage, newest: Marker, oldest: int) -> Marker | None:
    """A commit that retained versions need, and of which neither a delta nor a snapshot is there; None if none is.

    Where retention with a smaller number has been there, the chain ends with a snapshot.
    """
    at = newest
    while at != EMPTY and not (at in lineage.snapshots and at.version <= oldest):
        if at not in lineage.deltas:
            return None if at in lineage.snapshots else at
        at = lineage.deltas[at][0].parent
    return None


@dataclass(frozen=True)
class _Look:
    """What lies in a folder, in the order in which it was listed; ``doomed``: in notices, None if nobody knows."""

    lineage: Lineage
    doomed: frozenset[str] | None
    tables: Mapping[str, Blob]


class Retention:
    """Cleans up after one store."""

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
    ) -> None:
        """Delete in ``place`` with the threads of ``pool``; ``clock`` carries the time of the place on.

        ``times``: those that the process knows already.
        """
        self._place = place
        self._pins = pins
        self._grace_s = grace_s
        self._pool = pool
        self._failpoints = failpoints
        self._log = log
        self._ticks = clock
        self._clock = (times or PlaceTimes(clock)).clock_of(place)
        self._notices = Notices(place)
        self._own_notice: tuple[str, frozenset[str]] | None = None
        self._confirmations = confirmations or Confirmations(place, log)
        self._unreachable_since: dict[str, float] = {}
        self._files: dict[Blob, Mapping[str, ManifestFile]] = {}
        self._cleaned: tuple[Marker, int] | None = None
        self._is_careless = False

    def clean(self, newest: Marker, min_versions: int, confirmed_bytes: float = math.inf) -> int:
        """Delete what is retired; returns the number of objects. Raises StorageError.

        A failure in the middle leaves objects too many, never one too few; the next call goes on.
        Costs nothing when nothing was committed and no snapshot made since the last call.
        ``confirmed_bytes``: so much of a snapshot is read at most; what it replaces stays until all of it was.
        """
        if self._cleaned == (newest, min_versions) and not self._unreachable_since:
            return 0
        self._confirmations.allow(confirmed_bytes)
        self._is_careless = not is_exclusive(self._place)
        look = self._look(tidies=True)
        oldest = self._oldest(newest, min_versions, tidies=True)
        gone = self._find_retired(look, newest, oldest)
        count = len(self._delete(gone.manifests)) + len(self._delete(gone.commits))
        if not self._has_hole(look.lineage, newest, oldest):
            count += self._delete_tables(look.tables.values())
        count += self._place.discard_unfinished(max(self._grace_s, UPLOAD_S))
        self._confirmations.keep_only(look.tables, set().union(*self._files.values()))
        self._cleaned = None if self._confirmations.is_exhausted else (newest, min_versions)
        return count

    def find(self, newest: Marker, min_versions: int) -> Garbage:
        """What ``clean`` would delete, table files after two looks a grace period apart. Raises StorageError.

        Nothing is deleted or written.
        """
        look = self._look(tidies=False)
        lineage = look.lineage
        oldest = self._oldest(newest, min_versions, tidies=False)
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
        return Garbage((*(blobs[name] for name in (*gone.manifests, *gone.commits)), *unreachable, *unfinished))

    @property
    def is_waiting(self) -> bool:
        """Whether table files were seen unreachable that may go a grace period later."""
        return bool(self._unreachable_since)

    def look_again(self) -> None:
        """Let the next ``clean`` look even if nothing was committed: a snapshot may have made more of it retired."""
        self._cleaned = None

    def _look(self, *, tidies: bool) -> _Look:
        """All commits and snapshots, then the notices, then all table files: that order is A, B, C of the module."""
        lineage = Lineage.read(self._place)
        try:
            notices = self._notices.read()
        except FormatError as problem:
            self._log.warning(
                "what is below snapshots is kept while a notice of deletion is damaged; delete it, in %s/%s, when no "
                "process that works on this checkpoint runs: %s",
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
        """The first version to keep."""
        pinned = self._pins.oldest(tidies=tidies)
        oldest = newest.version - min_versions
        return oldest if pinned is None else min(oldest, pinned)

    def _find_retired(self, look: _Look, newest: Marker, oldest: int) -> Retired:
        is_base = self._is_base
        return find_retired(look.lineage, newest, oldest, lambda marker: is_base(look.lineage.snapshots[marker], look))

    def _has_hole(self, lineage: Lineage, newest: Marker, oldest: int) -> bool:
        """Whether something is missing that retained versions need: who puts it back may need its table files, too."""
        hole = first_hole(lineage, newest, oldest)
        if hole is not None:
            self._log.warning(
                "no table file is deleted while %s/%s is missing, and the delta of %s: versions from %s on need one of "
                "them; restore it from a backup of the checkpoint",
                self._place.url,
                snapshot_name(hole),
                hole,
                oldest,
            )
        return hole is not None

    def _is_base(self, manifest: Blob, look: _Look) -> bool:
        """Whether a snapshot has stood for a while, and nobody deletes any of its table files, which are as written."""
        settled_s = CARELESS_S if self._is_careless else min(self._grace_s, SETTLED_S)
        if look.doomed is None or self._clock() - manifest.modified_s < settled_s:
            return False
        try:
            files = self._files_of(manifest)
            missing = sorted(files.keys() - look.tables.keys())
            doomed = sorted(files.keys() & look.doomed)
            if not missing and not doomed:
                return self._confirmations.confirm_all(files, look.tables, manifest.name)
        except CkptError as problem:
            self._log.warning("what is below a snapshot that cannot be read is kept: %s", problem)
            return False
        age_s = self._clock() - manifest.modified_s
        self._confirmations.note_missing({name: files[name] for name in missing}, age_s)
        what = "it lacks" if missing else "somebody may be about to delete"
        self._log.warning("what is below snapshot %s is kept: %s %s", manifest.name, what, ", ".join(missing or doomed))
        return False

    def _delete_tables(self, tables: Collection[Blob]) -> int:
        """Delete the table files that were unreachable a grace period ago and still are; how many those are."""
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
        """The name of a notice of this process that has all of ``due``; one may be left of a clean-up that failed."""
        if self._own_notice is None or not due <= self._own_notice[1]:
            self._own_notice = self._notices.post(sorted(due)), frozenset(due)
        return self._own_notice[0]

    def _due(self, tables: Collection[Blob]) -> set[str]:
        """Of all table files, those that were seen unreachable a grace period ago and still are."""
        # After the listing: a new manifest is seen.
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
        """Every table file that one of them refers to; None if a manifest cannot be read, for then nobody knows."""
        known = {}
        for manifest in manifests:
            try:
                known[manifest] = self._files_of(manifest)
            except CkptError as problem:
                self._log.warning("no table file is deleted while a snapshot cannot be read: %s", problem)
                return None
        self._files = known
        return set().union(*known.values())

    def _files_of(self, manifest: Blob) -> Mapping[str, ManifestFile]:
        """Table files of a manifest, which is read once: by age and size, for its name may have been used before.

        One that may still be replaced is read each time, for the other may have the same age and size.
        """
        known = self._files.get(manifest)
        if known is None or (self._is_careless and self._clock() - manifest.modified_s < CARELESS_S):
            (commit,) = Lineage.of([manifest]).snapshots
            known = self._files[manifest] = read_manifest(self._place, commit)[1].objects()
        return known

    def _delete(self, names: Collection[str], until: float = math.inf) -> set[str]:
        """Delete objects; returns those that are gone. No delete begins after ``until``, by this machine's clock."""
        if names:
            self._failpoints.hit("cleanup.before_delete")
        away: list[CkptError] = []

        def delete(name: str) -> bool | CkptError:
            outcome = away[0] if away else self._try_delete(name, until)
            if isinstance(outcome, StorageError) and outcome.waited_s:  # the others need not wait as long, in turn
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
        """Whether an object is gone: False if it is too late to delete it, for the look that allowed it is too old."""
        if self._ticks() > until:
            return False
        try:
            self._place.delete(name)
        except CkptError as problem:
            return problem
        return True
