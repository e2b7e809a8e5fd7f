"""A shared file system that is away for a while, for this process: calls of Python below a folder fail.

They fail before they happen; reads and writes of files that are open go on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_EVENTS = frozenset({"open", "os.mkdir", "os.link", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir"})
_away: list[tuple[str, int]] = []
_installed: list[bool] = []


@contextmanager
def away(folder: Path, errno: int) -> Iterator[None]:
    """While the block runs, whatever is done below ``folder`` fails with ``errno``."""
    if not _installed:
        sys.addaudithook(_refuse)  # for the life of the process
        _installed.append(True)
    _away.append((str(folder), errno))
    try:
        yield
    finally:
        _away.pop()


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if not _away or event not in _EVENTS:
        return
    folder, errno = _away[-1]
    paths = [os.fsdecode(path) for path in arguments[:2] if isinstance(path, (str, bytes, os.PathLike))]
    if any(path.startswith(folder) for path in paths):
        raise OSError(errno, os.strerror(errno), paths[0])
