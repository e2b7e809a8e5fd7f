"""A folder of a local or shared POSIX file system as a place for blobs.

A write goes to a temporary file in the same folder, which is fsynced. The file then gets its final name by ``link``
(which refuses to overwrite) or ``rename``, and the folder is fsynced. A visible name therefore has its whole content,
even after a power failure.

A shared file system may be unavailable for a while. Its errors then (a stale handle, an I/O error, a lost connection)
may pass, and the step is repeated. After a failed fsync, data that the system has in memory may be lost. All bytes are
then written again, to another temporary file, if they are still kept here.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from itertools import count
from pathlib import Path
from typing import NoReturn, TypeVar

from pyspark_ckpt.state_store.blobs.base.patience import OutlastedError, Patience, fail_outlasted
from pyspark_ckpt.state_store.blobs.base.place import Blob, BlobPlace, Sink, check_name
from pyspark_ckpt.state_store.blobs.base.place_clock import read_shown_time
from pyspark_ckpt.state_store.errors import (
    ConflictError,
    NotFoundError,
    Outcome,
    StorageError,
)

_TEMPORARY = ".tmp"
_PATIENCE = Patience()
_FAILURES = (OSError, OutlastedError)
KEPT_BYTES = 16 << 20
"""How much of an object is kept until it is durable, to be written again. A larger object cannot be written again."""

_MAY_PASS = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ENOTCONN, errno.ENOLINK, errno.ENOLCK),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.ECOMM),
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ESHUTDOWN, errno.EPIPE, errno.EAGAIN),
    }
)
"""Errors of a shared file system whose server is unavailable. A full disk, a missing right and the like do not pass."""
_AWAY = "Check the file system and its server. The option placeTimeout sets how long to wait for it."

T = TypeVar("T")


class LocalPlace:
    """A folder. The first write creates it."""

    def __init__(self, root: Path, patience: Patience = _PATIENCE) -> None:
        """Use ``root``, an absolute path."""
        self._root = root
        self.patience = patience
        self._known_folders: set[Path] = set()
        self._undurable_folders: set[Path] = set()
        self._unsynced: set[Path] | None = None

    @property
    def url(self) -> str:
        """Path of the folder."""
        return str(self._root)

    def waiting(self, patience: Patience) -> LocalPlace:
        """Return the same place, which repeats its requests as ``patience`` says."""
        place = copy(self)
        place.patience = patience
        return place

    def ask(self, request: Callable[[], T]) -> T:
        """Return the result of a step, which is repeated while its failures may pass."""
        return self.patience.repeat(str(self._root), request, _may_pass)

    @contextmanager
    def together(self) -> Iterator[LocalPlace]:
        """Yield this place for many objects. Their content is durable at once, their names when the block ends.

        Each folder is synced once. Raises StorageError at the end.
        """
        place, folders = LocalPlace(self._root, self.patience), set[Path]()
        place._unsynced = folders
        yield place
        for folder in sorted(folders):
            try:
                self.ask(partial(_sync_folder, folder))
            except _FAILURES as problem:
                _fail("write", folder, problem, "unknown")

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write a new object piece by piece; see the protocol."""
        with self._writing(name) as upload:
            yield upload
            upload.publish(replace=False)

    def link_from(self, source: BlobPlace, name: str, new_name: str) -> bool:
        """Make the object ``new_name`` a durable link to one of ``source``. Return False if it has to be copied.

        Raises NotFoundError, ConflictError (``new_name`` exists), StorageError.
        """
        if not isinstance(source, LocalPlace):
            return False
        origin, path = source.path_of(name), self.path_of(new_name)
        tries = count()

        def link() -> None:
            self.make_folder(path.parent)
            try:
                os.link(origin, path)
            except FileExistsError:
                if next(tries) == 0 or not path.samefile(origin):  # else a try without an answer has done it
                    raise

        try:
            self.ask(link)
        except FileExistsError as problem:
            raise ConflictError(f"{path} exists already.") from problem
        except _FAILURES as problem:
            if isinstance(problem, OSError) and problem.errno in (
                errno.EXDEV,
                errno.EMLINK,
                errno.EPERM,
                errno.EOPNOTSUPP,
            ):
                return False
            _fail("link", origin, problem)
        try:
            self.ask(partial(self.sync_folder, path.parent))
        except _FAILURES as problem:
            _fail("write", path, problem, "unknown")
        return True

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write ``data`` unless ``name`` exists; see the protocol."""
        try:
            with self.create(name) as sink:
                sink.write(data)
        except ConflictError:
            return False
        return True

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what was there; see the protocol."""
        with self._writing(name) as upload:
            upload.write(data)
            upload.publish(replace=True)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes ``start`` to ``end`` of the object; see the protocol."""
        path = self.path_of(name)

        def read() -> bytes:
            with path.open("rb", buffering=0) as source:
                source.seek(start)
                if end is None:
                    return source.read()
                size = os.fstat(source.fileno()).st_size  # read() allocates all that it is asked for
                return source.read(max(0, min(end, size) - start))

        try:
            return self.ask(read)
        except _FAILURES as problem:
            _fail("read", path, problem)

    def download(self, name: str, path: Path) -> int:
        """Copy the object into the local file ``path``; see the protocol."""
        source = self.path_of(name)
        try:
            self.ask(lambda: shutil.copyfile(source, path))
            return path.stat().st_size
        except _FAILURES as problem:
            _fail("copy", source, problem)

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Return the objects directly in ``folder``; see the protocol."""
        path = self.path_of(folder) if folder else self._root
        try:
            return self.ask(lambda: _list(path, f"{folder}/" if folder else "", prefix, start))
        except FileNotFoundError:
            return []
        except _FAILURES as problem:
            _fail("list", path, problem)

    def walk(self, folder: str = "") -> builtins.list[Blob]:
        """Return all objects below ``folder``; see the protocol."""
        top = self.path_of(folder) if folder else self._root
        try:
            return self.ask(lambda: _walk(top, self._root))
        except _FAILURES as problem:
            _fail("list", top, problem)

    def delete(self, name: str) -> None:
        """Remove the object; see the protocol."""
        path = self.path_of(name)
        try:
            self.ask(lambda: path.unlink(missing_ok=True))
        except _FAILURES as problem:
            _fail("delete", path, problem)

    def remove_empty_folders(self) -> None:
        """Remove empty folders; see the protocol."""
        try:
            self.ask(lambda: _remove_empty(self._root))
        except _FAILURES as problem:
            _fail("tidy up", self._root, problem)

    def find_unfinished(self, older_than_s: float) -> builtins.list[Blob]:
        """Return temporary files of dead writers; see the protocol."""
        return self._find_unfinished(older_than_s, lambda: read_shown_time(self))

    def _find_unfinished(self, older_than_s: float, now_s: Callable[[], float]) -> builtins.list[Blob]:
        try:
            found = self.ask(lambda: [blob for path in self._temporaries() for blob in self._describe(path)])
        except _FAILURES as problem:
            _fail("list", self._root, problem)
        if not found:
            return []
        limit = now_s() - older_than_s
        return sorted((blob for blob in found if blob.modified_s <= limit), key=lambda blob: blob.name)

    def discard_unfinished(self, older_than_s: float) -> int:
        """Remove temporary files of dead writers; see the protocol."""
        try:
            return sum(
                self.ask(partial(_discard_temporary, self.path_of(blob.name)))
                for blob in self._find_unfinished(older_than_s, self.now_s)
            )
        except _FAILURES as problem:
            _fail("tidy up", self._root, problem)

    def now_s(self) -> float:
        """Return the time that the file system stamps on the folder. Needs no disk space. Raises StorageError."""

        def stamp() -> float:
            self.make_folder(self._root)
            os.utime(self._root)
            return self._root.stat().st_mtime

        try:
            return self.ask(stamp)
        except _FAILURES as problem:
            _fail("ask for the time of", self._root, problem)

    def _describe(self, path: Path) -> builtins.list[Blob]:
        """Return a file as a blob, or nothing if it was deleted meanwhile."""
        with suppress(FileNotFoundError):
            state = path.stat()
            return [Blob(path.relative_to(self._root).as_posix(), state.st_size, state.st_mtime)]
        return []

    def _temporaries(self) -> Iterator[Path]:
        for path, folders, names in os.walk(self._root, onerror=_unless_missing):
            folders[:] = [each for each in folders if not each.startswith(".")]
            yield from (Path(path, name) for name in names if name.startswith(".") and name.endswith(_TEMPORARY))

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
        except _FAILURES as problem:
            upload.discard()
            _fail("write", path, problem, "unknown" if upload.is_begun else "not_applied")
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
            _sync_folder(made.parent)  # at once: whoever finds a folder takes it for durable
            self._undurable_folders.discard(made)
        self._known_folders.update(missing or [folder])

    def sync_folder(self, folder: Path) -> None:
        """Make the names in ``folder`` durable, or let ``together`` do it at the end."""
        if self._unsynced is None:
            _sync_folder(folder)
        else:
            self._unsynced.add(folder)


class LocalUpload:
    """The sink of one object: a temporary file next to the final one."""

    def __init__(self, place: LocalPlace, path: Path) -> None:
        """Write the object that becomes the file ``path`` of ``place``."""
        self._place, self._path = place, path
        self._file: io.FileIO | None = None
        self._temporary = path
        self._kept: list[bytes] = []
        self._size = self._kept_bytes = 0
        self._is_synced = self._is_named = False
        self.is_begun = False

    def begin(self) -> None:
        """Begin a temporary file."""
        self._place.ask(self._begin)
        self.is_begun = True

    def write(self, data: bytes | memoryview, /) -> int:
        """Append all of ``data``."""
        if self._kept_bytes == self._size < KEPT_BYTES:  # all is kept so far
            self._kept.append(bytes(data))
            self._kept_bytes += len(data)
        self._size += len(data)
        if self._file is not None:
            try:
                _write_all(self._file, data)
            except OSError as problem:
                if not _may_pass(problem) or self._kept_bytes != self._size:
                    raise
                self.discard()  # publish writes it again
        return len(data)

    def publish(self, *, replace: bool) -> None:
        """Make the object durable, then let it appear. Raises ConflictError (it exists and ``replace`` is False)."""
        self._place.ask(lambda: self._publish(replace=replace))

    def discard(self) -> None:
        """Close and delete the temporary file."""
        self.close()
        if self._temporary != self._path:
            with suppress(OSError):  # the disk that failed may fail again: discard_unfinished finds what is left
                self._temporary.unlink()

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # what must be durable was fsynced; the rest does not count
                file.close()

    def _begin(self) -> io.FileIO:
        self._place.make_folder(self._path.parent)
        self._temporary = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex}{_TEMPORARY}")
        self._file = file = io.FileIO(self._temporary, "xb")
        return file

    def _publish(self, *, replace: bool) -> None:
        if not self._is_synced:
            self._sync()
            self._is_synced = True
        if not self._is_named:
            self._name(replace=replace)
            self._is_named = True
        self._place.sync_folder(self._path.parent)

    def _sync(self) -> None:
        """Make all that was written durable. A failure leaves an unknown part on the disk, so the file is deleted."""
        try:
            file = self._file
            if file is None:
                file = self._begin()
                for piece in self._kept:
                    _write_all(file, piece)
            _sync_file(file.fileno())
        except OSError as problem:
            self.discard()
            if self._kept_bytes != self._size:
                raise StorageError(
                    f"Could not write {self._path}: {problem}. Its {self._size} bytes are too many to write again.",
                    outcome="not_applied",
                ) from problem
            raise
        self._identity = os.fstat(file.fileno())

    def _name(self, *, replace: bool) -> None:
        """Give the file its name, unless an earlier try without an answer has done so."""
        try:
            if replace:
                self._temporary.replace(self._path)
            else:
                os.link(self._temporary, self._path)
        except FileExistsError as problem:
            if not self._has_name():
                raise ConflictError(f"{self._path} exists already.") from problem
        except FileNotFoundError:
            if not self._has_name():
                raise
        if not replace:
            self._temporary.unlink(missing_ok=True)

    def _has_name(self) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(self._path.stat(), self._identity)
        return False


def _write_all(file: io.FileIO, data: bytes | memoryview) -> None:
    view, done = memoryview(data), 0
    while done < len(view):
        done += file.write(view[done:]) or 0


def _list(path: Path, lead: str, prefix: str, start: str) -> list[Blob]:
    """Return the files of a folder. Raises OSError."""
    found: list[Blob] = []
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith(prefix) and name >= start and not name.startswith("."):
                with suppress(FileNotFoundError):  # deleted between scan and stat
                    if entry.is_file():
                        state = entry.stat()
                        found.append(Blob(lead + name, state.st_size, state.st_mtime))
    return sorted(found, key=lambda blob: blob.name)


def _walk(top: Path, root: Path) -> list[Blob]:
    """Return the files below a folder, and links to folders with a "/", by their names below ``root``. Raises OSError.

    The target of a link belongs to another folder, and is not listed. The link itself is listed, so that the folder is
    not taken for complete.
    """
    found: list[Blob] = []
    for path, folders, names in os.walk(top, onerror=_unless_missing):
        folders[:] = [each for each in folders if not each.startswith(".")]
        links = [f"{each}/" for each in folders if Path(path, each).is_symlink()]
        here = Path(path).relative_to(root)
        for name in [*names, *links]:
            if not name.startswith("."):
                with suppress(FileNotFoundError):  # deleted meanwhile
                    state = Path(path, name).stat()
                    found.append(Blob(f"{here.as_posix()}/{name}".removeprefix("./"), state.st_size, state.st_mtime))
    return sorted(found, key=lambda blob: blob.name)


def _remove_empty(root: Path) -> None:
    folders: list[Path] = []
    for path, inside, _ in os.walk(root, onerror=_unless_missing):
        inside[:] = [each for each in inside if not each.startswith(".")]
        folders.append(Path(path))
    for folder in reversed(folders[1:]):
        _remove_if_empty(folder)


def _sync_file(descriptor: int) -> None:
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard_temporary(path: Path) -> bool:
    """Delete a file. Return whether it existed."""
    with suppress(FileNotFoundError):
        path.unlink()
        return True
    return False


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as problem:
        if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def _unless_missing(problem: OSError) -> None:
    if not isinstance(problem, FileNotFoundError):
        raise problem


def _may_pass(problem: Exception) -> bool:
    """Return whether the same step may succeed later without intervention."""
    return isinstance(problem, OSError) and problem.errno in _MAY_PASS


def _fail(verb: str, path: Path, problem: Exception, outcome: Outcome = "not_applied") -> NoReturn:
    is_below_a_file = isinstance(problem, NotADirectoryError) and any(map(Path.is_file, path.parents))
    if isinstance(problem, FileNotFoundError) or (verb == "read" and is_below_a_file):
        raise NotFoundError(f"{path} does not exist.") from problem
    if isinstance(problem, OutlastedError):
        fail_outlasted(verb, path, problem, str(problem), outcome, _AWAY)
    raise StorageError(f"Could not {verb} {path}: {problem}.", outcome=outcome) from problem
