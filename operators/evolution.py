"""How a state goes on when the type of its values changes: which changes can be read, and how.

Every schema that values were ever written by stays in the state's descriptor, and every value says by which it was
written. So nothing is rewritten: an old value is adapted when it is read, and gets the newest schema when it is
written. Can be read: a field that is added (null in old values), dropped or renamed (its old name is declared as an
alias, and the old name of that, and so on), and a number that is widened without loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import UNSET

from pyspark_ckpt.operators.columns import arrow_of_plain
from pyspark_ckpt.operators.conversions import EXACT
from pyspark_ckpt.operators.stored_values import MOST_SCHEMAS, ValueCodec, value_codec
from pyspark_ckpt.operators.type_names import spark_name
from pyspark_ckpt.operators.value_types import struct_class
from pyspark_ckpt.state_store.bulk import Cells, Packed
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.json_objects import DAMAGE
from pyspark_ckpt.state_store.meta import Descriptor
from pyspark_ckpt.state_store.options import PREFIX

Adapt: TypeAlias = Callable[[Any], Any]

ANOTHER_NAME = (
    f"Give the changed state another name, or the operator another uid, and set {PREFIX}allowNonRestoredState to true, "
    "or restore a savepoint with allow_non_restored_state: it begins empty, and the old state is left alone."
)
READABLE = f"Fields may be added, dropped, renamed by an alias, and widened. {ANOTHER_NAME}"

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_EXACT_IN_DOUBLE = 32


class Schemas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the descriptor of a state says of its values: the types they were ever written by, and today's, from 1."""

    schemas: list[Any]
    current: int


def schemas_of(descriptor: Descriptor | None, what: str, whose: str) -> Schemas | None:
    """What a stored descriptor says of ``what``; None if it says nothing. Raises FormatError that names ``whose``."""
    stored = None if descriptor is None else descriptor.value_schema
    try:
        found = msgspec.convert(stored or {}, dict[str, Schemas]).get(what)
    except DAMAGE as problem:
        shown = repr(stored)
        raise FormatError(
            f"The types of {whose} are stored as {shown[:200]}, which cannot be read: {problem}."
        ) from problem
    if found is not None and not 0 < found.current <= len(found.schemas) <= MOST_SCHEMAS:
        raise FormatError(
            f"{whose} has {len(found.schemas)} stored types, and number {found.current} is not among them."
        )
    return found


def evolved(stored: Schemas | None, declared: Any) -> Schemas:
    """What the descriptor says of values that are ``declared`` now and were ``stored`` by other schemas before.

    Raises InvalidInputError when there were too many.
    """
    schemas = [] if stored is None else list(stored.schemas)
    if declared not in schemas:
        if len(schemas) == MOST_SCHEMAS:
            raise InvalidInputError(
                f"A state has had {MOST_SCHEMAS} types of values, which is the limit.", hint=ANOTHER_NAME
            )
        schemas.append(declared)
    return Schemas(schemas, schemas.index(declared) + 1)


def former_names(descriptor: Descriptor | None, declared: Mapping[str, str]) -> dict[str, str]:
    """The aliases of a state: those that are ``declared``, and those of earlier programs.

    So a program need not know all names that a field had, before it or since.
    """
    known = {} if descriptor is None or descriptor.aliases is UNSET else descriptor.aliases
    return {**known, **declared}


def require_clear_aliases(kind: pa.DataType, aliases: Mapping[str, str]) -> None:
    """Raise InvalidInputError if an alias gives a field the name of another field of the same struct.

    Values of that struct have both: nothing tells those that were written before the names changed hands.
    """
    if pa.types.is_struct(kind):
        for field in kind:
            for former in _names(field.name, aliases)[1:]:
                others = [each for each in kind.names if each.lower() == former.lower() != field.name.lower()]
                if others and not _is_new(others[0], aliases):
                    raise InvalidInputError(
                        f"field {field.name!r} has the former name {former!r}, and {others[0]!r} is a field, too.",
                        hint=f"If {others[0]!r} is a new field, add {{{others[0]!r}: {others[0]!r}}} to the aliases. "
                        "Fields cannot swap names: give them names that none of them had.",
                    )
    for inner in _inner_types(kind):
        require_clear_aliases(inner, aliases)


def _inner_types(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(n).type for n in range(kind.num_fields)]


class EvolvedCodec(ValueCodec):
    """Writes by the current schema, and reads all that there were."""

    def __init__(
        self, kinds: Sequence[pa.DataType], current: int, aliases: Mapping[str, str], whose: str = "a state"
    ) -> None:
        """``kinds``: the types of schemas 1, 2, ... Raises InvalidInputError if one cannot be read as the current."""
        super().__init__(kinds[current - 1], current, whose)
        self._codec = value_codec(self.kind, current, whose)
        self._former: dict[int, tuple[ValueCodec, Adapt]] = {
            number: (value_codec(kind, number, whose), adaptation(kind, self.kind, aliases))
            for number, kind in enumerate(kinds, 1)
            if number != current
        }

    def encode(self, value: Any) -> bytes:
        """See ValueCodec."""
        return self._codec.encode(value)

    def encode_packed(self, values: pa.Array) -> Packed:
        """See ValueCodec."""
        return self._codec.encode_packed(values)

    def encode_cells(self, values: pa.Array) -> Cells:
        """See ValueCodec."""
        return self._codec.encode_cells(values)

    def decode_cells(self, stored: Cells) -> pa.Array:
        """See ValueCodec."""
        there = stored.values.taken(stored.there)
        if there.size.all() and (there.data[there.at] == self._schema).all():
            return self._codec.decode_cells(stored)
        return self._decoded_each(stored.strings())

    def decode(self, stored: bytes) -> Any:
        """See ValueCodec."""
        if stored and stored[0] == self._schema:
            return self._codec.decode(stored)
        codec, adapt = self._way_of(stored)
        return adapt(codec.decode(stored))

    def decode_column(self, stored: Sequence[bytes | None]) -> pa.Array:
        """See ValueCodec."""
        if all(value is None or (value and value[0] == self._schema) for value in stored):
            return self._codec.decode_column(stored)
        return self._decoded_each(stored)

    def _decoded_each(self, stored: Sequence[bytes | None]) -> pa.Array:
        """Dates and instants, which no adaptation looks at, go from one type to the other as numbers."""
        return arrow_of_plain([None if value is None else self._decoded_plain(value) for value in stored], self.kind)

    def _decoded_plain(self, stored: bytes) -> Any:
        codec, adapt = self._way_of(stored)
        return adapt(codec.plain.decode(stored))

    def _way_of(self, stored: bytes) -> tuple[ValueCodec, Adapt]:
        """What reads a value, and makes it one of today's type. Raises FormatError."""
        schema = stored[0] if stored else 0
        if schema == self._schema:
            return self._codec, _as_it_is
        if schema not in self._former:
            raise self._damage(stored, f"it is written by schema {schema}, which the state does not have")
        return self._former[schema]


def adaptation(old: pa.DataType, new: pa.DataType, aliases: Mapping[str, str], path: str = "") -> Adapt:
    """A function from Python values of type ``old`` to such of type ``new``.

    Raises InvalidInputError that says which field, behind ``path``, cannot be read.
    """
    adapt = _adaptation(old, new, aliases, path)
    return lambda value: None if value is None else adapt(value)


def _adaptation(old: pa.DataType, new: pa.DataType, aliases: Mapping[str, str], path: str) -> Adapt:
    if old == new:
        return _as_it_is
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return _struct(old, new, aliases, path)
    if pa.types.is_map(old) and pa.types.is_map(new) and old.key_type == new.key_type:
        item = _part(old.item_field, new.item_field, aliases, f"{path}value.")
        return lambda value: {key: item(each) for key, each in value.items()}
    if pa.types.is_list(old) and pa.types.is_list(new):
        element = _part(old.value_field, new.value_field, aliases, f"{path}element.")
        return lambda value: [element(each) for each in value]
    widened = _widening(old, new)
    if widened is None:
        where = f"field {path[:-1]!r}: " if path else ""
        raise InvalidInputError(
            f"{where}values of type {spark_name(old)} cannot be read as {spark_name(new)}.", hint=READABLE
        )
    return widened


def _part(old: pa.Field | None, new: pa.Field, aliases: Mapping[str, str], path: str) -> Adapt:
    """``adaptation`` of a part of a value, which ``old`` values do not have if it is None."""
    if not new.nullable and (old is None or old.nullable):
        raise InvalidInputError(
            f"field {path[:-1]!r}: it may be null in stored values, and is declared NOT NULL.",
            hint=f"Declare it so that it may be null. {ANOTHER_NAME}",
        )
    return _nothing if old is None else adaptation(old.type, new.type, aliases, path)


def _widening(old: pa.DataType, new: pa.DataType) -> Adapt | None:
    """How a number is read as one of a type that holds it without loss; None if there is no such way."""
    if pa.types.is_signed_integer(old):
        if pa.types.is_signed_integer(new) and new.bit_width >= old.bit_width:
            return _as_it_is
        if new == pa.float64() and old.bit_width <= _EXACT_IN_DOUBLE:
            return float
        if pa.types.is_decimal(new) and new.precision - new.scale >= _DIGITS[old.bit_width]:
            return _of_scale(new)
    elif old == pa.float32() and new == pa.float64():
        return _as_it_is
    elif pa.types.is_decimal(old) and pa.types.is_decimal(new) and _holds(new, old):
        return _of_scale(new)
    return None


def _of_scale(kind: pa.DataType) -> Adapt:
    """A number as a decimal with as many digits behind the point as its type has."""
    step = Decimal(1).scaleb(-kind.scale)
    return lambda value: Decimal(value).quantize(step, context=EXACT)


def _holds(new: pa.DataType, old: pa.DataType) -> bool:
    """Whether a decimal type has no fewer digits than another, before the point and behind it."""
    return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)


def _struct(old: pa.StructType, new: pa.StructType, aliases: Mapping[str, str], path: str) -> Adapt:
    made = struct_class(new)
    found = _positions(old, new, aliases)
    unread = [field for position, field in enumerate(old) if position not in found]
    taken: list[tuple[int, Adapt] | None] = []
    for field, position in zip(new, found, strict=True):
        if position is None:
            _require_known_origin(field, old, unread, aliases)
        adapt = _part(None if position is None else old[position], field, aliases, f"{path}{field.name}.")
        taken.append(None if position is None else (position, adapt))
    return lambda value: made(*(None if each is None else each[1](value[each[0]]) for each in taken))


def _positions(old: pa.StructType, new: pa.StructType, aliases: Mapping[str, str]) -> list[int | None]:
    """Where the fields of ``new`` are in ``old``, none twice.

    By their names and former names; in another case if not in this one; else by a name that an alias of a later
    program gave them, for a program may come back from before a field was renamed. Raises InvalidInputError if it is
    not clear which field one is.
    """
    positions = {field.name: position for position, field in enumerate(old)}
    names_of = [_names(field.name, aliases) for field in new]
    found = [next((positions[name] for name in names if name in positions), None) for names in names_of]
    found = _one_reader_each(found, old, new, aliases)
    for n, names in enumerate(names_of):
        if found[n] is None and not _is_new(names[0], aliases):
            found[n] = _position_in_another_case(old, new, names, found)
    later = [
        _position_of_a_later_name(old, new, field.name, aliases, found) if position is None else position
        for field, position in zip(new, found, strict=True)
    ]
    return _one_reader_each(later, old, new, aliases)


def _one_reader_each(
    found: Sequence[int | None], old: pa.StructType, new: pa.StructType, aliases: Mapping[str, str]
) -> list[int | None]:
    """``found`` without what fields that are declared new have in common with others."""
    settled = list(found)
    for position in {each for each in found if each is not None}:
        readers = [n for n, each in enumerate(found) if each == position]
        older = [n for n in readers if not _is_new(new[n].name, aliases)]
        if len(readers) > 1 and len(older) != 1:
            names = [new[n].name for n in readers]
            raise InvalidInputError(
                f"field {old[position].name!r} of {spark_name(old)} may be any of {names} in {spark_name(new)}, by the "
                "aliases of this program and earlier ones.",
                hint=f"Say which of them are new fields by aliases such as {{{names[-1]!r}: {names[-1]!r}}}.",
            )
        for n in readers if len(readers) > 1 else ():
            settled[n] = position if n in older else None
    return settled


def _is_new(name: str, aliases: Mapping[str, str]) -> bool:
    """Whether an alias says that a field had no other name before."""
    return aliases.get(name) == name


def _position_of_a_later_name(
    old: pa.StructType, new: pa.StructType, name: str, aliases: Mapping[str, str], taken: Sequence[int | None]
) -> int | None:
    """Where a field is that later programs have renamed."""
    today = {field.name.lower() for field in new}
    later = [
        n
        for n, field in enumerate(old)
        if n not in taken and field.name.lower() not in today and _was_called(field.name, name, aliases)
    ]
    if _is_new(name, aliases) or not later:
        return None
    if len(later) > 1:
        raise InvalidInputError(
            f"field {name!r} of {spark_name(new)} may be any of {[old[n].name for n in later]} in {spark_name(old)}, "
            "which were renamed by programs since.",
            hint=f"Say which one by an alias, such as {{{name!r}: {old[later[0]].name!r}}}.",
        )
    return later[0]


def _was_called(name: str, former: str, aliases: Mapping[str, str]) -> bool:
    return former.lower() in [each.lower() for each in _names(name, aliases)[1:]]


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
                hint=f"Say which one by an alias, such as {{{names[0]!r}: {old[alike[0]].name!r}}}.",
            )
        if alike:
            return alike[0]
    return None


def _names(name: str, aliases: Mapping[str, str]) -> list[str]:
    """A field's name and its former ones, the newest first."""
    names = [name]
    while (former := _former(names[-1], aliases)) is not None and former not in names:
        names.append(former)
    return names


def _former(name: str, aliases: Mapping[str, str]) -> str | None:
    """What an alias says of a name, in any case if none has this one."""
    alike = [old for new, old in aliases.items() if new.lower() == name.lower()]
    return aliases.get(name, alike[0] if len(alike) == 1 else None)


def _require_known_origin(
    field: pa.Field, old: pa.StructType, unread: Sequence[pa.Field], aliases: Mapping[str, str]
) -> None:
    """Refuse a renamed field that is not in ``old`` if it may be there by a name that ``aliases`` do not tell."""
    *_, first = names = _names(field.name, aliases)
    lost = [each.name for each in unread if _is_readable(each.type, field.type, aliases)]
    if lost and len(names) > 1 and first not in aliases:
        raise InvalidInputError(
            f"field {field.name!r}, formerly {first!r}, is not in {spark_name(old)}, "
            f"and nothing reads its fields {lost}.",
            hint=f"Say by which name values of that type have it: add {{{first!r}: {lost[0]!r}}} to the aliases, "
            f"or {{{first!r}: {first!r}}} if they do not have it.",
        )


def _is_readable(old: pa.DataType, new: pa.DataType, aliases: Mapping[str, str]) -> bool:
    try:
        adaptation(old, new, aliases)
    except InvalidInputError:
        return False
    return True


def _as_it_is(value: Any) -> Any:
    return value


def _nothing(_value: Any) -> None:
    """What a field is that was not there."""
