"""The bound class for each kind of declaration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_ckpt.operators.bound.base import Binding
from pyspark_ckpt.operators.bound.collections import BoundList, BoundMap
from pyspark_ckpt.operators.bound.partition_states import BoundBroadcast, BoundOperatorList
from pyspark_ckpt.operators.bound.timers import BoundTimers
from pyspark_ckpt.operators.bound.values import BoundAggregating, BoundReducing, BoundValue
from pyspark_ckpt.operators.declarations.partition_states import BroadcastState, OperatorListState
from pyspark_ckpt.operators.declarations.reducing_states import AggregatingState, ReducingState
from pyspark_ckpt.operators.declarations.states import Declared, ListState, MapState, ValueState
from pyspark_ckpt.operators.declarations.timers import Timers

_BOUND: Mapping[type[Declared], type[Any]] = {
    ValueState: BoundValue,
    ListState: BoundList,
    MapState: BoundMap,
    ReducingState: BoundReducing,
    AggregatingState: BoundAggregating,
    Timers: BoundTimers,
    OperatorListState: BoundOperatorList,
    BroadcastState: BoundBroadcast,
}


def find_kind(declared: Declared) -> type[Declared]:
    """Return the kind of state that is declared, or Timers. The user may have declared it by a subclass."""
    return next(each for each in type(declared).__mro__ if each in _BOUND)


def bind(binding: Binding) -> Any:
    """Bind a state or timers to their rows in the session. The result is also a Kept."""
    return _BOUND[find_kind(binding.state)](binding)
