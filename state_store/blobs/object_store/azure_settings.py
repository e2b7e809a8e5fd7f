"""How to reach Azure Blob Storage: from the environment, and from the settings of Hadoop's connector.

Reference: https://hadoop.apache.org/docs/stable/hadoop-azure/abfs.html
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from pyspark_ckpt.state_store.blobs.object_store.azure_secrets import (
    AccountKey,
    ClientSecret,
    ManagedIdentity,
    SasToken,
    Secret,
    WorkloadIdentity,
)
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.hadoop_settings import HadoopSettings

CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
"""The variable of Azure's own tools with an account, its endpoint and its key, as an emulator gives them."""

_ACCOUNT = "fs.azure.account."
_OAUTH = f"{_ACCOUNT}oauth2."
_SAS = "fs.azure.sas."
_KINDS = ("auth.type", "provider.type", "keyprovider")
_FIXED = ("", "FixedSASTokenProvider")
_CREDENTIALS = (_SAS, *(f"{_ACCOUNT}{name}" for name in ("key", "auth.", "oauth")))
"""How the names of credentials begin."""


@dataclass(frozen=True)
class AzureSettings:
    """How to reach a container.

    ``url``: of the container, as Hadoop writes it. ``secret``: None means Azure's own chain. ``unread``: the names of
    credentials for the account in Hadoop's configuration that do not count here.
    """

    url: str
    container: str
    endpoint: str
    secret: Secret | None = None
    unread: tuple[str, ...] = ()

    def is_same_account(self, other: AzureSettings) -> bool:
        """Return whether both are containers of one account, reached with the same credentials."""
        return (self.endpoint, self.secret) == (other.endpoint, other.secret)


def find_azure_settings(scheme: str, container: str, host: str, hadoop: HadoopSettings) -> AzureSettings:
    """Return the settings for ``scheme://container@host`` of Hadoop's connector, else of the environment.

    Raises InvalidInputError, which shows no secret (the connection string is damaged, or Hadoop has credentials that
    this package cannot use).
    """
    account, url = host.partition(".")[0], f"{scheme}://{container}@{host}"
    endpoint = f"https://{host.replace('.dfs.', '.blob.', 1)}"
    given = _read_connection(os.environ.get(CONNECTION, ""))
    if given.get("AccountName") != account:
        given = {}

    read: set[str] = set()

    def find(name: str) -> str:
        """Return a setting as Hadoop's connector finds it: of the container, of the account, or of all accounts.

        Kinds of credentials are not set for a container.
        """
        scopes = (f".{host}", "") if name.endswith(_KINDS) else (f".{container}.{host}", f".{host}", "")
        names = [f"{name}{scope}" for scope in scopes]
        read.update(names)
        return hadoop.find(*names)

    secret = _find_hadoops(find, account, has_other=bool(given)) or _find_connections(given)
    others = (name for name in hadoop.list_names() if name.startswith(_CREDENTIALS) and account in name.split("."))
    unread = tuple(name for name in others if name not in read)
    return AzureSettings(url, container, given.get("BlobEndpoint", endpoint).rstrip("/"), secret, unread)


def _find_hadoops(find: Callable[[str], str], account: str, *, has_other: bool) -> Secret | None:
    """Return the credentials of Hadoop's connector; None if it has none of its own."""
    kind = find(f"{_ACCOUNT}auth.type").lower()
    secret: Secret | None = None
    if kind in {"", "sharedkey"}:
        provider = find(f"{_ACCOUNT}keyprovider")
        if provider and not provider.endswith(".SimpleKeyProvider") and not has_other:
            raise _refusal(f"{_ACCOUNT}keyprovider is {provider}")
        key = find(f"{_ACCOUNT}key")
        return AccountKey(account, key) if key else None
    if kind == "sas":
        own, token = find(f"{_SAS}token.provider.type"), find(f"{_SAS}fixed.token")
        secret = SasToken(token) if token and own.rpartition(".")[2] in _FIXED else None  # else Hadoop asks the class
    elif kind == "oauth":
        secret = _find_oauth(find)
    if secret is None and not has_other:
        provider = find(f"{_ACCOUNT}oauth.provider.type") or find(f"{_SAS}token.provider.type")
        raise _refusal(f"{_ACCOUNT}auth.type is {kind}" + (f", with {provider}" if provider else ""))
    return secret


def _find_oauth(find: Callable[[str], str]) -> Secret | None:
    """Return the credentials of Entra ID; None if their kind is not supported, or they are incomplete."""
    provider = find(f"{_ACCOUNT}oauth.provider.type").rpartition(".")[2]
    client_id, tenant = find(f"{_OAUTH}client.id"), find(f"{_OAUTH}msi.tenant")
    if provider == "ClientCredsTokenProvider":
        address, secret = urlsplit(find(f"{_OAUTH}client.endpoint")), find(f"{_OAUTH}client.secret")
        of_address = address.path.strip("/").partition("/")[0]
        is_whole = client_id and secret and address.netloc and of_address
        return ClientSecret(f"https://{address.netloc}", of_address, client_id, secret) if is_whole else None
    if provider == "MsiTokenProvider":
        return ManagedIdentity(client_id)
    if provider == "WorkloadIdentityTokenProvider":
        return WorkloadIdentity(tenant, client_id, find(f"{_OAUTH}token.file"))
    return None


def _refusal(what: str) -> InvalidInputError:
    return InvalidInputError(
        f"Hadoop's connector to Azure has credentials that the state store cannot use, or that are incomplete: {what}.",
        hint="For the whole query, use a key, a fixed shared access signature, or ClientCredsTokenProvider, "
        "MsiTokenProvider or WorkloadIdentityTokenProvider: the same identity must write state and Spark's own files. "
        f"Or give the state store its own in {CONNECTION}. See docs/storage.md.",
    )


def _find_connections(given: dict[str, str]) -> Secret | None:
    if key := given.get("AccountKey"):
        return AccountKey(given["AccountName"], key)
    token = given.get("SharedAccessSignature")
    return SasToken(token) if token else None


def _read_connection(text: str) -> dict[str, str]:
    parts = [part.partition("=") for part in text.strip().strip(";").split(";") if part.strip()]
    if any(not middle for _, middle, _ in parts):
        raise InvalidInputError(
            f"The variable {CONNECTION} is not a connection string.",
            hint="It has the form AccountName=...;AccountKey=...;BlobEndpoint=... .",
        )
    return {name.strip(): value.strip() for name, _, value in parts}
