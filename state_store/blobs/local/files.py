"""Calls of the file system, and the meaning of their failures."""

from __future__ import annotations

import errno
import io
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from pyspark_ckpt.state_store.blobs.base.place import Blob
from pyspark_ckpt.state_store.blobs.base.retries import RetriesExhaustedError, fail_exhausted
from pyspark_ckpt.state_store.blobs.local.permissions import find_remedy
from pyspark_ckpt.state_store.errors import (
    InvalidInputError,
    NotFoundError,
    Outcome,
    StorageError,
)
from pyspark_ckpt.state_store.plain_files import NotPlainFileError

TEMPORARY = ".tmp"
"""How names of unfinished files end."""
FAILURES = (OSError, RetriesExhaustedError)
"""What a repeated step may raise in the end."""
_MAY_PASS = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ENOTCONN, errno.ENOLINK, errno.ENOLCK),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.ECOMM),
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ESHUTDOWN, errno.EPIPE, errno.EAGAIN),
    }
)
"""Errors of a shared file system whose server is unavailable. A full disk or a missing permission does not pass."""
_OF_FOLDERS = frozenset({"list", "tidy up", "ask for the time of"})
"""Actions on a folder. All others are on a file in a folder."""
_AWAY = "Check the file system and its server. The option placeTimeout sets how long to wait for it."


def write_all(file: io.FileIO, data: bytes | memoryview) -> None:
    """Write all of ``data``. Raises OSError."""
    view, done = memoryview(data), 0
    while done < len(view):
        done += file.write(view[done:]) or 0


def list_folder(path: Path, lead: str, prefix: str, start: str) -> list[Blob]:
    """Return the content of a folder except folders and links to folders. Raises OSError.

    Things that are not plain files are listed too: their reader gets an error, and does not take them for missing.
    """
    found: list[Blob] = []
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith(prefix) and name >= start and not name.startswith("."):
                state = _look_at(entry)
                if state is not None and not stat.S_ISDIR(state.st_mode):
                    found.append(Blob(lead + name, state.st_size, state.st_mtime))
    return sorted(found, key=lambda blob: blob.name)


def walk_folder(top: Path, root: Path, closed: set[str] | None = None) -> list[Blob]:
    """Return the files below a folder, and links to folders with a "/", by their names below ``root``. Raises OSError.

    The target of a link belongs to another folder, and is not listed. The link itself is listed, so that the folder is
    not taken for complete. ``closed``: gets the folders that this user may not look into, which then raise nothing.
    """
    found: list[Blob] = []

    def pass_by(problem: OSError, folder: str) -> None:
        if closed is None or not isinstance(problem, PermissionError):
            unless_missing(problem)
        else:
            closed.add(Path(folder).relative_to(root).as_posix())

    for path, folders, names in os.walk(top, onerror=lambda problem: pass_by(problem, problem.filename)):
        folders[:] = [each for each in folders if not each.startswith(".")]
        try:
            links = [f"{each}/" for each in folders if Path(path, each).is_symlink()]
        except PermissionError as problem:
            pass_by(problem, path)
            links, folders[:] = [], []
        here = Path(path).relative_to(root).as_posix()
        for name in [*names, *links]:
            if name.startswith("."):
                continue
            try:
                state = _look_at(Path(path, name))
            except PermissionError as problem:
                pass_by(problem, path)
            else:
                if state is not None:
                    found.append(Blob(f"{here}/{name}".removeprefix("./"), state.st_size, state.st_mtime))
    return sorted(found, key=lambda blob: blob.name)


def _look_at(entry: os.DirEntry[str] | Path) -> os.stat_result | None:
    """Return the status of an entry of a folder. Raises OSError.

    None if it was deleted after the folder was read, or is a link that leads nowhere.
    """
    try:
        return entry.stat()
    except OSError as problem:
        if problem.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return None


def remove_empty_folders(root: Path) -> None:
    """Remove the empty folders below ``root``, except those whose names begin with a dot. Raises OSError."""
    folders: list[Path] = []
    for path, inside, _ in os.walk(root, onerror=unless_missing):
        inside[:] = [each for each in inside if not each.startswith(".")]
        folders.append(Path(path))
    for folder in reversed(folders[1:]):
        _remove_if_empty(folder)


def sync_file(descriptor: int) -> None:
    """Make the content of a file durable. Raises OSError."""
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_linked_folders(root: Path, path: Path) -> None:
    """Raise InvalidInputError if a folder between ``root`` and a file below it is a link. Raises OSError.

    Its target belongs to another folder, and is not deleted with this one.
    """
    for folder in path.parents:
        if folder == root:
            return
        if folder.is_symlink():
            raise InvalidInputError(
                f"{path} was not deleted: {folder} is a link to {folder.readlink()}, which may have another owner.",
                hint="Remove the link, or put the folder itself there.",
            )


def discard_temporary(path: Path) -> bool:
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


def unless_missing(problem: OSError) -> None:
    """Raise the error that ``os.walk`` met, unless a folder is missing."""
    if not isinstance(problem, FileNotFoundError):
        raise problem


def may_pass(problem: Exception) -> bool:
    """Return whether the same step may succeed later without intervention."""
    return isinstance(problem, OSError) and problem.errno in _MAY_PASS


def fail(verb: str, path: Path, problem: Exception, outcome: Outcome = "not_applied") -> NoReturn:
    """Raise the error for a failure of the file system.

    The error is NotFoundError, InvalidInputError (a file or a circle of links where a folder is expected) or
    StorageError.
    """
    if isinstance(problem, NotPlainFileError):
        raise InvalidInputError(
            f"Could not {verb} {path}: it is {problem.what}, and only plain files are read here.",
            hint="Put a file with the content there, or remove it if nobody knows it.",
        ) from problem
    folders = [path, *path.parents] if verb in _OF_FOLDERS else path.parents
    file = next(filter(Path.is_file, folders), None) if isinstance(problem, NotADirectoryError) else None
    if isinstance(problem, FileNotFoundError) or (verb == "read" and file):
        raise NotFoundError(f"{path} does not exist.") from problem
    links = (folder for folder in folders if folder.is_symlink() and not folder.exists())
    if isinstance(problem, FileExistsError) and (link := next(links, None)):
        raise InvalidInputError(
            f"Could not {verb} {path}: {link} is a link that leads nowhere.", hint="Name another folder."
        ) from problem
    if file:
        raise InvalidInputError(
            f"Could not {verb} {path}: {file} is a file, not a folder.", hint="Name another folder."
        ) from problem
    if isinstance(problem, OSError) and problem.errno == errno.ELOOP:
        raise InvalidInputError(
            f"Could not {verb} {path}: its links lead in a circle.", hint="Name another folder, or mend the links."
        ) from problem
    if isinstance(problem, RetriesExhaustedError):
        fail_exhausted(verb, path, problem, str(problem), outcome, _AWAY)
    if isinstance(problem, PermissionError):
        raise StorageError(
            f"Could not {verb} {path}: {problem}.", outcome=outcome, hint=find_remedy(verb, path), is_denied=True
        ) from problem
    raise StorageError(f"Could not {verb} {path}: {problem}.", outcome=outcome) from problem
