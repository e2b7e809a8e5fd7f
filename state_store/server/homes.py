"""Local folders of executors: which one a state server takes, and which ones it deletes.

Each executor has a folder of its own, its home, in a folder that it shares with others of its machine::

    ckpt-<executor>-<random>/    private to this user
      owner.lock                 locked by the executor's JVM
      readers/                   scratch files of the JVM
      server/                    local files of the state server
        server.lock              locked by the state server

Locks end with their process, however it dies. A home is free if nobody holds either of its locks. Then nobody else
reads it or writes to it, and its copies of state may save the next executor some restores.

A folder without ``owner.lock`` is never taken: its home is being made, or a process died while it made or deleted the
home.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pyspark_ckpt.state_store.local.files import PRIVATE, is_own, make_private
from pyspark_ckpt.state_store.log import LOGGER

PREFIX = "ckpt-"
OWNER_LOCK, READERS, SERVER, SERVER_LOCK = "owner.lock", "readers", "server", "server.lock"
MAX_TAKEOVER_S = 3.0
"""How long a server waits at most for another one whose JVM has just died and which is about to end."""
KEPT_S = 7 * 86400.0
"""After this time without use, a free home, or the rest of one, is deleted."""
_POLL_S = 0.05
_UNSAFE = re.compile(r"[^A-Za-z0-9_.]")

_log = logging.getLogger(f"{LOGGER}.server")


@dataclass(frozen=True)
class LockedFolder:
    """A private folder that only this process uses until it ends or calls ``close``.

    ``is_trusted``: other users could not write to it before.
    """

    path: Path
    is_trusted: bool
    lock: IO[bytes]

    def close(self) -> None:
        """Let others use the folder."""
        self.lock.close()


@dataclass(frozen=True)
class Home:
    """The home of this process's executor. ``folder``: the folder of the state server in it."""

    path: Path
    folder: LockedFolder


def lock_folder(path: Path) -> LockedFolder | None:
    """Make ``path`` a private folder and lock it; return None if a live state server uses it.

    Raises InvalidInputError (it belongs to another user), OSError (for example, its disk has no locks).
    """
    path.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
    is_trusted = make_private(path)
    descriptor = os.open(path / SERVER_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    lock = os.fdopen(descriptor, "rb+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        lock.close()
        if isinstance(problem, BlockingIOError):
            return None
        raise
    return LockedFolder(path, is_trusted, lock)


def take_home(parent: Path, executor: str, *, former: Path | None, adopts: bool, takeover_s: float) -> Home:
    """Take a home in ``parent``: the ``former`` one, else one that a dead executor left there, else a new one.

    A former home is one that an earlier state server of the same JVM had. A left-over home is taken only if the process
    ``adopts`` one; the most recently used comes first. A home that a live process uses is never taken, nor is another
    user's, nor one that others could have written to. Servers that are about to end are waited for, ``takeover_s`` in
    all. Raises OSError.
    """
    until = time.monotonic() + takeover_s
    if former is not None:
        if (home := _take_again(former, until)) is not None:
            return home
        _log.warning("%s is gone, or an earlier state server in it has not ended: using another folder", former)
    if adopts:
        for path in filter(_is_home, _list_private(parent)):
            try:
                home = _adopt(path, until)
            except OSError as problem:
                _log.warning("%s, left by an earlier process, cannot be used: %s", path, problem)
                continue
            if home is not None:
                _log.info("using the local files that an earlier process left in %s", path)
                return home
    return _make_home(parent, executor)


def delete_forgotten(parent: Path) -> None:
    """Delete the free homes in ``parent`` that nobody has used for a week, and the rest of deleted ones."""
    try:
        found = _list_private(parent)
    except OSError as problem:
        _log.warning("%s cannot be searched for folders that no process has used for a week: %s", parent, problem)
        return
    for path in found:
        try:
            if time.time() - _last_use_s(path) > KEPT_S and (_is_home(path) or _is_remnant(path)):
                _delete_if_free(path)
        except OSError as problem:
            _log.warning("%s, which no process has used for a week, could not be deleted: %s", path, problem)


def _delete_if_free(home: Path) -> None:
    """Delete the locks last, so that nobody else takes or deletes the rest in the meantime."""
    has_owner_lock = _is_home(home)
    with _hold_for_owner(home) if has_owner_lock else nullcontext(enter_result=True) as is_free:
        folder = lock_folder(home / SERVER) if is_free else None
        if folder is not None:
            try:
                if _is_home(home) == has_owner_lock:  # otherwise somebody has just made this home
                    _log.info("deleting the local files in %s, which no process has used for a week", home)
                    _clear(home, keep={OWNER_LOCK, SERVER})
                    _clear(home / SERVER, keep={SERVER_LOCK})
                    shutil.rmtree(home / SERVER)
                    shutil.rmtree(home)
            finally:
                folder.close()


def _clear(folder: Path, *, keep: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in keep:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _take_again(path: Path, until: float) -> Home | None:
    """Take the home of this JVM, which holds its lock."""
    while path.is_dir():
        if (folder := lock_folder(path / SERVER)) is not None:
            return Home(path, folder)
        if time.monotonic() >= until:
            break
        time.sleep(_POLL_S)
    return None


def _adopt(path: Path, until: float) -> Home | None:
    """Take a left-over home. Until then, wait for a state server whose JVM is dead."""
    while True:
        with _hold_for_owner(path) as is_free:
            if not is_free:
                return None
            if (folder := lock_folder(path / SERVER)) is not None:
                _remove_readers(path / READERS)
                os.utime(path / OWNER_LOCK)
                return Home(path, folder)
        if time.monotonic() >= until:
            _log.warning(
                "%s is in use by a state server of an earlier process, which has not ended (it may be stopped, or wait "
                "for a disk); using another folder",
                path,
            )
            return None
        time.sleep(_POLL_S)


def _remove_readers(readers: Path) -> None:
    """Remove the scratch files of a dead JVM. A link is removed, too: the next JVM must not write through it."""
    if readers.is_symlink():
        readers.unlink()
    else:
        shutil.rmtree(readers, ignore_errors=True)


def _make_home(parent: Path, executor: str) -> Home:
    parent.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{_UNSAFE.sub('_', executor)}-", dir=parent))
    try:
        return Home(path, _prepare(path))
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _prepare(home: Path) -> LockedFolder:
    home.chmod(PRIVATE)
    folder = lock_folder(home / SERVER)
    if folder is None:
        raise BlockingIOError(f"{home}, which is new, is locked by another process")
    # Last, because a folder without it is not a left-over home.
    os.close(os.open(home / OWNER_LOCK, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return folder


def _list_private(parent: Path) -> list[Path]:
    """Return the possible homes of this user, or rests of them, the most recently used first. Raises OSError."""
    try:
        found = [path for path in parent.iterdir() if path.name.startswith(PREFIX) and _is_private(path)]
    except FileNotFoundError:
        return []
    return sorted(found, key=_last_use_s, reverse=True)


def _is_private(path: Path) -> bool:
    """Return whether this user alone could write to it. Otherwise anybody may have planted its files."""
    try:
        found, server = path.lstat(), path / SERVER
        is_private = found.st_uid == os.geteuid() and found.st_mode & 0o777 == PRIVATE
        return stat.S_ISDIR(found.st_mode) and is_private and (is_own(server) or not server.exists())
    except OSError:  # its owner is deleting it
        return False


def _is_home(path: Path) -> bool:
    try:
        return stat.S_ISREG((path / OWNER_LOCK).lstat().st_mode)
    except OSError:  # its owner is making or deleting it
        return False


def _is_remnant(path: Path) -> bool:
    """Return whether the owner's lock is missing and the rest belongs to a home, not to somebody else."""
    try:
        return {each.name for each in path.iterdir()} <= {READERS, SERVER}
    except OSError:  # somebody is deleting it
        return False


def _last_use_s(home: Path) -> float:
    """Return when something was last created or removed in it or in its server's folder, as by each transaction."""
    latest = 0.0
    for folder in (home, home / SERVER):
        with suppress(OSError):  # its owner is deleting it
            for path in (folder, *folder.iterdir()):
                latest = max(latest, path.lstat().st_mtime)
    return latest


@contextmanager
def _hold_for_owner(home: Path) -> Iterator[bool]:
    """Hold the lock of the executor's JVM for a moment, and yield True; yield False if a live JVM has it."""
    try:
        descriptor = os.open(home / OWNER_LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kind of lock that Java takes
        is_free = os.path.samestat(os.fstat(descriptor), (home / OWNER_LOCK).lstat())
    except OSError:
        is_free = False
    try:
        yield is_free
    finally:
        os.close(descriptor)
