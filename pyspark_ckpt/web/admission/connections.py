"""Connections of browsers. Few may stay without a request, and only briefly: each holds a file of this process.

Whoever can reach the port can connect, without the token. So a connection has some seconds for its first request, and
if too many have sent none, the oldest gives way. What is refused is closed. No request is logged, because its URL may
have the token.
"""

from __future__ import annotations

import asyncio
import logging
from operator import itemgetter
from typing import Any

from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

FIRST_REQUEST_S = 10.0
"""How long the head of a connection's first request may take to arrive."""
MAX_STRANGERS = 64
"""Connections that have not sent a request."""


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Leave out messages about strangers' input, and about requests that end because the page is closed."""
    problem = record.exc_info[1] if record.exc_info else None
    return record.levelno >= logging.ERROR and not isinstance(problem, asyncio.CancelledError)


_log = logging.getLogger("pyspark_ckpt.web.connections")
_log.addFilter(_is_worth_a_line)


class BrowserConnection(H11Protocol):
    """A connection to the page, as uvicorn serves it."""

    def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401 - uvicorn's
        """See uvicorn."""
        super().__init__(*given, **named)
        self.logger = _log  # not uvicorn's, which the program may use for a server of its own
        self.access_log = False
        self.deadline: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        super().connection_made(transport)
        self.deadline = self.loop.call_later(FIRST_REQUEST_S, self.give_up)
        strangers = [
            (each.deadline.when(), each.give_up)
            for each in self.connections
            if isinstance(each, BrowserConnection) and each.deadline is not None
        ]
        if len(strangers) > MAX_STRANGERS:
            _, give_up = min(strangers, key=itemgetter(0))
            give_up()

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:  # a request has come
            self._forget_deadline()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close a connection that has sent no request."""
        self._forget_deadline()
        self.transport.abort()

    def _forget_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
