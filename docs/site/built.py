"""Links of the pages as they were built: of whatever kind, and whatever made them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docs.site import links

_TAG = re.compile(r"<[a-zA-Z][^<>]*>")
_ATTRIBUTE = re.compile(r"""\s(?P<name>href|src|id|name)\s*=\s*(?P<quote>["'])(?P<value>.*?)(?P=quote)""", re.DOTALL)


@dataclass(frozen=True)
class Page:
    """The targets of a page's links and what it loads, and its anchors."""

    targets: set[str]
    anchors: set[str]


def read_page(html: str) -> Page:
    """Read the text of a page. Signs in code are escaped there, so that what looks like a tag is one."""
    page = Page(set(), {""})
    for tag in _TAG.findall(html):
        for found in _ATTRIBUTE.finditer(tag):
            (page.targets if found["name"] in {"href", "src"} else page.anchors).add(unescape(found["value"]))
    return page


def read_pages(site: Path) -> dict[Path, Page]:
    """All pages of a site that was built, but for that of missing pages, whose links are those of a server's root."""
    paths = sorted(site.resolve().rglob("*.html"))
    return {path: read_page(path.read_text(encoding="utf-8")) for path in paths if path.name != "404.html"}


def find_dead_links(pages: dict[Path, Page]) -> list[str]:
    """Links to files that are not there, and to anchors that their page does not have."""
    dead = []
    for path, page in pages.items():
        for target in sorted(page.targets):
            if links.is_outside(target):
                continue
            parts = urlsplit(target)
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if file.is_dir():
                file /= "index.html"
            is_there = file in pages or file.is_file()
            if not is_there or (file in pages and unquote(parts.fragment) not in pages[file].anchors):
                dead.append(f"{path.name}: the link to {target} leads nowhere")
    return dead


def find_outside_links(pages: dict[Path, Page]) -> list[str]:
    """Addresses of other sites, which no build looks at."""
    return sorted({target for page in pages.values() for target in page.targets if links.is_outside(target)})
