"""Who gets an answer of the web page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.state_store.errors import InvalidInputError, ProcessError
from tests.ports import find_free_port
from tests.web.conftest import TOKEN, open_client

HTML = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture
def client(frozen_page: ckpt.WebPage) -> Iterator[httpx.Client]:
    """A client with the token."""
    with open_client(frozen_page) as opened:
        yield opened


@pytest.fixture
def anybody(client: httpx.Client) -> httpx.Client:
    """A client without the token."""
    del client.headers["Authorization"]
    return client


@pytest.mark.parametrize("path", ["/", "/c/0", "/c/0/key", "/static/page.js", "/nothing", "/?format=json"])
def test_without_the_token_there_is_nothing(anybody: httpx.Client, path: str) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Cookie": "pyspark-ckpt-1=wrong"},
        {"Authorization": TOKEN},
    ):
        answer = anybody.get(path, headers=headers)
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
        assert "keyed" not in answer.text
    for token in ("", "wrong", TOKEN[:-1], f"{TOKEN}x", "\N{SNOWMAN}", "%ff"):
        answer = anybody.get("/", params={"token": token}, headers=HTML)
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


def test_the_first_visit_leaves_a_cookie_and_no_token_in_the_address(anybody: httpx.Client) -> None:
    answer = anybody.get(f"/c/0/key?state=1&token={TOKEN}&k0=a%26b", headers=HTML)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/c/0/key?state=1&k0=a%26b"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert anybody.get("/c/0").status_code == 200
    assert anybody.get("/?token=wrong").status_code == 401, "a wrong token is refused, whatever cookie there is"


def test_a_redirect_stays_on_this_host(anybody: httpx.Client) -> None:
    for path in ("//evil.example/", "/\\evil.example", "//evil.example/%2e%2e"):
        request = anybody.build_request("GET", f"{anybody.base_url}?token={TOKEN}", headers=HTML)
        request.url = request.url.copy_with(raw_path=f"{path}?token={TOKEN}".encode())
        location = anybody.send(request).headers["location"]
        assert not location.startswith(("//", "/\\", "http")), location


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.", "[::2]:1"]
)
def test_another_host_name_is_refused_even_with_the_token(client: httpx.Client, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1", "LOCALHOST", "[::1]:80", "desk.example:1"])
def test_a_tunnel_may_have_another_port(client: httpx.Client, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_page_only_reads(client: httpx.Client, method: str) -> None:
    assert client.request(method, "/c/0").status_code == 405


def test_answers_forbid_other_hosts_frames_and_guesses(client: httpx.Client) -> None:
    for path in ("/", "/c/0", "/c/9", "/static/style.css"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_pages_have_nothing_that_the_policy_forbids_and_name_no_other_host(client: httpx.Client) -> None:
    for path in ("/", "/c/0", "/c/0/history", "/c/0/states", "/c/0/partitions", "/c/0/kept", "/c/0/key", "/c/0/diff"):
        text = client.get(path).text
        assert " style=" not in text
        assert "<style" not in text
        assert "http://" not in text
        assert "https://" not in text
        assert text.count("<script") == 1


@pytest.mark.parametrize(
    "path",
    [
        "/static/../application.py",
        "/static/%2e%2e/application.py",
        "/static/..%2f..%2fcli/main.py",
        "/static/",
        "/static",
    ],
)
def test_no_path_leads_out_of_the_folder_of_static_files(client: httpx.Client, path: str) -> None:
    request = client.build_request("GET", "/")
    request.url = request.url.copy_with(raw_path=path.encode())
    answer = client.send(request)
    assert answer.status_code in {307, 404}
    assert "import" not in answer.text


def test_wrong_arguments_are_refused(frozen: Path) -> None:
    for wrong in (
        {"port": 70000},
        {"port": True},
        {"token": "short"},
        {"token": "spaces in the token here"},
        {"price_of_requests": -1},
        {"price_of_gb_month": "much"},
        {"options": {"placeTimeout": "x"}},
    ):
        with pytest.raises(InvalidInputError):
            ckpt.serve(str(frozen), **wrong)
    for none in ([], [str(frozen)] * 51, 7):
        with pytest.raises(InvalidInputError):
            ckpt.serve(none)  # type: ignore[arg-type]
    port = find_free_port()
    with ckpt.serve(str(frozen), port=port) as page:
        assert page.url.startswith(f"http://127.0.0.1:{port}/?token=")
        with pytest.raises(ProcessError, match=f"Port {port} of 127.0.0.1"):
            ckpt.serve(str(frozen), port=port)


def test_tokens_are_random_and_long(frozen: Path) -> None:
    with ckpt.serve(str(frozen)) as one, ckpt.serve(str(frozen)) as other:
        tokens = [page.url.partition("=")[2] for page in (one, other)]
        assert tokens[0] != tokens[1]
        assert min(map(len, tokens)) >= 32
        assert tokens[0] not in repr(one)


def test_a_closed_page_does_not_answer(frozen: Path) -> None:
    page = ckpt.serve(str(frozen))
    assert not page.wait(0)
    page.close()
    page.close()
    assert page.wait(0)
    with pytest.raises(httpx.ConnectError):
        httpx.get(page.url, trust_env=False)
