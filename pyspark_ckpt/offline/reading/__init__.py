"""Read the state of a checkpoint as Arrow, without a Spark session or a JVM."""

from pyspark_ckpt.offline.reading.batch_changes import StateChangeFeed, change_feed
from pyspark_ckpt.offline.reading.differences import StateDiff, diff
from pyspark_ckpt.offline.reading.reader import StateReader, open_state
from pyspark_ckpt.offline.reading.stored_state import StoredState

__all__ = ["StateChangeFeed", "StateDiff", "StateReader", "StoredState", "change_feed", "diff", "open_state"]
