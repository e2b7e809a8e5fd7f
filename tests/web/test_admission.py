"""Who gets an answer of the web page."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.state_store.errors import InvalidInputError, ProcessError
from pyspark_ckpt.web.admission import connections
from tests.services.ports import find_free_port
from tests.web.conftest import TOKEN, open_client

HTML = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture
def client(frozen_page: ckpt.monitoring.WebPage) -> Iterator[httpx.Client]:
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
    assert "SameSite=lax" in cookie
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
    for path in (
        "/",
        "/c/0",
        "/c/0/progress",
        "/c/0/history",
        "/c/0/states",
        "/c/0/partitions",
        "/c/0/kept",
        "/c/0/key",
        "/c/0/diff",
    ):
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
        {"options": {"placeTimeout": "x"}},
        {"host": ""},
        {"host": None},
        {"host": "a\0b"},
        {"host": "[::1]"},
        {"host": "no.such.host.example"},
        {"host": "192.0.2.1"},
        {"allowed_hosts": "desk.example"},
        {"allowed_hosts": ["https://desk.example"]},
        {"allowed_hosts": ["desk.example:80"]},
        {"allowed_hosts": None},
        {"savepoints": "/savepoints"},
    ):
        with pytest.raises(InvalidInputError):
            ckpt.monitoring.serve_web_page(str(frozen), **wrong)
    for none in ([], [str(frozen)] * 51, 7):
        with pytest.raises(InvalidInputError):
            ckpt.monitoring.serve_web_page(none)  # type: ignore[arg-type]
    port = find_free_port()
    with ckpt.monitoring.serve_web_page(str(frozen), port=port) as page:
        assert page.url.startswith(f"http://127.0.0.1:{port}/?token=")
        with pytest.raises(ProcessError, match=f"Port {port} of 127.0.0.1"):
            ckpt.monitoring.serve_web_page(str(frozen), port=port)


def test_tokens_are_random_and_long(frozen: Path) -> None:
    with ckpt.monitoring.serve_web_page(str(frozen)) as one, ckpt.monitoring.serve_web_page(str(frozen)) as other:
        tokens = [page.url.partition("=")[2] for page in (one, other)]
        assert tokens[0] != tokens[1]
        assert min(map(len, tokens)) >= 32
        assert tokens[0] not in repr(one)


def test_a_closed_page_does_not_answer(frozen: Path) -> None:
    page = ckpt.monitoring.serve_web_page(str(frozen))
    assert not page.wait(0)
    page.close()
    page.close()
    assert page.wait(0)
    with pytest.raises(httpx.ConnectError):
        httpx.get(page.url, trust_env=False)


def count_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_connections_without_a_request_neither_add_up_nor_keep_others_out(
    frozen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_S", 120.0)
    with (
        ckpt.monitoring.serve_web_page(str(frozen), token=TOKEN) as page,
        open_client(page) as client,
        ExitStack() as stack,
    ):
        assert client.get("/c/0").status_code == 200
        host, port = page.url.split("/")[2].split(":")
        before, idle, until_s = count_files(), [], time.monotonic() + 60
        for _ in range(300):
            idle.append(stack.enter_context(socket.create_connection((host, int(port)))))
            with suppress(ConnectionError):
                idle[-1].send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")  # and no end of the head
        assert client.get("/c/0").status_code == 200
        while count_files() - before >= 300 + 2 * connections.MAX_STRANGERS:  # it closes what it has just accepted
            assert time.monotonic() < until_s, "those that gave way are closed long before their time"
            time.sleep(0.05)


def test_a_connection_has_some_seconds_for_its_first_request(frozen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_S", 0.5)
    with ckpt.monitoring.serve_web_page(str(frozen), token=TOKEN) as page, open_client(page) as client:
        host, port = page.url.split("/")[2].split(":")
        for sent in (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"):
            with socket.create_connection((host, int(port)), timeout=60) as raw, suppress(ConnectionError):
                raw.sendall(sent)
                assert raw.recv(1) == b"", "the page closes it"
        assert client.get("/c/0").status_code == 200


def test_a_connection_that_was_refused_is_closed(frozen_page: ckpt.monitoring.WebPage) -> None:
    host, port = frozen_page.url.split("/")[2].split(":")
    for head in (
        "GET / HTTP/1.1\r\nHost: 127.0.0.1",
        "GET / HTTP/1.1\r\nHost: x",
        "POST / HTTP/1.1\r\nHost: localhost",
    ):
        with socket.create_connection((host, int(port)), timeout=30) as raw:
            raw.sendall(f"{head}\r\n\r\n".encode())
            while raw.recv(4096):
                pass


def test_nothing_is_logged_of_requests_whatever_the_program_logs_of_its_own_server(
    frozen: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access = logging.getLogger("uvicorn.access")
    own, level = logging.StreamHandler(), access.level
    access.addHandler(own)
    try:
        with ckpt.monitoring.serve_web_page(str(frozen), token=TOKEN) as page:
            assert access.handlers == [own], "the program's own logs are left alone"
            with caplog.at_level(logging.INFO, "uvicorn.access"), caplog.at_level(logging.INFO):
                assert httpx.get(f"{page.url}&format=json", trust_env=False, timeout=60).status_code == 200
                host, port = page.url.split("/")[2].split(":")
                with socket.create_connection((host, int(port)), timeout=30) as raw:
                    raw.sendall(b"nonsense\r\n\r\n")
                    raw.recv(4096)
    finally:
        access.removeHandler(own)
        access.setLevel(level)
    logged = [each for each in caplog.records if each.name.startswith(("uvicorn", "pyspark_ckpt.web"))]
    assert not [each for each in logged if each.name == "uvicorn.access" or each.levelno >= logging.WARNING]
    assert not [each for each in logged if TOKEN in each.getMessage()]


def test_a_password_in_a_location_is_refused_and_not_shown(frozen: Path) -> None:
    for location in ("s3://key:secret@bucket/x", "hdfs://user@host:1/x", "abfss://c:secret@a.dfs.core.windows.net/x"):
        for given in ({"savepoints": [location]}, {}):
            with pytest.raises(InvalidInputError, match="user or a password") as refused:
                ckpt.monitoring.serve_web_page([str(frozen)] if given else location, **given)  # type: ignore[arg-type]
            assert "secret" not in str(refused.value)
    ckpt.monitoring.serve_web_page("abfss://c@a.dfs.core.windows.net/x").close()


@pytest.mark.parametrize(("host", "name"), [("::1", "[::1]"), ("::", "[::]"), ("0.0.0.0", "0.0.0.0")])  # noqa: S104
def test_the_url_that_is_told_can_be_opened(frozen: Path, host: str, name: str) -> None:
    with ckpt.monitoring.serve_web_page(str(frozen), host=host) as page:
        assert page.url.startswith(f"http://{name}:")
        assert httpx.get(page.url, trust_env=False, headers=HTML, follow_redirects=True, timeout=60).status_code == 200


def test_two_pages_behind_one_host_name_do_not_log_each_other_out(frozen: Path) -> None:
    """A browser has the same cookies for all ports of 127.0.0.1, where the tunnels to two machines end."""
    with (
        ckpt.monitoring.serve_web_page(str(frozen)) as one,
        ckpt.monitoring.serve_web_page(str(frozen)) as other,
        httpx.Client(trust_env=False, headers=HTML, follow_redirects=True, timeout=60) as browser,
    ):
        for page in (one, other, one, other):
            assert browser.get(page.url).status_code == 200
        for page in (one, other):
            assert browser.get(page.url.partition("?")[0]).status_code == 200
        assert len(browser.cookies) == 2
