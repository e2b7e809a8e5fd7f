"""Files and rooms are small: one that grows beyond the limit holds two ideas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.checks.sources import PACKAGES, ROOT

MAX_LINES = 420
MAX_MODULES = 13
SHIM = Path("jvm-bridge") / "src" / "main"


def find_problems() -> Iterator[str]:
    """A line for each file that is too long, and for each room with too many modules or with one module alone."""
    for path in _list_sources():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:
            yield f"{path.relative_to(ROOT)}: {lines} lines, at most {MAX_LINES}: split it by what it does"
    for package in PACKAGES:
        for room in (ROOT / package, *sorted((ROOT / package).rglob("*/"))):
            count = len([path for path in room.glob("*.py") if path.name != "__init__.py"])
            if count == 1 or count > MAX_MODULES:
                yield f"{room.relative_to(ROOT)}: {count} modules, 2 to {MAX_MODULES} make a room"


def _list_sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))
    yield from sorted((ROOT / SHIM).rglob("*.scala"))
