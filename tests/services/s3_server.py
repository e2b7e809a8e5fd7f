"""A real S3 service for tests: a given one, versitygw as ``make`` builds it, or MinIO in a container."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from pyspark_ckpt.state_store.blobs import BlobPlace, S3Settings, place_at
from tests.services import server_process

ENDPOINT = "PYSPARK_CKPT_TEST_S3"
GATEWAY = Path(__file__).parents[2] / ".tools" / "bin" / "versitygw"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_DEFAULT_REGION": "us-east-1"}
START_S = 30


@dataclass(frozen=True)
class S3Service:
    """A service and a new bucket in it; the credentials are in the environment."""

    endpoint: str
    bucket: str

    @property
    def options(self) -> dict[str, str]:
        """Options of ours to reach it."""
        return {"s3Endpoint": self.endpoint, "s3Addressing": "path"}

    @property
    def s3a(self) -> dict[str, str]:
        """Settings of Hadoop's S3A to reach it."""
        return {
            "fs.s3a.endpoint": self.endpoint,
            "fs.s3a.endpoint.region": str(boto3.session.Session().region_name),
            "fs.s3a.path.style.access": "true",
        }

    @property
    def s3a_keys(self) -> dict[str, str]:
        """The credentials, as S3A has them."""
        found = boto3.session.Session().get_credentials().get_frozen_credentials()
        named = {"access.key": found.access_key, "secret.key": found.secret_key, "session.token": found.token}
        return {f"fs.s3a.{name}": value for name, value in named.items() if value}

    def new_folder(self) -> str:
        """A prefix that nobody uses."""
        return f"s3://{self.bucket}/{uuid.uuid4().hex}"

    @property
    def client(self) -> Any:  # noqa: ANN401 - boto3 has no types
        """A client of the test's own."""
        config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1, "mode": "standard"})
        return boto3.client("s3", endpoint_url=self.endpoint, config=config)

    def files(self, folder: str) -> list[str]:
        """All keys below a folder."""
        prefix = folder.removeprefix(f"s3://{self.bucket}/")
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]


def place_of(service: S3Service) -> BlobPlace:
    """A new place in its bucket."""
    settings = S3Settings(endpoint=service.endpoint, addressing="path")
    return place_at(f"s3://{service.bucket}/{uuid.uuid4().hex}/state", settings)


def hide_credentials(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Let processes that this one starts find no credentials by themselves."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def use_credentials() -> None:
    """Let this process, and those that it starts, find the test's credentials, unless others are given."""
    if ENDPOINT not in os.environ:
        os.environ.update(CREDENTIALS)


@contextmanager
def running(folder: Path) -> Iterator[S3Service]:
    """A service with a new bucket; ``folder`` is where it keeps it. Skips the test if there is none."""
    use_credentials()
    if given := os.environ.get(ENDPOINT):
        yield _await_bucket(given)
    elif GATEWAY.exists():
        with _gateway(folder) as service:
            yield service
    elif Path("/var/run/docker.sock").exists():
        with _container() as endpoint:
            yield _await_bucket(endpoint)
    else:
        pytest.skip(f"NOT RUN: needs Go (make builds {GATEWAY.name}), a Docker engine, or {ENDPOINT}=<endpoint of S3>.")


@contextmanager
def _gateway(folder: Path) -> Iterator[S3Service]:
    folder.mkdir(parents=True)
    keys = {"ROOT_ACCESS_KEY": os.environ["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": os.environ["AWS_SECRET_ACCESS_KEY"]}
    found: list[S3Service] = []
    with server_process.running(
        lambda port: [str(GATEWAY), "--port", f"127.0.0.1:{port}", "posix", str(folder)],
        folder.parent / f"{folder.name}.log",
        {**os.environ, **keys},
        lambda port: found.append(_create_bucket(f"http://127.0.0.1:{port}")),
    ):
        yield found[0]


@contextmanager
def _container() -> Iterator[str]:
    from testcontainers.minio import MinioContainer

    keys = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    with MinioContainer(access_key=keys[0], secret_key=keys[1]) as minio:
        yield f"http://{minio.get_config()['endpoint']}"


def _create_bucket(endpoint: str) -> S3Service:
    service = S3Service(endpoint, f"test-{uuid.uuid4().hex[:12]}")
    service.client.create_bucket(Bucket=service.bucket)
    return service


def _await_bucket(endpoint: str) -> S3Service:
    deadline = time.monotonic() + START_S
    while True:
        try:
            return _create_bucket(endpoint)
        except (BotoCoreError, ClientError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Service]:
    """A real S3 service with a new bucket."""
    with running(tmp_path_factory.mktemp("s3") / "data") as service:
        yield service
