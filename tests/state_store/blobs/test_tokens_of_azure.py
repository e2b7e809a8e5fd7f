"""Tokens of Entra ID and of machines: what passes is waited for, what does not is told at once.

Azurite takes tokens over TLS and checks who they are for, not who has signed them. What gives them is made here.
"""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import pytest

from pyspark_ckpt.state_store.blobs import BlobPlace, HadoopSettings, RetryPolicy, place_at
from pyspark_ckpt.state_store.blobs.base.clients import PAUSE_S
from pyspark_ckpt.state_store.errors import StorageError
from tests.faults.outages import wire
from tests.faults.refusals import is_refused
from tests.services.cloud_services import ACCOUNT, connection, describe_container, new_container, running_azurite
from tests.services.http_service import serving_http
from tests.services.ports import find_free_port

Reach: TypeAlias = Callable[..., BlobPlace]
REFUSALS = 4
FAULTS = ("503", "429", "reset", "page")
OAUTH = {
    "fs.azure.account.auth.type": "OAuth",
    "fs.azure.account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
    "fs.azure.account.oauth2.client.id": "application",
    "fs.azure.account.oauth2.client.secret": "SECRET",
}
MACHINE = {
    "fs.azure.account.auth.type": "OAuth",
    "fs.azure.account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.MsiTokenProvider",
}
IDENTITIES: Mapping[str, dict[str, str]] = {"application": OAUTH, "machine": MACHINE, "chain": {}}


class Giver:
    """Gives tokens, as Entra ID and the metadata server of a machine do, after some refusals of one kind."""

    def __init__(self) -> None:
        self.fault, self.refusals, self.asked = "", 0, 0
        self.valid_s = 3600.0
        self.port = 0

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a request, or fail."""
        self.asked += 1
        if self.fault == "denied" and handler.command == "POST":
            self._send(handler, 400, {"error": "invalid_client", "error_description": "AADSTS7000215: wrong secret"})
        elif self.asked <= self.refusals:
            self._fail(handler)
        elif "openid-configuration" in handler.path:
            base = f"https://127.0.0.1:{self.port}/tenant"
            told = {"issuer": f"{base}/v2.0", "token_endpoint": f"{base}/token", "authorization_endpoint": f"{base}/a"}
            self._send(handler, 200, told)
        else:
            self._send(handler, 200, make_token(self.valid_s))

    def _fail(self, handler: BaseHTTPRequestHandler) -> None:
        if self.fault == "reset":
            handler.connection.close()
        elif self.fault == "page":
            self._send(handler, 502, "<html>bad gateway</html>")
        else:
            self._send(handler, int(self.fault), {"error": "temporarily_unavailable"}, **{"Retry-After": "0"})

    def _send(self, handler: BaseHTTPRequestHandler, status: int, content: object, **headers: str) -> None:
        is_page = isinstance(content, str)
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        handler.send_response(status)
        kinds = {"Content-Type": "text/html" if is_page else "application/json", "Content-Length": str(len(data))}
        for name, value in {**kinds, **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)


def make_token(valid_s: float) -> dict[str, Any]:
    """A token that Azurite takes for ``valid_s``: it looks at all but the signature. It is said to last an hour."""
    now = int(time.time())
    claims = {"aud": "https://storage.azure.com", "iss": "https://sts.windows.net/tenant/", "nbf": now - 60}
    parts = [{"alg": "RS256", "typ": "JWT"}, {**claims, "iat": now, "exp": now + valid_s}]
    text = [base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts]
    token = ".".join([*text, "c2lnbmF0dXJl"])
    return {"access_token": token, "token_type": "Bearer", "expires_in": 3600, "resource": "https://storage.azure.com"}


@contextmanager
def serving(giver: Giver, context: ssl.SSLContext | None) -> Iterator[str]:
    """Serve ``giver``; yield host and port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            giver.answer(self)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            giver.answer(self)

        def log_message(self, *_: Any) -> None:  # noqa: ANN401
            """Say nothing."""

    with serving_http(Handler, context) as giver.port:
        yield f"127.0.0.1:{giver.port}"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(made), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *files], check=True, capture_output=True)
    return made, key


@pytest.fixture(scope="module")
def secure(certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of Azurite with TLS, which takes tokens."""
    with running_azurite(tmp_path_factory.mktemp("azurite"), certificate) as endpoint:
        yield endpoint


@pytest.fixture
def giver() -> Giver:
    """What gives tokens."""
    return Giver()


@pytest.fixture
def reach(
    secure: str, certificate: tuple[Path, Path], giver: Giver, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reach]:
    """Make a place that asks for tokens as Hadoop's settings say."""
    container = describe_container(new_container(secure, connection_verify=str(certificate[0])))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate[0]))
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"AccountName={ACCOUNT};BlobEndpoint={secure}/{ACCOUNT}")
    with serving(giver, context) as entra, serving(giver, None) as machine:
        giver.port = int(entra.rpartition(":")[2])
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", f"http://{machine}")

        def make(settings: dict[str, str], timeout_s: float = 60.0) -> BlobPlace:
            of_entra = {"fs.azure.account.oauth2.client.endpoint": f"https://{entra}/tenant/oauth2/token"}
            hadoop = HadoopSettings({**of_entra, **settings})
            return place_at(f"{container}/folder", hadoop=hadoop, retries=RetryPolicy(timeout_s))

        yield make


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("fault", "identity"),
    [(fault, identity) for fault in FAULTS for identity in IDENTITIES if (fault, identity) != ("reset", "chain")],
)
def test_a_service_of_tokens_that_is_away_for_a_while_is_waited_for(
    fault: str, identity: str, giver: Giver, reach: Reach
) -> None:
    """In a chain, a machine that breaks connections has no identity to give: see below."""
    giver.fault, giver.refusals = fault, REFUSALS
    place = reach(IDENTITIES[identity])
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda number: place.put_if_absent(f"{number}", b"x"), range(8)))
    assert place.get("3") == b"x"
    assert giver.asked > REFUSALS


def test_a_service_that_speaks_no_tls_for_a_while_is_waited_for(
    secure: str, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does a load balancer that has just begun. A service that has never answered by TLS fails at once."""
    there = urlsplit(secure)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate[0]))
    container = describe_container(new_container(secure, connection_verify=str(certificate[0])))
    with wire((str(there.hostname), int(there.port or 0))) as cut:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection(f"https://127.0.0.1:{cut.port}"))
        first, place = (place_at(f"{container}/{name}", retries=RetryPolicy(30)) for name in ("first", "other"))
        with cut.outage("plain"), pytest.raises(StorageError, match="WRONG_VERSION_NUMBER") as caught:
            first.get("a")
        assert "REQUESTS_CA_BUNDLE" in caught.value.hint
        assert caught.value.waited_s == 0
        place.put("a", b"x")
        with ThreadPoolExecutor(1) as pool:
            with cut.outage("plain"):
                found = pool.submit(place.get, "a")
                time.sleep(0.5)
                assert not found.done()
            assert found.result() == b"x"


@pytest.mark.in_turn
@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_token_that_is_refused_before_its_time_is_asked_for_again(
    identity: str, giver: Giver, reach: Reach, caplog: pytest.LogCaptureFixture
) -> None:
    """However many requests are refused, a client is replaced once in a while."""
    giver.valid_s = 1
    place = reach(IDENTITIES[identity])
    with ThreadPoolExecutor(8) as pool:
        place.put("a", b"x")
        time.sleep(2)
        giver.valid_s, asked = -60, giver.asked
        assert all(pool.map(lambda _: is_refused(place, "a"), range(80)))
        assert asked < giver.asked < asked + 80
        assert "has refused" not in caplog.text, "no other credentials work"
        giver.valid_s = 3600
        time.sleep(PAUSE_S)
        assert set(pool.map(lambda _: place.get("a"), range(8))) == {b"x"}
        assert caplog.text.count("has refused") == 1


def test_a_wrong_secret_is_told_at_once_and_not_shown(giver: Giver, reach: Reach) -> None:
    giver.fault = "denied"
    with pytest.raises(StorageError, match=r"AADSTS7000215|invalid_client") as caught:
        reach(OAUTH).get("a")
    assert caught.value.waited_s == 0
    assert "SECRET" not in f"{caught.value} {caught.value.__cause__!r}"
    assert "fs.azure.account" in caught.value.hint


def test_a_machine_without_an_identity_is_told_at_once(
    reach: Reach, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", f"http://127.0.0.1:{find_free_port()}")
    monkeypatch.setenv("PATH", str(tmp_path))  # without az and its like
    with pytest.raises(StorageError, match="no credentials are found") as caught:
        reach({}).get("a")
    assert caught.value.waited_s == 0


def test_a_service_of_tokens_that_does_not_answer_holds_up_nothing_for_longer_than_the_timeout(
    giver: Giver, reach: Reach
) -> None:
    giver.fault, giver.refusals = "503", 10**6
    with pytest.raises(StorageError, match=r"placeTimeout is 2 s") as caught:
        reach(OAUTH, 2).get("a")
    assert caught.value.retryable


def test_an_identity_of_a_pod_that_is_not_complete_is_told(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    provider = {"fs.azure.account.oauth.provider.type": "o.WorkloadIdentityTokenProvider"}
    with pytest.raises(StorageError, match="Missing required arguments") as caught:
        reach({"fs.azure.account.auth.type": "OAuth", **provider}).get("a")
    assert caught.value.waited_s == 0
