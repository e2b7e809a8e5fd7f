"""Real services for tests of Google Cloud Storage and Azure: given ones, or the emulators that ``make`` installs.

What the emulators are and are not, as far as the tests found out:

- fake-gcs-server 1.56.1 honours ``ifGenerationMatch=0`` atomically with its backend in memory: 16 threads that create
  one name have one winner, in one request and in resumable uploads. It knows JSON requests; of those in XML, which some
  clients use, it refuses all writes. It checks no credentials. It takes a question
  how much of a resumable upload has arrived for the end of the upload, and appends a part that comes twice once more.
  So the repetition of a part cannot be shown here: tests of faults use objects of one request.
- Azurite 3.37.0 honours ``If-None-Match: *`` atomically, in Put Blob and in Put Block List. It checks keys and
  signatures. It has no hierarchical namespace, and answers no requests to the ``dfs`` endpoint.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from pyspark_ckpt.state_store.blobs import BlobPlace, RetryPolicy, place_at
from tests.services import server_process

TOOLS = Path(__file__).parents[2] / ".tools"
FAKE_GCS = TOOLS / "gcs" / "fake-gcs-server"
AZURITE = TOOLS / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
GCS_BUCKET = "PYSPARK_CKPT_TEST_GCS"
AZURE_CONTAINER = "PYSPARK_CKPT_TEST_AZURE"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, and its key, which is no secret."""
HOST = "account.dfs.core.windows.net"
"""Of an account that nobody reaches."""


@dataclass(frozen=True)
class CloudService:
    """A service and a container in it; what reaches them is in the environment.

    ``root``: the URL of the container. ``endpoint``: of an emulator, else empty. ``client``: of the service's own
    library, for its bucket or container.
    """

    root: str
    endpoint: str
    client: Any

    @property
    def options(self) -> dict[str, str]:
        """Options of ours to reach it: none."""
        return {}

    def new_folder(self) -> str:
        """A prefix that nobody uses."""
        return f"{self.root}/{uuid.uuid4().hex}"

    def environment(self, endpoint: str) -> dict[str, str]:
        """Variables with which a process reaches the service at another endpoint, such as that of a proxy."""
        if self.root.startswith("gs:"):
            return {"STORAGE_EMULATOR_HOST": endpoint}
        return {"AZURE_STORAGE_CONNECTION_STRING": connection(endpoint)}


def far(service: CloudService, endpoint: str, patch: pytest.MonkeyPatch, timeout_s: float = 30.0) -> BlobPlace:
    """A new place of the service at another endpoint."""
    for name, value in service.environment(endpoint).items():
        patch.setenv(name, value)
    return place_at(f"{service.new_folder()}/state", retries=RetryPolicy(timeout_s))


def connection(endpoint: str, key: str = KEY) -> str:
    """The connection string of Azurite at an endpoint."""
    return f"AccountName={ACCOUNT};AccountKey={key};BlobEndpoint={endpoint}/{ACCOUNT};"


@contextmanager
def running_gcs(folder: Path) -> Iterator[CloudService]:
    """Google Cloud Storage. Skips the test if there is none. ``folder``: for a log."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    if given := os.environ.get(GCS_BUCKET):
        yield CloudService(given.rstrip("/"), "", Client().bucket(given.split("/")[2]))
        return
    if not FAKE_GCS.exists():
        pytest.skip(f"NOT RUN: needs Go (make builds {FAKE_GCS.name}), or {GCS_BUCKET}=gs://bucket/folder.")
    command = [str(FAKE_GCS), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-log-level", "error"]
    with server_process.running(
        lambda port: [
            *command,
            *("-port", str(port)),
            *("-external-url", f"http://127.0.0.1:{port}"),
            *("-public-host", f"127.0.0.1:{port}"),
        ],
        folder / "log",
    ) as port:
        endpoint = f"http://127.0.0.1:{port}"
        anonymous: Any = AnonymousCredentials
        client = Client("tests", anonymous(), client_options={"api_endpoint": endpoint})
        bucket = client.create_bucket(f"test-{uuid.uuid4().hex[:12]}", retry=None)
        os.environ["STORAGE_EMULATOR_HOST"] = endpoint
        yield CloudService(f"gs://{bucket.name}", endpoint, bucket)


@contextmanager
def running_azure(folder: Path) -> Iterator[CloudService]:
    """Azure Blob Storage. Skips the test if there is none. ``folder``: for a log."""
    from azure.identity import DefaultAzureCredential
    from azure.storage.blob import ContainerClient

    if given := os.environ.get(AZURE_CONTAINER):
        container, _, host = given.split("/")[2].partition("@")
        account = f"https://{host.replace('.dfs.', '.blob.')}"
        yield CloudService(given.rstrip("/"), "", ContainerClient(account, container, DefaultAzureCredential()))
        return
    with running_azurite(folder) as endpoint:
        client = new_container(endpoint)
        os.environ["AZURE_STORAGE_CONNECTION_STRING"] = connection(endpoint)
        yield CloudService(describe_container(client), endpoint, client)


@contextmanager
def running_azurite(folder: Path, certificate: tuple[Path, Path] | None = None) -> Iterator[str]:
    """The endpoint of a new Azurite. Skips the test if there is none. ``folder``: for a log.

    ``certificate``: a certificate and its key, for TLS; then tokens are taken, too.
    """
    if not AZURITE.exists() or which("node") is None:
        pytest.skip(
            f"NOT RUN: needs npm (make installs Azurite), or {AZURE_CONTAINER}=abfss://container@account/folder."
        )
    command = ["node", str(AZURITE), "--blobHost", "127.0.0.1", "--inMemoryPersistence"]
    if certificate is not None:
        command += ["--oauth", "basic", "--cert", str(certificate[0]), "--key", str(certificate[1])]
    command += ["--silent", "--disableTelemetry"]
    with server_process.running(lambda port: [*command, "--blobPort", str(port)], folder / "log") as port:
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{port}"


def new_container(endpoint: str, **options: Any) -> Any:  # noqa: ANN401
    """A new container in Azurite, as a client of Azure's library, when Azurite runs."""
    from azure.storage.blob import ContainerClient

    name = f"test-{uuid.uuid4().hex[:12]}"
    client = ContainerClient.from_connection_string(
        connection(endpoint), name, api_version="2021-12-02", retry_total=0, **options
    )
    client.create_container()
    return client


def describe_container(client: Any) -> str:  # noqa: ANN401
    """The URL of a container in Azurite."""
    return f"abfss://{client.container_name}@{ACCOUNT}.dfs.core.windows.net"


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudService]:
    """Google Cloud Storage, with a new bucket in an emulator."""
    with running_gcs(tmp_path_factory.mktemp("gcs")) as service:
        yield service


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudService]:
    """Azure Blob Storage, with a new container in an emulator."""
    with running_azure(tmp_path_factory.mktemp("azure")) as service:
        yield service


CLOUDS = ("gcs", "azure")


@pytest.fixture(params=CLOUDS)
def cloud(request: pytest.FixtureRequest) -> CloudService:
    """Each of them."""
    service: CloudService = request.getfixturevalue(request.param)
    return service


@pytest.fixture
def no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing ask the machine for an identity."""
    monkeypatch.setenv("NO_GCE_CHECK", "true")
