"""A local disk that is full or read-only for a while, for this process: real errors of real calls.

Calls of Python's own below a folder are refused by an audit hook, before they happen. What RocksDB writes is bounded
by the system: with RLIMIT_FSIZE no file may grow beyond so many bytes, and a write may be cut short by it.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_MAKES = frozenset({"os.mkdir", "os.link", "os.rename"})
_REMOVES = frozenset({"os.remove", "os.rmdir"})


@dataclass(frozen=True)
class Trouble:
    """What is wrong with the disk: ``errno`` of refused calls (0: none), and how large a file may become."""

    name: str
    errno: int
    largest_file_bytes: int


FULL = Trouble("full", errno.ENOSPC, 0)
READ_ONLY = Trouble("read-only", errno.EROFS, 0)


def nearly_full(largest_file_bytes: int) -> Trouble:
    """Files can be made, and their content is cut short."""
    return Trouble(f"full after {largest_file_bytes} bytes", 0, largest_file_bytes)


_broken: list[tuple[str, Trouble]] = []
_installed: list[bool] = []


@contextmanager
def broken(folder: Path, trouble: Trouble) -> Iterator[None]:
    """Let ``folder`` be on a disk in ``trouble`` inside the block; RLIMIT_FSIZE holds for the whole process."""
    if not _installed:
        sys.addaudithook(_refuse)  # for the life of the process
        _installed.append(True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (trouble.largest_file_bytes, hard))
    _broken.append((str(folder), trouble))
    try:
        yield
    finally:
        _broken.pop()
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def mended() -> Iterator[None]:
    """Let all disks be well inside the block."""
    troubles, (soft, hard) = list(_broken), resource.getrlimit(resource.RLIMIT_FSIZE)
    _broken.clear()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        _broken.extend(troubles)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if not _broken:
        return
    folder, trouble = _broken[-1]
    if not trouble.errno:
        return
    is_write = event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & _WRITES)
    removes = event in _REMOVES and trouble.errno == errno.EROFS
    if not (is_write or removes or event in _MAKES):
        return
    paths = [os.fsdecode(path) for path in arguments[:2] if isinstance(path, (str, bytes, os.PathLike))]
    if any(path.startswith(folder) for path in paths) or (removes and not paths[0].startswith("/")):
        raise OSError(trouble.errno, os.strerror(trouble.errno), paths[-1])
