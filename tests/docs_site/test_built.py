"""Links that lead nowhere are found in the pages as they were built, also those that no Markdown made."""

from __future__ import annotations

from pathlib import Path

from docs.site import built


def _build(site: Path, **pages: str) -> dict[Path, built.Page]:
    for name, text in pages.items():
        (site / f"{name}.html").write_text(text, encoding="utf-8")
    return built.read_pages(site)


def test_links_to_missing_files_and_anchors_are_dead(tmp_path: Path) -> None:
    (tmp_path / "a b.svg").write_text("", encoding="utf-8")
    (tmp_path / "later").mkdir()
    pages = _build(
        tmp_path,
        one="""<a href="two.html#here">x</a> <a href='gone.html'>x</a> <a href="two.html#gone">x</a>
            <a href="#own">x</a> <a href="later">x</a>
            <img src="a%20b.svg"> <img src="gone.svg"> <h1 id="own">x</h1> <a href="#gone">x</a> <a href="https://a.b">x</a>
            <code>&lt;a href="code.html"&gt;</code>""",
        two='<p id="here">x</p> <a href="one.html?q=1&amp;r#own">x</a>',
    )
    names = ("#gone", "gone.html", "gone.svg", "later", "two.html#gone")
    assert built.find_dead_links(pages) == [f"one.html: the link to {name} leads nowhere" for name in names]
    assert built.find_outside_links(pages) == ["https://a.b"]


def test_the_page_of_missing_pages_is_left_out(tmp_path: Path) -> None:
    assert not built.find_dead_links(_build(tmp_path, **{"404": '<a href="/gone.html">x</a>'}))
