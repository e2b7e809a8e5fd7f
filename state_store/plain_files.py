"""Open files that another process may have replaced. Only plain files are opened."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path


def open_plain(path: Path) -> io.FileIO:
    """Open a plain file for reading. A link is refused, and so is a pipe, which could block. Raises OSError."""
    return io.FileIO(os.fspath(path), "rb", opener=_open_plain)


def read_plain(path: Path) -> bytes:
    """Return the content of a plain file. Raises OSError."""
    with open_plain(path) as source:
        return source.readall()


def _open_plain(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "It is not a plain file", path)
    return descriptor
