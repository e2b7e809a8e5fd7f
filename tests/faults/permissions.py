"""Do something as a user without permissions: for root, nothing is forbidden."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Run the block as another user if this one is root. The user may enter ``folder`` and those above it."""
    if os.geteuid() != 0:
        yield
        return
    for each in (folder, folder.parent):
        each.chmod(0o755)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
