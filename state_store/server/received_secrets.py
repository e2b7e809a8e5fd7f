"""Secrets that the JVM passes to this process through stdin, a pipe that no other process can read.

Requests do not carry secrets, because py4j can be configured to log its messages. They carry a number that refers to
the secrets.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import msgspec

from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.json_objects import DAMAGE

ARRIVAL_S = 30.0
SECRETS_KEPT = 256
"""Keys may be rotated without end, so the oldest secrets are dropped. Requests refer only to the last 64 written."""


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: int
    secrets: dict[str, str]

    def __repr__(self) -> str:
        """Never show a secret."""
        return f"_Line(number={self.number})"


class ReceivedSecrets:
    """Secrets by number, kept in memory only. Safe to use from many threads."""

    def __init__(self) -> None:
        """Start with no secrets."""
        self._secrets: dict[int, Mapping[str, str]] = {}
        self._arrived = threading.Condition()

    def keep(self, line: bytes) -> None:
        """Store the secrets of a line of stdin. Raises InvalidInputError, which does not show the line."""
        try:
            arrived = msgspec.json.decode(line, type=_Line)
        except DAMAGE:
            raise InvalidInputError("A line of stdin is malformed: no JVM of this release wrote it.") from None
        with self._arrived:
            self._secrets[arrived.number] = arrived.secrets
            while len(self._secrets) > SECRETS_KEPT:
                del self._secrets[min(self._secrets)]
            self._arrived.notify_all()

    def await_secrets(self, number: int) -> Mapping[str, str]:
        """Return the secrets with this number; wait for them. Raises LifecycleError if they do not arrive."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: number in self._secrets, ARRIVAL_S):
                raise LifecycleError(f"Secrets number {number} did not arrive from the JVM.", retryable=True)
            return self._secrets[number]
