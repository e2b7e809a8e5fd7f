"""Reading the state of a checkpoint, as Arrow, with neither a Spark session nor a JVM."""

from pyspark_ckpt.reading.catalog import StoredState
from pyspark_ckpt.reading.reader import StateReader, open_state

__all__ = ["StateReader", "StoredState", "open_state"]
