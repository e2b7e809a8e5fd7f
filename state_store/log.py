"""Log messages of the state server: one JSON object per line on stderr, which the JVM passes on to its own log."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

LOGGER = "pyspark_ckpt"
STDERR = 2
MAX_CHARACTERS = 8192
"""The maximum length of a message. A longer one loses its middle. The JVM also cuts lines that are longer still."""
_TAIL = 2048
STANDING_S = 3600.0
MAX_STANDING = 100


if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # no generic class in Python 3.10


class StoreLog(_Adapter):
    """Logger that adds the store (``operator/partition/name``) to every message."""

    def __init__(self, module: str, store: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Log as ``module`` about ``store``. ``clock``: in seconds."""
        super().__init__(logging.getLogger(f"{LOGGER}.{module}"), {"store": store})
        self._clock = clock
        self._told_at: dict[str, float] = {}
        self._telling = threading.Lock()

    def warn_of_standing(self, message: str, *arguments: object) -> None:
        """Warn of a lasting problem: once an hour, however often it is found, until somebody acts.

        The last ``MAX_STANDING`` texts are remembered.
        """
        text, now = message % arguments, self._clock()
        with self._telling:
            told_at = self._told_at.pop(text, -math.inf)
            is_due = now - told_at >= STANDING_S
            self._told_at[text] = now if is_due else told_at
            if len(self._told_at) > MAX_STANDING:
                del self._told_at[next(iter(self._told_at))]
        if is_due:
            self.warning("%s", text)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:  # noqa: ANN401
        """Attach the store to the record."""
        kwargs["extra"] = dict(self.extra or {})
        return msg, kwargs


class JsonLines(logging.Formatter):
    """Format a record as the line that the JVM expects."""

    def format(self, record: logging.LogRecord) -> str:
        """Return ``{"level", "logger", "message", "store"?}`` on one line."""
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        line = {"level": record.levelname, "logger": record.name, "message": shorten(message)}
        store = getattr(record, "store", None)
        if store is not None:
            line["store"] = store
        return json.dumps(line)


def shorten(message: str) -> str:
    """Return ``message``, or only its beginning and its end if it is long."""
    left_out = len(message) - MAX_CHARACTERS
    if left_out <= 0:
        return message
    return f"{message[: MAX_CHARACTERS - _TAIL]} ... ({left_out:,} characters left out) ... {message[-_TAIL:]}"


def log_to_stderr(level: str) -> None:
    """Write messages from ``level`` up to stderr as JSON lines. A closed stderr is not an error.

    This writes to the file descriptor, because ``sys.stderr`` may be an object that keeps its input.
    """
    handler = logging.StreamHandler(open(STDERR, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - stays open
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(LOGGER).setLevel(level)
    logging.raiseExceptions = False
