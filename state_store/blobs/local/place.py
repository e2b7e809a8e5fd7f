"""A folder of a local or shared POSIX file system as a place for blobs.

A write goes to a temporary file in the same folder, which is fsynced. The file then gets its final name by ``link``
(which refuses to overwrite) or ``rename``, and the folder is fsynced. A visible name therefore has its whole content,
even after a power failure.

A shared file system may be unavailable for a while. Its errors then (a stale handle, an I/O error, a lost connection)
may pass, and the step is repeated. A failed fsync may lose data that the system has in memory. All bytes are then
written again, to another temporary file, if they are still kept here.
"""

from __future__ import annotations

import builtins
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

from pyspark_ckpt.state_store.blobs.base.file_writes import FileWrites, find_old, is_temporary
from pyspark_ckpt.state_store.blobs.base.place import Blob, BlobPlace, check_name
from pyspark_ckpt.state_store.blobs.base.place_clock import read_shown_time
from pyspark_ckpt.state_store.blobs.base.retries import Retries, RetryPolicy
from pyspark_ckpt.state_store.blobs.local.files import (
    FAILURES,
    discard_temporary,
    fail,
    list_folder,
    may_pass,
    refuse_linked_folders,
    remove_empty_folders,
    sync_folder,
    unless_missing,
    walk_folder,
)
from pyspark_ckpt.state_store.blobs.local.uploads import LocalUpload
from pyspark_ckpt.state_store.errors import ConflictError
from pyspark_ckpt.state_store.plain_files import open_plain, require_plain

_RETRIES = RetryPolicy()
COPIED_BYTES = 64 << 10
"""How much of a file is in memory while it is copied."""

T = TypeVar("T")


class LocalPlace(FileWrites, Retries):
    """A folder. The first write creates it."""

    def __init__(self, root: Path, retries: RetryPolicy = _RETRIES) -> None:
        """Use ``root``, an absolute path."""
        self._root = root
        self.retries = retries
        self._known_folders: set[Path] = set()
        self._undurable_folders: set[Path] = set()
        self._unsynced: set[Path] | None = None

    @property
    def url(self) -> str:
        """Path of the folder."""
        return str(self._root)

    def ask(self, request: Callable[[], T]) -> T:
        """Return the result of a step, which is repeated while its failures may pass."""
        return self.retries.repeat(str(self._root), request, may_pass)

    @contextmanager
    def together(self) -> Iterator[LocalPlace]:
        """Yield this place for many objects. Their content is durable at once, their names when the block ends.

        Each folder is synced once. Raises StorageError at the end.
        """
        place, folders = LocalPlace(self._root, self.retries), set[Path]()
        place._unsynced = folders
        yield place
        for folder in sorted(folders):
            try:
                self.ask(partial(sync_folder, folder))
            except FAILURES as problem:
                fail("write", folder, problem, "unknown")

    def link_from(self, source: BlobPlace, name: str, new_name: str) -> bool:
        """Make the object ``new_name`` a durable link to one of ``source``. Return False if it has to be copied.

        Raises NotFoundError, ConflictError (``new_name`` exists), StorageError.
        """
        if not isinstance(source, LocalPlace):
            return False
        origin, path = source.path_of(name), self.path_of(new_name)
        tries = count()

        def link() -> None:
            require_plain([origin])
            self.make_folder(path.parent)
            try:
                os.link(origin, path)
            except FileExistsError:
                if next(tries) == 0 or not path.samefile(origin):  # otherwise a try without an answer has done it
                    raise

        try:
            self.ask(link)
        except FileExistsError as problem:
            raise ConflictError(f"{path} already exists.") from problem
        except FAILURES as problem:
            if isinstance(problem, OSError) and problem.errno in (
                errno.EXDEV,
                errno.EMLINK,
                errno.EPERM,
                errno.EOPNOTSUPP,
            ):
                return False
            fail("link", origin, problem)
        try:
            self.ask(partial(self.sync_folder, path.parent))
        except FAILURES as problem:
            fail("write", path, problem, "unknown")
        return True

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes ``start`` to ``end`` of the object; see the protocol."""
        path = self.path_of(name)

        def read() -> bytes:
            with open_plain(path) as source:
                source.seek(start)
                if end is None:
                    return source.read()
                size = os.fstat(source.fileno()).st_size  # read() allocates the whole requested size
                return source.read(max(0, min(end, size) - start))

        try:
            return self.ask(read)
        except FAILURES as problem:
            fail("read", path, problem)

    def download(self, name: str, path: Path) -> int:
        """Copy the object into the local file ``path``; see the protocol."""
        source = self.path_of(name)

        def copy() -> int:
            with open_plain(source) as stored, path.open("wb") as copied:
                shutil.copyfileobj(stored, copied, COPIED_BYTES)
            return path.stat().st_size

        try:
            return self.ask(copy)
        except FAILURES as problem:
            fail("copy", source, problem)

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Return the objects directly in ``folder``; see the protocol."""
        path = self.path_of(folder) if folder else self._root
        try:
            return self.ask(lambda: list_folder(path, f"{folder}/" if folder else "", prefix, start))
        except FileNotFoundError:
            return []
        except FAILURES as problem:
            fail("list", path, problem)

    def walk(self, folder: str = "") -> builtins.list[Blob]:
        """Return all objects below ``folder``; see the protocol."""
        top = self.path_of(folder) if folder else self._root
        try:
            return self.ask(lambda: walk_folder(top, self._root))
        except FAILURES as problem:
            fail("list", top, problem)

    def walk_around(self) -> tuple[builtins.list[Blob], builtins.list[str]]:
        """Walk through the folders that this user may see; see ``CanWalkAround``."""
        closed: set[str] = set()
        try:
            found = self.ask(lambda: walk_folder(self._root, self._root, closed))
        except FAILURES as problem:
            fail("list", self._root, problem)
        return found, sorted(closed)

    def delete(self, name: str) -> None:
        """Remove the object; see the protocol. Raises InvalidInputError (a link to a folder is on its path)."""
        path = self.path_of(name)

        def unlink() -> None:
            refuse_linked_folders(self._root, path)
            path.unlink(missing_ok=True)

        try:
            self.ask(unlink)
        except FAILURES as problem:
            fail("delete", path, problem)

    def remove_empty_folders(self) -> None:
        """Remove empty folders; see the protocol."""
        try:
            self.ask(lambda: remove_empty_folders(self._root))
        except FAILURES as problem:
            fail("tidy up", self._root, problem)

    def find_unfinished(self, older_than_s: float) -> builtins.list[Blob]:
        """Return temporary files of dead writers; see the protocol."""
        return self._find_unfinished(older_than_s, lambda: read_shown_time(self))

    def _find_unfinished(self, older_than_s: float, now_s: Callable[[], float]) -> builtins.list[Blob]:
        try:
            found = self.ask(lambda: [blob for path in self._temporaries() for blob in self._describe(path)])
        except FAILURES as problem:
            fail("list", self._root, problem)
        return find_old(found, older_than_s, now_s)

    def discard_unfinished(self, older_than_s: float) -> int:
        """Remove temporary files of dead writers; see the protocol."""
        try:
            return sum(
                self.ask(partial(discard_temporary, self.path_of(blob.name)))
                for blob in self._find_unfinished(older_than_s, self.now_s)
            )
        except FAILURES as problem:
            fail("tidy up", self._root, problem)

    def now_s(self) -> float:
        """Return the time that the file system stamps on the folder. Needs no disk space. Raises StorageError."""

        def stamp() -> float:
            self.make_folder(self._root)
            os.utime(self._root)
            return self._root.stat().st_mtime

        try:
            return self.ask(stamp)
        except FAILURES as problem:
            fail("ask for the time of", self._root, problem)

    def _describe(self, path: Path) -> builtins.list[Blob]:
        """Return a file as a blob, or nothing if it was deleted meanwhile."""
        with suppress(FileNotFoundError):
            state = path.stat()
            return [Blob(path.relative_to(self._root).as_posix(), state.st_size, state.st_mtime)]
        return []

    def _temporaries(self) -> Iterator[Path]:
        for path, folders, names in os.walk(self._root, onerror=unless_missing):
            folders[:] = [each for each in folders if not each.startswith(".")]
            yield from (Path(path, name) for name in names if is_temporary(name))

    def path_of(self, name: str) -> Path:
        """Return the path of the file of an object."""
        return self._root.joinpath(*check_name(name).split("/"))

    @contextmanager
    def _writing(self, name: str) -> Iterator[LocalUpload]:
        path = self.path_of(name)
        upload = LocalUpload(self, path)
        try:
            upload.begin()
            yield upload
        except FAILURES as problem:
            upload.discard()
            fail("write", path, problem, "unknown" if upload.is_begun else "not_applied")
        except BaseException:
            upload.discard()
            raise
        finally:
            upload.close()

    def make_folder(self, folder: Path) -> None:
        """Make ``folder`` and its parents, each durable in its own parent."""
        if folder in self._known_folders and folder.is_dir():
            return
        missing = []
        while not folder.is_dir() or folder in self._undurable_folders:
            missing.append(folder)
            folder = folder.parent
        for made in reversed(missing):
            self._undurable_folders.add(made)  # if this try fails, the next one syncs it
            made.mkdir(exist_ok=True)
            sync_folder(made.parent)  # at once: whoever finds a folder takes it for durable
            self._undurable_folders.discard(made)
        self._known_folders.update(missing or [folder])

    def sync_folder(self, folder: Path) -> None:
        """Make the names in ``folder`` durable, or let ``together`` do it at the end."""
        if self._unsynced is None:
            sync_folder(folder)
        else:
            self._unsynced.add(folder)
