"""State in Google Cloud Storage and Azure under a faulty network, and with wrong settings: clear errors, at once."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
import traceback
import tracemalloc
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from azure.storage.blob import ResourceTypes, generate_account_sas
from requests import PreparedRequest, Response, Session

from pyspark_ckpt.state_store.blobs import BlobPlace, HadoopSettings, RetryPolicy, place_at
from pyspark_ckpt.state_store.blobs.object_store.azure_secrets import AccountKey, SasToken
from pyspark_ckpt.state_store.blobs.object_store.azure_settings import find_azure_settings
from pyspark_ckpt.state_store.blobs.object_store.gcs_settings import find_gcs_settings
from pyspark_ckpt.state_store.blobs.transfers import StoredFile, copy_object
from pyspark_ckpt.state_store.errors import InvalidInputError, NotFoundError, StorageError
from tests.faults.faulty_s3 import Faults, assert_works, proxy
from tests.faults.outages import KINDS, Wire, wire
from tests.services.cloud_services import ACCOUNT, KEY, CloudService, connection

FAULTS = (
    "slow_down",
    "no_answer",
    "cut",
    "refused",
    "late",
    "page_200",
    "page_404",
    "empty_200",
    "json_200",
    "garbled",
)
BIG = os.urandom(20 << 20)
MIDDLE = 6 << 20
"""Of an object that is one request."""
HOST = "account.dfs.core.windows.net"


@pytest.fixture(autouse=True)
def _no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing ask the machine for an identity."""
    monkeypatch.setenv("NO_GCE_CHECK", "true")


def large_of(service: CloudService) -> bytes:
    """An object in parts, if the service takes a part again: see ``tests/services/cloud_services.py``."""
    return BIG[:MIDDLE] if service.root.startswith("gs:") else BIG


def far(service: CloudService, endpoint: str, patch: pytest.MonkeyPatch, timeout_s: float = 30.0) -> BlobPlace:
    """A new place of the service at another endpoint."""
    for name, value in service.environment(endpoint).items():
        patch.setenv(name, value)
    return place_at(f"{service.new_folder()}/state", retries=RetryPolicy(timeout_s))


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", FAULTS)
def test_a_place_does_what_it_says_when_one_kind_of_fault_is_met(
    kind: str, cloud: CloudService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other request meets the fault."""
    faults = Faults(lambda _method, number: kind if number % 2 else None)
    with proxy(cloud.endpoint, faults) as endpoint:
        assert_works(far(cloud, endpoint, monkeypatch), large_of(cloud), tmp_path)
    assert faults.seen[kind] > 3


@pytest.mark.in_turn
def test_objects_are_right_when_requests_meet_random_faults(
    cloud: CloudService, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(7)
    faults = Faults(lambda _method, _number: draw.choice(FAULTS) if draw.random() < 0.3 else None)
    with proxy(cloud.endpoint, faults) as endpoint:
        place = far(cloud, endpoint, monkeypatch)
        for number in range(30):
            assert place.put_if_absent(f"{number:02d}", b"%d" % number)
            assert not place.put_if_absent(f"{number:02d}", b"other")
        with place.create("large") as sink:
            sink.write(large_of(cloud))
        assert place.get("large") == large_of(cloud)
        assert [place.get(blob.name) for blob in place.list()][:-1] == [b"%d" % number for number in range(30)]


@pytest.fixture
def cut(cloud: CloudService) -> Iterator[Wire]:
    there = urlsplit(cloud.endpoint)
    with wire((str(there.hostname), int(there.port or 0))) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_an_upload_goes_on_when_its_connection_is_cut_in_the_middle(
    kind: str, azure: CloudService, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = urlsplit(azure.endpoint)
    with wire((str(there.hostname), int(there.port or 0))) as cut:
        place = far(azure, f"http://127.0.0.1:{cut.port}", monkeypatch, 12)
        _write_through(place, cut, kind)


def _write_through(place: BlobPlace, cut: Wire, kind: str) -> None:
    with place.create("large") as sink:
        sink.write(BIG[: 9 << 20])
        with cut.outage(kind):
            sink.write(BIG[9 << 20 :])
            time.sleep(0.2)
    assert place.get("large") == BIG


def test_nothing_half_is_left_when_a_service_stays_away(
    cloud: CloudService, cut: Wire, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = far(cloud, f"http://127.0.0.1:{cut.port}", monkeypatch, 1.5)
    place.put("there", BIG)

    def write() -> None:
        with place.create("large") as sink:
            sink.write(BIG[: 9 << 20])
            with cut.outage("refused"):
                sink.write(BIG)
                raise TimeoutError("the writer has waited long enough")

    with pytest.raises((StorageError, TimeoutError)):
        write()
    with cut.outage("reset"), pytest.raises(StorageError, match=r"tried for [0-9]+ s \(placeTimeout is 1.5 s\)") as why:
        place.put_if_absent("a", b"x")
    assert why.value.outcome == "unknown"
    assert why.value.retryable
    with cut.outage("refused"), pytest.raises(StorageError, match="placeTimeout"):
        place.download("there", tmp_path / "copy")
    assert [blob.name for blob in place.walk()] == ["there"]


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


def test_a_key_of_hadoop_reaches_the_account(azure: CloudService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING", f"AccountName={ACCOUNT};BlobEndpoint={azure.endpoint}/{ACCOUNT}"
    )
    hadoop = HadoopSettings({f"fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net": KEY})
    place = place_at(azure.new_folder(), hadoop=hadoop)
    place.put("a", b"x")
    assert place.get("a") == b"x"


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
    "settings",
    [
        {"auth.type": "Custom", "oauth.provider.type": "com.example.Mine"},
        {"auth.type": "OAuth", "oauth.provider.type": "o.RefreshTokenBasedTokenProvider"},
        {"auth.type": "OAuth", "oauth.provider.type": "o.ClientCredsTokenProvider", "oauth2.client.id": "i"},
        {"auth.type": "SAS"},
        {"auth.type": "SAS", "../sas.token.provider.type": "com.example.Mine", "../sas.fixed.token": "SECRET"},
        {"keyprovider": "o.ShellDecryptionKeyProvider", "key": "SECRET"},
    ],
)
def test_credentials_of_hadoop_that_are_not_understood_are_refused(settings: dict[str, str]) -> None:
    named = {f"fs.azure.account.{name}".replace("account.../", ""): value for name, value in settings.items()}
    hadoop = HadoopSettings(named)
    with pytest.raises(InvalidInputError, match=r"cannot use.*fs\.azure\.account\.") as caught:
        place_at(f"abfss://c@{HOST}/x", hadoop=hadoop)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({f"account.key.{HOST}": "SECRET", "account.key": "other"}, "AccountKey"),
        ({"account.auth.type": "SharedKey", "account.key": "SECRET"}, "AccountKey"),
        ({f"account.auth.type.{HOST}": "SAS", f"sas.fixed.token.{HOST}": "SECRET"}, "SasToken"),
        (
            {
                "account.auth.type": "SAS",
                "sas.token.provider.type": "org.apache.hadoop.fs.azurebfs.sas.FixedSASTokenProvider",
                "sas.fixed.token": "SECRET",
            },
            "SasToken",
        ),
        (
            {
                "account.auth.type": "OAuth",
                "account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
                "account.oauth2.client.endpoint": "https://login.microsoftonline.com/tenant/oauth2/token",
                "account.oauth2.client.id": "id",
                "account.oauth2.client.secret": "SECRET",
            },
            "ClientSecret",
        ),
        ({"account.auth.type": "OAuth", "account.oauth.provider.type": "o.MsiTokenProvider"}, "ManagedIdentity"),
        (
            {"account.auth.type": "OAuth", "account.oauth.provider.type": "o.WorkloadIdentityTokenProvider"},
            "WorkloadIdentity",
        ),
        ({"account.key.other.dfs.core.windows.net": "SECRET"}, "NoneType"),
        ({}, "NoneType"),
    ],
)
def test_credentials_of_hadoop_are_used_and_not_shown(
    settings: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    hadoop = HadoopSettings({f"fs.azure.{name}": value for name, value in settings.items()})
    found = find_azure_settings("abfss", "c", HOST, hadoop)
    assert type(found.secret).__name__ == kind
    assert found.endpoint == "https://account.blob.core.windows.net"
    assert "SECRET" not in f"{found!r} {hadoop!r}"


def test_a_setting_of_the_container_comes_before_that_of_its_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Hadoop's connector since 3.4.2."""
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    kind = {"fs.azure.account.auth.type": "SAS"}
    tokens = {"": "all", f".{HOST}": "account", f".c.{HOST}": "own", f".other.{HOST}": "other"}
    for left in (".c.", ".acc", ""):
        hadoop = HadoopSettings(
            {**kind, **{f"fs.azure.sas.fixed.token{scope}": each for scope, each in tokens.items()}}
        )
        found = find_azure_settings("abfss", "c", HOST, hadoop)
        assert found.secret == SasToken({".c.": "own", ".acc": "account", "": "all"}[left])
        assert found.unread == (f"fs.azure.sas.fixed.token.other.{HOST}",)
        tokens.pop(f".c.{HOST}" if left == ".c." else f".{HOST}", None)
    assert find_azure_settings("abfss", "other", HOST, hadoop).secret == SasToken("other")
    keys = HadoopSettings({f"fs.azure.account.key.c.{HOST}": "own", f"fs.azure.account.key.{HOST}": "account"})
    assert find_azure_settings("abfss", "c", HOST, keys).secret == AccountKey("account", "own")


@pytest.mark.parametrize(
    "name",
    [
        f"fs.azure.sas.c.{ACCOUNT}.blob.core.windows.net",
        f"fs.azure.account.key.{ACCOUNT}.blob.core.windows.net",
        f"fs.azure.account.key.{ACCOUNT}",
        f"fs.azure.account.auth.type.c.{ACCOUNT}.dfs.core.windows.net",
    ],
)
def test_credentials_that_abfss_does_not_read_are_named_where_none_are_found(
    name: str, azure: CloudService, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "d3Jvbmctd3Jvbmctd3Jvbmc="
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection(azure.endpoint, wrong))
    place = place_at(azure.new_folder(), hadoop=HadoopSettings({name: "SECRET"}))
    with pytest.raises(StorageError) as caught:
        place.get("a")
    assert caught.value.hint.endswith(f"Not read: {name}.")
    assert "SECRET" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("settings", "meaning"),
    [
        ({}, {"source": "chain"}),
        ({"fs.gs.auth.type": "COMPUTE_ENGINE"}, {"source": "machine"}),
        ({"fs.gs.auth.type": "UNAUTHENTICATED"}, {"source": "anonymous"}),
        ({"google.cloud.auth.service.account.json.keyfile": "/k.json"}, {"file": "/k.json"}),
        ({"fs.gs.storage.root.url": "https://storage.example/"}, {"endpoint": "https://storage.example"}),
    ],
)
def test_settings_of_hadoop_for_google_mean_the_same_here(
    settings: dict[str, str], meaning: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    found = find_gcs_settings(HadoopSettings(settings))
    assert {name: getattr(found, name) for name in meaning} == meaning


@pytest.mark.parametrize(
    "settings",
    [
        {"fs.gs.auth.type": "ACCESS_TOKEN_PROVIDER"},
        {"fs.gs.auth.impersonation.service.account": "a@b"},
        {"google.cloud.auth.service.account.keyfile": "/k.p12"},
    ],
)
def test_credentials_of_hadoop_for_google_that_are_not_understood_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match=r"cannot use: fs\.gs\.auth\."):
        place_at("gs://b/x", hadoop=HadoopSettings(settings))


def test_a_private_key_of_hadoop_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    names = {"email": "a@b", "private.key.id": "SECRET-1", "private.key": "SECRET-2"}
    hadoop = HadoopSettings({f"fs.gs.auth.service.account.{name}": value for name, value in names.items()})
    assert "SECRET" not in repr(find_gcs_settings(hadoop))
    with pytest.raises(StorageError) as caught:
        place_at("gs://bucket/x", hadoop=hadoop).get("a")
    assert "SECRET" not in str(caught.value)


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


@pytest.mark.in_turn
def test_a_large_object_takes_little_memory(cloud: CloudService, tmp_path: Path) -> None:
    """In parts, of which a few are in memory at once."""
    place, piece = place_at(cloud.new_folder()), os.urandom(1 << 20)
    tracemalloc.start()
    try:
        with place.create("large") as sink:
            for _ in range(160):
                sink.write(piece)
        place.download("large", tmp_path / "copy")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "copy").stat().st_size == 160 << 20
    assert most < 240 << 20
    assert threading.active_count() < 60


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


def test_the_service_copies_when_the_account_is_reached_by_a_signature(
    azure: CloudService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure wants the signature for the source of the copy, too. Azurite does not look at it."""
    until = datetime.now(timezone.utc) + timedelta(hours=1)
    token = generate_account_sas(ACCOUNT, KEY, ResourceTypes(container=True, object=True), "rwdlac", until)
    account = f"AccountName={ACCOUNT};SharedAccessSignature={token}"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"{account};BlobEndpoint={azure.endpoint}/{ACCOUNT}")
    place, other = place_at(azure.new_folder()), place_at(azure.new_folder())
    asked: list[str] = []
    send = Session.send

    def watch(session: Session, request: PreparedRequest, **given: Any) -> Response:  # noqa: ANN401
        asked.append(str(request.headers.get("x-ms-copy-source", "")))
        return send(session, request, **given)

    monkeypatch.setattr(Session, "send", watch)
    place.put("a", b"x")
    copy_object(place, StoredFile("a", 1, "not looked at"), other, "b")
    assert other.get("b") == b"x"
    (source,) = filter(None, asked)
    assert source.endswith(f"/a?{token}")


def test_places_of_one_bucket_share_their_connections(cloud: CloudService) -> None:
    """A query has a place for each store."""
    root = cloud.new_folder()
    place_at(f"{root}/first").put("a", b"")
    process = psutil.Process()
    before = process.num_fds()
    places = [place_at(f"{root}/{number}") for number in range(50)]
    for place in places:
        place.put("a", b"")
    assert process.num_fds() - before < 10


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


def test_only_objects_are_asked_for(gcs: CloudService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket itself needs another right than those that the documents name."""
    asked: list[str] = []
    with proxy(gcs.endpoint, Faults(before=lambda _method, path: asked.append(path))) as endpoint:
        place = far(gcs, endpoint, monkeypatch)
        assert place.put_if_absent("a", b"x")
        assert not place.put_if_absent("a", b"x")
        for _ in range(3):
            with pytest.raises(NotFoundError):
                place.get("b")
        place.list()
        time.sleep(0.3)
    assert [path for path in asked if not re.search(r"/b/[^/]+/o", path)] == []


def test_a_network_that_hides_headers_does_not_mix_versions(
    cloud: CloudService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the tag of a version, the parts of an object could be those of several."""
    with proxy(cloud.endpoint, Faults(lambda method, _number: "untagged" if method == "GET" else None)) as endpoint:
        place = far(cloud, endpoint, monkeypatch, 0.5)
        place.put("a", BIG)
        with pytest.raises(StorageError, match=r"generation|ETag"):
            place.get("a")


def test_many_folders_are_removed_when_each_request_is_slow(
    azure: CloudService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they take longer than one request may."""
    with proxy(azure.endpoint, Faults(before=lambda _method, _path: time.sleep(0.12))) as endpoint:
        place = far(azure, endpoint, monkeypatch, 1.2)
        for number in range(25):
            key = f"{place.url.removeprefix(azure.root).strip('/')}/folder-{number}"
            azure.client.upload_blob(key, b"", metadata={"hdi_isfolder": "true"})
        place.remove_empty_folders()
    prefix = place.url.removeprefix(azure.root).strip("/")
    assert list(azure.client.list_blobs(name_starts_with=prefix)) == []


def test_a_copy_that_never_ends_is_given_up(azure: CloudService, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy(azure.endpoint, Faults(lambda _method, _number: "pending")) as endpoint:
        place = far(azure, endpoint, monkeypatch, 1.5)
        place.put("a", b"x")
        with pytest.raises(StorageError, match="the copy is still pending") as caught:
            copy_object(place, StoredFile("a", 1, "not looked at"), place, "b")
    assert caught.value.retryable
