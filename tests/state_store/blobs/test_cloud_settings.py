"""What settings of Hadoop mean for Google Cloud Storage and Azure, and that no secret of them is shown."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_ckpt.state_store.blobs import HadoopSettings, place_at
from pyspark_ckpt.state_store.blobs.object_store.azure_secrets import AccountKey, SasToken
from pyspark_ckpt.state_store.blobs.object_store.azure_settings import find_azure_settings
from pyspark_ckpt.state_store.blobs.object_store.gcs_settings import find_gcs_settings
from pyspark_ckpt.state_store.errors import InvalidInputError, StorageError
from tests.services.cloud_services import ACCOUNT, HOST, KEY, CloudService, connection

pytestmark = pytest.mark.usefixtures("no_machine")


def test_a_key_of_hadoop_reaches_the_account(azure: CloudService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING", f"AccountName={ACCOUNT};BlobEndpoint={azure.endpoint}/{ACCOUNT}"
    )
    hadoop = HadoopSettings({f"fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net": KEY})
    place = place_at(azure.new_folder(), hadoop=hadoop)
    place.put("a", b"x")
    assert place.get("a") == b"x"


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
