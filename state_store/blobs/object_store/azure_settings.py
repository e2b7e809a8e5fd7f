"""How to reach Azure Blob Storage: an account, a container in it, and credentials."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark_ckpt.state_store.errors import InvalidInputError

CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
"""The variable of Azure's own tools that has an account, its endpoint and its key, as an emulator has them."""


class Secret(Protocol):
    """Credentials, which are never shown. Equal ones are the same identity."""

    def make_credential(self) -> Any:  # noqa: ANN401 - the client of Azure takes many kinds
        """Return what the client of Azure takes as a credential."""
        ...


@dataclass(frozen=True)
class AccountKey:
    """The key of an account."""

    account: str
    key: str = field(repr=False)

    def make_credential(self) -> Any:  # noqa: ANN401 - as in the protocol
        """Return the key with the account that it is for."""
        from azure.core.credentials import AzureNamedKeyCredential  # noqa: PLC0415 - loaded where it is needed

        return AzureNamedKeyCredential(self.account, self.key)


@dataclass(frozen=True)
class SasToken:
    """A shared access signature."""

    token: str = field(repr=False)

    def make_credential(self) -> Any:  # noqa: ANN401 - as in the protocol
        """Return the signature."""
        from azure.core.credentials import AzureSasCredential  # noqa: PLC0415 - loaded where it is needed

        return AzureSasCredential(self.token.removeprefix("?"))


@dataclass(frozen=True)
class AzureSettings:
    """How to reach a container.

    ``url``: that of the container, as Hadoop writes it. ``secret``: None means Azure's own chain.
    """

    url: str
    account: str
    container: str
    endpoint: str
    secret: Secret | None = None

    def is_same_account(self, other: AzureSettings) -> bool:
        """Return whether both are containers of one account, reached with the same credentials."""
        return (self.endpoint, self.secret) == (other.endpoint, other.secret)


def find_azure_settings(scheme: str, container: str, host: str) -> AzureSettings:
    """Return the settings for ``scheme://container@host``, from the environment.

    Raises InvalidInputError (the connection string is damaged), which does not show it.
    """
    account = host.partition(".")[0]
    found = AzureSettings(
        f"{scheme}://{container}@{host}", account, container, f"https://{host.replace('.dfs.', '.blob.', 1)}"
    )
    given = _read_connection(os.environ.get(CONNECTION, ""))
    if given.get("AccountName", "") != account:
        return found
    return AzureSettings(
        found.url, account, container, given.get("BlobEndpoint", found.endpoint).rstrip("/"), _find_secret(given)
    )


def _find_secret(given: dict[str, str]) -> Secret | None:
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
