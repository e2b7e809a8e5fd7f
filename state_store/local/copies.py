"""Local copies of one store on this machine's disk: the live database, and frozen copies of other versions.

::

    <store folder>/<random name>/db/                      a RocksDB folder
    <store folder>/<random name>/<version>-<id>.json      StoreMeta of what db/ holds, with a checksum

The folder of a copy is never reused, so a path cannot lead to another copy later. One copy is *live*: it is open as a
primary, and commits move it forward. The others are frozen: nobody writes them, and readers may open them read-only.
The marker row of a database decides which commit a folder holds; the JSON file is found by it. The caller of every
method must hold the store's lock.

Copies share table files by hard links. Therefore a damaged copy is discarded together with all copies that share a file
with it. The next requested version is restored from the remote place.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark_ckpt.state_store.database import Database, TableFile, Tuning, drop_unreferenced
from pyspark_ckpt.state_store.errors import (
    CkptError,
    DamagedCopyError,
    FormatError,
    InternalError,
    NotFoundError,
    StorageError,
)
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.meta import EMPTY_META, StoreMeta
from pyspark_ckpt.state_store.json_objects import decode_as, seal, unseal_local
from pyspark_ckpt.state_store.local.damage import is_of_the_copy
from pyspark_ckpt.state_store.local.files import make_folder, publish
from pyspark_ckpt.state_store.local.full_disk import FullDisk
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.plain_files import read_plain

SIBLINGS_KEPT = 2


@dataclass(eq=False)
class LocalCopy:
    """One folder with one version of the store.

    ``leases`` counts the users that rely on it not changing. ``used`` orders copies by their last use.
    """

    folder: Path
    meta: StoreMeta
    database: Database | None = None
    leases: int = 0
    used: int = 0

    @property
    def marker(self) -> Marker:
        """Return which commit the copy holds."""
        return self.meta.marker

    @property
    def db(self) -> Path:
        """Return RocksDB's folder."""
        return self.folder / "db"


@contextmanager
def reading(copy: LocalCopy) -> Iterator[None]:
    """Turn a read error in this block into DamagedCopyError, unless the machine has run out of a resource."""
    try:
        yield
    except (FormatError, NotFoundError, StorageError, OSError) as problem:
        if not is_of_the_copy(problem):
            raise
        raise DamagedCopyError(f"The local copy of {copy.marker} in {copy.folder} is damaged: {problem}") from problem


class LocalCopies:
    """All local copies of one store."""

    def __init__(
        self,
        folder: Path,
        tuning: Tuning,
        keep_versions: int,
        sweeper: Executor,
        log: StoreLog,
        make_id: Callable[[], str],
    ) -> None:
        """Keep copies in ``folder``. ``prune`` keeps ``keep_versions`` frozen versions; ``sweeper`` deletes others.

        Each copy has a folder named by an id from ``make_id``.
        """
        self._make_id = make_id
        self._sweeper = sweeper
        self._folder, self._local_dir = folder, folder.parents[1]
        self._tuning = tuning
        self._keep_versions = keep_versions
        self._log = log
        self._clock = itertools.count(1)
        self._copies: list[LocalCopy] = []
        self.live: LocalCopy | None = None
        self.damaged = 0
        """How many copies were discarded because they, or files that they shared, were damaged."""
        self.full_disk = FullDisk(self._local_dir, log)
        make_folder(folder, self._local_dir)

    def __iter__(self) -> Iterator[LocalCopy]:
        """Iterate over all copies, in no particular order."""
        return iter(list(self._copies))

    def adopt(self) -> None:
        """Adopt the copies that an earlier process left in the folder. Remove those that cannot be read."""
        for folder in sorted(self._folder.iterdir()):
            meta = self._read_held(folder)
            if meta is None:
                _remove(folder)
            else:
                self._copies.append(LocalCopy(folder, meta, used=next(self._clock)))

    def find(self, marker: Marker) -> LocalCopy | None:
        """Return a copy that holds the commit now, or None."""
        if self.live is not None and self.live.marker == marker:
            return self.live
        return next((copy for copy in self._copies if copy.marker == marker), None)

    def take(self, marker: Marker) -> LocalCopy | None:
        """Lease a copy of the commit, the live one if possible. Return None if there is no usable copy.

        A frozen copy becomes the live one unless either of them is leased. A copy that cannot be opened, or whose
        folder has been removed, is discarded.
        """
        copy = self._find(marker)
        if copy is None and marker == EMPTY:
            copy = self._new_empty()
        elif copy is not None and copy is not self.live and self._may_replace_live(copy):
            try:
                self._promote(copy)
            except (CkptError, OSError) as problem:
                self.full_disk.note(problem)
                self.discard_unusable(copy, problem)
                return None
        if copy is not None:
            self.lease(copy)
        return copy

    def _find(self, marker: Marker) -> LocalCopy | None:
        """Return a copy of the commit whose folder exists. Discard copies without a folder."""
        while (copy := self.find(marker)) is not None:
            if os.path.exists(copy.db / "CURRENT"):  # noqa: PTH110 - also False if the disk returns an error
                return copy
            self.discard_damaged(copy, f"{copy.db}/CURRENT does not exist or cannot be read")
        return None

    def lease(self, copy: LocalCopy) -> None:
        """Keep ``copy`` unchanged until ``release``."""
        copy.leases += 1
        copy.used = next(self._clock)

    def release(self, copy: LocalCopy) -> None:
        """End one lease. If the copy was discarded meanwhile, the end of its last lease deletes it."""
        copy.leases -= 1
        if copy.leases == 0 and copy not in self._copies:
            self._sweeper.submit(_remove, copy.folder)

    def new_folder(self) -> Path:
        """Make a new folder for one copy."""
        folder = self._folder / self._make_id()[:16]
        make_folder(folder, self._local_dir)  # a closing store of the same name may have removed the parent
        return folder

    def add(self, folder: Path, meta: StoreMeta, database: Database | None) -> LocalCopy:
        """Add a folder that was filled. With an open ``database`` it becomes live, unless the live copy is leased.

        After an error the database is closed.
        """
        try:
            _write_meta(folder, meta)
        except BaseException:
            if database is not None:
                database.close()
            raise
        copy = LocalCopy(folder, meta, used=next(self._clock))
        self._copies.append(copy)
        if database is not None:
            if self._may_replace_live(copy):
                self._freeze_live()
                copy.database = database
                self.live = copy
            else:
                database.close()
        return copy

    def checkpoint_live(self) -> LocalCopy:
        """Freeze the live version into a copy of its own, unless there is one; about a millisecond.

        Raises DamagedCopyError if that fails and the copy was discarded; StorageError, OSError (the disk is full).
        """
        live = self._require_live()
        frozen = next((copy for copy in self._copies if copy is not live and copy.marker == live.marker), None)
        if frozen is not None:
            return frozen
        folder = self.new_folder()
        try:
            with reading(live):
                live.database.checkpoint(folder / "db")  # type: ignore[union-attr]  # live is open
            os.link(_meta_path(live.folder, live.meta), _meta_path(folder, live.meta))
            copy = LocalCopy(folder, live.meta, used=next(self._clock))
            self._copies.append(copy)
        except BaseException as problem:
            _remove(folder)
            if isinstance(problem, DamagedCopyError):
                self.discard_damaged(live, problem.__cause__)
            raise
        return copy

    def advance(self, meta: StoreMeta, files: Sequence[Path]) -> None:
        """Apply a commit's table files to the live database, which then holds ``meta``.

        Raises InternalError if the files do not contain the marker row of this commit, StorageError. After an error,
        the copy is discarded.
        """
        live = self._require_live()
        before = _meta_path(live.folder, live.meta)
        try:
            _write_meta(live.folder, meta)
            _ingest(live.database, meta, files)
        except (StorageError, FormatError, OSError) as problem:
            self.discard_unusable(live, problem)
            raise
        except BaseException:
            self.discard(live)
            raise
        live.meta = meta
        before.unlink(missing_ok=True)

    def live_tables(self) -> list[TableFile]:
        """Return the table files of the live database."""
        return self._require_live().database.table_files()  # type: ignore[union-attr]  # live is open

    def link(self, copy: LocalCopy, folder: Path) -> None:
        """Make ``folder`` a database folder with the content of ``copy``. Files that never change are hard links."""
        if copy is self.live:
            copy.database.checkpoint(folder)  # type: ignore[union-attr]  # live is open
            drop_unreferenced(folder, self._tuning)
            return
        folder.mkdir(mode=0o700)
        for path in copy.db.iterdir():
            if path.suffix == ".sst":
                os.link(path, folder / path.name)
            elif path.name not in ("LOCK", "LOG"):
                shutil.copyfile(path, folder / path.name)
        drop_unreferenced(folder, self._tuning)

    def discard(self, copy: LocalCopy) -> None:
        """Forget ``copy``. Delete its files, now or after its last lease."""
        if copy is self.live:
            self._freeze_live()
        if copy in self._copies:
            self._copies.remove(copy)
        if copy.leases == 0:
            self._sweeper.submit(_remove, copy.folder)  # unlinking may wait for the journal of the file system

    def discard_unusable(self, copy: LocalCopy, problem: object) -> None:
        """Forget a copy that could not be used. If the ``problem`` is damage, also forget copies that share files."""
        if is_of_the_copy(problem):
            self.discard_damaged(copy, problem)
        elif copy in self._copies:
            self._log.warning(
                "the local copy of %s in %s is not usable and is deleted: %s", copy.marker, copy.folder, problem
            )
            self.discard(copy)

    def discard_damaged(self, copy: LocalCopy, problem: object) -> None:
        """Forget a damaged copy and all others that share a table file with it or hold the same commit.

        One copy of a commit may have been made from the other without a lost table file.

        Forgetting a copy twice is no error: several readers may report the same damage.
        """
        if copy not in self._copies:
            return
        files = _table_identities(copy)
        gone = [
            each for each in self._copies if each.marker == copy.marker or not files.isdisjoint(_table_identities(each))
        ]
        self.damaged += len(gone)
        self._log.warning(
            "the local copy of %s in %s is damaged; it is deleted with %d copies that share files with it, and the "
            "version is restored from the remote place on the next request: %s",
            copy.marker,
            copy.folder,
            len(gone) - 1,
            problem,
        )
        for each in gone:
            self.discard(each)

    def prune(self) -> None:
        """Remove frozen copies except those of the most recently used versions. Leased copies stay."""
        versions: dict[int, int] = {}
        for copy in sorted(self._copies, key=lambda copy: -copy.used):
            if copy is self.live:
                continue
            siblings = versions.get(copy.marker.version, 0)
            kept = siblings < SIBLINGS_KEPT if siblings else len(versions) < self._keep_versions
            if kept:
                versions[copy.marker.version] = siblings + 1
            elif copy.leases == 0:
                self.discard(copy)

    def close(self, *, remove: bool) -> None:
        """Close the live database. With ``remove``, delete all files."""
        self._freeze_live()
        if remove:
            for copy in self._copies:
                _remove(copy.folder)
            self._copies.clear()
            with suppress(OSError):  # not empty: a store of the same name was opened in the meantime
                self._folder.rmdir()

    def _new_empty(self) -> LocalCopy:
        folder = self.new_folder()
        try:
            return self.add(folder, EMPTY_META, Database(folder / "db", self._tuning))
        except BaseException:
            _remove(folder)
            raise

    def _may_replace_live(self, copy: LocalCopy) -> bool:
        return copy.leases == 0 and (self.live is None or self.live.leases == 0)

    def _freeze_live(self) -> None:
        if self.live is not None and self.live.database is not None:
            self.live.database.close()
            self.live.database = None
        self.live = None

    def _require_live(self) -> LocalCopy:
        if self.live is None or self.live.database is None:
            raise InternalError("There is no live copy of this store.")
        return self.live

    def _promote(self, copy: LocalCopy) -> None:
        drop_unreferenced(copy.db, self._tuning)
        database = Database(copy.db, self._tuning)
        self._freeze_live()
        copy.database = database
        self.live = copy

    def _read_held(self, folder: Path) -> StoreMeta | None:
        """Return the metadata of the commit in a folder of an earlier process, or None if that is not certain."""
        try:
            metas = {meta.marker: meta for meta in map(_read_meta, folder.glob("*.json"))}
            database = Database(folder / "db", self._tuning, read_only=True)
            try:
                held = database.marker() or EMPTY
            finally:
                database.close()
            for marker in metas.keys() - {held}:
                _meta_path(folder, metas[marker]).unlink()
        except (CkptError, OSError) as problem:
            self._log.warning("an unusable local copy of an earlier state server in %s is deleted: %s", folder, problem)
            return None
        return metas.get(held)


def ingest_all(database: Database, steps: Sequence[tuple[StoreMeta, Sequence[Path]]]) -> None:
    """Apply several commits in order. Each must contain its marker row. Raises InternalError, StorageError."""
    for meta, files in steps:
        _ingest(database, meta, files)


def _ingest(database: Database | None, meta: StoreMeta, files: Sequence[Path]) -> None:
    if database is None:
        raise InternalError("The database of this copy is not open.")
    database.ingest(files)
    held = database.marker()
    if held != meta.marker:
        raise InternalError(f"The files of {meta.marker} contain the marker row of {held}.")


def _table_identities(copy: LocalCopy) -> set[tuple[int, int]]:
    """Return device and inode of its table files that exist."""
    found = set[tuple[int, int]]()
    with suppress(OSError):  # the folder cannot be read
        for path in copy.db.glob("*.sst"):
            with suppress(OSError):  # the file has just been removed, or the disk returns an error
                state = path.stat()
                found.add((state.st_dev, state.st_ino))
    return found


def _meta_path(folder: Path, meta: StoreMeta) -> Path:
    return folder / f"{meta.version:020d}-{meta.id}.json"


def _write_meta(folder: Path, meta: StoreMeta) -> None:
    publish(_meta_path(folder, meta), seal(meta))


def _read_meta(path: Path) -> StoreMeta:
    return decode_as(unseal_local(read_plain(path), str(path)), StoreMeta, str(path))


def _remove(path: Path) -> None:
    """Delete what can be deleted. Anything that a failing disk keeps is deleted with the local folder."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
