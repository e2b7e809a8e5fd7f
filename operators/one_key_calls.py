"""Calls for the current key, which there is none of where all keys of a partition are processed at once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

from pyspark_ckpt.operators.binding import kind_of
from pyspark_ckpt.operators.states import AggregatingState, Declared, ListState, MapState, ReducingState, ValueState
from pyspark_ckpt.operators.timers import Timers
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
"""Of each kind of state, and of timers: what does the same for many keys."""


def refuse_one_key_calls(bound: Any, uid: str) -> None:
    """Have every call for the current key raise InvalidInputError, which names the form for many keys.

    In place of the methods, so that these need not ask whether there is a key.
    """
    kind = kind_of(bound)
    what = f"{kind.__name__} {bound.name!r} of keyed operator {uid!r}"
    for call, instead in ONE_KEY_CALLS[kind].items():
        vars(bound)[call] = partial(_refuse, what, call, instead)


def _refuse(what: str, call: str, instead: str, *_: object, **__: object) -> NoReturn:
    raise InvalidInputError(
        f"{what}: {call}() is of the current key, and a VectorProcessor is called for many keys at once.",
        hint=f"Call {instead}.",
    )
