"""Open files that another process may have replaced. Only plain files are opened."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_KINDS: Final = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)


class NotPlainFileError(OSError):
    """A path leads to a thing that is not read: a link may lead anywhere, a pipe may block, a device has no end.

    ``what``: its kind, in words.
    """

    def __init__(self, path: str, mode: int) -> None:
        """``mode``: of the thing at ``path``."""
        self.what = next((name for is_one, name in _KINDS if is_one(mode)), "no plain file")
        super().__init__(errno.EINVAL, f"It is {self.what}, not a plain file", path)


def open_plain(path: Path) -> io.FileIO:
    """Open a plain file for reading. Raises NotPlainFileError (a link, a pipe, which could block, ...), OSError."""
    return io.FileIO(os.fspath(path), "rb", opener=_open_plain)


def open_plain_descriptor(path: Path) -> int:
    """Return the descriptor of a plain file, open for reading, which the caller closes. Raises as ``open_plain``."""
    return _open_plain(os.fspath(path), os.O_RDONLY)


def read_plain(path: Path) -> bytes:
    """Return the content of a plain file. Raises NotPlainFileError, OSError."""
    with open_plain(path) as source:
        return source.readall()


def require_plain(paths: Iterable[Path]) -> None:
    """Raise NotPlainFileError if one of ``paths``, which a library is about to open, is no plain file; OSError."""
    for path in paths:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            raise NotPlainFileError(os.fspath(path), mode)


def _open_plain(path: str, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        if problem.errno == errno.ELOOP and os.path.islink(path):  # noqa: PTH114 - a path as text
            raise NotPlainFileError(path, stat.S_IFLNK) from problem
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotPlainFileError(path, mode)
    return descriptor
