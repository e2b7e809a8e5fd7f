"""Files and rooms are small: one that grows beyond the limit holds two ideas. Lines of prose fit an editor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.checks.sources import PACKAGES, ROOT, list_scala

MAX_LINES = 420
MAX_MODULES = 13
MAX_COLUMNS = 120


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
    yield from check_scala_rooms(path.relative_to(ROOT) for path in list_scala())
    yield from _find_long_lines()


def check_scala_rooms(paths: Iterable[Path]) -> Iterator[str]:
    """A line for each folder of Scala with too many files, and for each package that has one file alone.

    A release of Spark may have one file of a package. Tests are where what they test is, so one may be alone.
    """
    found = list(paths)
    for folder, count in sorted(Counter(path.parent for path in found).items()):
        if count > MAX_MODULES:
            yield f"{folder}: {count} files, at most {MAX_MODULES} make a room"
    rooms = {(Path(*path.parts[3:]).parent, path.name) for path in found if path.parts[2] != "test"}
    for room, count in sorted(Counter(room for room, _ in rooms).items()):
        if count == 1:
            yield f"jvm-bridge/src/*/{room}: 1 file, 2 to {MAX_MODULES} make a room"


def _find_long_lines() -> Iterator[str]:
    """A line for each long line of a document that could be shorter: rows of tables, code and single words cannot."""
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))):
        is_code = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            is_code ^= line.lstrip().startswith("```")
            if len(line) > MAX_COLUMNS and not is_code and not line.startswith("|") and re.search(r"\S\s+\S", line):
                yield f"{path.relative_to(ROOT)}:{number}: {len(line)} columns, at most {MAX_COLUMNS}"


def _list_sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))
    yield from list_scala()
