"""The documentation of the options is what the program reads."""

from __future__ import annotations

import runpy
from pathlib import Path

from pyspark_ckpt.state_store.options import table

DOCS = Path(__file__).parent.parent / "docs"


def test_options_page_is_current() -> None:
    written = (DOCS / "options.md").read_text(encoding="utf-8")
    assert written == runpy.run_path(str(DOCS / "write_options.py"))["page"](), "run `make docs`"


def test_each_option_is_in_a_part_of_the_page_unless_only_tests_set_it() -> None:
    parts = set(runpy.run_path(str(DOCS / "write_options.py"))["GUIDES"])
    assert {key for key, row in table().items() if row.group not in parts} == {"failPoints"}
