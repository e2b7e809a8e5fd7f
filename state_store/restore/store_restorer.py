"""Restore a version on this machine: take the nearest usable base, then apply deltas in lineage order.

A base is a local copy, a remote snapshot, or version 0. Objects are fetched in parallel, and every checksum is verified
before RocksDB sees a byte. If a snapshot is damaged or incomplete, a warning names it, and an older base with more
deltas is used. A damaged delta has no substitute: the restore fails with an error that names it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.blobs.transfers import fetch
from pyspark_ckpt.state_store.database import Database, Tuning
from pyspark_ckpt.state_store.errors import CkptError, FormatError, InternalError, NotFoundError, StorageError
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.delta import Delta, read_delta
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.manifest import Manifest, ManifestFile, read_manifest
from pyspark_ckpt.state_store.format.meta import EMPTY_META, StoreMeta
from pyspark_ckpt.state_store.format.names import DeltaName
from pyspark_ckpt.state_store.json_objects import read_again
from pyspark_ckpt.state_store.local.copies import ingest_all
from pyspark_ckpt.state_store.local.damage import is_of_the_copy
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.packs.lineages import extend, read_lineage
from pyspark_ckpt.state_store.snapshots.restore_forecast import RestoreForecast
from pyspark_ckpt.state_store.sst.table_check import check_table

PROGRESS_S = 5.0
LOCAL_COPY, SNAPSHOT, EMPTY_STORE = "local copy", "snapshot", "empty store"

_T = TypeVar("_T")

LinkLocal = Callable[[Marker, Path], StoreMeta | None]
"""Fill a folder from a local copy of the commit. Returns its metadata, or None if the copy is gone."""


@dataclass
class RestoredStore:
    """An open database at the requested version, and metrics of the restore."""

    meta: StoreMeta
    database: Database
    lineage: Lineage
    metrics: dict[str, int] = field(default_factory=dict)
    table_files: Mapping[str, ManifestFile] = field(default_factory=dict)
    """Table files of the snapshot, by file name. RocksDB may have compacted some away since."""
    is_of_snapshot: bool = False
    """Whether a remote snapshot was read."""
    origin: str = ""
    """Its origin, for the log."""


class UnusableBaseError(Exception):
    """The selected base cannot be used. The next older one may be usable."""


class StoreRestorer:
    """Restores versions of one store."""

    def __init__(
        self,
        place: BlobPlace,
        tuning: Tuning,
        pool: Executor,
        failpoints: FailPoints,
        forecast: RestoreForecast,
        log: StoreLog,
        store: str,
        *,
        checks_tables: bool = False,
    ) -> None:
        """Read from ``place``, with the threads of ``pool``. ``checks_tables``: see the attribute."""
        self.checks_tables = checks_tables
        """Whether the own checksums of fetched table files are verified, too. This finds files that were damaged before
        they were stored: the checksum that is stored with such a file is that of the damaged file."""
        self._place = place
        self._tuning = tuning
        self._pool = pool
        self._failpoints = failpoints
        self._forecast = forecast
        self._log = log
        self._store = store

    def restore(self, commit: Marker, folder: Path, local: set[Marker], link: LinkLocal) -> RestoredStore:
        """Restore ``commit`` into ``folder/db``, in the empty ``folder``, and open it.

        ``link`` can provide the commits in ``local``. Raises NotFoundError (never committed with this id, or retired),
        FormatError (damage, and no other base), StorageError.
        """
        try:
            lineage = self._read_lineage(commit)
            while True:
                try:
                    return self._restore(commit, lineage, folder, local, link)
                except (NotFoundError, FormatError) as problem:
                    before, lineage = lineage, read_lineage(self._place, commit)
                    if not before.has_lost(lineage):
                        raise
                    self._log.info("%s; retention has run meanwhile: the restore is tried again", problem)
                    _empty(folder)
        except OSError as problem:  # an error of the local disk: a place does not raise OSError
            raise StorageError(f"{self._store}: could not restore {commit} into {folder}: {problem}.") from problem

    def _restore(
        self, commit: Marker, lineage: Lineage, folder: Path, local: set[Marker], link: LinkLocal
    ) -> RestoredStore:
        lineage.require(commit, self._store)
        troubles: list[Exception] = []
        may_pass = False
        tried = set[Marker]()
        for base, kind, steps in self._choices(commit, lineage, local, tried):
            tried.add(base)
            try:
                return self._build(base, kind, steps, lineage, folder, link)
            except UnusableBaseError as problem:
                missing = problem.__cause__
                if isinstance(missing, NotFoundError) and lineage.has_lost(Lineage.read(self._place)):
                    raise missing from problem  # retry: what retention has left is better than an older base
                troubles.append(problem)
                # A network or disk error may pass. A local copy that cannot be opened does not repair itself.
                may_pass |= kind != LOCAL_COPY and isinstance(missing, StorageError)
                if kind == EMPTY_STORE:
                    raise self._hopeless(commit, troubles, may_pass=may_pass) from problem
                self._log.warn_of_standing("%s; an older base and more deltas are used instead", problem)
                _empty(folder)
        broken = lineage.find_break(commit)
        if not troubles:
            raise NotFoundError(f"{self._store}: {broken}", hint=broken.hint)
        raise self._hopeless(commit, [*troubles, broken], may_pass=may_pass)

    def _choices(
        self, commit: Marker, lineage: Lineage, local: Container[Marker], tried: Container[Marker]
    ) -> Iterator[tuple[Marker, str, list[DeltaName]]]:
        """Yield the bases of ``commit``, the nearest first. When all were ``tried``, look for older ones in packs."""
        seen = set[tuple[Marker, str]]()
        while True:
            for base, kind, steps in _list_choices(commit, lineage, local):
                if (base, kind) not in seen:
                    seen.add((base, kind))
                    yield base, kind, steps
            known = len(lineage.deltas)
            extend(lineage, self._place, commit, lambda found, at: at in found.snapshots and at not in tried)
            if len(lineage.deltas) == known:
                return

    def replay(self, commit: Marker, start: int, start_id: str | None, folder: Path) -> RestoredStore:
        """Restore as ``restore`` does, but only from the snapshot of version ``start``; ``start_id`` may be None.

        Raises NotFoundError (no such snapshot: the error lists the existing ones; or ``commit`` does not exist),
        FormatError (damage), StorageError.
        """
        lineage = read_lineage(self._place, commit, lambda _, marker: marker.version <= start)
        lineage.require(commit, self._store)
        base, steps = lineage.chain(commit, lambda marker: marker.version <= start or marker not in lineage.deltas)
        if base not in lineage.snapshots or base.version != start or start_id not in (None, base.id):
            raise self._no_snapshot(commit, start, start_id, lineage)
        try:
            return self._build(base, SNAPSHOT, steps, lineage, folder, lambda _commit, _folder: None)
        except UnusableBaseError as problem:
            raise FormatError(
                f"{self._store}: {commit} cannot be replayed: {problem}",
                hint="Restore the named file from a backup of the checkpoint, or begin with another snapshot.",
            ) from problem

    def _build(
        self, base: Marker, kind: str, steps: list[DeltaName], lineage: Lineage, folder: Path, link: LinkLocal
    ) -> RestoredStore:
        started = time.monotonic()
        manifest = self._manifest(base) if kind == SNAPSHOT else None
        self._failpoints.hit("restore.before_download")
        files = () if manifest is None else self._choose_files(manifest)
        (folder / "db").mkdir(mode=0o700)
        placing = {
            self._pool.submit(self._place_file, file, folder / "db"): 0 if file.data is not None else file.size_bytes
            for file in files
        }
        sizes = [lineage.deltas[name.commit][1].size_bytes for name in steps]
        fetching = {
            self._pool.submit(self._delta, name, size_bytes, folder / f"delta-{index}"): size_bytes
            for index, (name, size_bytes) in enumerate(zip(steps, sizes, strict=True))
        }
        self._log.debug("restoring from the %s of %s and %d deltas", kind, base, len(steps))
        self._watch({**placing, **fetching})
        placed, deltas = _all(placing), _all(fetching)  # wait for all threads before anything is raised
        downloaded_s = time.monotonic() - started
        if isinstance(placed, CkptError):
            raise UnusableBaseError(f"the {kind} of {base} is not usable: {placed}") from placed
        if isinstance(deltas, CkptError):
            raise deltas
        meta = manifest.store if manifest is not None else EMPTY_META
        if kind == LOCAL_COPY:
            (folder / "db").rmdir()
            meta = _link(link, base, folder / "db")
        self._failpoints.hit("restore.after_download")
        database = self._open(base, kind, folder / "db")
        replaying = time.monotonic()
        self._replay(database, deltas, base, kind)
        downloaded_bytes = sum(placed) + sum(delta.size_bytes for delta in deltas)
        self._forecast.note_transfer(downloaded_bytes, downloaded_s)
        self._forecast.note_ingest(len(deltas), time.monotonic() - replaying)
        _empty(folder, keep="db")
        return RestoredStore(
            deltas[-1].store if deltas else meta,
            database,
            lineage,
            {
                "restored": 1,
                "restore_ms": round((time.monotonic() - started) * 1000),
                "replayed_deltas": len(deltas),
                "downloaded_bytes": downloaded_bytes,
            },
            {file.name: file for file in files if file.object_name is not None},
            is_of_snapshot=kind == SNAPSHOT,
            origin=f"the {kind} of {base} and {len(steps)} deltas",
        )

    def _watch(self, downloads: Mapping[Future[Any], int]) -> None:
        """Wait for all downloads, given with their sizes in bytes. Log the progress from time to time."""
        total, pending = sum(downloads.values()), set(downloads)
        while pending:
            pending = wait(pending, timeout=PROGRESS_S).not_done
            if pending:
                here = total - sum(downloads[download] for download in pending)
                left = len(downloads) - len(pending)
                self._log.info("downloaded %d of %d bytes, %d of %d objects", here, total, left, len(downloads))

    def _read_lineage(self, commit: Marker) -> Lineage:
        """Return the lineage from which to restore ``commit``."""
        return read_lineage(self._place, commit)

    def _choose_files(self, manifest: Manifest) -> Sequence[ManifestFile]:
        """Return the files of a snapshot to fetch."""
        return manifest.files

    def _manifest(self, base: Marker) -> Manifest:
        try:
            return read_manifest(self._place, base)[1]
        except CkptError as problem:
            raise UnusableBaseError(f"the snapshot of {base} is not usable: {problem}") from problem

    def _place_file(self, file: ManifestFile, folder: Path) -> int:
        """Fetch one file of a snapshot and verify it. Return how many bytes came from the place."""
        path = folder / file.name
        if file.data is not None:
            path.write_bytes(file.data)
            return 0
        read_again(lambda: fetch(self._place, file.as_stored_file, path))
        self._check(path, str(file.object_name))
        return file.size_bytes

    def _delta(self, name: DeltaName, size_bytes: int, folder: Path) -> Delta:
        def read() -> Delta:
            shutil.rmtree(folder, ignore_errors=True)
            return read_delta(self._place, name, size_bytes, folder)

        delta = read_again(read)
        for file in delta.files:
            self._check(file, str(name))
        return delta

    def _check(self, path: Path, name: str) -> None:
        """Raise FormatError, which names the object ``name``, if its table file was damaged before it was stored."""
        if not self.checks_tables:
            return
        try:
            check_table(path)
        except FormatError as problem:
            raise make_damage_error(f"{self._place.url}/{name}", path, problem) from problem

    def _open(self, base: Marker, kind: str, folder: Path) -> Database:
        try:
            database = Database(folder, self._tuning)
        except CkptError as problem:
            raise UnusableBaseError(f"the {kind} of {base} cannot be opened: {problem}") from problem
        try:
            held = _read_marker(database)
        except CkptError as problem:
            raise UnusableBaseError(f"the {kind} of {base} cannot be read: {problem}") from problem
        if held != base:
            database.close()
            raise UnusableBaseError(f"the {kind} of {base} holds {held}")
        return database

    def _replay(self, database: Database, deltas: list[Delta], base: Marker, kind: str) -> None:
        for delta in deltas:
            try:
                ingest_all(database, [(delta.store, delta.files)])
            except (InternalError, StorageError, FormatError) as problem:
                database.close()
                if kind != EMPTY_STORE and isinstance(problem, (StorageError, FormatError)) and is_of_the_copy(problem):
                    raise UnusableBaseError(f"no delta can be applied to the {kind} of {base}: {problem}") from problem
                if isinstance(problem, StorageError):
                    raise
                raise FormatError(
                    f"{self._store}: the delta of {delta.store.marker} in {self._place.url} is not usable: {problem}",
                    hint="Restore the file from a backup of the checkpoint.",
                ) from problem
            except BaseException:
                database.close()
                raise

    def _no_snapshot(self, commit: Marker, start: int, start_id: str | None, lineage: Lineage) -> CkptError:
        known = sorted(marker.version - 1 for marker in lineage.ancestors(commit) & lineage.snapshots.keys())
        wanted = f"batch {start - 1} (version {start}{f', id {start_id}' if start_id else ''})"
        return NotFoundError(
            f"{self._store}: there is no snapshot of {wanted} from which to replay batch {commit.version - 1}; "
            + (f"there are snapshots of batches {', '.join(map(str, known))}." if known else "there is none at all."),
            hint="Snapshots are made in the background, see the option snapshotEveryVersions.",
        )

    def _hopeless(self, commit: Marker, troubles: Sequence[Exception], *, may_pass: bool) -> CkptError:
        """Return the error for a commit without a usable base. ``may_pass``: a retry may help, nothing is damaged."""
        reasons = "; ".join(map(str, troubles))
        if may_pass:
            return StorageError(f"{self._store}: {commit} could not be restored: {reasons}")
        return FormatError(
            f"{self._store}: {commit} cannot be restored: {reasons}",
            hint="Restore the named files from a backup of the checkpoint, "
            "or go back to a version that does not need them.",
        )


def make_damage_error(where: str, path: Path, problem: FormatError) -> FormatError:
    """Return the error for an object whose table file, at ``path``, was damaged before it was stored."""
    return FormatError(
        f"{where} is damaged, and was already damaged when it was stored (its checksum is right): "
        f"{problem.message.removeprefix(f'{path} is damaged: ')}",
        hint="Restore this file from a backup of the checkpoint, or go back to a version that does not need it.",
    )


def _list_choices(
    commit: Marker, lineage: Lineage, local: Container[Marker]
) -> Iterator[tuple[Marker, str, list[DeltaName]]]:
    """Yield the bases of ``commit``, the nearest first, with their kinds and the deltas after them.

    ``local``: the commits with a local copy. If such a commit also has a snapshot, that is the next base.
    """
    for base, steps in lineage.chains(commit, lambda marker: marker in local or marker in lineage.snapshots):
        if base in local:
            yield base, LOCAL_COPY, steps
        if base in lineage.snapshots:
            yield base, SNAPSHOT, steps
        if base == EMPTY:
            yield base, EMPTY_STORE, steps


def _read_marker(database: Database) -> Marker:
    """Return the commit that the database holds. Closes the database if that cannot be read."""
    try:
        return database.marker() or EMPTY
    except BaseException:
        database.close()
        raise


def _all(futures: Iterable[Future[_T]]) -> list[_T] | CkptError:
    """Wait for all futures. Return all results, or the first CkptError. Raise any other error."""
    done = list(futures)
    wait(done)
    problems = [problem for future in done if (problem := future.exception()) is not None]
    for problem in problems:
        if not isinstance(problem, CkptError):
            raise problem
    if problems:
        return next(problem for problem in problems if isinstance(problem, CkptError))
    return [future.result() for future in done]


def _link(link: LinkLocal, base: Marker, folder: Path) -> StoreMeta:
    try:
        meta = link(base, folder)
    except (CkptError, OSError) as problem:
        raise UnusableBaseError(f"the local copy of {base} is not usable: {problem}") from problem
    if meta is None:
        raise UnusableBaseError(f"the local copy of {base} is gone")
    return meta


def _empty(folder: Path, keep: str = "") -> None:
    for path in folder.iterdir():
        if path.name != keep:
            shutil.rmtree(path)
