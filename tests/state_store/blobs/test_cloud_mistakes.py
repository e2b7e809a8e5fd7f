"""What is wrong with a URL or a credential of Google and Azure is told at once, and no secret is shown."""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pyspark_ckpt.state_store.blobs import HadoopSettings, RetryPolicy, place_at
from pyspark_ckpt.state_store.blobs.transfers import StoredFile, copy_object
from pyspark_ckpt.state_store.errors import InvalidInputError, StorageError
from tests.services.cloud_services import ACCOUNT, HOST, CloudService, connection

pytestmark = pytest.mark.usefixtures("no_machine")


@pytest.mark.usefixtures("azure")
def test_a_missing_container_and_an_unknown_host_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_at(f"abfss://not-there@{ACCOUNT}.dfs.core.windows.net/x")
    for ask in (lambda: place.put("a", b""), lambda: place.get("a"), place.list):
        with pytest.raises(StorageError, match="ContainerNotFound") as caught:
            ask()
        assert "Create the container" in caught.value.hint
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://no-such-host.invalid")
    unknown = place_at("gs://bucket/x", retries=RetryPolicy(1))
    with pytest.raises(StorageError, match=r"no-such-host\.invalid"):
        unknown.get("a")


@pytest.mark.usefixtures("gcs")
def test_a_missing_bucket_of_google_is_told() -> None:
    place = place_at("gs://not-there/x")
    for ask in (lambda: place.put("a", b""), place.list):
        with pytest.raises(StorageError, match="Create the bucket"):
            ask()


def test_a_wrong_key_of_azure_is_told_at_once_and_not_shown(
    azure: CloudService, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "d3Jvbmctd3Jvbmctd3Jvbmc="
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection(azure.endpoint, wrong))
    place = place_at(azure.new_folder())
    for ask in (lambda: place.put("a", b"x"), lambda: place.get("a"), place.list):
        with pytest.raises(StorageError, match="status 403") as caught:
            ask()
        assert caught.value.waited_s == 0
        assert "Correct the credentials" in caught.value.hint
        assert wrong not in f"{caught.value} {caught.value.__cause__!r}"


def test_missing_and_damaged_credentials_of_google_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    place = place_at("gs://bucket/x")
    asked = (
        *(lambda: place.get("a"), lambda: place.put("a", b""), lambda: place.put_if_absent("a", b"")),
        *(lambda: place.delete("a"), place.list, lambda: copy_object(place, StoredFile("a", 1, ""), place, "b")),
    )
    for ask in asked:
        with pytest.raises(StorageError, match="no credentials") as caught:
            ask()
        assert "GOOGLE_APPLICATION_CREDENTIALS" in caught.value.hint
    damaged = tmp_path / "key.json"
    for text in ("no JSON", json.dumps({"type": "service_account", "private_key": "SECRET", "client_email": "a@b"})):
        damaged.write_text(text)
        hadoop = HadoopSettings({"google.cloud.auth.service.account.json.keyfile": str(damaged)})
        with pytest.raises(StorageError) as caught:
            place_at("gs://bucket/x", hadoop=hadoop).get("a")
        assert "SECRET" not in str(caught.value)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("dbfs:/Volumes/a/b/c/state", "external location"),
        ("dbfs:/mnt/x", "abfss://"),
        ("wasbs://c@a.blob.core.windows.net/x", "abfss://container@account"),
        ("adl://a.azuredatalakestore.net/x", "Gen2"),
        ("gcs://bucket/x", "gs://bucket"),
        ("oss://bucket/x", "gs://"),
        ("abfss://container/x", "container@account"),
        ("abfss://container:secret@account.dfs.core.windows.net/x", "container@account"),
        ("gs:///x", "gs://bucket/prefix"),
    ],
)
def test_another_scheme_is_refused_with_what_to_write(uri: str, hint: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        place_at(uri)
    assert hint in caught.value.hint
    assert ":secret@" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://no-such-host.invalid"])
def test_a_signature_of_azure_is_not_shown_when_the_service_is_away(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a part of the URL of each request."""
    account = "AccountName=account;SharedAccessSignature=sv=2021-12-02&sig=SECRET%3D"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"{account};BlobEndpoint={endpoint}/account")
    place = place_at(f"abfss://c@{HOST}/x", retries=RetryPolicy(0.1))
    asked = (lambda: place.get("a"), lambda: place.put_if_absent("a", b"x"), place.list, place.remove_empty_folders)
    for ask in asked:
        with pytest.raises(StorageError, match=urlsplit(endpoint).hostname) as caught:
            ask()
        assert "SECRET" not in "".join(traceback.format_exception(caught.value))
    assert "has not answered" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_damaged_key_of_azure_is_told_at_once_and_not_shown(
    azure: CloudService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection(azure.endpoint, "SECRET?"))
    place = place_at(azure.new_folder())
    with pytest.raises(StorageError, match=r"key of the account .* is damaged") as caught:
        place.put("a", b"x")
    assert caught.value.waited_s == 0
    assert "Correct AccountKey" in caught.value.hint
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))


def test_a_new_key_of_google_is_used_when_its_file_was_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A query that is started again in the same processes finds the new one."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    file = tmp_path / "key.json"
    hadoop = HadoopSettings({"fs.gs.auth.service.account.json.keyfile": str(file)})
    said = []
    for number, text in enumerate(("not JSON", json.dumps({"type": "other"}))):
        file.write_text(text)
        os.utime(file, (number, number))
        with pytest.raises(StorageError) as caught:
            place_at("gs://bucket/x", hadoop=hadoop).get("a")
        said.append(caught.value.message)
    assert "damaged" in said[0]
    assert "neither the key of a service account" in said[1]
