"""The pytest fixture ``ckpt_harnesses``; pytest finds it where this package is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest


@pytest.fixture
def ckpt_harnesses() -> Iterator[Any]:
    """Make harnesses with the functions of ``pyspark_ckpt.testing``; they are closed when the test ends."""
    from pyspark_ckpt.testing.streams import Streams  # noqa: PLC0415 - pytest loads this module in other runs, too

    with ExitStack() as stack:
        yield Streams(lambda harness: stack.callback(harness.close))
