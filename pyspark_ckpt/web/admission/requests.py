"""Who gets an answer: read-only requests with the token, for a known name of this host.

All answers forbid the browser to contact other hosts.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_QUERY = 16 << 10
"""Characters of a query string."""
TOKEN = "token"  # noqa: S105 - the name of a parameter
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Admission:
    """Lets requests pass to an application. The first one brings the token in its URL, and gets a cookie for later."""

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str] = LOOPBACK_NAMES) -> None:
        """``hosts``: the names by which a browser may ask for the page. Any port is allowed: tunnels have their own."""
        self._app, self._token = app, token.encode()
        self._hosts = {host.lower() for host in hosts}
        # A browser shares cookies between all ports of a host; through tunnels these are pages of many machines.
        self._cookie = f"pyspark-ckpt-{sha256(self._token).hexdigest()[:16]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no page uses a web socket
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refuse(scope)
        await (self._app if refusal is None else refusal)(scope, receive, send_guarded)

    def _refuse(self, scope: Scope) -> Response | None:
        """Return the refusal of a request; None if it passes."""
        headers = Headers(scope=scope)
        if _host_name(headers.get("host", "")) not in self._hosts:
            return _answer(
                "This page is not served under this host name. If the name is right, add --allowed-host and the name "
                "to `pyspark-ckpt query serve`.",
                421,
            )
        if scope["method"] not in {"GET", "HEAD"}:
            return _answer("This page only reads.", 405, Allow="GET, HEAD")
        query = scope["query_string"]
        if len(query) > MAX_QUERY:
            return _answer("The query string is too long.", 414)
        return self._check_token(scope, headers)

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        """Look for the token in the URL, whose token overrides the others, in the headers, and in the cookie."""
        given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in given if name == TOKEN]
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if not tokens and kind.lower() == "bearer":
            tokens = [bearer.strip()]
        elif tokens and self._is_right(tokens[0]) and headers.get("accept", "").startswith("text/html"):
            return self._welcome(scope, [pair for pair in given if pair[0] != TOKEN])
        is_admitted = self._is_right(tokens[0] if tokens else self._read_cookie(headers))
        return None if is_admitted else _refuse_token()

    def _welcome(self, scope: Scope, rest: list[tuple[str, str]]) -> Response:
        """Give the cookie, and send the browser to the same page without the token in its URL."""
        path = scope["path"] if not scope["path"].startswith("//") else "/"
        answer = RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), 303)
        # Not "strict": a click on the URL in a notebook or a chat, which are other sites, would not send the cookie.
        answer.set_cookie(self._cookie, self._token.decode(), httponly=True, samesite="lax", path="/")
        return answer

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token)

    def _read_cookie(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value


def _refuse_token() -> Response:
    return _answer("Open the URL that `pyspark-ckpt query serve` printed. It contains the token for this page.", 401)


def _answer(text: str, status: int, **headers: str) -> Response:
    """Return a refusal, after which the connection is closed."""
    return PlainTextResponse(f"{text}\n", status, {"Connection": "close", **headers})


def _host_name(host: str) -> str:
    """Return the name in a Host header, without the port."""
    name, _, port = host.lower().rpartition(":")
    return name if name and port.isdigit() else host.lower()
