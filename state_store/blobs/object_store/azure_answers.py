"""Answers of Azure in large pieces, so that a download takes little memory.

The client makes a list of the pieces of an answer. A list asks for the length first, to have room for as many entries,
and the client takes its bytes for that: 64 MiB of room for a part of 8 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from azure.core.pipeline.transport import RequestsTransport
from requests import Session
from typing_extensions import override

PIECE_BYTES = 1 << 20


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
