"""A folder of a local or shared POSIX file system as a place for blobs.

A write goes to a temporary file in the same folder, is fsynced, gets its final name by ``link`` (which
refuses to overwrite) or ``rename``, and then the folder is fsynced. So a name that can be seen has its
whole content, also after a power failure.
"""

from __future__ import annotations

import builtins
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from pyspark_ckpt.state_store.blobs.place import Blob, Sink, checked_name
from pyspark_ckpt.state_store.errors import (
    ConflictError,
    NotFoundError,
    Outcome,
    StorageError,
)

_TEMPORARY = ".tmp"


class LocalPlace:
    """A folder; it is created by the first write."""

    def __init__(self, root: Path) -> None:
        """Use ``root``, an absolute path."""
        self._root = root
        self._known_folders: set[Path] = set()
        self._unsynced: set[Path] | None = None

    @property
    def url(self) -> str:
        """Path of the folder."""
        return str(self._root)

    @contextmanager
    def together(self) -> Iterator[LocalPlace]:
        """The same place for many objects: each has its content, but its name is durable when the block has ended.

        Each folder is synced once. Raises StorageError at the end.
        """
        place, folders = LocalPlace(self._root), set[Path]()
        place._unsynced = folders
        yield place
        for folder in sorted(folders):
            try:
                _sync_folder(folder)
            except OSError as problem:
                _fail("write", folder, problem, "unknown")

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write a new object piece by piece; see the protocol."""
        with self._writing(name) as (path, temporary, sink):
            yield sink
            _sync_file(sink.fileno())
            try:
                os.link(temporary, path)
            except FileExistsError as problem:
                raise ConflictError(f"{path} exists already.") from problem
            temporary.unlink()
            self._sync_folder(path.parent)

    def link_from(self, source: LocalPlace, name: str, new_name: str) -> bool:
        """Make the object ``new_name`` a link to one of ``source``, durably; False if the file system refuses it.

        Raises NotFoundError, ConflictError (there is one of the new name), StorageError.
        """
        origin, path = source._path(name), self._path(new_name)
        try:
            self._make_folder(path.parent)
            os.link(origin, path)
        except FileExistsError as problem:
            raise ConflictError(f"{path} exists already.") from problem
        except OSError as problem:
            if problem.errno in (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP):
                return False
            _fail("link", origin, problem)
        try:
            self._sync_folder(path.parent)
        except OSError as problem:
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
        with self._writing(name) as (path, temporary, sink):
            sink.write(data)
            _sync_file(sink.fileno())
            temporary.replace(path)
            self._sync_folder(path.parent)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes ``start`` to ``end`` of the object; see the protocol."""
        path = self._path(name)
        try:
            with path.open("rb", buffering=0) as source:
                source.seek(start)
                if end is None:
                    return source.read()
                size = os.fstat(source.fileno()).st_size  # read() takes memory for all that it is asked for
                return source.read(max(0, min(end, size) - start))
        except OSError as problem:
            _fail("read", path, problem)

    def download(self, name: str, path: Path) -> int:
        """Copy the object into the local file ``path``; see the protocol."""
        source = self._path(name)
        try:
            shutil.copyfile(source, path)
            return path.stat().st_size
        except OSError as problem:
            _fail("copy", source, problem)

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Objects directly in ``folder``; see the protocol."""
        path = self._path(folder) if folder else self._root
        lead = f"{folder}/" if folder else ""
        found: list[Blob] = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    name = entry.name
                    if name.startswith(prefix) and name >= start and not name.startswith("."):
                        with suppress(FileNotFoundError):  # deleted by somebody between scan and stat
                            if entry.is_file():
                                state = entry.stat()
                                found.append(Blob(lead + name, state.st_size, state.st_mtime))
        except FileNotFoundError:
            return []
        except OSError as problem:
            _fail("list", path, problem)
        return sorted(found, key=lambda blob: blob.name)

    def walk(self, folder: str = "") -> builtins.list[Blob]:
        """All objects below ``folder``; see the protocol."""
        root = self._path(folder) if folder else self._root
        found: builtins.list[Blob] = []
        try:
            for path, folders, names in os.walk(root, onerror=_unless_missing):
                folders[:] = [each for each in folders if not each.startswith(".")]
                for name in names:
                    if not name.startswith("."):
                        with suppress(FileNotFoundError):  # deleted by somebody meanwhile
                            state = Path(path, name).stat()
                            where = Path(path, name).relative_to(self._root).as_posix()
                            found.append(Blob(where, state.st_size, state.st_mtime))
        except OSError as problem:
            _fail("list", root, problem)
        return sorted(found, key=lambda blob: blob.name)

    def delete(self, name: str) -> None:
        """Remove the object; see the protocol."""
        path = self._path(name)
        try:
            path.unlink(missing_ok=True)
        except OSError as problem:
            _fail("delete", path, problem)

    def remove_empty_folders(self) -> None:
        """Remove the folders in which nothing is; see the protocol."""
        folders: builtins.list[Path] = []
        try:
            for path, inside, _ in os.walk(self._root, onerror=_unless_missing):
                inside[:] = [each for each in inside if not each.startswith(".")]
                folders.append(Path(path))
            for folder in reversed(folders[1:]):
                _remove_if_empty(folder)
        except OSError as problem:
            _fail("tidy up", self._root, problem)

    def unfinished(self, older_than_s: float) -> builtins.list[Blob]:
        """Temporary files of writers that died; see the protocol."""
        try:
            found = [blob for path in self._temporaries() for blob in self._described(path)]
        except OSError as problem:
            _fail("list", self._root, problem)
        if not found:
            return []
        limit = self.now_s() - older_than_s
        return sorted((blob for blob in found if blob.modified_s <= limit), key=lambda blob: blob.name)

    def discard_unfinished(self, older_than_s: float) -> int:
        """Remove temporary files of writers that died; see the protocol."""
        try:
            return sum(_discard_temporary(self._path(blob.name)) for blob in self.unfinished(older_than_s))
        except OSError as problem:
            _fail("tidy up", self._root, problem)

    def now_s(self) -> float:
        """The time of the file system, which stamps the folder with it: that takes no space. Raises StorageError."""
        try:
            self._make_folder(self._root)
            os.utime(self._root)
            return self._root.stat().st_mtime
        except OSError as problem:
            _fail("ask for the time of", self._root, problem)

    def _described(self, path: Path) -> builtins.list[Blob]:
        """A file as a blob; nothing if somebody has deleted it meanwhile."""
        with suppress(FileNotFoundError):
            state = path.stat()
            return [Blob(path.relative_to(self._root).as_posix(), state.st_size, state.st_mtime)]
        return []

    def _temporaries(self) -> Iterator[Path]:
        for path, folders, names in os.walk(self._root, onerror=_unless_missing):
            folders[:] = [each for each in folders if not each.startswith(".")]
            yield from (Path(path, name) for name in names if name.startswith(".") and name.endswith(_TEMPORARY))

    def _path(self, name: str) -> Path:
        return self._root.joinpath(*checked_name(name).split("/"))

    @contextmanager
    def _writing(self, name: str) -> Iterator[tuple[Path, Path, _FileSink]]:
        path = self._path(name)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_TEMPORARY}")
        try:
            self._make_folder(path.parent)
            sink = _FileSink(temporary)
        except OSError as problem:
            _fail("write", path, problem)
        try:
            yield path, temporary, sink
        except OSError as problem:
            _discard(temporary)
            _fail("write", path, problem, "unknown")
        except BaseException:
            _discard(temporary)
            raise
        finally:
            sink.close()

    def _make_folder(self, folder: Path) -> None:
        """Make ``folder`` and its parents, each durable in its own parent."""
        if folder in self._known_folders and folder.is_dir():
            return
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for made in reversed(missing):
            made.mkdir(exist_ok=True)
            _sync_folder(made.parent)  # at once: who finds a folder takes it for durable
        self._known_folders.update(missing or [folder])

    def _sync_folder(self, folder: Path) -> None:
        if self._unsynced is None:
            _sync_folder(folder)
        else:
            self._unsynced.add(folder)


class _FileSink:
    """Unbuffered file that writes everything it is given."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)

    def write(self, data: bytes | memoryview, /) -> int:
        """Append all of ``data``."""
        view = memoryview(data)
        done = 0
        while done < len(view):
            done += self._file.write(view[done:])
        return done

    def fileno(self) -> int:
        """Descriptor, for fsync."""
        return self._file.fileno()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _sync_file(descriptor: int) -> None:
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard_temporary(path: Path) -> bool:
    """Delete a file; whether it was there."""
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


def _discard(temporary: Path) -> None:
    with suppress(OSError):  # the disk that failed may fail again: discard_unfinished finds what is left
        temporary.unlink()


def _fail(verb: str, path: Path, problem: OSError, outcome: Outcome = "not_applied") -> NoReturn:
    if isinstance(problem, FileNotFoundError):
        raise NotFoundError(f"{path} does not exist.") from problem
    raise StorageError(f"Could not {verb} {path}: {problem}.", outcome=outcome) from problem
