"""Local files: a folder that is this user's alone, and small files in it that others read as soon as they are there."""

from __future__ import annotations

import os
import resource
import stat
from contextlib import suppress
from pathlib import Path

from pyspark_ckpt.state_store.errors import InvalidInputError

_PRIVATE = 0o700
_WRITABLE_BY_OTHERS = 0o022


def publish(path: Path, content: bytes) -> None:
    """Write ``path``: readers see all of it or nothing. For this user only; not synced to disk. Raises OSError."""
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
    """Make ``folder``, somewhere below the local folder, of which anything may have been removed under this process.

    All that is made is this user's alone. What is no folder and in the place of one goes, but for ``local_dir`` itself.
    No error if it is there. Raises OSError.
    """
    try:
        folder.mkdir(mode=_PRIVATE)
    except OSError:
        local_dir.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        each = local_dir
        for part in folder.relative_to(local_dir).parts:
            each /= part
            if not each.is_dir():
                each.unlink(missing_ok=True)
                each.mkdir(mode=_PRIVATE, exist_ok=True)


def take_open_files() -> int:
    """Raise this process's limit of open files to what the system grants; returns that."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS refuses a limit without a number, and then the present one stays.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    granted, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return granted


def make_private(folder: Path) -> bool:
    """Have nobody else look into ``folder``, which is there; whether nobody else could write in it before.

    Raises InvalidInputError if it is another user's.
    """
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise InvalidInputError(
            f"{folder} belongs to the user {found.st_uid}, and local copies of state are this user's alone.",
            hint="Remove the folder, or set spark.sql.streaming.stateStore.ckpt.localDir to another one.",
        )
    if stat.S_IMODE(found.st_mode) != _PRIVATE:
        folder.chmod(_PRIVATE)
    return not found.st_mode & _WRITABLE_BY_OTHERS


def is_own(path: Path) -> bool:
    """Whether ``path`` is this user's, and no link."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)


def require_own(path: Path) -> None:
    """Raise InvalidInputError unless ``path`` is this user's, no link, and nobody else may write it; OSError."""
    found, problem = path.lstat(), ""
    if found.st_uid != os.geteuid():
        problem = f"belongs to the user {found.st_uid}, and this process runs as {os.geteuid()}"
    elif stat.S_ISLNK(found.st_mode):
        problem = "is a link"
    elif found.st_mode & _WRITABLE_BY_OTHERS:
        problem = f"may be written by other users (mode {stat.S_IMODE(found.st_mode):o})"
    if problem:
        raise InvalidInputError(
            f"{path} {problem}: what is in it is not used.",
            hint="Local files of an executor are made for its user alone. See who has changed that, or set "
            "spark.sql.streaming.stateStore.ckpt.localDir to another folder.",
        )
