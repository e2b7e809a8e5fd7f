"""Keys of Google and Azure that change while places are used: the next request finds the present one."""

from __future__ import annotations

import base64
import itertools
import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from azure.storage.blob import ContainerSasPermissions, generate_container_sas
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pyspark_ckpt.state_store.blobs import BlobPlace, HadoopSettings, place_at
from tests.faults.faulty_s3 import Faults, _Handler
from tests.faults.refusals import is_refused
from tests.services.cloud_services import ACCOUNT, KEY, CloudService
from tests.services.http_service import serving_http

THREADS = 16
_days = itertools.count(1)


class Guard:
    """A proxy that takes the present key alone. It gives tokens for Google's keys, which are those keys' names."""

    def __init__(self) -> None:
        self.key = ""
        self.refusals = 0

    def admits(self, handler: _Handler) -> bool:
        """Whether a request has the present key."""
        signatures = parse_qs(urlsplit(handler.path).query).get("sig", [])
        shown = signatures[0] if signatures else handler.headers.get("authorization", "").removeprefix("Bearer ")
        self.refusals += shown != self.key
        return shown == self.key


class _GuardedHandler(_Handler):
    guard: Guard

    def handle_request(self) -> None:
        if self.path == "/token":
            said = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())["assertion"][0]
            head = said.partition(".")[0]
            key = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))["kid"]
            if key == self.guard.key:
                self.say(200, {"access_token": key, "expires_in": 3600, "token_type": "Bearer"})
            else:
                self.say(400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
        elif self.guard.admits(self):
            super().handle_request()
        else:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            error = {"code": 401, "message": "Invalid Credentials", "errors": [{"reason": "authError"}]}
            self.say(401, {"kind": "storage#error", "error": error})

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_request  # noqa: N815 - the library's names

    def say(self, status: int, content: object) -> None:
        names = ("x-ms-request-id", "x-guploader-uploadid")
        headers = [("content-type", "application/json"), *((name, "1") for name in names)]
        self.answer(status, headers, json.dumps(content).encode())


@contextmanager
def guarded(endpoint: str, guard: Guard) -> Iterator[str]:
    """The endpoint of a proxy before ``endpoint``."""
    own = {"target": urlsplit(endpoint), "faults": Faults(), "guard": guard}
    with serving_http(type("Handler", (_GuardedHandler,), own)) as port:
        yield f"http://127.0.0.1:{port}"


class Rotation:
    """A service behind a guard. ``rotate`` changes the key there; ``tell`` puts it where this process finds it."""

    def __init__(self, guard: Guard, root: str, hadoop: HadoopSettings, make: Callable[[], str]) -> None:
        self._guard, self._root, self._hadoop, self._make = guard, root, hadoop, make
        self.tell: Callable[[], object] = lambda: None
        self.guard = guard

    def rotate(self) -> None:
        self._guard.key = self._make()

    def place(self, folder: str) -> BlobPlace:
        return place_at(f"{self._root}/{folder}", hadoop=self._hadoop)


@pytest.fixture
def google(gcs: CloudService, tmp_path: Path) -> Iterator[Rotation]:
    file, numbers = tmp_path / "key.json", itertools.count()
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    with guarded(gcs.endpoint, guard := Guard()) as endpoint:
        settings = {"fs.gs.storage.root.url": endpoint, "fs.gs.auth.service.account.json.keyfile": str(file)}
        found = Rotation(guard, gcs.new_folder(), HadoopSettings(settings), lambda: f"key-{next(numbers)}")

        def tell() -> None:
            key = {"type": "service_account", "client_email": "a@b", "private_key_id": guard.key, "private_key": pem}
            file.write_text(json.dumps({**key, "token_uri": f"{endpoint}/token"}))

        found.tell = tell
        yield found


@pytest.fixture
def microsoft(azure: CloudService, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rotation]:
    with guarded(azure.endpoint, guard := Guard()) as endpoint:
        signatures = dict[str, str]()

        def make() -> str:
            ends = datetime.now(timezone.utc) + timedelta(days=next(_days))
            rights = ContainerSasPermissions(read=True, write=True, delete=True, list=True, create=True)
            name = azure.client.container_name
            made = generate_container_sas(ACCOUNT, name, account_key=KEY, permission=rights, expiry=ends)
            key = parse_qs(made)["sig"][0]
            signatures[key] = made
            return key

        def tell() -> None:
            parts = [f"AccountName={ACCOUNT}", f"SharedAccessSignature={signatures[guard.key]}"]
            parts.append(f"BlobEndpoint={endpoint}/{ACCOUNT}")
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", ";".join(parts))

        found = Rotation(guard, azure.new_folder(), HadoopSettings({}), make)
        found.tell = tell
        yield found


@pytest.fixture(params=["google", "microsoft"])
def rotation(request: pytest.FixtureRequest) -> Rotation:
    found: Rotation = request.getfixturevalue(request.param)
    found.rotate()
    found.tell()
    return found


def write_large(place: BlobPlace, between: Callable[[], None]) -> bytes:
    data = random.Random(0).randbytes(40 << 20)
    with place.create("large") as sink:
        sink.write(data[: 20 << 20])
        between()
        sink.write(data[20 << 20 :])
    return data


OPERATIONS: dict[str, Callable[[BlobPlace], object]] = {
    "put_if_absent": lambda place: place.put_if_absent("new", b"new"),
    "put": lambda place: place.put("old", b"old"),
    "get": lambda place: place.get("old"),
    "list": lambda place: place.list(),
    "walk": lambda place: place.walk(),
    "delete": lambda place: place.delete("old"),
    "now_s": lambda place: place.now_s(),  # type: ignore[attr-defined]
    "remove_empty_folders": lambda place: place.remove_empty_folders(),
    "copy_from": lambda place: place.copy_from(place, "old", 3, "copy"),  # type: ignore[attr-defined]
}


@pytest.mark.in_turn
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_succeeds_when_the_key_has_changed(operation: str, rotation: Rotation) -> None:
    place = rotation.place("folder")
    place.put("old", b"old")
    rotation.rotate()
    rotation.tell()
    OPERATIONS[operation](place)
    left = {"put_if_absent": ["new", "old"], "delete": [], "copy_from": ["copy", "old"]}.get(operation, ["old"])
    assert [blob.name for blob in place.list()] == left


def test_an_upload_in_parts_goes_on_when_the_key_changes_under_way(rotation: Rotation) -> None:
    place = rotation.place("folder")

    def change() -> None:
        rotation.rotate()
        rotation.tell()

    data = write_large(place, change)
    assert place.get("large") == data


def test_a_storm_of_refusals_makes_one_client(rotation: Rotation, caplog: pytest.LogCaptureFixture) -> None:
    places = [rotation.place(f"storm/{number}") for number in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda place: place.put("object", b"content"), places))
        assert len(first := {id(place.bucket) for place in places}) == 1  # type: ignore[attr-defined]
        rotation.rotate()
        assert all(threads.map(is_refused, places * 3))
        assert {id(place.bucket) for place in places} == first  # type: ignore[attr-defined]
        rotation.tell()
        assert set(threads.map(lambda place: place.get("object"), places * 3)) == {b"content"}
        assert len({id(place.bucket) for place in places} - first) == 1  # type: ignore[attr-defined]
    assert caplog.text.count("has refused the credentials") == 1
