"""Keyed operators for PySpark streams: declared state, and processors that work key by key or on whole columns."""

from pyspark_ckpt.operators.broadcast import BroadcastInput
from pyspark_ckpt.operators.declarations.counters import MetricCounter
from pyspark_ckpt.operators.declarations.partition_states import BroadcastState, OperatorListState
from pyspark_ckpt.operators.declarations.processors import Context, KeyedProcessor, VectorContext, VectorProcessor
from pyspark_ckpt.operators.declarations.reducing_states import AggregatingState, ReducingState
from pyspark_ckpt.operators.declarations.states import ListState, MapState, ValueState
from pyspark_ckpt.operators.declarations.timers import Timer, Timers
from pyspark_ckpt.operators.declarations.ttl import Ttl
from pyspark_ckpt.operators.encoding.distinct_keys import Keys
from pyspark_ckpt.operators.groups.with_states import with_states
from pyspark_ckpt.operators.keyed import KeyedStream, keyed
from pyspark_ckpt.operators.keyed_inputs import KeyedInput, KeyedInputs, keyed_inputs
from pyspark_ckpt.operators.watermarks import with_watermark

__all__ = [
    "AggregatingState",
    "BroadcastInput",
    "BroadcastState",
    "Context",
    "KeyedInput",
    "KeyedInputs",
    "KeyedProcessor",
    "KeyedStream",
    "Keys",
    "ListState",
    "MapState",
    "MetricCounter",
    "OperatorListState",
    "ReducingState",
    "Timer",
    "Timers",
    "Ttl",
    "ValueState",
    "VectorContext",
    "VectorProcessor",
    "keyed",
    "keyed_inputs",
    "with_states",
    "with_watermark",
]
