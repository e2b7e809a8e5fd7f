"""Links of the Markdown pages, which are read on GitHub as well as on the site.

On GitHub a link leads to a file of the repository. On the site that file is a page: the README is the first page, other
Markdown files are pages with their text, notebooks are pages with their cells, and all other files are pages that show
them. Nothing here needs MkDocs, so that tests can check all links without it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs"

ROOT_PAGES = {
    "README.md": "index.md",
    "docs/README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting-a-vulnerability.md",
}
"""Files that have another name on the site."""

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+).*?^(?P=indent)(?P=fence) *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)", re.DOTALL)
_LINK = re.compile(
    r"(?P<open>!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?P<target>[^()\s]+(?:\([^()\s]*\)[^()\s]*)*)(?P<close>\))"
)
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *#* *$", re.MULTILINE)


def find_links(markdown: str) -> Iterator[str]:
    """Targets of all links and images outside of code."""
    found: list[str] = []

    def note(target: str) -> str:
        found.append(target)
        return target

    replace_links(markdown, note)
    yield from found


def replace_links(markdown: str, replace: Callable[[str], str]) -> str:
    """Return the text with the target of each link outside of code replaced."""
    parts, at = [], 0
    for start, end in [*_find_code(markdown), (len(markdown), len(markdown))]:
        for link in _LINK.finditer(markdown, at, start):
            if link.start() >= at:
                parts += [markdown[at : link.start()], link["open"], replace(link["target"]), link["close"]]
                at = link.end()
        if start < at:  # code within the text of a link
            continue
        parts += [markdown[at:start], markdown[start:end]]
        at = end
    return "".join(parts)


def _find_code(markdown: str) -> list[tuple[int, int]]:
    """Where blocks of code are. Code within a line may be part of a link's text, so only code with brackets counts."""
    fences = [found.span() for found in _FENCE.finditer(markdown)]
    inline = [
        found.span()
        for found in _CODE.finditer(markdown)
        if "](" in found[0] and not any(start <= found.start() < end for start, end in fences)
    ]
    return sorted(fences + inline)


def is_outside(target: str) -> bool:
    """Whether a link leads to another site."""
    return re.match(r"[a-z][a-z0-9+.-]*:", target) is not None


def find_file(page: str, target: str) -> str:
    """The file of the repository to which a link of a page leads, without the anchor; both as paths from its root.

    A folder stands for its README. Raises ValueError if there is no such file.
    """
    path = target.partition("#")[0]
    found = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    if (ROOT / found).is_dir():
        found = posixpath.join(found, "README.md")
    if found.startswith("..") or not (ROOT / found).is_file():
        raise ValueError(f"{page}: the link to {target} leads to no file of the repository")
    return found


def find_uri(path: str) -> str:
    """The name, on the site, of a file of the repository: that of its page, or of an image itself."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    inside = path.removeprefix(f"{DOCS}/")
    if inside != path and path.endswith((".md", ".svg", ".png")):
        return inside
    if inside != path and path.endswith(".ipynb"):
        return inside.removesuffix(".ipynb") + ".md"
    return f"repository/{path}.md"


def rewrite(markdown: str, page: str) -> str:
    """Return the text of a page of the repository with links as they are on the site. Raises ValueError."""
    here = posixpath.dirname(find_uri(page))

    def replace(target: str) -> str:
        if is_outside(target) or target.startswith("#"):
            return target
        anchor = target.partition("#")[2]
        return posixpath.relpath(find_uri(find_file(page, target)), here or ".") + (f"#{anchor}" if anchor else "")

    return replace_links(markdown, replace)


def find_anchors(markdown: str) -> set[str]:
    """Anchors of the headings of a page, as GitHub makes them, and the site after it."""
    anchors: set[str] = set()
    for heading in _HEADING.finditer(_FENCE.sub("", markdown)):
        slug = anchor = make_anchor(heading["text"])
        number = 0
        while anchor in anchors:
            number += 1
            anchor = f"{slug}-{number}"
        anchors.add(anchor)
    return anchors


def make_anchor(heading: str) -> str:
    """The anchor of a heading: in lower case, without punctuation and markup, with hyphens for spaces."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
