"""What anybody of this machine may send to the state server's port costs little, and keeps nobody from calling."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.server import listener as listener_module
from pyspark_ckpt.state_store.server.listener import LINE_BYTES, STRANGER_LINE_BYTES, STRANGERS, Listener
from tests.labs.beside import beside
from tests.state_store.server.test_server import TOKEN, Connection, Process, opening

FLOOD = b"x" * (1 << 20)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    started = Process(tmp_path / "local")
    yield started
    started.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed, within the time-out of the socket."""
    try:
        while connection.recv(1 << 16):
            pass
    except (ConnectionError, BrokenPipeError):
        pass
    except TimeoutError:
        return False
    return True


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def send_much(connection: socket.socket, data: bytes, most: int) -> int:
    """Send until the other side has had enough; returns how much it took."""
    sent = 0
    try:
        while sent < most:
            sent += connection.send(data)
    except (ConnectionError, BrokenPipeError):
        pass
    return sent


def is_served(server: Process, tmp_path: Path) -> bool:
    connection = Connection(server.hello["port"])
    try:
        return connection.accepted and "ok" in connection.call("open", **opening(tmp_path))
    finally:
        connection.close()


ENDLESS: dict[str, bytes] = {
    "one line": b"",
    "the token": b"A\n",
    "the end of a wrong token": b"A\nwrong\n",
    "the end of the right token": f"A\n{TOKEN}\n".encode(),
    "bytes that are no text": b"\xff\xfe\0",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_line_of_a_stranger_takes_no_memory(name: str, server: Process, tmp_path: Path) -> None:
    before = memory_bytes(server.process.pid)
    for _ in range(4):
        with connect(server.hello["port"]) as stranger:
            stranger.sendall(ENDLESS[name])
            sent = send_much(stranger, FLOOD, 256 << 20)
            assert sent < 64 << 20, "what the system buffers, and not more"
            assert is_closed(stranger)
    assert memory_bytes(server.process.pid) - before < 32 << 20
    assert is_served(server, tmp_path)


def test_many_lines_of_a_stranger_end_its_connection(server: Process, tmp_path: Path) -> None:
    for lines in (
        b"A\n" * 1000,
        b"\n" * 1000,
        b"c\nt\ncall\nsstats\ns{}\ne\n",
        b"A\nwrong\ne\n",
        b"GET / HTTP/1.1\r\n\r\n\r\n",
    ):
        with connect(server.hello["port"]) as stranger:
            send_much(stranger, lines, len(lines))
            stranger.settimeout(5)
            assert is_closed(stranger)
    assert is_served(server, tmp_path)


def test_nothing_of_a_stranger_is_logged_and_few_lines_say_that_it_was_there(server: Process) -> None:
    for number in range(50):
        with connect(server.hello["port"]) as stranger:
            stranger.sendall(b"A\nwrong-%d\ne\n" % number)
            assert is_closed(stranger)
    assert server.end_stdin() == 0
    log = server.stderr()
    assert "wrong-" not in log
    assert log.count("did not send the token") == 1
    assert all(len(line) < 1000 for line in log.splitlines())


def test_strangers_that_say_nothing_keep_nobody_out(server: Process, tmp_path: Path) -> None:
    idle = [connect(server.hello["port"]) for _ in range(5 * STRANGERS)]
    try:
        assert is_served(server, tmp_path)
        threads = int(Path(f"/proc/{server.process.pid}/status").read_text().partition("Threads:")[2].split()[0])
        assert threads < STRANGERS + 80
        for each in idle[: 4 * STRANGERS]:
            each.settimeout(30)
            assert is_closed(each), "the oldest give way"
    finally:
        for each in idle:
            each.close()


@pytest.mark.parametrize("drip", [None, b"A", b"A\n"])
def test_a_stranger_is_closed_after_a_while_also_when_it_drips(
    drip: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "STRANGER_S", 0.5)
    listener = Listener(lambda method, request: method + request, "token")
    with connect(listener.port) as stranger:

        def send(ended: threading.Event) -> None:
            try:
                if drip == b"A\n":
                    stranger.sendall(drip)
                while not ended.wait(0.1):
                    if drip is not None:
                        stranger.sendall(b"x")
            except OSError:
                return

        with beside(send):
            assert is_closed(stranger)


def test_who_has_named_the_token_stays_for_as_long_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "STRANGER_S", 0.2)
    listener = Listener(lambda method, _: json.dumps({"method": method}), "token")
    friend = Connection(listener.port, "token")
    strangers = [connect(listener.port) for _ in range(2 * STRANGERS)]
    time.sleep(1)
    assert friend.call("stats") == {"method": "stats"}
    friend.close()
    for each in strangers:
        each.close()


@pytest.mark.parametrize("text", ["", "a", "x" * 100_000, 'line\nof "text"', "\\n\\", "\U0001f600\u2028\r", "\0"])
def test_what_is_called_arrives_as_it_is(text: str) -> None:
    listener = Listener(lambda method, request: json.dumps({"method": method, "request": request}), "token")
    friend = Connection(listener.port, "token")
    assert friend.call(text, text=text) == {"method": text, "request": json.dumps({"text": text})}
    friend.close()


@pytest.mark.parametrize(
    "sent",
    [
        lambda: b"c\nt\ncall\ns" + b"x" * (LINE_BYTES + 10),
        lambda: b"c\nt\ncall\n" + b"sa\n" * 50 + b"e\n",
        lambda: b"c\nt\ncall\nsone\ne\n",
        lambda: b"c\nt\ncall\nl1\ne\n",
        lambda: b"z\nt\n",
        lambda: b"c\nt\ncall\ns\xff\xfe\ns\ne\n",
    ],
    ids=["a line too long", "too many arguments", "too few", "not text", "another command", "no Unicode"],
)
def test_calls_that_the_jvm_does_not_make_end_their_connection_alone(sent: Callable[[], bytes]) -> None:
    listener = Listener(lambda method, _: json.dumps({"method": method}), "token")
    friend = Connection(listener.port, "token")
    with connect(listener.port) as odd:
        odd.sendall(b"A\ntoken\ne\n")
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            odd.sendall(sent())
        odd.settimeout(20)
        assert is_closed(odd)
    assert friend.call("stats") == {"method": "stats"}
    friend.close()


def test_a_token_that_almost_fits_is_refused() -> None:
    listener = Listener(lambda *_: "{}", "token")
    for token in ("", "toke", "tokens", "Token", " token", "token ", "token\r", "\0token", "t" * STRANGER_LINE_BYTES):
        connection = Connection(listener.port, token)
        assert not connection.accepted, token
        connection.close()
