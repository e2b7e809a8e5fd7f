"""The documentation of the options is what the program reads."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_options_page_is_current() -> None:
    written = (DOCS / "options.md").read_text(encoding="utf-8")
    assert written == runpy.run_path(str(DOCS / "write_options.py"))["page"](), "run `make docs`"
