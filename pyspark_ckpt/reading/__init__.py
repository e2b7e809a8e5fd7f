"""Read the state of a checkpoint as Arrow, without a Spark session or a JVM."""

from pyspark_ckpt.reading.batch_changes import StateChangeFeed, change_feed
from pyspark_ckpt.reading.differences import StateDiff, diff
from pyspark_ckpt.reading.reader import StateReader, open_state
from pyspark_ckpt.reading.stored_state import StoredState

__all__ = ["StateChangeFeed", "StateDiff", "StateReader", "StoredState", "change_feed", "diff", "open_state"]
