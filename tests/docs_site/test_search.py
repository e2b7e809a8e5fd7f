"""A search finds the pages that answer it before those that say how it is built."""

from __future__ import annotations

import pytest

from docs.site.search import choose_boost
from tests.pages.documents import PAGES, ROOT

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("docs/design/")])
def test_a_decision_record_comes_after_the_guides(name: str) -> None:
    boost = choose_boost(name)
    assert boost is not None
    assert boost < 1


@pytest.mark.parametrize("name", ["README.md", "docs/keyed-state.md", "docs/time.md", "docs/runbook.md"])
def test_a_guide_has_its_whole_weight(name: str) -> None:
    assert name in NAMES
    assert choose_boost(name) is None


def test_source_files_come_after_the_guides() -> None:
    assert choose_boost("docs/examples/alerts.py") is not None
    assert choose_boost("docs/notebooks/first-hour.ipynb") is None


def test_pages_have_no_front_matter_which_github_would_show() -> None:
    assert not [page for page in PAGES if page.read_text(encoding="utf-8").startswith("---\n")]


@pytest.mark.parametrize("name", ["docs/keyed-state.md", "docs/time.md"])
def test_late_data_is_called_so_where_it_is_explained(name: str) -> None:
    assert "late data" in (ROOT / name).read_text(encoding="utf-8").lower()
