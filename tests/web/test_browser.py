"""The page in a real Chromium: the policy lets it work, it fits a phone, it is dark at night, and it refreshes."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pyspark_ckpt as ckpt
from tests.labs.saved_query import Query, written
from tests.offline.reading.written import Written
from tests.web.conftest import SCRIPT, TOKEN
from tests.web.test_pages import PAGES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api", reason="NOT RUN: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("NOT RUN: needs an installed Chromium, such as that of apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--no-proxy-server"])
        yield browser
        browser.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser complains about, such as what the policy forbids."""
    return []


def open_page(browser: Browser, complaints: list[str], **options: Any) -> Page:  # noqa: ANN401 - Chromium's
    page = browser.new_context(**options).new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda problem: complaints.append(str(problem)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.on("request", lambda request: complaints.append(request.url) if "127.0.0.1" not in request.url else None)
    return page


@pytest.fixture
def query(quick_path: Path) -> Query:
    return written(quick_path / "query", 20, batches=2, operators=(1, 2))


def test_every_page_fits_a_phone_and_obeys_its_own_policy(
    chromium: Browser, hostile: Written, query: Query, complaints: list[str], tmp_path: Path
) -> None:
    with ckpt.monitoring.serve_web_page([hostile.path, query.location], token=TOKEN) as served:
        base = served.url.partition("/?")[0]
        for scheme in ("light", "dark"):
            page = open_page(chromium, complaints, viewport=PHONE, color_scheme=scheme)
            page.goto(served.url)
            assert page.url == f"{base}/", "the token is not in the address"
            grounds = set()
            for path in ["/", *(f"/c/{number}{each}" for number in (0, 1) for each in PAGES)]:
                page.goto(f"{base}{path}")
                assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
                grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
                fields = "[...document.querySelectorAll('input:not([type=hidden]), select')]"
                unnamed = f"{fields}.filter(each => !each.labels.length).length"
                assert page.evaluate(unnamed) == 0, path
            assert len(grounds) == 1
            brightness = sum(map(int, grounds.pop().removeprefix("rgb(").removesuffix(")").split(",")))
            assert (brightness > 384) == (scheme == "light")
            page.screenshot(path=tmp_path / f"{scheme}.png")
            page.context.close()
    assert complaints == []


def test_tables_show_what_matters_on_a_phone(chromium: Browser, query: Query, complaints: list[str]) -> None:
    with ckpt.monitoring.serve_web_page(query.location, token=TOKEN) as served:
        base = served.url.partition("/?")[0]
        page = open_page(chromium, complaints, viewport=PHONE)
        page.goto(served.url)
        for path, column in (
            ("", "partitions"),
            ("/progress", "took"),
            ("/history", "batch took"),
            ("/states", "stored rows"),
            ("/partitions", "stored rows"),
        ):
            page.goto(f"{base}/c/0{path}")
            page.wait_for_selector("table", state="attached")
            page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
            wide = "[...document.querySelectorAll('.wide')].filter(each => each.scrollWidth > each.clientWidth).length"
            assert page.evaluate(wide) == 0, path
            assert page.locator(f"th:visible:text-is('{column}')").count() > 0, path
        page.context.close()
    assert complaints == []


def test_a_key_is_looked_up_with_the_keyboard(chromium: Browser, hostile: Written, complaints: list[str]) -> None:
    with ckpt.monitoring.serve_web_page(hostile.path, token=TOKEN) as served:
        page = open_page(chromium, complaints)
        page.goto(served.url)
        page.get_by_role("link", name="bold").click()
        page.get_by_role("navigation").get_by_role("link", name="Key").click()
        page.wait_for_selector("option:has-text('script')", state="attached")  # while they are read, the page waits
        names = page.locator("option").all_inner_texts()
        page.get_by_label("State").select_option(index=next(n for n, name in enumerate(names) if "script" in name))
        page.get_by_label("State").focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.get_by_label("who").fill(SCRIPT)
        page.get_by_label("n int").fill("1")
        page.keyboard.press("Enter")
        page.wait_for_selector("h2")
        assert page.locator("h2").inner_text() == "1 row"
        assert SCRIPT in page.locator("tbody").inner_text()
        page.context.close()
    assert complaints == []


def test_the_page_refreshes_itself_unless_it_is_paused(chromium: Browser, query: Query, complaints: list[str]) -> None:
    with ckpt.monitoring.serve_web_page(query.location, token=TOKEN) as served:
        page = open_page(chromium, complaints)
        page.goto(served.url)
        assert page.locator("dd.big").inner_text() == "1"
        query.run()
        playwright.expect(page.locator("dd.big")).to_have_text("2", timeout=20_000)
        page.get_by_role("button", name="pause").click()
        assert page.get_by_role("button", name="refresh").get_attribute("aria-pressed") == "true"
        page.goto(f"{served.url.partition('/?')[0]}/c/0/partitions")
        page.locator(".heat rect").first.hover()
        assert "partition 0" in page.locator("#tip").inner_text()
        page.context.close()
    assert complaints == []


def test_a_page_that_is_not_up_to_date_says_so(chromium: Browser, query: Query, complaints: list[str]) -> None:
    told = "getComputedStyle(document.querySelector('header'), '::after').content"
    with ckpt.monitoring.serve_web_page(query.location, token=TOKEN) as served:
        page = open_page(chromium, complaints)
        page.goto(served.url)
        assert page.evaluate(told) == "none"
        page.context.clear_cookies()  # as if the server was started anew
        page.wait_for_selector("body.stale", timeout=20_000)
        assert "Not up to date" in page.evaluate(told)
        assert page.locator("dd.big").inner_text() == "1", "what was shown last"
        page.context.close()
        assert {text for text in complaints if "401" not in text} == set()
        page = open_page(chromium, [])
        page.goto(served.url)
    page.wait_for_selector("body.stale", timeout=20_000)
    page.context.close()


def test_the_url_can_be_clicked_on_in_a_page_of_another_site(
    chromium: Browser, query: Query, complaints: list[str]
) -> None:
    """As in a notebook at localhost: for a browser, 127.0.0.1 is another site."""
    with (
        ckpt.monitoring.serve_web_page(query.location, token=TOKEN) as served,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        link = f'<!doctype html><link rel="icon" href="data:,"><a href="{served.url}">state</a>'.encode()

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(65536)
                head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(link)}\r\n\r\n"
                connection.sendall(head.encode() + link)

        notebook = threading.Thread(target=answer, daemon=True)
        notebook.start()
        page = chromium.new_context().new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.goto(f"http://localhost:{listener.getsockname()[1]}/")
        notebook.join(30)
        page.get_by_text("state").click()
        page.get_by_role("heading", name="Checkpoints").wait_for()
        assert page.url == served.url.partition("?")[0]
        page.context.close()
    assert complaints == []
