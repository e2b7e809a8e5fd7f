"""What belongs to an item of a list is indented by four, which GitHub and the site both take as a part of the item."""

from __future__ import annotations

import re

import pytest

from tests.docs_site.test_links import NAMES
from tests.pages.documents import ROOT

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+).*?^(?P=indent)(?P=fence) *$", re.MULTILINE | re.DOTALL)
_NESTED = re.compile(r"^ {1,3}(?:[-*+] |\d+\. |```)|(?<=\n\n) {1,3}\S", re.MULTILINE)


def find_lost_parts(text: str) -> list[str]:
    """Beginnings of lines that the site does not show as a part of the list item that they stand in."""
    lines = _FENCE.sub(lambda fence: f"{fence['indent']}```", text)
    return [lines[found.start() :].partition("\n")[0] for found in _NESTED.finditer(lines)]


@pytest.mark.parametrize("page", NAMES)
def test_what_belongs_to_an_item_is_indented_by_four(page: str) -> None:
    assert find_lost_parts((ROOT / page).read_text(encoding="utf-8")) == []


def test_lost_parts_are_found() -> None:
    assert find_lost_parts("- a\n  - b\n") == ["  - b"]
    assert find_lost_parts("1. a\n\n   b\n") == ["   b"]
    assert find_lost_parts("- a\n\n  ```\n  x\n  ```\n") == ["  ```"]
    assert find_lost_parts("- a\n  b\n    - c\n\n    d\n\n    ```\n    - x\n    ```\n") == []
    assert find_lost_parts("```\n  - x\n\n  y\n```\n") == []
