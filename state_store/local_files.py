"""Small local files that another thread or process reads as soon as they are there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


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
