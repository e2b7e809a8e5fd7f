"""Links of the documents lead somewhere, on GitHub and on the site, and the site has all pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from docs.site import links
from tests.pages.documents import PAGES, ROOT

SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
NOTEBOOKS = [page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.ipynb")]
NAMES = [page.relative_to(ROOT).as_posix() for page in [*PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]]


@pytest.mark.parametrize("page", NAMES)
def test_links_of_a_page_lead_to_files_and_headings(page: str) -> None:
    for target in links.find_links((ROOT / page).read_text(encoding="utf-8")):
        if links.is_outside(target):
            continue
        path, anchor = links.find_file(page, target), target.partition("#")[2]
        if anchor:
            anchors = links.find_anchors((ROOT / path).read_text(encoding="utf-8"))
            assert anchor in anchors, f"{page}: {target}"


def test_each_page_has_one_place_in_the_menu() -> None:
    listed = sorted(_walk(SITE["nav"]))
    pages = {links.find_uri(page) for page in [*NAMES, *NOTEBOOKS]}
    assert listed == sorted(pages | {f"reference/{page['page']}.md" for page in SITE["extra"]["api"]})


def test_the_index_on_github_names_each_page() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    linked = {links.find_file("docs/README.md", target) for target in links.find_links(index)}
    records = {name for name in NAMES if name.startswith("docs/design/0")}
    assert set(NAMES) - records - {"docs/README.md"} == linked & set(NAMES)


def test_a_record_of_a_decision_is_named_in_their_index() -> None:
    index = (ROOT / "docs/design/README.md").read_text(encoding="utf-8")
    linked = {links.find_file("docs/design/README.md", target) for target in links.find_links(index)}
    assert {name for name in NAMES if name.startswith("docs/design/0")} <= linked


def test_links_are_rewritten_for_the_site() -> None:
    text = "[a](../README.md#x) [b](examples/top.py) [c](https://x.y) [d](#here) `[e](f)` ![g](speed.svg) [h](design/)"
    found = "[a](index.md#x) [b](repository/docs/examples/top.py.md) [c](https://x.y) [d](#here) `[e](f)` "
    assert links.rewrite(text, "docs/keyed-state.md") == found + "![g](speed.svg) [h](design/README.md)"
    assert links.rewrite("[a](docs/keyed-state.md)", "README.md") == "[a](keyed-state.md)"
    assert links.rewrite("[a](../glossary.md)", "docs/design/README.md") == "[a](../glossary.md)"


def test_links_in_code_stay_as_they_are() -> None:
    text = "```text\n[a](b)\n```\n[c](#d)\n"
    assert list(links.find_links(text)) == ["#d"]


def test_a_link_to_no_file_is_refused() -> None:
    with pytest.raises(ValueError, match=r"docs/time\.md: the link to nothing\.md leads to no file"):
        links.rewrite("[a](nothing.md)", "docs/time.md")
    with pytest.raises(ValueError, match="leads to no file of the repository"):
        links.find_file("README.md", "../elsewhere")


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("A checkpoint of s3a:", "a-checkpoint-of-s3a"),
        ("`spark-submit` in client mode", "spark-submit-in-client-mode"),
        ("What it is, and [why](x.md)", "what-it-is-and-why"),
        ("Moving in, and out", "moving-in-and-out"),
    ],
)
def test_an_anchor_is_that_of_github(heading: str, anchor: str) -> None:
    assert links.make_anchor(heading) == anchor


def test_what_is_named_twice_gets_a_number() -> None:
    assert links.find_anchors("# One\n\n## Two\n\n```\n# no heading\n```\n\n## Two\n") == {"one", "two", "two-1"}


def _walk(entries: list[Any] | dict[str, Any] | str) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    else:
        for each in entries.values() if isinstance(entries, dict) else entries:
            yield from _walk(each)


def test_documents_name_no_machine() -> None:
    """Links lead to this repository or to public sites."""
    outside = {
        target
        for page in NAMES
        for target in links.find_links((ROOT / page).read_text(encoding="utf-8"))
        if links.is_outside(target)
    }
    assert all(target.startswith("https://") for target in outside), sorted(outside)
    hosts = [target.split("/")[2] for target in outside]
    assert not [host for host in hosts if "." not in host or host.replace(".", "").isdigit()]
