"""Connections to a service, and the headers of its last answer."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from requests import ConnectionError as NoConnectionError
from requests import PreparedRequest, RequestException, Response, Session
from requests.adapters import HTTPAdapter
from typing_extensions import override

from pyspark_ckpt.state_store.blobs.base.retries import get_left_of_try_s
from pyspark_ckpt.state_store.blobs.object_store.service import WAIT_S, RequestError

CONNECTIONS = 32
PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses of a service that is only temporarily unable to answer."""
BAD_TLS = "Let this host trust the certificate of the service (REQUESTS_CA_BUNDLE), or correct the endpoint."
"""The hint of a RequestError whose connection has failed by TLS."""
MISUNDERSTOOD = (ValueError, TypeError, LookupError, AttributeError)
"""The errors that clients raise if the content of an answer does not have the form of the service."""
_QUERY = re.compile(r"\?[^\s'\")]*")
_SPEAKING_STATUSES = frozenset({301, 302, 307, 401, 403, 407})
"""The meaning of these is known, whoever answered."""


class Answers:
    """The headers of the last answer that each thread has received. Add ``note`` to the hooks of a session."""

    def __init__(self, is_services: Callable[[Response], bool]) -> None:
        """Refuse answers that do not come from the service, according to ``is_services``."""
        self._is_services = is_services
        self._last = threading.local()

    def note(self, answer: Response, *_: object, **__: object) -> None:
        """Keep the headers. Raises an error of a lost connection if something in front of the service has answered."""
        self._last.headers = answer.headers
        if answer.status_code not in _SPEAKING_STATUSES and not self._is_services(answer):
            kind = answer.headers.get("content-type", "no content type")
            answer.close()
            raise NoConnectionError(f"the answer (status {answer.status_code}, {kind}) does not come from the service")

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the last answer to this thread."""
        headers: Mapping[str, str] = getattr(self._last, "headers", {})
        return headers

    def read_time(self) -> float:
        """Return when the service answered last: the end of the second that its answer names. Raises RequestError."""
        date = self.headers.get("date", "")
        try:
            return parsedate_to_datetime(date).timestamp() + 1
        except (TypeError, ValueError) as problem:
            raise RequestError(f"the Date header of the answer is {date!r}") from problem

    def read_size(self, start: int, end: int, received_bytes: int) -> int:
        """Return the size of the object from the answer to a range. Raises RequestError (a part of it was lost)."""
        said = self.headers.get("content-range", "")
        unit, _, rest = said.partition(" ")
        span, _, size = rest.partition("/")
        is_right = unit == "bytes" and span == f"{start}-{start + received_bytes - 1}" and size.isdecimal()
        if is_right and received_bytes == min(end, int(size)) - start:
            return int(size)
        text = f"bytes {start} to {end} were requested, but {received_bytes} bytes of {said or 'an unknown range'} came"
        raise RequestError(text, may_pass=True)


class _Connections(HTTPAdapter):
    """Connections whose errors do not show the queries of URLs, which hold signatures and the names of uploads."""

    @override
    def send(self, request: PreparedRequest, *args: Any, **given: Any) -> Response:
        try:
            return super().send(request, *args, **given)
        except RequestException as problem:
            raise type(problem)(hide_queries(problem)) from None


def hide_queries(problem: object) -> str:
    """Return the text of an error without the queries of the URLs in it, which may be secrets."""
    return _QUERY.sub("?...", str(problem))


def first_line(problem: object) -> str:
    """Return the first line of a text, without the queries of URLs, which may be secrets."""
    return hide_queries(problem).strip().partition("\n")[0][:400]


def explain_misunderstood(problem: Exception) -> RequestError:
    """Return the error for one of ``MISUNDERSTOOD``: something else may have answered, so it may pass."""
    return RequestError(f"the answer is not understood ({type(problem).__name__}: {problem})"[:400], may_pass=True)


def equip(session: Session, answers: Answers) -> Session:
    """Give a session enough connections, and note its answers."""
    adapter = _Connections(pool_connections=CONNECTIONS, pool_maxsize=CONNECTIONS)
    for scheme in ("https://", "http://"):
        session.mount(scheme, adapter)
    session.hooks["response"].append(answers.note)
    return session


def timeouts() -> tuple[float, float]:
    """Return the longest waits for a connection and for the next bytes of the current try."""
    return get_left_of_try_s(WAIT_S), get_left_of_try_s(WAIT_S)


def is_bad_tls(problem: Any) -> bool:  # noqa: ANN401 - an error of any client
    """Return whether a connection failed because the certificate or the protocol of TLS is wrong."""
    signs = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "NO_PROTOCOLS_AVAILABLE")
    return any(sign in str(problem) for sign in signs)
