"""Files that another process may have replaced: what is no plain file is not opened."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path


def open_plain(path: Path) -> io.FileIO:
    """Open a file that another process may have replaced, to be read: a link and a pipe, which waits, are no such file.

    Raises OSError.
    """
    return io.FileIO(os.fspath(path), "rb", opener=_open_plain)


def read_plain(path: Path) -> bytes:
    """All of such a file. Raises OSError."""
    with open_plain(path) as source:
        return source.readall()


def _open_plain(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "It is no plain file", path)
    return descriptor
