"""How to reach Google Cloud Storage."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from pyspark_ckpt.state_store.errors import InvalidInputError

EMULATOR = "STORAGE_EMULATOR_HOST"
"""The variable of Google's own clients that names an emulator, which wants no credentials."""


@dataclass(frozen=True)
class GcsSettings:
    """How to reach the service. What is empty is left to Google's own chain.

    ``key``: the JSON of a service account, which is never shown. ``is_anonymous``: no credentials are sent.
    """

    endpoint: str = ""
    key: str = field(default="", repr=False)
    is_anonymous: bool = False

    def read_key(self) -> dict[str, Any]:
        """Return the key of a service account. Raises InvalidInputError (it is not one), which does not show it."""
        try:
            found = json.loads(self.key)
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("type") != "service_account":
            raise InvalidInputError(
                "The key of a service account for Google Cloud Storage is not the JSON of one.",
                hint="Give the file that `gcloud iam service-accounts keys create` writes.",
            )
        return found


def find_gcs_settings() -> GcsSettings:
    """Return the settings of this process's environment."""
    given = os.environ.get(EMULATOR, "")
    if not given:
        return GcsSettings()
    return GcsSettings(given if "://" in given else f"http://{given}", is_anonymous=True)
