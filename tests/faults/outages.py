"""A wire between a client and a service that can be cut in several ways, and answers that are lost."""

from __future__ import annotations

import math
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest

from tests.labs.beside import beside
from tests.labs.lab import Lab, expected

KINDS = ("refused", "reset", "silent")
"""No service listens there; every connection is reset; all bytes of the outage are lost and nothing is answered.

Another kind, ``plain``, is for services that speak TLS: something that does not speak it answers.
"""

_RESET = struct.pack("ii", 1, 0)


class Wire:
    """Carries connections on ``port`` to a service at ``target``, but for the time of an outage."""

    def __init__(self, target: tuple[str, int], bytes_per_s: float = math.inf) -> None:
        """Listen on a free port of 127.0.0.1. ``bytes_per_s``: how fast each connection is, towards the service."""
        self._target = target
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._cut = ""
        self._outages = 0
        self._open: set[socket.socket] = set()
        self._listener = self._listen(0)
        self.port: int = self._listener.getsockname()[1]
        self._ended = False
        threading.Thread(target=self._accept, daemon=True).start()

    @contextmanager
    def outage(self, kind: str) -> Iterator[None]:
        """Cut the wire while the block runs. A connection that was silent stays so: its bytes were lost."""
        with self._lock:
            self._cut = kind
            self._outages += 1
            if kind == "refused":
                self._listener.close()
        if kind != "silent":
            self._break_all()
        try:
            yield
        finally:
            with self._lock:
                if kind == "refused":
                    self._listener = self._listen(self.port)
                self._cut = ""

    def close(self) -> None:
        """End all connections."""
        self._ended = True
        self._listener.close()
        self._break_all()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._bytes_per_s < math.inf:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        until = time.monotonic() + 5
        while True:
            try:
                listener.bind(("127.0.0.1", port))
                break
            except OSError:  # the thread that accepts has the old listener for some milliseconds more
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
        listener.listen(128)
        listener.settimeout(0.05)
        return listener

    def _break_all(self) -> None:
        with self._lock:
            broken, self._open = self._open, set()
        for each in broken:
            _reset(each)

    def _accept(self) -> None:
        while not self._ended:
            try:
                client, _ = self._listener.accept()
            except OSError:
                time.sleep(0.01)
                continue
            if self._cut == "plain":
                with suppress(OSError):
                    client.recv(1 << 16)  # what is not read when it is closed makes a reset
                    client.sendall(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n")
                client.close()
                continue
            if self._cut == "reset":
                _reset(client)
                continue
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        outages, was_silent = self._outages, self._cut == "silent"
        try:
            server = socket.create_connection(self._target)
        except OSError:
            _reset(client)
            return
        with self._lock:
            self._open |= {client, server}
        others = {client: server, server: client}
        with suppress(OSError, ValueError):
            while True:
                for source in select.select([client, server], [], [], 0.5)[0]:
                    data = source.recv(1 << 16)
                    was_silent = was_silent or (self._cut == "silent" and self._outages >= outages)
                    if not data:
                        raise ConnectionError("one side has closed")
                    if source is client:
                        time.sleep(len(data) / self._bytes_per_s)
                    if not was_silent:
                        others[source].sendall(data)
        if not was_silent or self._ended:
            client.close()
            server.close()


def _reset(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@contextmanager
def wire(target: tuple[str, int], bytes_per_s: float = math.inf) -> Iterator[Wire]:
    """A wire to the service at ``target``."""
    made = Wire(target, bytes_per_s)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def outage_soon(cut: Wire, kind: str, after_s: float, seconds: float) -> Iterator[threading.Event]:
    """Cut the wire ``after_s`` from now for some ``seconds``, beside the block; the event says that it was."""
    over = threading.Event()

    def run() -> None:
        time.sleep(after_s)
        with cut.outage(kind):
            time.sleep(seconds)
        over.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield over
    finally:
        thread.join()


@contextmanager
def coming_and_going(
    away: Callable[[], AbstractContextManager[object]], away_s: float, back_s: float
) -> Iterator[None]:
    """Let something be ``away`` again and again, beside the block."""

    def come_and_go(ended: threading.Event) -> None:
        while not ended.wait(back_s):
            with away():
                ended.wait(away_s)

    with beside(come_and_go):
        yield


def live(lab: Lab, versions: int, during: Callable[[int], AbstractContextManager[object]]) -> None:
    """Commit, make snapshots, clean up and restore ``during`` an outage in each version; then all versions are right.

    Nothing is tried again by the caller.
    """
    ids = list[str]()
    for version in range(versions):
        with during(version):
            ids += lab.grow(lab.open(), 1, version, ids[-1] if ids else None)
            handle = lab.open()
            lab.server.call("snapshot", handle=handle, force=True)
            lab.server.call("cleanup", handle=handle)
            lab.restart(lose_local=True)
            assert lab.begin(lab.open(), version + 1, ids[version]).rows == expected(version + 1)
    for version in range(1, versions + 1):
        lab.restart(lose_local=True)
        assert lab.begin(lab.open(), version, ids[version - 1]).rows == expected(version)


def lose_answers(
    patch: pytest.MonkeyPatch,
    owner: type,
    method: str,
    lost: Callable[[Any], Exception],
    *,
    times: int,
    before_it_happens: bool = False,
    counts: Callable[..., bool] = lambda *_: True,
) -> None:
    """Let callers of a method hear nothing of its next calls, of those that count: they raise what ``lost`` makes."""
    original, left = getattr(owner, method), [times]

    def call(self: Any, *args: Any, **given: Any) -> Any:  # noqa: ANN401
        is_lost = left[0] > 0 and counts(*args)
        left[0] -= is_lost
        answer = None if is_lost and before_it_happens else original(self, *args, **given)
        if is_lost:
            raise lost(self)
        return answer

    patch.setattr(owner, method, call)
