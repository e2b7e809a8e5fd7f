"""Read the state of a checkpoint as Arrow, without a Spark session or a JVM."""

from pyspark_ckpt.reading.differences import StateDiff, diff
from pyspark_ckpt.reading.reader import StateReader, open_state
from pyspark_ckpt.reading.stored_state import StoredState

__all__ = ["StateDiff", "StateReader", "StoredState", "diff", "open_state"]
