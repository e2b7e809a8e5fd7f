"""Credentials of Azure. They are never shown, and equal ones are the same identity.

Credentials that get tokens make one request in a try, and the retry policy of the place repeats it.
"""

from __future__ import annotations

import base64
import logging
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark_ckpt.state_store.blobs.object_store.service import RequestError
from pyspark_ckpt.state_store.extras import require_extra

_DAMAGED = (
    "Correct AccountKey in AZURE_STORAGE_CONNECTION_STRING or, in a query, fs.azure.account.key: it is a number in "
    "base64, as shown in the portal of Azure."
)


class Secret(Protocol):
    """Credentials of any kind."""

    def make_credential(self, tokens: Any) -> Any:  # noqa: ANN401 - the client of Azure takes many kinds
        """Return a credential for the client of Azure. ``tokens``: the transport of requests for tokens.

        Makes no request. Raises RequestError, ValueError (it is damaged or incomplete).
        """
        ...


@dataclass(frozen=True)
class AccountKey:
    """The key of an account."""

    account: str
    key: str = field(repr=False)

    def make_credential(self, tokens: Any) -> Any:  # noqa: ANN401 - as in the protocol
        """Return the key with its account. Raises RequestError (it is damaged)."""
        del tokens
        try:
            base64.b64decode(self.key)
        except ValueError:  # the error's text may show parts of the key
            raise RequestError(f"the key of the account {self.account} is damaged", hint=_DAMAGED) from None
        from azure.core.credentials import AzureNamedKeyCredential  # noqa: PLC0415 - loaded where it is needed

        return AzureNamedKeyCredential(self.account, self.key)


@dataclass(frozen=True)
class SasToken:
    """A shared access signature."""

    token: str = field(repr=False)

    def make_credential(self, tokens: Any) -> Any:  # noqa: ANN401 - as in the protocol
        """Return the signature."""
        del tokens
        from azure.core.credentials import AzureSasCredential  # noqa: PLC0415 - loaded where it is needed

        return AzureSasCredential(self.token.removeprefix("?"))


@dataclass(frozen=True)
class ClientSecret:
    """The secret of an application in Entra ID."""

    authority: str
    tenant: str
    client_id: str
    secret: str = field(repr=False)

    def make_credential(self, tokens: Any) -> Any:  # noqa: ANN401 - as in the protocol
        """Return the credential of the application."""
        return _identity().ClientSecretCredential(
            self.tenant,
            self.client_id,
            self.secret,
            authority=self.authority,
            disable_instance_discovery=True,  # the endpoint is the one that Hadoop's connector uses
            **_of_tokens(tokens),
        )


@dataclass(frozen=True)
class ManagedIdentity:
    """The identity of a machine; ``client_id``: which one, if it has several."""

    client_id: str

    def make_credential(self, tokens: Any) -> Any:  # noqa: ANN401 - as in the protocol
        """Return the credential of the machine."""
        return _identity().ManagedIdentityCredential(client_id=self.client_id or None, **_of_tokens(tokens))


@dataclass(frozen=True)
class WorkloadIdentity:
    """The identity of a pod of Kubernetes. Its environment has the values that are empty here."""

    tenant: str
    client_id: str
    file: str

    def make_credential(self, tokens: Any) -> Any:  # noqa: ANN401 - as in the protocol
        """Return the credential of the pod."""
        given = {"tenant_id": self.tenant, "client_id": self.client_id, "token_file_path": self.file}
        known = {name: value for name, value in given.items() if value}
        return _identity().WorkloadIdentityCredential(**known, **_of_tokens(tokens))


@dataclass(frozen=True)
class OwnChain:
    """Azure's own chain of credentials."""

    def make_credential(self, tokens: Any) -> Any:  # noqa: ANN401 - as in the protocol
        """Return the chain."""
        return _identity().DefaultAzureCredential(**_of_tokens(tokens))


def is_fixed(secret: Secret | None) -> bool:
    """Return whether requests are signed with the secret itself, rather than with tokens obtained with it."""
    return isinstance(secret, AccountKey | SasToken)


def _of_tokens(tokens: Any) -> dict[str, Any]:  # noqa: ANN401 - a transport
    return {"transport": tokens, "retry_total": 0}


def _identity() -> Any:  # noqa: ANN401 - a module
    require_extra("azure.identity", "A place of Azure")
    import azure.identity  # noqa: PLC0415 - slow to import

    # It logs each credential that it has tried. Without any handler, Python would print that before our error.
    logging.getLogger("azure.identity").addHandler(logging.NullHandler())
    return azure.identity
