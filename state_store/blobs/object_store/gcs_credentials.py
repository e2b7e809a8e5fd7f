"""Credentials of Google: their source, and whether their file has changed."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import google.auth
from google.auth._cloud_sdk import get_application_default_credentials_path
from google.auth.compute_engine import Credentials as MachineCredentials
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.auth.identity_pool import Credentials as FederatedCredentials
from google.oauth2.service_account import Credentials as ServiceAccount

from pyspark_ckpt.state_store.blobs.object_store.gcs_settings import (
    ANONYMOUS,
    CHAIN,
    KEY_FILE,
    MACHINE,
    GcsSettings,
)
from pyspark_ckpt.state_store.blobs.object_store.service import RequestError

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
TOKENS = "https://oauth2.googleapis.com/token"
WHERE = (
    "Credentials are found by Google's own chain (GOOGLE_APPLICATION_CREDENTIALS, gcloud auth application-default "
    "login, the service account of the machine) or, in a query, in the settings of Hadoop's connector (fs.gs.auth.*): "
    "see docs/storage.md."
)


def read_source(settings: GcsSettings) -> str:
    """Return a checksum of the file with the credentials. Empty if there is none.

    Tokens are not in it: Google's library itself asks for another when one is refused.
    """
    if settings.key is not None or settings.source != CHAIN:
        return ""
    own: Any = get_application_default_credentials_path
    file = Path(settings.file or os.environ.get(KEY_FILE) or own())
    return sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def find_credentials(settings: GcsSettings) -> Any:  # noqa: ANN401 - google.auth has few types
    """Return the credentials. Raises RequestError (damaged ones), and the errors of Google's own chain."""
    if settings.source == ANONYMOUS:
        anonymous: Any = AnonymousCredentials
        return anonymous()
    if settings.source == MACHINE:
        of_machine: Any = MachineCredentials
        return of_machine(scopes=[SCOPE])
    if settings.key:
        of_key: Any = ServiceAccount
        given = {
            "client_email": settings.key.email,
            "private_key_id": settings.key.key_id,
            "private_key": settings.key.key,
            "token_uri": TOKENS,
        }
        try:
            return of_key.from_service_account_info(given, scopes=[SCOPE])
        except (ValueError, GoogleAuthError):  # their texts may show parts of the key
            raise RequestError("fs.gs.auth.service.account.private.key is damaged", hint=WHERE) from None
    if settings.file:
        return _read_file(settings.file)
    found, _ = google.auth.default(scopes=[SCOPE])
    return found


def _read_file(file: str) -> Any:  # noqa: ANN401 - google.auth has few types
    """Return the credentials of a file of this host: the key of a service account, or a federated identity."""
    try:
        given = json.loads(Path(file).read_text("utf-8"))
        kind = given.get("type") if isinstance(given, dict) else None
        if kind == "service_account":
            of_key: Any = ServiceAccount
            return of_key.from_service_account_info(given, scopes=[SCOPE])
        if kind == "external_account":
            federated: Any = FederatedCredentials
            return federated.from_info(given, scopes=[SCOPE])
    except OSError as problem:
        raise RequestError(f"{file} cannot be read: {problem.strerror}", hint=WHERE) from problem
    except (ValueError, GoogleAuthError):  # their texts may show parts of a key
        raise RequestError(f"the key in {file} is damaged", hint=WHERE) from None
    raise RequestError(f"{file} is neither the key of a service account nor a federated identity", hint=WHERE)
