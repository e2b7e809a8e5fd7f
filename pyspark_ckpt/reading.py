"""Read state of a checkpoint or savepoint as Arrow tables: a version, a key, or the changes of batches.

Neither Spark nor a JVM is needed, except for ``register_state_source``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_ckpt.offline.reading.batch_changes import StateChangeFeed, change_feed
from pyspark_ckpt.offline.reading.differences import StateDiff, diff
from pyspark_ckpt.offline.reading.reader import StateReader, open_state
from pyspark_ckpt.offline.reading.stored_state import StoredState
from pyspark_ckpt.pyspark_releases import require_data_sources

if TYPE_CHECKING:
    from pyspark_ckpt.state_source import register_state_source

__all__ = [
    "StateChangeFeed",
    "StateDiff",
    "StateReader",
    "StoredState",
    "change_feed",
    "diff",
    "open_state",
    "register_state_source",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the function, which needs PySpark
    if name != "register_state_source":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_data_sources(f"{__name__}.{name}")
    from pyspark_ckpt.state_source import register_state_source  # noqa: PLC0415 - of PySpark

    return register_state_source
