"""Keyed operators for PySpark streams: state that is declared, and processors that are given keys or whole columns."""

from pyspark_ckpt.operators.counters import Counter
from pyspark_ckpt.operators.group_states import with_states
from pyspark_ckpt.operators.keyed import KeyedStream, keyed
from pyspark_ckpt.operators.keys import Keys
from pyspark_ckpt.operators.processors import Context, KeyedProcessor, VectorContext, VectorProcessor
from pyspark_ckpt.operators.states import AggregatingState, ListState, MapState, ReducingState, ValueState
from pyspark_ckpt.operators.timers import Timer, Timers
from pyspark_ckpt.operators.ttl import Ttl

__all__ = [
    "AggregatingState",
    "Context",
    "Counter",
    "KeyedProcessor",
    "KeyedStream",
    "Keys",
    "ListState",
    "MapState",
    "ReducingState",
    "Timer",
    "Timers",
    "Ttl",
    "ValueState",
    "VectorContext",
    "VectorProcessor",
    "keyed",
    "with_states",
]
