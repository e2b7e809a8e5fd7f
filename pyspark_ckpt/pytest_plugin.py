"""The pytest fixture ``ckpt_harnesses``; pytest finds it where this package is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark_ckpt.operators import ConnectedStreams, KeyedStream
    from pyspark_ckpt.testing import Harness


class Harnesses:
    """Makes harnesses that are closed when the test ends. The arguments are those of ``pyspark_ckpt.testing``."""

    def __init__(self, note: Callable[[Harness], object]) -> None:
        """Call ``note`` with each harness."""
        from pyspark_ckpt import testing  # noqa: PLC0415 - pytest loads this module in runs that do not need it

        self.keyed: Callable[..., KeyedStream[Harness]] = partial(testing.keyed, note=note)
        """See ``pyspark_ckpt.testing.keyed``."""
        self.connect: Callable[..., ConnectedStreams[Harness]] = partial(testing.connect, note=note)
        """See ``pyspark_ckpt.testing.connect``."""


@pytest.fixture
def ckpt_harnesses() -> Iterator[Any]:
    """Make harnesses, as ``pyspark_ckpt.testing`` does; they are closed when the test ends."""
    with ExitStack() as stack:
        yield Harnesses(lambda harness: stack.callback(harness.close))
