"""What S3 can answer, and what becomes of it: a hint for what somebody must do, patience for what passes."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.state_store.blobs import BlobPlace, S3Settings, place_at
from pyspark_ckpt.state_store.blobs.base.caller import describe_caller
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import StorageError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.nesting import refuse_inside_another
from tests.services.http_service import serving_http
from tests.services.s3_server import S3Service, use_credentials

Answer = tuple[int, bytes]


class _Handler(BaseHTTPRequestHandler):
    """Gives the answers of its class, one after the other, the last one again and again."""

    protocol_version = "HTTP/1.1"
    answers: list[Answer]
    asked: list[str]

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append(self.command)
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815 - the library's names

    def log_message(self, *_: Any) -> None:  # noqa: ANN401
        """Say nothing."""


@contextmanager
def answering(*answers: Answer) -> Iterator[tuple[S3Settings, list[str]]]:
    """How to reach a service that gives these answers, and what it was asked."""
    asked: list[str] = []
    handler = type("Handler", (_Handler,), {"answers": list(answers), "asked": asked})
    with serving(handler) as settings:
        yield settings, asked


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[S3Settings]:
    """How to reach a service whose requests ``handler`` answers."""
    use_credentials()
    with serving_http(handler) as port:
        yield S3Settings(f"http://127.0.0.1:{port}", "us-east-1", "path")


def error(code: str, message: str = "no") -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        (403, "RequestTimeTooSkewed", "clock of this host"),
        (403, "InvalidAccessKeyId", "Correct the credentials"),
        (403, "InvalidClientTokenId", "Correct the credentials"),
        (403, "SignatureDoesNotMatch", "Correct the credentials"),
        (400, "InvalidToken", "Correct the credentials"),
        (400, "ExpiredToken", "Renew the credentials"),
        (403, "AccessDenied", "s3:GetObject"),
        (404, "NoSuchBucket", "Create the bucket"),
        (403, "SomethingNew", "Correct the credentials".lower()),
        (401, "SomethingNew", "Correct the credentials"),
        (400, "AuthorizationHeaderMalformed", "s3Region"),
        (400, "KMS.DisabledException", "s3KmsKeyId"),
        (400, "KMS.NotFoundException", "s3KmsKeyId"),
        (501, "NotImplemented", "conditional writes"),
        (507, "XMinioStorageFull", "full"),
    ],
)
def test_what_does_not_pass_fails_at_once_with_what_to_do(status: int, code: str, hint: str) -> None:
    with answering((status, error(code))) as (settings, _):
        place = place_at("s3://bucket/x", settings)
        for request in (lambda: place.put_if_absent("a", b"x"), lambda: place.put("a", b"x"), place.list):
            began = time.monotonic()
            with pytest.raises(StorageError, match=r"s3://bucket/x") as caught:
                request()
            assert hint in caught.value.hint
            assert caught.value.waited_s == 0
            assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("request_of", "action"),
    [
        (lambda place: place.put("a", b"x"), "s3:PutObject on s3://bucket/x/a"),
        (lambda place: place.put_if_absent("a", b"x"), "s3:PutObject on s3://bucket/x/a"),
        (lambda place: place.get("a"), "s3:GetObject, and s3:ListBucket for the bucket, on s3://bucket/x/a"),
        (lambda place: place.list(), "s3:ListBucket on s3://bucket/x/."),
        (lambda place: place.delete("a"), "s3:DeleteObject on s3://bucket/x/a"),
    ],
)
def test_a_permission_that_is_missing_is_named_and_not_tried_again(
    request_of: Callable[[BlobPlace], object], action: str
) -> None:
    with answering((403, error("AccessDenied"))) as (settings, asked):
        with pytest.raises(StorageError) as caught:
            request_of(place_at("s3://bucket/x", settings))
        assert caught.value.hint.startswith(f"Give {action} to the credentials of {describe_caller()}, which are found")
        assert caught.value.is_denied
        assert not caught.value.retryable
        assert len(asked) == 1


def test_folders_above_a_target_that_may_not_be_listed_are_left_out() -> None:
    with answering((403, error("AccessDenied"))) as (settings, asked):
        options = replace(parse({}), s3=settings)
        refuse_inside_another(place_at("s3://bucket/a/b/taken", settings), Workplace(options), "a savepoint")
    assert asked == ["GET"] * 3


def test_a_key_of_kms_that_is_denied_is_named_as_that() -> None:
    denied = error("AccessDenied", "User x is not authorized to perform: kms:GenerateDataKey on resource y")
    with answering((403, denied)) as (settings, _), pytest.raises(StorageError) as caught:
        place_at("s3://bucket/x", settings).put("a", b"x")
    assert "s3KmsKeyId" in caught.value.hint


def test_a_key_that_the_service_does_not_know_has_a_hint(s3: S3Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "UNKNOWN")
    place = place_at(f"s3://{s3.bucket}/x", S3Settings(endpoint=s3.endpoint, region="eu-west-3", addressing="path"))
    with pytest.raises(StorageError) as caught:
        place.put("a", b"x")
    assert "credentials" in caught.value.hint
    assert caught.value.waited_s == 0


@pytest.mark.parametrize(
    "passing",
    [
        (500, error("InternalError")),
        (502, b"<html>Bad Gateway</html>"),
        (503, b""),
        (503, b"\xff\xfe no text"),
        (503, error("SlowDown")),
        (504, b"gateway timeout"),
        (429, error("TooManyRequests")),
        (400, error("RequestTimeout")),
        (409, error("OperationAborted")),
        (200, b"<html>the proxy has begun and knows no service yet"),
        (200, b""),
    ],
)
def test_what_passes_is_waited_for(passing: Answer) -> None:
    whole = b"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated></ListBucketResult>"
    with answering(passing, passing, passing, (200, whole)) as (settings, asked):
        assert place_at("s3://bucket/x", settings).list() == []
        assert asked == ["GET"] * 4


def test_a_service_that_speaks_no_tls_for_a_while_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does a load balancer that has just begun. A service that has never answered by TLS fails at once."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("NOT RUN: needs openssl.")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names, *files], check=True)
    use_credentials()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    whole = b"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated></ListBucketResult>"
    garbage = list[bytes]()

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if garbage:
                client.sendall(garbage.pop())
                client.close()
                continue
            with suppress(OSError), context.wrap_socket(client, server_side=True) as spoken:
                spoken.recv(1 << 16)
                lines = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(whole)}\r\n\r\n"
                spoken.sendall(lines.encode() + whole)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        settings = S3Settings(f"https://127.0.0.1:{listener.getsockname()[1]}", "us-east-1", "path")
        place = place_at("s3://bucket/x", settings)
        garbage += [b"HTTP/1.1 503 Service Unavailable\r\n\r\n"]
        with pytest.raises(StorageError, match="SSL") as caught:
            place.list()
        assert caught.value.waited_s == 0
        assert place.list() == []
        garbage += [b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b"\0\1\2garbage", b""]
        assert place.list() == []
        assert garbage == []


@pytest.mark.parametrize("ignored", ["Range", "Content-Length"])
def test_bytes_that_were_not_asked_for_are_not_taken_for_an_object(ignored: str) -> None:
    """A cache answers with all of an object, or with another part of it."""
    whole = bytes(range(100))

    class Cache(BaseHTTPRequestHandler):
        asked = 0

        def do_GET(self) -> None:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            part = whole[int(first) : int(last) + 1]
            type(self).asked += 1
            is_wrong = self.asked < 3
            if is_wrong:
                part = whole if ignored == "Range" else part[:-1]
            self.send_response(200 if is_wrong and ignored == "Range" else 206)
            if not (is_wrong and ignored == "Range"):
                self.send_header("Content-Range", f"bytes {first}-{last}/100")
            self.send_header("ETag", '"x"')
            if not is_wrong or ignored == "Range":
                self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)

        def log_message(self, *_: Any) -> None:  # noqa: ANN401
            """Say nothing."""

    with serving(Cache) as settings:
        assert place_at("s3://bucket/x", settings).get("a", 10, 20) == whole[10:20]
        assert Cache.asked == 3
