"""Keyed operators for PySpark streams: state descriptors, and processors that are given whole columns."""

from pyspark_ckpt.operators.keyed import KeyedStream, keyed
from pyspark_ckpt.operators.state import ValueState
from pyspark_ckpt.operators.vector import Keys, VectorContext, VectorProcessor

__all__ = ["KeyedStream", "Keys", "ValueState", "VectorContext", "VectorProcessor", "keyed"]
