"""Match fields of the current struct to fields of a stored one, by the names that programs have given them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from pyspark_ckpt.operators.types.type_names import spark_name
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import PREFIX

ANOTHER_NAME = (
    f"Give the changed state another name, or the operator another uid, and set {PREFIX}allowNonRestoredState to true, "
    "or restore a savepoint with allow_non_restored_state. The state then begins empty, and the old one is left alone."
)


def find_positions(old: pa.StructType, new: pa.StructType, aliases: Mapping[str, str]) -> list[int | None]:
    """Return the positions in ``old`` of the fields of ``new``; None for a field that is not there.

    A field is found by its name or a former name, then by these names in another case, then by a name that an alias of
    a later program gave it: an older program may run again after a field was renamed. Raises InvalidInputError (several
    fields whose names differ only by case).
    """
    positions = {field.name: position for position, field in enumerate(old)}
    all_names = [list_names(field.name, aliases) for field in new]
    found = [next((positions[name] for name in names if name in positions), None) for names in all_names]
    found = _one_reader_each(found, new, aliases)
    for n, names in enumerate(all_names):
        if found[n] is None and not _is_new(names[0], aliases):
            found[n] = _position_in_another_case(old, new, names, found)
    later = [
        _only(_later_positions(old, new, field.name, aliases, found)) if position is None else position
        for field, position in zip(new, found, strict=True)
    ]
    return _one_reader_each(later, new, aliases)


def _one_reader_each(found: Sequence[int | None], new: pa.StructType, aliases: Mapping[str, str]) -> list[int | None]:
    """Drop the position of a field that is declared new if exactly one other field has found the same position."""
    settled = list(found)
    for position in {each for each in found if each is not None}:
        readers = [n for n, each in enumerate(found) if each == position]
        older = [n for n in readers if not _is_new(new[n].name, aliases)]
        for n in readers if len(readers) > 1 and len(older) == 1 else ():
            settled[n] = position if n in older else None
    return settled


def _is_new(name: str, aliases: Mapping[str, str]) -> bool:
    """Whether an alias says that a field is new, with no former name."""
    return aliases.get(name) == name


def _later_positions(
    old: pa.StructType, new: pa.StructType, name: str, aliases: Mapping[str, str], taken: Sequence[int | None]
) -> list[int]:
    """Return where a field may be that later programs have renamed."""
    if _is_new(name, aliases):
        return []
    today = {field.name.lower() for field in new}
    return [
        n
        for n, field in enumerate(old)
        if n not in taken and field.name.lower() not in today and _was_called(field.name, name, aliases)
    ]


def _only(positions: Sequence[int]) -> int | None:
    return positions[0] if len(positions) == 1 else None


def _was_called(name: str, former: str, aliases: Mapping[str, str]) -> bool:
    return former.lower() in [each.lower() for each in list_names(name, aliases)[1:]]


def _position_in_another_case(
    old: pa.StructType, new: pa.StructType, names: Sequence[str], taken: Sequence[int | None]
) -> int | None:
    for name in names:
        alike = [n for n, field in enumerate(old) if field.name.lower() == name.lower() and n not in taken]
        rivals = [field.name for field in new if field.name.lower() == names[0].lower()]
        if len(alike) > 1 or (alike and len(rivals) > 1):
            raise InvalidInputError(
                f"field {names[0]!r} of {spark_name(new)} may be any of {[old[n].name for n in alike]} in "
                f"{spark_name(old)}: they differ by case alone.",
                hint=f"Choose one with an alias, such as {{{names[0]!r}: {old[alike[0]].name!r}}}.",
            )
        if alike:
            return alike[0]
    return None


def require_exact(old: pa.DataType, new: pa.DataType, aliases: Mapping[str, str], path: str = "") -> None:
    """Raise InvalidInputError if a part of type ``new`` may be several parts of type ``old``.

    Also if a part may be null or missing in ``old`` and is NOT NULL in ``new``. ``path`` precedes the part's name in
    messages.
    """
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        found = find_positions(old, new, aliases)
        _require_one_reader_each(found, old, new)
        for field, position in zip(new, found, strict=True):
            if position is None:
                _require_one_later(old, new, field.name, _later_positions(old, new, field.name, aliases, found))
            part = None if position is None else old[position]
            _require_exact_part(part, field, aliases, f"{path}{field.name}.")
    elif pa.types.is_map(old) and pa.types.is_map(new):
        _require_exact_part(old.item_field, new.item_field, aliases, f"{path}value.")
    elif pa.types.is_list(old) and pa.types.is_list(new):
        _require_exact_part(old.value_field, new.value_field, aliases, f"{path}element.")


def _require_exact_part(old: pa.Field | None, new: pa.Field, aliases: Mapping[str, str], path: str) -> None:
    if not new.nullable and (old is None or old.nullable):
        raise InvalidInputError(
            f"field {path[:-1]!r} may be null in stored values, but is declared NOT NULL.",
            hint=f"Declare it without NOT NULL. {ANOTHER_NAME}",
        )
    if old is not None:
        require_exact(old.type, new.type, aliases, path)


def _require_one_reader_each(found: Sequence[int | None], old: pa.StructType, new: pa.StructType) -> None:
    for position, field in enumerate(old):
        names = [each.name for each, at in zip(new, found, strict=True) if at == position]
        if len(names) > 1:
            raise InvalidInputError(
                f"field {field.name!r} of {spark_name(old)} may be any of {names} in {spark_name(new)}, according to "
                "the aliases of this program and earlier ones.",
                hint=f"Mark the new fields with aliases such as {{{names[-1]!r}: {names[-1]!r}}}.",
            )


def _require_one_later(old: pa.StructType, new: pa.StructType, name: str, later: Sequence[int]) -> None:
    if len(later) > 1:
        raise InvalidInputError(
            f"field {name!r} of {spark_name(new)} may be any of {[old[n].name for n in later]} in {spark_name(old)}, "
            "which later programs have renamed.",
            hint=f"Choose one with an alias, such as {{{name!r}: {old[later[0]].name!r}}}.",
        )


def require_clear_aliases(kind: pa.DataType, aliases: Mapping[str, str]) -> None:
    """Raise InvalidInputError if an alias gives a field the name of another field of the same struct.

    Stored values have both names, and nothing tells which of them were written before the names were exchanged.
    """
    if pa.types.is_struct(kind):
        for field in kind:
            for former in list_names(field.name, aliases)[1:]:
                others = [each for each in kind.names if each.lower() == former.lower() != field.name.lower()]
                if others and not _is_new(others[0], aliases):
                    raise InvalidInputError(
                        f"field {field.name!r} has the former name {former!r}, but {others[0]!r} is also a field.",
                        hint=f"If {others[0]!r} is a new field, add {{{others[0]!r}: {others[0]!r}}} to the aliases. "
                        "Fields cannot swap names: give them names that neither of them had.",
                    )
    for inner in _inner_types(kind):
        require_clear_aliases(inner, aliases)


def _inner_types(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(n).type for n in range(kind.num_fields)]


def list_names(name: str, aliases: Mapping[str, str]) -> list[str]:
    """Return a field's name and its former names, the newest first."""
    names = [name]
    while (former := _former(names[-1], aliases)) is not None and former not in names:
        names.append(former)
    return names


def _former(name: str, aliases: Mapping[str, str]) -> str | None:
    """Return the former name that an alias gives for a name; in another case if no alias has this one."""
    alike = [old for new, old in aliases.items() if new.lower() == name.lower()]
    return aliases.get(name, alike[0] if len(alike) == 1 else None)
