"""The site as it is built: complete, and everything that a page loads is its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from typing_extensions import override

from docs.site.definitions import list_names
from tests.pages.documents import ROOT

READY = ROOT / ".tools/site/.ready"


class Loads(HTMLParser):
    """What a page loads when it is viewed, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.ids: set[str] = set()

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag in {"script", "img", "iframe", "source"} and given.get("src"):
            self.urls.append(given["src"])
        if tag == "link" and given.get("rel") not in {"prev", "next", "canonical"}:
            self.urls.append(given.get("href", ""))


def _make_site(*arguments: str) -> subprocess.CompletedProcess[str]:
    if not READY.exists():
        pytest.skip("NOT RUN: the site was not built, because its tools are not installed. `make site` installs them.")
    return subprocess.run(
        [shutil.which("make") or "make", "--no-print-directory", "site", *arguments],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def site() -> Path:
    done = _make_site()
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return ROOT / "build/site"


def test_a_page_that_is_missing_fails_the_build(tmp_path: Path) -> None:
    changed = {
        "INHERIT": str(ROOT / "mkdocs.yml"),
        "docs_dir": str(ROOT / "docs"),
        "site_dir": str(tmp_path / "site"),
        "hooks": [str(ROOT / "docs/site/hooks.py")],
        "plugins": ["search"],
        "nav": ["index.md", "missing.md"],
    }
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(changed), encoding="utf-8")
    done = _make_site(f"SITE={tmp_path / 'mkdocs.yml'}")
    assert done.returncode != 0
    assert "A reference to 'missing.md' is included in the 'nav' configuration, which is not found" in done.stdout


def test_notebooks_are_pages(site: Path) -> None:
    page = (site / "notebooks/savepoint-tour.html").read_text(encoding="utf-8")
    assert "ckpt" in page
    assert "docs/notebooks/savepoint-tour.ipynb" in page


def _read(page: Path) -> Loads:
    loads = Loads()
    loads.feed(page.read_text(encoding="utf-8"))
    return loads


def test_what_a_page_loads_comes_from_the_site(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        for url in _read(page).urls:
            assert "//" not in url, f"{page} loads {url}"
            assert page.name == "404.html" or (page.parent / url.partition("?")[0]).exists(), f"{page} loads {url}"


def test_style_sheets_load_nothing_from_elsewhere(site: Path) -> None:
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert "url(http" not in text
        assert "@import" not in text


def test_search_knows_the_pages(site: Path) -> None:
    index = (site / "search/search_index.json").read_text(encoding="utf-8")
    for page in ("keyed-state.html", "reference/states.html", "architecture.html"):
        assert f'"{page}' in index


def test_a_search_for_late_data_finds_guides_before_decision_records(site: Path) -> None:
    entries = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    found = {each["location"] for each in entries if "late data" in f"{each['title']} {each['text']}".lower()}
    assert "keyed-state.html#late-rows" in found
    records = [each for each in entries if each["location"].startswith("design/")]
    assert records
    assert all(each["boost"] < 1 for each in records)
    assert not [each for each in entries if each["location"] in found and "boost" in each]


def test_search_works_in_a_browser_that_reaches_nothing_else(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="NOT RUN: pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("NOT RUN: needs an installed Chromium, such as that of apt-get install chromium")
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, playwright.sync_playwright() as driver:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        own = f"http://127.0.0.1:{server.server_port}/"
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--no-proxy-server"])
        page = browser.new_context(color_scheme="dark").new_page()
        elsewhere: list[str] = []
        page.on("request", lambda request: elsewhere.append(request.url))
        page.goto(f"{own}tutorial.html")
        assert page.evaluate("document.body.getAttribute('data-md-color-scheme')") == "slate"
        page.click("input.md-search__input")
        page.keyboard.type("savepoint")
        page.wait_for_selector(".md-search-result__item")
        assert "avepoint" in page.inner_text(".md-search-result__item")
        browser.close()
        server.shutdown()
    assert not [url for url in elsewhere if not url.startswith((own, "blob:", "data:"))]


def test_the_reference_has_an_entry_for_each_public_name(site: Path) -> None:
    for page in yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["extra"]["api"]:
        ids = _read(site / f"reference/{page['page']}.html").ids
        for _, name in list_names(page):
            assert any(each == name or each.endswith(f".{name}") for each in ids), f"{page['page']}: {name}"
