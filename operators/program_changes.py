"""What a program may change of the states that a checkpoint has. All else is refused by name, in whichever partition.

Of what the partitions say of one state, each may have seen some of the programs that there were, for Spark calls a
program only for partitions that have rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import UNSET
from msgspec.structs import replace

from pyspark_ckpt.operators.evolution import ANOTHER_NAME, adaptation, schemas_of
from pyspark_ckpt.operators.plan import ProcessorState
from pyspark_ckpt.operators.type_names import arrow_type_named, spark_name
from pyspark_ckpt.operators.value_types import ValueType, arrow_type
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.meta import Descriptor, State, has_keys_of
from pyspark_ckpt.state_store.redistribution import longer_history

KEY = "key"
"""Of a map: its values may change their type, its keys may not."""


def known_as(own: Descriptor | None, others: Iterable[Descriptor]) -> Descriptor | None:
    """What is known of a state in all partitions together: every type that it had, and all former names of fields.

    So types get the same numbers in all of them. What has parted from ``own`` is not taken up.
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


def check_change(stored: State, declared: Descriptor, state: ProcessorState | None) -> None:
    """Raise InvalidInputError unless the rows of a ``stored`` state can be read as what is ``declared`` now.

    ``state``: the declaration; None for an index of expiry.
    """
    who, before = f"State {stored.name!r}", stored.descriptor
    if not has_keys_of(before, declared):
        again = "Key by the same columns again, in the same order."
        raise InvalidInputError(
            f"{who} is stored by key ({_columns(before)}), and the program has the key ({_columns(declared)}).",
            hint=again if "partition" in declared.encoder else f"{again} {ANOTHER_NAME}",
        )
    _check_encoder(stored, declared)
    for what, kind in {} if state is None else state.types.items():
        _check_types(stored, what, kind, declared)


def _columns(descriptor: Descriptor) -> str:
    stored = descriptor.key_schema if isinstance(descriptor.key_schema, dict) else {}
    return ", ".join(f"{name} {spark_name(arrow_type_named(kind))}" for name, kind in stored.items())


def _check_encoder(stored: State, declared: Descriptor) -> None:
    before, now = stored.descriptor.encoder, declared.encoder
    groups, declared_groups = before.get("max_parallelism"), now.get("max_parallelism")
    if groups != declared_groups:
        raise InvalidInputError(
            f"State {stored.name!r} is stored with max_parallelism {groups}, and the program has {declared_groups}.",
            hint=f"Say max_parallelism={groups} again: it is fixed with the first batch of a checkpoint.",
        )
    for what, words in (("kind", "as {}"), ("clock", "with clock={!r}")):
        if before.get(what) != now.get(what):
            old, new = words.format(before.get(what)), words.format(now.get(what))
            raise InvalidInputError(
                f"State {stored.name!r} is stored {old}, and the program declares it {new}.", hint=ANOTHER_NAME
            )


def _check_types(stored: State, what: str, kind: ValueType, declared: Descriptor) -> None:
    """Every type that values were ever written by must be readable."""
    aliases: Mapping[str, str] = declared.aliases or {}
    known = schemas_of(stored.descriptor, what, f"state {stored.name!r}")
    for schema in [] if known is None else known.schemas:
        if schema == kind.schema:
            continue
        old = arrow_type(schema)
        changed = (
            f"The {what} of state {stored.name!r} is stored as {spark_name(old)}, "
            f"and the program declares {spark_name(kind.arrow)}"
        )
        if what == KEY:
            raise InvalidInputError(f"{changed}.", hint=f"The keys of a map keep their type. {ANOTHER_NAME}")
        try:
            adaptation(old, kind.arrow, aliases)
        except InvalidInputError as problem:
            raise InvalidInputError(f"{changed}: {problem.message}", hint=problem.hint) from problem
