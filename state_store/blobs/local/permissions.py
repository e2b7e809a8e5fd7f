"""Find which permission of a file system is missing, on which path, and for whom."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

from pyspark_ckpt.state_store.blobs.base.caller import describe_caller

_READING = ("read", "copy", "link")
_LISTING = ("list", "tidy up")
_STAMPING = "ask for the time of"


def find_remedy(verb: str, path: Path) -> str:
    """Return what to do after the file system refused to ``verb`` the file or folder ``path``.

    Names the user, the first path on which a permission is missing, and that permission. If the permission bits allow
    the access, names other possible causes.
    """
    found = _find_missing(verb, path)
    if found is None:
        return (
            f"The permission bits let {describe_caller()} {verb} it, but the file system does not: check its access "
            "control lists, the sticky bit of the folder, immutable files (lsattr) and the mount options."
        )
    permission, where = found
    return f"Give {permission} permission on {where} to {describe_caller()}, or run as a user who has it."


def _find_missing(verb: str, path: Path) -> tuple[str, Path] | None:
    """Return the missing permission and its path, searching from the root on; None if the bits allow everything."""
    path = _without_links(path) if verb in (*_READING, *_LISTING) else _without_links(path.parent) / path.name
    for folder in reversed(path.parents):
        if _is_folder(folder) and not _may(folder, os.X_OK):
            return "search (x)", folder
    if verb in _READING:
        return None if _may(path, os.R_OK) else ("read (r)", path)
    if verb in _LISTING:
        return _find_unlistable(path)
    folder = path if verb == _STAMPING else next((each for each in path.parents if _is_folder(each)), path)
    return None if _may(folder, os.W_OK) else ("write (w)", folder)


def _find_unlistable(top: Path) -> tuple[str, Path] | None:
    """Return the first folder at or below ``top`` that cannot be listed."""
    inside = (Path(path, each) for path, folders, _ in os.walk(top) for each in folders)
    denied = (each for each in chain([top], inside) if _is_folder(each) and not _may(each, os.R_OK | os.X_OK))
    return next((("read and search (rx)", each) for each in denied), None)


def _without_links(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a loop of links


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises if a folder above may not be searched


def _may(path: Path, how: int) -> bool:
    return os.access(path, how, effective_ids=os.access in os.supports_effective_ids)
