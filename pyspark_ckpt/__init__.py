"""A state store for PySpark Structured Streaming, and the call that installs it in a session.

::

    import pyspark_ckpt
    from pyspark.sql import SparkSession

    spark = pyspark_ckpt.configure(SparkSession.builder).getOrCreate()

Importing this package does not import PySpark, so that the state server, a process of its own, starts quickly. The
rest of the public names (keyed operators, savepoints, the state reader) are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.pyspark_releases import require_data_sources
from pyspark_ckpt.session import configure, jar_path, spark_conf
from pyspark_ckpt.state_store.errors import (
    CkptError,
    ConflictError,
    DamagedCopyError,
    FormatError,
    InternalError,
    InvalidInputError,
    LifecycleError,
    NotFoundError,
    ProcessError,
    StorageError,
)
from pyspark_ckpt.state_store.format.names import PROVIDER_CLASS

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pyspark_ckpt.branching import branch
    from pyspark_ckpt.metrics.exporter import MetricsExport, metrics
    from pyspark_ckpt.moving_in import adopt
    from pyspark_ckpt.moving_out import hand_back
    from pyspark_ckpt.offline.advice.report import Advice
    from pyspark_ckpt.offline.reading import (
        StateChangeFeed,
        StateDiff,
        StateReader,
        StoredState,
        change_feed,
        diff,
        open_state,
    )
    from pyspark_ckpt.offline.writing.drafts import changes, testing
    from pyspark_ckpt.operators import (
        AggregatingState,
        BroadcastInput,
        BroadcastState,
        ConnectedStreams,
        Context,
        Counter,
        KeyedInput,
        KeyedProcessor,
        KeyedStream,
        Keys,
        ListState,
        MapState,
        OperatorListState,
        ReducingState,
        Timer,
        Timers,
        Ttl,
        ValueState,
        VectorContext,
        VectorProcessor,
        connect,
        keyed,
        with_states,
        with_watermark,
    )
    from pyspark_ckpt.running.advising import advise
    from pyspark_ckpt.running.attachment import attach
    from pyspark_ckpt.running.outcome import RescaledQuery, RescaleError
    from pyspark_ckpt.running.rescaling import rescale_query
    from pyspark_ckpt.savepoints import rescale, restore, savepoint, stop_with_savepoint
    from pyspark_ckpt.state_source import register_state_source
    from pyspark_ckpt.state_store.savepoints.savepoint import SavepointInfo
    from pyspark_ckpt.state_writing import compose_savepoint, explain_changes, write_state
    from pyspark_ckpt.web import WebPage, serve

__all__ = [
    "PROVIDER_CLASS",
    "Advice",
    "AggregatingState",
    "BroadcastInput",
    "BroadcastState",
    "CkptError",
    "ConflictError",
    "ConnectedStreams",
    "Context",
    "Counter",
    "DamagedCopyError",
    "FormatError",
    "InternalError",
    "InvalidInputError",
    "KeyedInput",
    "KeyedProcessor",
    "KeyedStream",
    "Keys",
    "LifecycleError",
    "ListState",
    "MapState",
    "MetricsExport",
    "NotFoundError",
    "OperatorListState",
    "ProcessError",
    "ReducingState",
    "RescaleError",
    "RescaledQuery",
    "SavepointInfo",
    "StateChangeFeed",
    "StateDiff",
    "StateReader",
    "StorageError",
    "StoredState",
    "Timer",
    "Timers",
    "Ttl",
    "ValueState",
    "VectorContext",
    "VectorProcessor",
    "WebPage",
    "__version__",
    "adopt",
    "advise",
    "attach",
    "branch",
    "change_feed",
    "changes",
    "compose_savepoint",
    "configure",
    "connect",
    "diff",
    "explain_changes",
    "hand_back",
    "jar_path",
    "keyed",
    "metrics",
    "open_state",
    "register_state_source",
    "rescale",
    "rescale_query",
    "restore",
    "savepoint",
    "serve",
    "spark_conf",
    "stop_with_savepoint",
    "testing",
    "with_states",
    "with_watermark",
    "write_state",
]

_MODULES = ("changes", "testing")
_LATER = {
    **{name: "pyspark_ckpt.operators" for name in __all__ if name not in globals()},  # except those below
    **dict.fromkeys(
        ("StateChangeFeed", "StateDiff", "StateReader", "StoredState", "change_feed", "diff", "open_state"),
        "pyspark_ckpt.offline.reading",
    ),
    # Spark looks for DefaultSource in every package whose name begins with pyspark_.
    **dict.fromkeys(("register_state_source", "DefaultSource"), "pyspark_ckpt.state_source"),
    **dict.fromkeys(("SavepointInfo",), "pyspark_ckpt.state_store.savepoints.savepoint"),
    **dict.fromkeys(("WebPage", "serve"), "pyspark_ckpt.web"),
    **dict.fromkeys(("RescaleError", "RescaledQuery"), "pyspark_ckpt.running.outcome"),
    "Advice": "pyspark_ckpt.offline.advice.report",
    "advise": "pyspark_ckpt.running.advising",
    "attach": "pyspark_ckpt.running.attachment",
    "rescale_query": "pyspark_ckpt.running.rescaling",
    "adopt": "pyspark_ckpt.moving_in",
    "branch": "pyspark_ckpt.branching",
    "hand_back": "pyspark_ckpt.moving_out",
    **dict.fromkeys(("compose_savepoint", "explain_changes", "write_state"), "pyspark_ckpt.state_writing"),
    **dict.fromkeys(("MetricsExport", "metrics"), "pyspark_ckpt.metrics.exporter"),
    **dict.fromkeys(("savepoint", "stop_with_savepoint", "restore", "rescale"), "pyspark_ckpt.savepoints"),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - each name is what its module has
    """Import a public name on first use. Raises ProcessError if it needs PySpark, which is not installed."""
    if name in _MODULES:
        return import_module(f"pyspark_ckpt.{name}")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _LATER[name] == "pyspark_ckpt.state_source":
        require_data_sources(f"pyspark_ckpt.{name}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
