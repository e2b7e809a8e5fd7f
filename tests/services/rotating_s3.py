"""A real S3 service whose keys change: a versitygw with one user at a time."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from pyspark_ckpt.state_store.blobs import BlobPlace, S3Settings, place_at
from tests.services import server_process
from tests.services.s3_server import GATEWAY, hide_credentials

ROOT = ("root", "root-secret")


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
def rotating_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not GATEWAY.exists():
        pytest.skip(f"NOT RUN: needs Go (make builds {GATEWAY.name}).")
    folder = tmp_path_factory.mktemp("rotating")
    (folder / "data").mkdir()
    (folder / "users").mkdir()
    command = [str(GATEWAY), "--iam-dir", str(folder / "users"), "--iam-cache-disable"]
    with server_process.running(
        lambda port: [*command, "--port", f"127.0.0.1:{port}", "posix", str(folder / "data")],
        folder / "log",
        {**os.environ, "ROOT_ACCESS_KEY": ROOT[0], "ROOT_SECRET_KEY": ROOT[1]},
        lambda port: _client(port).create_bucket(Bucket="bucket"),
    ) as port:
        yield f"http://127.0.0.1:{port}"


def _client(port: int) -> Any:  # noqa: ANN401 - boto3 has no types
    keys = dict(zip(("aws_access_key_id", "aws_secret_access_key"), ROOT, strict=True))
    return boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", **keys)


_numbers = itertools.count()


@pytest.fixture
def gateway(rotating_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    hide_credentials(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    found = Gateway(rotating_server, tmp_path / "credentials", _numbers)
    found.rotate()
    yield found
    found.admin("delete-user", "--access", found.user)
