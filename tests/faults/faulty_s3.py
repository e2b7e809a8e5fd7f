"""A proxy before a real service of objects that does to requests what networks and services do."""

from __future__ import annotations

import http.client
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import boto3
import pytest
from botocore.config import Config

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import NotFoundError
from tests.services.http_service import serving_http

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code><Message>Try again.</Message></Error>"
UNSUMMED = (
    b"<Error><Code>InvalidRequest</Code><Message>Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object "
    b"requests with Object Lock parameters</Message></Error>"
)
BAD_DIGEST = b"<Error><Code>BadDigest</Code><Message>The Content-MD5 you specified did not match</Message></Error>"
GATEWAY = b'{"status": "starting"}'
PAGE = b"<html><body>Nothing here yet</body></html>"
ANSWERS: Mapping[str, tuple[int, list[tuple[str, str]], bytes]] = {
    "slow_down": (503, [], SLOW_DOWN),
    "conflict": (409, [], CONFLICT),
    "empty_200": (200, [], b""),
    "page_200": (200, [("content-type", "text/html")], PAGE),
    "page_404": (404, [("content-type", "text/html")], PAGE),
    "json_200": (200, [("content-type", "application/json")], GATEWAY),
    "unsummed": (400, [], UNSUMMED),
    "bad_digest": (400, [], BAD_DIGEST),
}
"""What is answered before the service has heard of a request."""
TAGS = frozenset({"etag", "x-goog-generation"})
KINDS = ("slow_down", "no_answer", "cut", "refused", "late", "page_200", "page_404", "empty_200", "json_200")


@dataclass
class Faults:
    """What the proxy does: ``next(method, number)`` says which fault meets a request, if any.

    ``slow_down``: 503, nothing happens. ``conflict``: 409, as if another request for the name were under way.
    ``refused``: the connection ends before the service hears of it. ``no_answer``: it happens, and the connection ends
    without an answer. ``cut``: the answer's body ends in the middle. ``late``: it happens twice, as if the network had
    delivered a copy. ``ignored``: the condition of the request is not looked at, as if its service did not know
    conditions: what is there is deleted before. ``page_200``, ``page_404``, ``empty_200``, ``json_200``: nothing
    happens, and something before the service answers in its place, as a load balancer that has just begun.
    ``garbled``: it happens, and the answer has other content. ``untagged``: it happens, and the answer does not name
    the version. ``pending``: it happens, and the answer calls a copy of Azure unfinished.
    ``is_locked``: writes without a checksum of their content are refused, as by a bucket of S3 with Object Lock.
    """

    next: Callable[[str, int], str | None] = lambda _method, _number: None
    before: Callable[[str, str], None] = lambda _method, _path: None
    """Called before a request is passed on: it may hold it."""
    seen: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Of a request that is ``ignored``: nobody sees that what is there is deleted before it is replaced."""
    is_locked: bool = False

    def meet(self, method: str) -> str | None:
        """The fault of one more request."""
        with self.lock:
            self.seen["requests"] += 1
            fault = self.next(method, self.seen["requests"])
            if fault:
                self.seen[fault] += 1
            return fault


class _Handler(BaseHTTPRequestHandler):
    """Passes requests on. Subclasses name the service and the faults."""

    protocol_version = "HTTP/1.1"
    target: SplitResult
    faults: Faults

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.faults.before(self.command, self.path)
        fault = self.faults.meet(self.command) or self.find_missing_checksum(body)
        if fault == "refused":
            self.close_connection = True
        elif fault is not None and fault in ANSWERS:
            self.answer(*ANSWERS[fault])
        else:
            with self.faults.turn if fault == "ignored" else nullcontext():
                if fault == "ignored" and self.headers.get("If-None-Match"):
                    self.forget(self.path)
                for _ in range(2 if fault == "late" else 1):
                    status, headers, content = self.forwarded(body)
            if fault == "no_answer":
                self.close_connection = True
            else:
                content = GATEWAY if fault == "garbled" else content
                if fault == "pending":
                    headers = [(name, "pending" if name == "x-ms-copy-status" else value) for name, value in headers]
                if fault == "untagged":
                    headers = [(name, value) for name, value in headers if name.lower() not in TAGS]
                self.answer(status, headers, content, cut=fault == "cut" and len(content) > 1)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_request  # noqa: N815 - the library's names

    def find_missing_checksum(self, body: bytes) -> str | None:
        """What a bucket with Object Lock says to PutObject and UploadPart."""
        is_write = self.command == "PUT" and "x-amz-copy-source" not in self.headers
        if not self.faults.is_locked or not is_write:
            return None
        if (told := self.headers.get("Content-MD5")) is None:
            return None if any(name.lower().startswith("x-amz-checksum-") for name in self.headers) else "unsummed"
        return None if told == b64encode(md5(body, usedforsecurity=False).digest()).decode() else "bad_digest"

    def forget(self, path: str) -> None:
        """Delete an object, with the credentials of the test: the request itself is signed, and cannot be changed."""
        bucket, _, key = unquote(urlsplit(path).path).lstrip("/").partition("/")
        config = Config(s3={"addressing_style": "path"})
        boto3.client("s3", endpoint_url=self.target.geturl(), config=config).delete_object(Bucket=bucket, Key=key)

    def forwarded(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(str(self.target.hostname), self.target.port, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():  # the host as well: it is signed
            connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, answer.getheaders(), content

    def answer(self, status: int, headers: list[tuple[str, str]], content: bytes, *, cut: bool = False) -> None:
        self.send_response(status)
        given = {name.lower(): value for name, value in headers}
        for name, value in given.items():
            if name not in {"content-length", "transfer-encoding", "connection", "date", "server"}:
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        self.send_header("Content-Length", given.get("content-length", "0") if is_head else str(len(content)))
        self.end_headers()
        if not is_head:
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:  # noqa: ANN401
        """Say nothing."""


@contextmanager
def proxy(endpoint: str, faults: Faults) -> Iterator[str]:
    """The endpoint of a proxy before ``endpoint``."""
    handler = type("Handler", (_Handler,), {"target": urlsplit(endpoint), "faults": faults})
    with serving_http(handler) as port:
        yield f"http://127.0.0.1:{port}"


def assert_works(place: BlobPlace, large: bytes, folder: Path) -> None:
    """Write, read, list and delete at a place whose requests meet faults. ``folder``: for a downloaded file."""
    assert place.put_if_absent("a", b"first")
    assert not place.put_if_absent("a", b"second")
    with place.create("sst/large") as sink:
        sink.write(large)
    assert place.get("a") == b"first"
    assert place.download("sst/large", folder / "large") == len(large)
    assert (folder / "large").read_bytes() == large
    assert [blob.name for blob in place.list("sst")] == ["sst/large"]
    place.delete("a")
    assert [blob.name for blob in place.list()] == []
    with pytest.raises(NotFoundError):
        place.get("a")
