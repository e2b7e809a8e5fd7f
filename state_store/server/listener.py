"""Accept calls on a port of 127.0.0.1 from the JVM only. Other processes of this machine can cause little load.

The wire protocol is that of py4j's Java side: lines of text. A connection must send the token within a few seconds, in
a few short lines. Few connections may be unauthenticated at a time; a new one displaces the oldest. Nothing that an
unauthenticated connection sends is kept or logged. The length of lines is limited after authentication, too.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from py4j.protocol import (
    AUTH_COMMAND_NAME,
    CALL_PROXY_COMMAND_NAME,
    END,
    ERROR_RETURN_MESSAGE,
    GARBAGE_COLLECT_PROXY_COMMAND_NAME,
    OUTPUT_VOID_COMMAND,
    RETURN_MESSAGE,
    STRING_TYPE,
    SUCCESS,
    SUCCESS_RETURN_MESSAGE,
    get_command_part,
    unescape_new_line,
)

from pyspark_ckpt.state_store.log import LOGGER

ADDRESS = "127.0.0.1"
STRANGER_LINE_BYTES = 256
"""Maximum length of a line from an unauthenticated connection."""
STRANGER_S = 10.0
"""A connection that has not sent the token after this time is closed, whatever else it sends."""
STRANGERS = 64
"""Maximum number of unauthenticated connections at a time. The JVM's connections send the token at once."""
LINE_BYTES = 64 << 20
"""Maximum length of a line of a call. The largest calls contain the schemas of a table."""
MAX_ARGUMENTS = 8
LOG_EVERY_S = 60.0
_LOOK_S = 0.5
_BACKLOG = 128

_log = logging.getLogger(f"{LOGGER}.listener")


class _NotOursError(Exception):
    """A connection sent something that the JVM does not send. The message does not show it."""


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    began: float = field(default_factory=time.monotonic)

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # otherwise a thread that is reading would not notice the close
        with suppress(OSError):
            self.socket.close()


class Listener:
    """Answers ``call(method, request)`` to clients that know the token. Each connection has a thread of its own."""

    def __init__(self, call: Callable[[str, str], str], token: str) -> None:
        """Listen on a port that the system chooses. Raises OSError."""
        self._call, self._token = call, token.encode()
        self._lock = threading.Lock()
        self._strangers: list[_Connection] = []
        self._refused, self._logged = 0, -LOG_EVERY_S
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.bind((ADDRESS, 0))
        self._socket.listen(_BACKLOG)
        self._socket.settimeout(_LOOK_S)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept_all, name="listener", daemon=True).start()

    def _accept_all(self) -> None:
        while True:
            self._close_overdue()
            try:
                accepted, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError as problem:  # for example, no file descriptor is left: other connections may end
                _log.warning("a connection could not be accepted: %s", problem)
                time.sleep(_LOOK_S)
                continue
            self._begin(_Connection(accepted))

    def _begin(self, connection: _Connection) -> None:
        connection.socket.settimeout(STRANGER_S)
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._strangers.append(connection)
            surplus = self._strangers[:-STRANGERS]
        for oldest in surplus:
            self._refuse(oldest)
        try:
            threading.Thread(target=self._serve, args=(connection,), name="call", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            self._refuse(connection)

    def _close_overdue(self) -> None:
        limit = time.monotonic() - STRANGER_S
        with self._lock:
            overdue = [each for each in self._strangers if each.began < limit]
        for each in overdue:
            self._refuse(each)

    def _refuse(self, connection: _Connection) -> None:
        """Close an unauthenticated connection. At most once a minute, the log reports how many were closed."""
        with self._lock:
            if connection not in self._strangers:
                return
            self._strangers.remove(connection)
            self._refused += 1
            refused, is_due = self._refused, time.monotonic() - self._logged >= LOG_EVERY_S
            if is_due:
                self._refused, self._logged = 0, time.monotonic()
        connection.close()
        if is_due:
            _log.warning("closed %d connections that did not send the token of this state server", refused)

    def _serve(self, connection: _Connection) -> None:
        try:
            with connection.socket.makefile("rb") as stream:
                self._authenticate(connection, stream)
                while True:
                    self._answer(connection, stream)
        except (
            OSError,
            ValueError,
            EOFError,
            _NotOursError,
        ):  # the connection has ended, or sent something that is not text: there is nothing to answer
            pass
        finally:
            self._refuse(connection)
            connection.close()

    def _authenticate(self, connection: _Connection, stream: IO[bytes]) -> None:
        command, token, end = (_line(stream, STRANGER_LINE_BYTES) for _ in range(3))
        is_ours = hmac.compare_digest(token, self._token) and command == AUTH_COMMAND_NAME.encode()
        if not is_ours or end != END.encode():
            connection.socket.sendall(ERROR_RETURN_MESSAGE.encode())
            raise _NotOursError
        connection.socket.settimeout(None)
        with self._lock:
            if connection not in self._strangers:
                raise _NotOursError  # it was refused in the meantime
            self._strangers.remove(connection)
        connection.socket.sendall(OUTPUT_VOID_COMMAND.encode())

    def _answer(self, connection: _Connection, stream: IO[bytes]) -> None:
        """Answer one command. Raises EOFError at the end of the connection."""
        command = _line(stream, LINE_BYTES).decode()
        _line(stream, LINE_BYTES)  # the name of the object to call: there is only one
        if command == GARBAGE_COLLECT_PROXY_COMMAND_NAME:
            _line(stream, LINE_BYTES)
            answer = SUCCESS_RETURN_MESSAGE
        elif command == CALL_PROXY_COMMAND_NAME:
            _line(stream, LINE_BYTES)  # the name of the method: there is only one
            method, request = _arguments(stream)
            answer = RETURN_MESSAGE + SUCCESS + get_command_part(self._call(method, request))
        else:
            raise _NotOursError
        connection.socket.sendall(answer.encode())


def _arguments(stream: IO[bytes]) -> list[str]:
    found: list[str] = []
    while (line := _line(stream, LINE_BYTES).decode()) != END:
        if not line.startswith(STRING_TYPE) or len(found) == MAX_ARGUMENTS:
            raise _NotOursError
        found.append(unescape_new_line(line[len(STRING_TYPE) :]))
    return found


def _line(stream: IO[bytes], most_bytes: int) -> bytes:
    """Return one line without its line feed. Raises EOFError at the end, _NotOursError if the line is too long."""
    line = stream.readline(most_bytes + 1)
    if not line:
        raise EOFError
    if not line.endswith(b"\n"):
        raise _NotOursError
    return line[:-1]
