"""An API server that runs nothing: it takes what a driver creates, and keeps the pods."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, ClassVar

from tests.services.http_service import serving_http

if TYPE_CHECKING:
    from collections.abc import Iterator

Pod = dict[str, Any]


class _Handler(BaseHTTPRequestHandler):
    """Answers as an API server whose pods never start."""

    pods: ClassVar[list[Pod]] = []
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        made = self._read()
        namespace = self.path.partition("/namespaces/")[2].partition("/")[0]
        made.setdefault("metadata", {}).update(uid=str(uuid.uuid4()), namespace=namespace)
        if made.get("kind") == "Pod":
            self.pods.append(made)
        self._answer(made, 201)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        kind, _, name = path.partition("/namespaces/")[2].partition("/")[2].partition("/")
        if "watch=" in query:
            self._answer({"kind": "Status", "status": "Failure", "code": 410}, 410)
        elif name:
            self._answer({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": "driver"}})
        else:
            self._answer({"apiVersion": "v1", "kind": f"{kind.removesuffix('s').title()}List", "items": []})

    def do_PATCH(self) -> None:
        self._answer(self._read())

    def do_PUT(self) -> None:
        self.do_PATCH()

    def do_DELETE(self) -> None:
        self._read()
        self._answer({"apiVersion": "v1", "kind": "Status", "status": "Success"})

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _read(self) -> dict[str, Any]:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        read: dict[str, Any] = json.loads(text) if text else {}
        return read

    def _answer(self, told: dict[str, Any], status: int = 200) -> None:
        text = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def serving() -> Iterator[tuple[str, list[Pod]]]:
    """Serve while the block runs; yield the address, and the pods that were created so far."""
    pods: list[Pod] = []
    handler = type("Handler", (_Handler,), {"pods": pods})
    with serving_http(handler) as port:
        yield f"http://127.0.0.1:{port}", pods
