"""Wait for what processes do; ``pyspark_ckpt.testing.crashes.processes`` finds and ends them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 120.0
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"

_T = TypeVar("_T")


def eventually(what: str, look: Callable[[], _T], pause_s: float = 0.02, patience_s: float = PATIENCE_S) -> _T:
    """Return the first truthy result of ``look``. Raises AssertionError if there is none for a long time."""
    deadline = time.monotonic() + patience_s
    while not (seen := look()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(pause_s)
    return seen
