"""Tests of keyed programs without Spark: rows in, rows out, in milliseconds, on the state code of a query.

::

    import pyspark_ckpt as ckpt

    stream = ckpt.testing.keyed("user string, n bigint", by="user")
    with stream.process(Count(), "user string, total bigint") as harness:
        assert harness.run([("ada", 1), ("ada", 2)]) == [("ada", 3)]
        assert harness.state("total") == {("ada",): 3}

Neither a session nor a JVM is needed; PySpark must be installed. ``strategies`` needs Hypothesis.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.state_store.extras import require_extra
from pyspark_ckpt.testing.cuts import check_cuts
from pyspark_ckpt.testing.harness import Harness
from pyspark_ckpt.testing.streams import BroadcastColumns, InputColumns, Rows, keyed, keyed_inputs

if TYPE_CHECKING:
    from pyspark_ckpt.testing import strategies
    from pyspark_ckpt.testing.crashes.crash import Batches, Survived, crash

__all__ = [
    "Batches",
    "BroadcastColumns",
    "Harness",
    "InputColumns",
    "Rows",
    "Survived",
    "check_cuts",
    "crash",
    "keyed",
    "keyed_inputs",
    "strategies",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module
    """Import what needs Hypothesis or psutil on first use. Raises ProcessError if that is not installed."""
    if name == "strategies":
        require_extra("hypothesis", "pyspark_ckpt.testing.strategies")
        return import_module("pyspark_ckpt.testing.strategies")
    if name not in {"Batches", "Survived", "crash"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_extra("psutil", f"pyspark_ckpt.testing.{name}")
    return getattr(import_module("pyspark_ckpt.testing.crashes.crash"), name)
