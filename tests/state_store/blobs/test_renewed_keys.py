"""Keys of S3 that change in their file while places are used: the next request finds them, and it alone is repeated."""

from __future__ import annotations

import itertools
import logging
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from pyspark_ckpt.state_store.blobs import BlobPlace, S3Settings, place_at
from pyspark_ckpt.state_store.errors import StorageError
from tests.conftest import MakeLab
from tests.lab import expected
from tests.ports import find_free_port
from tests.s3_server import GATEWAY, START_S, hide_credentials

ROOT = ("root", "root-secret")
THREADS = 16


@dataclass
class Gateway:
    """A versitygw with one user, whose key is in a file that boto3 reads. It has no cache: a change counts at once."""

    endpoint: str
    file: Path
    numbers: Iterator[int]
    user: str = ""

    def admin(self, *arguments: str) -> None:
        command = [str(GATEWAY), "admin", "--access", ROOT[0], "--secret", ROOT[1], "--endpoint-url", self.endpoint]
        subprocess.run([*command, *arguments], check=True, capture_output=True)

    def rotate(self, *, tell: bool = True) -> None:
        """Give the user another key, and end the old one. ``tell``: write it into the file."""
        old, self.user = self.user, f"user{next(self.numbers)}"
        self.admin("create-user", "--access", self.user, "--secret", f"secret-{self.user}", "--role", "admin")
        if old:
            self.admin("delete-user", "--access", old)
        if tell:
            self.tell()

    def tell(self, user: str = "") -> None:
        """Write a key into the file."""
        user = user or self.user
        text = f"[default]\naws_access_key_id = {user}\naws_secret_access_key = secret-{user}\n"
        self.file.with_suffix(".new").write_text(text)
        self.file.with_suffix(".new").replace(self.file)

    @property
    def options(self) -> dict[str, str]:
        return {"s3Endpoint": self.endpoint, "s3Addressing": "path", "s3Region": "us-east-1"}

    def place(self, folder: str) -> BlobPlace:
        return place_at(f"s3://bucket/{folder}", S3Settings(self.endpoint, "us-east-1", "path"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not GATEWAY.exists():
        pytest.skip(f"NOT RUN: needs Go (make builds {GATEWAY.name}).")
    folder, port = tmp_path_factory.mktemp("rotating"), find_free_port()
    (folder / "data").mkdir()
    (folder / "users").mkdir()
    command = [str(GATEWAY), "--port", f"127.0.0.1:{port}", "--iam-dir", str(folder / "users"), "--iam-cache-disable"]
    own = {**os.environ, "ROOT_ACCESS_KEY": ROOT[0], "ROOT_SECRET_KEY": ROOT[1]}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, "posix", str(folder / "data")], env=own, stdout=log, stderr=log)
    try:
        endpoint, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
        keys = dict(zip(("aws_access_key_id", "aws_secret_access_key"), ROOT, strict=True))
        client: Any = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        while time.monotonic() < deadline:
            with suppress(Exception):
                client.create_bucket(Bucket="bucket")
                break
            time.sleep(0.1)
        yield endpoint
    finally:
        process.kill()
        process.wait()


_numbers = itertools.count()


@pytest.fixture
def gateway(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    hide_credentials(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    found = Gateway(server, tmp_path / "credentials", _numbers)
    found.rotate()
    yield found
    found.admin("delete-user", "--access", found.user)


def write_large(place: BlobPlace) -> None:
    with place.create("large") as sink:
        sink.write(random.Random(0).randbytes(20 << 20))


OPERATIONS: dict[str, Callable[[BlobPlace, Path], object]] = {
    "put_if_absent": lambda place, _: place.put_if_absent("new", b"new"),
    "put": lambda place, _: place.put("old", b"old"),
    "get": lambda place, _: place.get("old"),
    "list": lambda place, _: place.list(),
    "download": lambda place, folder: place.download("old", folder / "file"),
    "delete": lambda place, _: place.delete("old"),
    "create": lambda place, _: write_large(place),
    "now_s": lambda place, _: place.now_s(),
    "walk": lambda place, _: place.walk(),
    "copy_from": lambda place, _: place.copy_from(place, "old", 3, "copy"),  # type: ignore[attr-defined]
    "discard_unfinished": lambda place, _: place.discard_unfinished(60),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_succeeds_when_the_key_has_changed_in_its_file(
    operation: str, gateway: Gateway, tmp_path: Path
) -> None:
    place = gateway.place(f"operations/{operation}")
    place.put("old", b"old")
    gateway.rotate()
    OPERATIONS[operation](place, tmp_path)
    assert [blob.name for blob in place.list()] == {
        "put_if_absent": ["new", "old"],
        "delete": [],
        "copy_from": ["copy", "old"],
        "create": ["large", "old"],
    }.get(operation, ["old"])


def test_an_upload_in_parts_goes_on_when_the_key_changes_under_way(gateway: Gateway, tmp_path: Path) -> None:
    place, data = gateway.place("parts"), random.Random(1).randbytes(40 << 20)
    with place.create("large") as sink:
        sink.write(data[: 20 << 20])
        gateway.rotate()
        sink.write(data[20 << 20 :])
    place.download("large", tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == data


def test_an_error_ends_the_request_until_the_key_is_corrected(gateway: Gateway) -> None:
    place = gateway.place("wrong")
    place.put("object", b"content")
    gateway.rotate(tell=False)
    for wrong in ("", "nobody", "noone"):
        if wrong:
            gateway.tell(wrong)
        with pytest.raises(StorageError, match="Correct the credentials"):
            place.get("object")
    gateway.tell()
    assert place.get("object") == b"content"


def test_a_file_of_keys_is_found_that_was_not_there_before(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.file.unlink()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    place = place_at("s3://bucket/absent", S3Settings(gateway.endpoint, "eu-west-1", "path"))
    with pytest.raises(StorageError, match=r"Give this process, on .*, credentials"):
        place.put("object", b"content")
    gateway.tell()
    place.put("object", b"content")
    assert place.get("object") == b"content"


def test_a_storm_of_refusals_makes_one_client(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    """As many threads, and as many places, as may be: those that wait use what one has found."""
    places = [gateway.place(f"storm/{number}") for number in range(THREADS)]
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda place: place.put("object", b"content"), places))
        first = {id(place.client) for place in places}  # type: ignore[attr-defined]
        assert len(first) == 1
        caplog.clear()
        gateway.rotate(tell=False)
        refused = list(threads.map(is_refused, places * 10))
        assert all(refused)
        assert {id(place.client) for place in places} == first  # type: ignore[attr-defined]
        assert "has refused the credentials" not in caplog.text
        gateway.tell()
        assert set(threads.map(lambda place: place.get("object"), places * 10)) == {b"content"}
        assert len({id(place.client) for place in places} | first) == 2  # type: ignore[attr-defined]
        assert caplog.text.count("has refused the credentials") == 1
    assert gateway.place("storm/0").get("object") == b"content"


def is_refused(place: BlobPlace) -> bool:
    try:
        place.get("object")
    except StorageError:
        return True
    return False


def test_a_query_and_a_reader_of_its_state_go_on_when_the_key_changes(gateway: Gateway, make_lab: MakeLab) -> None:
    lab = make_lab()
    place = {
        "checkpoint_root": "s3://bucket/query",
        "state_dir": "s3://bucket/query/state/0/3",
        "options": gateway.options,
    }
    handle, commit_id = lab.open(**place), None
    for version in range(4):
        (commit_id,) = lab.grow(handle, 1, version, commit_id)
        gateway.rotate()
    lab.server.call("close", handle=handle)
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(**place), 4, commit_id).rows == expected(4)
