"""Secrets that the JVM entrusts to this process: they come through its stdin, a pipe that nobody else can read.

They are not in requests, because py4j can be told to log what it sends. A request has their number instead.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import msgspec

from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.json_objects import DAMAGE

ARRIVAL_S = 30.0
SECRETS_KEPT = 256
"""The JVM names the last 64 that it has written; keys may change for ever."""


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: int
    secrets: dict[str, str]

    def __repr__(self) -> str:
        """Never show a secret."""
        return f"_Line(number={self.number})"


class Entrusted:
    """Secrets by their number, in memory only. Safe to use from many threads."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._secrets: dict[int, Mapping[str, str]] = {}
        self._arrived = threading.Condition()

    def keep(self, line: bytes) -> None:
        """Keep what a line of stdin holds. Raises InvalidInputError, which does not show the line."""
        try:
            arrived = msgspec.json.decode(line, type=_Line)
        except DAMAGE:
            raise InvalidInputError("A line of stdin is not what a JVM of this release writes.") from None
        with self._arrived:
            self._secrets[arrived.number] = arrived.secrets
            while len(self._secrets) > SECRETS_KEPT:
                del self._secrets[min(self._secrets)]
            self._arrived.notify_all()

    def await_secrets(self, number: int) -> Mapping[str, str]:
        """Return the secrets of a number that the JVM has written. Raises LifecycleError if they do not come."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: number in self._secrets, ARRIVAL_S):
                raise LifecycleError(f"The secrets number {number} of the JVM did not arrive.", retryable=True)
            return self._secrets[number]
