"""Local files: private folders, and small files that other processes read as soon as they exist."""

from __future__ import annotations

import os
import resource
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from pyspark_ckpt.state_store.errors import InvalidInputError, StorageError

PRIVATE = 0o700
_WRITABLE_BY_OTHERS = 0o022
_HINT = "Set TMPDIR to an existing, writable folder with free space."


def publish(path: Path, content: bytes) -> None:
    """Write ``path`` atomically. Only this user can read it. It is not synced to disk. Raises OSError."""
    unfinished = path.with_suffix(".tmp")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as target:
            target.write(content)
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def make_folder(folder: Path, local_dir: Path) -> None:
    """Make ``folder``, which is below ``local_dir``, and all missing folders above it, for this user only.

    Folders may have been removed while this process runs. Anything else in the place of a folder is deleted, except in
    the place of ``local_dir`` itself. An existing folder is no error. Raises OSError.
    """
    try:
        folder.mkdir(mode=PRIVATE)
    except OSError:
        local_dir.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        each = local_dir
        for part in folder.relative_to(local_dir).parts:
            each /= part
            if not each.is_dir():
                each.unlink(missing_ok=True)
                each.mkdir(mode=PRIVATE, exist_ok=True)


def make_scratch_folder() -> Path:
    """Make a folder for large temporary files that only this user can read, in ``TMPDIR`` if that is set.

    Where ``TMPDIR`` cannot be used or is full, Python would silently take another folder, perhaps one in memory. Raises
    StorageError.
    """
    named = os.environ.get("TMPDIR")
    if named and not (Path(named).is_dir() and os.access(named, os.W_OK | os.X_OK)):
        raise StorageError(f"TMPDIR is {named}, which is not a writable folder.", hint=_HINT, retryable=False)
    try:
        return Path(tempfile.mkdtemp(prefix="pyspark-ckpt-", dir=Path(named).absolute() if named else None))
    except OSError as problem:
        raise StorageError(f"No temporary folder could be made: {problem}.", hint=_HINT) from problem


def take_open_files() -> int:
    """Raise this process's limit of open files to what the system grants, and return it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS refuses an unlimited number; the current limit then stays.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    granted, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return granted


def make_private(folder: Path) -> bool:
    """Make an existing ``folder`` private. Return whether other users could not write to it before.

    Raises InvalidInputError if it belongs to another user.
    """
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise InvalidInputError(
            f"{folder} belongs to the user {found.st_uid}, but local copies of state must belong to this user.",
            hint="Remove the folder, or set spark.sql.streaming.stateStore.ckpt.localDir to another one.",
        )
    if stat.S_IMODE(found.st_mode) != PRIVATE:
        folder.chmod(PRIVATE)
    return not found.st_mode & _WRITABLE_BY_OTHERS


def is_own(path: Path) -> bool:
    """Return whether ``path`` belongs to this user and is no link."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)


def require_own(path: Path) -> None:
    """Raise InvalidInputError unless ``path`` is this user's, no link, and not writable by others. Raises OSError."""
    found, problem = path.lstat(), ""
    if found.st_uid != os.geteuid():
        problem = f"belongs to the user {found.st_uid}, but this process runs as {os.geteuid()}"
    elif stat.S_ISLNK(found.st_mode):
        problem = "is a link"
    elif found.st_mode & _WRITABLE_BY_OTHERS:
        problem = f"may be written by other users (mode {stat.S_IMODE(found.st_mode):o})"
    if problem:
        raise InvalidInputError(
            f"{path} {problem}. Its content is not used.",
            hint="Executors make their local files private to their user. Find out what changed that, or set "
            "spark.sql.streaming.stateStore.ckpt.localDir to another folder.",
        )
