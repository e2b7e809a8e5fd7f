"""Refused calls: for the current key in a VectorProcessor, and for many keys in a KeyedProcessor.

Each error names the call to use instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

from pyspark_ckpt.operators.bound.binding import find_kind
from pyspark_ckpt.operators.declarations.partition_states import PartitionState
from pyspark_ckpt.operators.declarations.reducing_states import AggregatingState, ReducingState
from pyspark_ckpt.operators.declarations.states import Declared, ListState, MapState, ValueState
from pyspark_ckpt.operators.declarations.timers import Timers
from pyspark_ckpt.state_store.errors import InvalidInputError

_ANY = {"exists": "exists_keys(keys)", "clear": "clear_keys(keys)"}
_PUT_ENTRIES = "put_entries(keys, index, map_keys, values)"
ONE_KEY_CALLS: Mapping[type[Declared], Mapping[str, str]] = {
    ValueState: {**_ANY, "value": "get(keys)", "update": "put(keys, values)"},
    ListState: {
        **_ANY,
        "get": "get_lists(keys)",
        "add": "add_rows(keys, index, values)",
        "add_all": "add_rows(keys, index, values)",
        "update": "put_lists(keys, lists)",
    },
    MapState: {
        **_ANY,
        "get": "get_entries(keys, index, map_keys)",
        "contains": "contains_entries(keys, index, map_keys)",
        "put": _PUT_ENTRIES,
        "put_all": _PUT_ENTRIES,
        "remove": f"{_PUT_ENTRIES} with null as the values",
        "items": "get_range(keys, begin, end)",
        "keys": "get_range(keys)",
        "values": "get_range(keys)",
        "is_empty": "exists_keys(keys)",
    },
    ReducingState: {**_ANY, "get": "get_values(keys)", "add": "add_rows(keys, index, values)"},
    AggregatingState: {**_ANY, "get": "get_results(keys)", "add": "add_rows(keys, index, values)"},
    Timers: {"register": "register_rows(keys, index, at)", "delete": "delete_rows(keys, index, at)"},
}
"""For each kind of state, and for timers: the call that does the same for many keys."""

_ANY_KEYS = {"exists_keys": "exists()", "clear_keys": "clear()"}
MANY_KEY_CALLS: Mapping[type[Declared], Mapping[str, str]] = {
    ValueState: {**_ANY_KEYS, "get": "value()", "put": "update(value)"},
    ListState: {
        **_ANY_KEYS,
        "get_lists": "get()",
        "add_rows": "add(element) or add_all(elements)",
        "put_lists": "update(elements)",
    },
    MapState: {
        **_ANY_KEYS,
        "exists_keys": "is_empty()",
        "get_entries": "get(key)",
        "contains_entries": "contains(key)",
        "put_entries": "put(key, value) or put_all(entries)",
        "get_range": "items(begin, end)",
    },
    ReducingState: {**_ANY_KEYS, "exists_keys": "get()", "get_values": "get()", "add_rows": "add(value)"},
    AggregatingState: {**_ANY_KEYS, "exists_keys": "get()", "get_results": "get()", "add_rows": "add(value)"},
    Timers: {"register_rows": "register(at)", "delete_rows": "delete(at)"},
}
"""For each kind of state, and for timers: the call that does the same for the current key."""


def refuse_one_key_calls(bound: Any, uid: str) -> None:
    """Make every call for the current key raise InvalidInputError, which names the call for many keys.

    The methods are replaced, so that they do not have to check whether there is a key.
    """
    why = "is for the current key, but a VectorProcessor is called for many keys at once"
    _refuse_calls(bound, uid, ONE_KEY_CALLS, why)


def refuse_many_key_calls(bound: Any, uid: str) -> None:
    """Make every call for many keys raise InvalidInputError, which names the call for the current key."""
    why = "is for many keys, but a KeyedProcessor is called for one key at a time"
    _refuse_calls(bound, uid, MANY_KEY_CALLS, why)


def _refuse_calls(bound: Any, uid: str, calls: Mapping[type[Declared], Mapping[str, str]], why: str) -> None:
    kind = find_kind(bound)
    if issubclass(kind, PartitionState):  # its calls are of no key
        return
    for call, instead in calls[kind].items():
        message = f"{kind.__name__} {bound.name!r} of keyed operator {uid!r}: {call}() {why}."
        vars(bound)[call] = partial(_refuse, message, instead)


def _refuse(message: str, instead: str, *_: object, **__: object) -> NoReturn:
    raise InvalidInputError(message, hint=f"Call {instead}.")
