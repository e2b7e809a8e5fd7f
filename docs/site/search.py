"""Which pages the site's search shows last: those about how this is built, for somebody who asks how to use it.

Nothing here needs MkDocs. The weights are not in the pages, where GitHub would show them as a table.
"""

from __future__ import annotations

LAST = 0.1
"""A page with a tenth of the score comes after the guides, and is still found by its own words."""
_ABOUT_THE_INSIDE = (
    "docs/design/",
    "docs/stored-format.md",
    "docs/debugging.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)


def choose_boost(origin: str) -> float | None:
    """Return the factor for the score of a page, by its path in the repository; None for that of any page.

    Files that are no documents are shown as pages, too, because documents lead to them.
    """
    is_document = origin.endswith((".md", ".ipynb"))
    return LAST if origin.startswith(_ABOUT_THE_INSIDE) or not is_document else None
