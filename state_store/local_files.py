"""Local files: a folder that is this user's alone, and small files in it that others read as soon as they are there."""

from __future__ import annotations

import os
import resource
import stat
from contextlib import suppress
from pathlib import Path

from pyspark_ckpt.state_store.errors import InvalidInputError

_PRIVATE = 0o700


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


def take_open_files() -> int:
    """Raise this process's limit of open files to what the system grants; returns that."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS refuses a limit without a number, and then the present one stays.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    granted, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return granted


def make_private(folder: Path) -> None:
    """Have nobody else look into ``folder``, which is there. Raises InvalidInputError if it is another user's."""
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise InvalidInputError(
            f"{folder} belongs to the user {found.st_uid}, and local copies of state are this user's alone.",
            hint="Remove the folder, or set spark.sql.streaming.stateStore.ckpt.localDir to another one.",
        )
    if stat.S_IMODE(found.st_mode) != _PRIVATE:
        folder.chmod(_PRIVATE)
