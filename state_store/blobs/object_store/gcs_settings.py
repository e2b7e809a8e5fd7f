"""How to reach Google Cloud Storage: from the environment, and from the settings of Hadoop's connector.

Reference: https://github.com/GoogleCloudDataproc/hadoop-connectors/blob/master/gcs/CONFIGURATION.md
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.hadoop_settings import HadoopSettings

EMULATOR = "STORAGE_EMULATOR_HOST"
"""The variable of Google's own clients that names an emulator, which wants no credentials."""
KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
"""The variable of Google's own chain that names a file."""
CHAIN, ANONYMOUS, MACHINE = "chain", "anonymous", "machine"
"""The source of credentials if no key is given: Google's own chain, none, or the account of the machine."""

_PREFIXES = ("fs.gs.auth.", "google.cloud.auth.")
_TYPES = {
    "": CHAIN,
    "APPLICATION_DEFAULT": CHAIN,
    "COMPUTE_ENGINE": MACHINE,
    "UNAUTHENTICATED": ANONYMOUS,
    "SERVICE_ACCOUNT_JSON_KEYFILE": CHAIN,
    "WORKLOAD_IDENTITY_FEDERATION_CREDENTIAL_CONFIG_FILE": CHAIN,
}
_FILES = ("service.account.json.keyfile", "workload.identity.federation.credential.config.file")
_UNSUPPORTED = (
    *("impersonation.service.account", "access.token.provider", "access.token.provider.impl"),
    *("service.account.keyfile", "client.id", "refresh.token"),
)


@dataclass(frozen=True)
class PrivateKey:
    """The key of a service account. It is never shown."""

    email: str
    key_id: str = field(repr=False)
    key: str = field(repr=False)


@dataclass(frozen=True)
class GcsSettings:
    """How to reach the service. An empty ``endpoint`` is Google's own.

    ``source``: of the credentials if there is neither a ``file`` on this host nor a ``key``.
    """

    endpoint: str = ""
    source: str = CHAIN
    file: str = ""
    key: PrivateKey | None = None


def find_gcs_settings(hadoop: HadoopSettings) -> GcsSettings:
    """Return the settings of Hadoop's connector, completed from the environment.

    Raises InvalidInputError, which shows no secret (Hadoop has credentials that this package cannot use).
    """
    _refuse_unsupported(hadoop)
    kind = _find(hadoop, "type").upper()
    if kind not in _TYPES:
        raise _refusal(f"fs.gs.auth.type is {kind}")
    source = ANONYMOUS if _find(hadoop, "null.enable").lower() == "true" else _TYPES[kind]
    emulator = os.environ.get(EMULATOR, "")
    endpoint = hadoop.find("fs.gs.storage.root.url").rstrip("/")
    if emulator and not endpoint:
        return GcsSettings(emulator if "://" in emulator else f"http://{emulator}", ANONYMOUS)
    if source != CHAIN:
        return GcsSettings(endpoint, source)
    email, key_id, key = (
        _find(hadoop, f"service.account.{name}") for name in ("email", "private.key.id", "private.key")
    )
    if email and key:
        return GcsSettings(endpoint, key=PrivateKey(email, key_id, key.replace("\\n", "\n")))
    found = next((file for name in _FILES if (file := _find(hadoop, name))), "")
    return GcsSettings(endpoint, file=found)


def _find(hadoop: HadoopSettings, name: str) -> str:
    return hadoop.find(*(f"{prefix}{name}" for prefix in _PREFIXES))


def _refuse_unsupported(hadoop: HadoopSettings) -> None:
    for name in _UNSUPPORTED:
        if _find(hadoop, name):
            raise _refusal(f"fs.gs.auth.{name} is set")


def _refusal(what: str) -> InvalidInputError:
    return InvalidInputError(
        f"Hadoop's connector to Google Cloud Storage has credentials that the state store cannot use: {what}.",
        hint="For the whole query, use fs.gs.auth.service.account.json.keyfile, fs.gs.auth.type=COMPUTE_ENGINE or "
        "APPLICATION_DEFAULT: the same identity must write state and Spark's own files. See docs/storage.md.",
    )
