"""``serve``: the page on a port of this machine, until it is closed."""

from __future__ import annotations

import errno
import re
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.offline.reading.closeable import Closeable
from pyspark_ckpt.queries.handles import find_checkpoint
from pyspark_ckpt.savepoints import collect_options, describe_release
from pyspark_ckpt.state_store.arguments import Location, location_text
from pyspark_ckpt.state_store.blobs import refuse_secrets
from pyspark_ckpt.state_store.errors import InvalidInputError, ProcessError
from pyspark_ckpt.state_store.extras import require_extra

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from pyspark.sql.streaming.query import StreamingQuery

PATIENCE = {"placeTimeout": "8"}
"""How long the page waits for a place, unless an option says otherwise: somebody is waiting for the page."""
MAX_CHECKPOINTS = 50
START_S, STOP_S = 20.0, 5.0
WAKE_S = 1.0
"""The longest wait without a check: a Ctrl-C just before the wait for a lock does not end that wait."""
MAX_PORT = 65535
LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"[^\s/:@\[\]]+|\[[0-9A-Fa-f:.]+\]")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,200}")


class WebPage(Closeable):
    """A page that is served. Close it, or use a ``with`` block."""

    def __init__(self, server: Any, listener: socket.socket, pools: Sequence[ThreadPoolExecutor], url: str) -> None:  # noqa: ANN401
        """See ``serve``."""
        self._server, self._listener, self._pools = server, listener, pools
        self._failure: BaseException | None = None
        self.url = url
        """Where the page is, with the token that opens it."""
        self._thread = threading.Thread(target=self._run, name="pyspark-ckpt web page", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"WebPage({self.url.partition('?')[0]}{'' if self._thread.is_alive() else ', closed'})"

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the page is closed, at most ``timeout_s``. Return whether it is. Raises ProcessError."""
        if timeout_s is None:
            while self._thread.is_alive():
                self._thread.join(WAKE_S)
        else:
            self._thread.join(timeout_s)
        if self._failure is not None:
            raise ProcessError(f"The web page has ended: {self._failure}.") from self._failure
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop serving. Requests under way are given a moment. May be called twice."""
        self._server.should_exit = True
        self._thread.join(STOP_S)
        for each in self._pools:
            each.shutdown(wait=False, cancel_futures=True)
        with suppress(OSError):
            self._listener.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._listener])
        except Exception as problem:  # noqa: BLE001 - told to whoever waits
            self._failure = problem


def serve_web_page(
    query_or_checkpoint: StreamingQuery | Location | Sequence[StreamingQuery | Location],
    *,
    port: int = 0,
    host: str = LOOPBACK,
    allowed_hosts: Sequence[str] = (),
    token: str | None = None,
    savepoints: Sequence[Location] = (),
    options: Mapping[str, str] | None = None,
) -> WebPage:
    """Serve a page about checkpoints to a browser, from a thread of this process, and return at once.

    The page only reads: nothing is written to a checkpoint, and a query may run on it. It needs neither Spark nor a
    JVM. The browser needs the token, which is part of ``url`` of the result. A damaged or missing checkpoint raises no
    error: the page says so.

    ``query_or_checkpoint``: a running query, whose last batches are shown as well; a checkpointLocation; a savepoint of
    either kind; or several of these. ``port``: 0 takes a free one. ``host``: the address to listen on; keep it, and
    reach the page by ssh. ``allowed_hosts``: more host names in URLs of the page. ``token``: at least 16
    characters; None makes a random one. ``savepoints``: folders of savepoints to list.
    ``options``: options of docs/options.md, without their prefix. They add to those of the active session.

    Raises InvalidInputError (an argument, such as a URI with a password), ProcessError (the extra ``web`` is not
    installed, or the port is taken).
    """
    for module in ("starlette", "uvicorn", "jinja2"):
        require_extra(module, "serve_web_page()")
    import uvicorn  # noqa: PLC0415 - of an extra

    from pyspark_ckpt.web.admission.connections import BrowserConnection  # noqa: PLC0415
    from pyspark_ckpt.web.admission.requests import LOOPBACK_NAMES, Admission  # noqa: PLC0415
    from pyspark_ckpt.web.application import Pages  # noqa: PLC0415
    from pyspark_ckpt.web.recollection import make_pool  # noqa: PLC0415
    from pyspark_ckpt.web.subjects import Subject  # noqa: PLC0415

    asked = _list_subjects(query_or_checkpoint)
    secret = _check_token(token)
    _check_port(port)
    folders = [location_text(each, "savepoints") for each in _check_list(savepoints, "savepoints")]
    locations = [find_checkpoint(each) for each in asked]
    for each in (*locations, *folders):
        refuse_secrets(each)
    address, hosts = _check_host(host), _check_allowed_hosts(allowed_hosts)
    settings = collect_options({**PATIENCE, **(options or {})}, *locations, *folders)
    subjects = [
        Subject(number, location, settings, make_pool(), each if hasattr(each, "recentProgress") else None)
        for number, (location, each) in enumerate(zip(locations, asked, strict=True))
    ]
    own = make_pool()
    pages = Pages(subjects, own, folders, describe_release())
    app, listener = pages.build(), _listen(address, port)
    bound = listener.getsockname()[1]
    shown = f"[{address}]" if ":" in address else address
    config = uvicorn.Config(
        Admission(app, secret, {*LOOPBACK_NAMES, shown, *hosts}),
        http=BrowserConnection,
        log_config=None,  # the program may run a uvicorn of its own, and configure its logs
        server_header=False,
        date_header=False,
        lifespan="off",
        ws="none",
        backlog=64,  # connections that are accepted at once, before one must give way
        limit_concurrency=200,
        timeout_keep_alive=30,  # longer than a page waits until it refreshes itself
        timeout_graceful_shutdown=1,
    )
    pools = [own, *(each.pool for each in subjects)]
    page = WebPage(uvicorn.Server(config), listener, pools, f"http://{shown}:{bound}/?token={secret}")
    _await_start(page)
    pages.prepare()
    return page


def _list_subjects(given: Any) -> list[Any]:  # noqa: ANN401 - queries and locations
    several = list(given) if isinstance(given, (list, tuple)) else [given]
    if not 1 <= len(several) <= MAX_CHECKPOINTS:
        raise InvalidInputError(f"Give 1 to {MAX_CHECKPOINTS} checkpoints, got {len(several)}.")
    return several


def _check_token(token: Any) -> str:  # noqa: ANN401 - what a user gives
    if token is None:
        return secrets.token_urlsafe(24)
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        raise InvalidInputError(
            "`token` must have 16 to 200 characters: letters, digits, - or _.",
            hint="Leave it out to get a random one.",
        )
    return token


def _check_port(port: Any) -> None:  # noqa: ANN401 - what a user gives
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= MAX_PORT:
        raise InvalidInputError(f"`port` must be a number from 0 to {MAX_PORT}, got {port!r}.")


def _check_host(host: Any) -> str:  # noqa: ANN401 - what a user gives
    if not isinstance(host, str) or not host or host.startswith("["):
        raise InvalidInputError(
            f"`host` must be an address or a name of this machine, such as 127.0.0.1 or ::1, got {host!r}."
        )
    return host


def _check_list(names: Any, what: str) -> list[Any]:  # noqa: ANN401 - what a user gives
    """Return the argument as a list. A single name is refused: its letters would be taken for names."""
    if not isinstance(names, (list, tuple, set, frozenset)):
        raise InvalidInputError(f"`{what}` must be a list, got {names!r}.", hint=f"Write {what}=[...].")
    return list(names)


def _check_allowed_hosts(names: Any) -> list[str]:  # noqa: ANN401 - what a user gives
    hosts = _check_list(names, "allowed_hosts")
    if not all(isinstance(each, str) and _HOST.fullmatch(each) for each in hosts):
        raise InvalidInputError(
            f"`allowed_hosts` must be host names, without a scheme or a port, got {hosts!r}.",
            hint="Any port is allowed.",
        )
    return hosts


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, TypeError, ValueError) as problem:
        listener.close()
        why = getattr(problem, "strerror", None) or problem
        if isinstance(problem, socket.gaierror) or getattr(problem, "errno", None) in {None, errno.EADDRNOTAVAIL}:
            raise InvalidInputError(
                f"`host` must be an address or a name of this machine, got {host!r}: {why}."
            ) from problem
        raise ProcessError(
            f"Port {port} of {host} cannot be used: {why}.",
            hint="Choose another port, or leave it out to take a free one.",
        ) from problem
    return listener


def _await_start(page: WebPage) -> None:
    """Wait until the page answers. Raises ProcessError."""
    ended = threading.Event()
    for _ in range(int(START_S / 0.01)):
        if page._server.started or page.wait(0):  # noqa: SLF001 - of this module
            break
        ended.wait(0.01)
    if not page._server.started:  # noqa: SLF001
        page.close()
        raise ProcessError("The web page did not start.")
