"""Notebooks are kept without what they have printed, and as the site can show them."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from docs.site import links
from tests.pages.documents import ROOT

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert "".join(cells[0]["source"]).startswith("# ")  # the title of its page
    for cell in cells:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            ast.parse("".join(cell["source"]))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_to_files(path: Path) -> None:
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for target in links.find_links("".join(cell["source"])) if cell["cell_type"] == "markdown" else ():
            links.find_file(path.relative_to(ROOT).as_posix(), target)


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first-hour", "savepoint-tour"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_how_to_install_what_no_index_has(path: Path) -> None:
    """The package is installed from a clone or a wheel: its name alone leads to nothing."""
    first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    assert 'pip install ".[spark]"' in first
