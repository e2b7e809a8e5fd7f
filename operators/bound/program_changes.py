"""What a program may change in the states of a checkpoint. Any other change, in any partition, is refused by name.

The descriptors of one state may differ between partitions. Spark calls a program only for partitions that have rows, so
each partition may have seen only some of the earlier programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from pyspark_ckpt.operators.declarations.operator import ProcessorState
from pyspark_ckpt.operators.encoding.evolution import adaptation, read_schemas
from pyspark_ckpt.operators.types.field_names import ANOTHER_NAME, require_exact
from pyspark_ckpt.operators.types.stored_types import arrow_type
from pyspark_ckpt.operators.types.type_names import arrow_type_named, spark_name
from pyspark_ckpt.operators.types.value_types import ValueType
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError
from pyspark_ckpt.state_store.format.meta import Descriptor, StateMeta, TimeToLive, have_same_keys, longer_history

KEY = "key"
"""The keys of a map. They may not change their type; the values may."""


def merge_knowledge(own: Descriptor | None, others: Iterable[Descriptor]) -> Descriptor | None:
    """Merge what all partitions know of a state: every type that it has had, and all former names of fields.

    Types therefore get the same numbers in all partitions. A history that diverges from ``own`` is left out.
    """
    found = own
    for other in others:
        if found is None:
            found = other
            continue
        longer = longer_history(found.value_schema, other.value_schema)
        if longer is not None:
            aliases = {**(other.aliases or {}), **(found.aliases or {})}
            found = replace(found, value_schema=longer, aliases=aliases or UNSET)
    return found


def check_change(stored: StateMeta, declared: Descriptor, state: ProcessorState | None) -> None:
    """Raise InvalidInputError unless the rows of a ``stored`` state can be read as it is ``declared`` now.

    ``state``: the declaration; None for an expiry index. Every field of a descriptor is compared.
    """
    for check in _CHECKS.values():
        check(stored, declared, state)


def _check_keys(stored: StateMeta, declared: Descriptor, _state: ProcessorState | None) -> None:
    before = stored.descriptor
    if not have_same_keys(before, declared):
        again = "Key by the same columns again, in the same order."
        raise InvalidInputError(
            f"State {stored.name!r} is stored by key ({_columns(before)}), but the program has the key "
            f"({_columns(declared)}).",
            hint=again if "partition" in declared.encoder else f"{again} {ANOTHER_NAME}",
        )


def _columns(descriptor: Descriptor) -> str:
    stored = descriptor.key_schema if isinstance(descriptor.key_schema, dict) else {}
    return ", ".join(f"{name} {spark_name(arrow_type_named(kind))}" for name, kind in stored.items())


_ENCODER_WORDS: Mapping[str, str] = {"kind": "as {}", "clock": "with clock={!r}"}
"""How messages name the fields of an encoder. Other fields go by their own name."""


def _check_encoder(stored: StateMeta, declared: Descriptor, _state: ProcessorState | None) -> None:
    before, now = stored.descriptor.encoder, declared.encoder
    groups, declared_groups = before.get("max_parallelism"), now.get("max_parallelism")
    if groups != declared_groups:
        raise InvalidInputError(
            f"State {stored.name!r} is stored with max_parallelism {groups}, but the program has {declared_groups}.",
            hint=f"Set max_parallelism={groups} again: it is fixed by the first batch of a checkpoint.",
        )
    for what in sorted({*before, *now}, key=lambda each: (each != "kind", each)):
        words = _ENCODER_WORDS.get(what, f"with {what} {{!r}}")
        if before.get(what) != now.get(what):
            old, new = words.format(before.get(what)), words.format(now.get(what))
            raise InvalidInputError(
                f"State {stored.name!r} is stored {old}, but the program declares it {new}.", hint=ANOTHER_NAME
            )


def _check_values(stored: StateMeta, declared: Descriptor, state: ProcessorState | None) -> None:
    types: Mapping[str, ValueType] = {} if state is None else state.types
    before = stored.descriptor.value_schema or {}
    if not isinstance(before, dict) or set(before) - set(types):
        raise InvalidInputError(
            f"State {stored.name!r} is stored with the types {str(before)[:200]}, but the program declares "
            f"{sorted(types)}.",
            hint=ANOTHER_NAME,
        )
    for what, kind in types.items():
        _check_types(stored, what, kind, declared)


def _check_life(stored: StateMeta, declared: Descriptor, _state: ProcessorState | None) -> None:
    """Raise InvalidInputError if the clock changes while there are rows: their stamps have times of the old clock."""
    before, now = stored.descriptor.ttl, declared.ttl
    if before is UNSET or now is UNSET or not stored.rows:
        return
    for what, may_change in _LIFE_MAY_CHANGE.items():
        old, new = getattr(before, what), getattr(now, what)
        if old != new and not may_change:
            raise InvalidInputError(
                f"State {stored.name!r} has rows with a time to live by {what}={old!r}, but the program declares "
                f"{what}={new!r}: the rows would expire too early or too late.",
                hint=f"Declare its ttl with {what}={old!r} again. {ANOTHER_NAME}",
            )


def _check_layout(what: str, stored: StateMeta, declared: Descriptor, _state: ProcessorState | None) -> None:
    old, new = getattr(stored.descriptor, what), getattr(declared, what)
    if old != new:
        raise InvalidInputError(
            f"State {stored.name!r} is stored with {what}={old}, but the program declares {what}={new}.",
            hint=ANOTHER_NAME,
        )


def _may_change(_stored: StateMeta, _declared: Descriptor, _state: ProcessorState | None) -> None:
    """Allow every change: rows are read by the present declaration."""


def _check_types(stored: StateMeta, what: str, kind: ValueType, declared: Descriptor) -> None:
    """Raise InvalidInputError unless every type with which values were ever written can be read."""
    aliases: Mapping[str, str] = declared.aliases or {}
    known = read_schemas(stored.descriptor, what, f"state {stored.name!r}")
    for schema in [] if known is None else known.schemas:
        if schema == kind.schema:
            continue
        old = arrow_type(schema)
        changed = (
            f"The {what} of state {stored.name!r} is stored as {spark_name(old)}, "
            f"but the program declares {spark_name(kind.arrow)}"
        )
        if what == KEY:
            raise InvalidInputError(f"{changed}.", hint=f"The keys of a map keep their type. {ANOTHER_NAME}")
        try:
            adaptation(old, kind.arrow, aliases)
            require_exact(old, kind.arrow, aliases)
        except InvalidInputError as problem:
            raise InvalidInputError(f"{changed}: {problem.message}", hint=problem.hint) from problem


Check: TypeAlias = Callable[[StateMeta, Descriptor, "ProcessorState | None"], None]

_CHECKS: Mapping[str, Check] = {
    "key_schema": _check_keys,
    "key_encoder": _check_encoder,
    "value_schema": _check_values,
    "ttl": _check_life,
    "ordered": partial(_check_layout, "ordered"),
    "multiple_values": partial(_check_layout, "multiple_values"),
    "internal": partial(_check_layout, "internal"),
    "value_schemas": partial(_check_layout, "value_schemas"),
    "aliases": _may_change,
}
"""The check of each field of a descriptor."""
_LIFE_MAY_CHANGE: Mapping[str, bool] = {"duration_ms": True, "refresh": True, "clock": False}
"""Whether each field of a time to live may change while rows have stamps: stamps are not rewritten."""


def require_all(checked: Iterable[str], kind: type[msgspec.Struct]) -> None:
    """Raise InternalError unless every field of a stored ``kind`` is among those that are compared."""
    if left := set(kind.__struct_fields__) ^ set(checked):
        raise InternalError(f"No rule says whether a program may change {sorted(left)} of a {kind.__name__}.")


require_all(_CHECKS, Descriptor)
require_all(_LIFE_MAY_CHANGE, TimeToLive)
