"""The Python blocks of the README and of the documents: complete programs, and fragments, which are marked so.

A fragment has ``<!-- fragment -->`` in the line before it. The other blocks of a page are one program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])

_BLOCK = re.compile(
    r"(?P<mark>^ *<!-- fragment -->\n)?^(?P<indent> *)```python\n(?P<code>.*?)^ *```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """One block of a page, and the line in which its code begins."""

    page: Path
    line: int
    code: str
    is_fragment: bool


def find_blocks(page: Path) -> Iterator[Block]:
    """All Python blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        yield Block(page, text.count("\n", 0, found.start("code")) + 1, code, found["mark"] is not None)


def find_programs() -> dict[Path, str]:
    """The program of each page that has one."""
    programs = {page: "\n".join(block.code for block in find_blocks(page) if not block.is_fragment) for page in PAGES}
    return {page: program for page, program in programs.items() if program}
