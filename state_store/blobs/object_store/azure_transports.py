"""How Azure's clients send requests: those for tokens, and those to a container.

Tokens of Entra ID and of machines are requested within the time of the current try, and never twice in it. The clients
of identities hide why they got no token: all of their failures are one error, often without a cause. So the transport
notes whether the last failure of a request may pass.

Answers of a container come in large pieces, so that a download takes little memory. The client makes a list of the
pieces of an answer. A list first asks for the length, to reserve as many entries, and the client gives its bytes: 64
MiB for a part of 8 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import RequestsTransport
from requests import Session
from typing_extensions import override

from pyspark_ckpt.state_store.blobs.object_store.sessions import is_bad_tls, timeouts

PIECE_BYTES = 1 << 20
_PASSING = frozenset({404, 408, 410, 429})
"""Statuses below 500 that may pass. A machine answers 404 and 410 while it starts or is being moved."""
_LEAST_ERROR = 400
_LEAST_AWAY = 500


class TokenTransport(RequestsTransport):  # type: ignore[misc]  # the client has no type for it
    """Sends the requests for tokens of one container. Safe to use from many threads.

    ``may_pass``: whether the last request that failed may succeed later without intervention.
    """

    def __init__(self, *, tries_many: bool = False) -> None:
        """``tries_many``: for a chain, in which an unreachable machine has no identity to give."""
        super().__init__()
        self._tries_many = tries_many
        self._has_answered = False
        self.may_pass = False

    @override
    def send(self, request: Any, **given: Any) -> Any:
        connect_s, read_s = timeouts()
        given["connection_timeout"] = min(connect_s, given.get("connection_timeout", connect_s))
        given["read_timeout"] = min(read_s, given.get("read_timeout", read_s))
        try:
            answer: Any = super().send(request, **given)
        except AzureError as problem:
            is_there = self._has_answered or not self._tries_many or request.url.startswith("https:")
            self.may_pass = is_there and not is_bad_tls(problem)
            raise
        status = int(answer.status_code)
        if status >= _LEAST_ERROR:
            self.may_pass = status >= _LEAST_AWAY or status in _PASSING
        else:  # let other threads, whose requests failed earlier, ask again
            self._has_answered = True
        return answer


class Transport(RequestsTransport):  # type: ignore[misc]  # the client has no type for it
    """Sends requests by a session that stays open."""

    def __init__(self, session: Session) -> None:
        """Use ``session``, which somebody else closes."""
        super().__init__(session=session, session_owner=False, connection_data_block_size=PIECE_BYTES)

    @override
    def send(self, request: Any, **given: Any) -> Any:
        answer: Any = super().send(request, **given)
        cut = answer._stream_download_generator  # noqa: SLF001 - no public name leads there
        answer._stream_download_generator = lambda *args, **how: _Pieces(cut(*args, **how))  # noqa: SLF001
        return answer


class _Pieces:
    """The pieces of an answer, without a length."""

    def __init__(self, pieces: Any) -> None:  # noqa: ANN401 - a generator of the client
        self._pieces = pieces
        self.response = pieces.response
        self.content_length = pieces.content_length

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
