"""How a state continues after the type of its values has changed: which changes can be read, and how.

The state's descriptor keeps every schema that values were ever written by, and every value names its schema. Nothing is
rewritten: an old value is adapted when it is read, and gets the newest schema when it is written. Fields may be added
(null in old values), dropped or renamed (with the former name declared as an alias, which may have an alias itself),
and numbers may be widened without loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import UNSET
from typing_extensions import override

from pyspark_ckpt.operators.encoding.value_codec import MAX_SCHEMAS, ValueCodec, make_value_codec
from pyspark_ckpt.operators.types.columns import arrow_of_plain
from pyspark_ckpt.operators.types.conversions import EXACT
from pyspark_ckpt.operators.types.field_names import ANOTHER_NAME, find_positions, list_names
from pyspark_ckpt.operators.types.struct_values import struct_maker
from pyspark_ckpt.operators.types.type_names import spark_name
from pyspark_ckpt.state_store.arrays.cells import Cells
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.meta import Descriptor
from pyspark_ckpt.state_store.json_objects import DAMAGE

Adapt: TypeAlias = Callable[[Any], Any]

READABLE = f"Fields may be added, dropped, renamed with an alias, and widened. {ANOTHER_NAME}"

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_EXACT_IN_DOUBLE = 32


class Schemas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The types in a state's descriptor: all that values were ever written by, and the current one's number, from 1."""

    schemas: list[Any]
    current: int


def read_schemas(descriptor: Descriptor | None, what: str, whose: str) -> Schemas | None:
    """Return the types of ``what`` in a stored descriptor; None if it has none. Raises FormatError naming ``whose``."""
    stored = None if descriptor is None else descriptor.value_schema
    try:
        found = msgspec.convert(stored or {}, dict[str, Schemas]).get(what)
    except DAMAGE as problem:
        shown = repr(stored)
        raise FormatError(f"The stored types of {whose}, {shown[:200]}, cannot be read: {problem}.") from problem
    if found is not None and not 0 < found.current <= len(found.schemas) <= MAX_SCHEMAS:
        raise FormatError(
            f"{whose} has {len(found.schemas)} stored types, of at most {MAX_SCHEMAS}, and the current one is number "
            f"{found.current}."
        )
    return found


def evolve(stored: Schemas | None, declared: Any) -> Schemas:
    """Return the types of values that were ``stored`` by former schemas and are now ``declared`` with this one.

    Raises InvalidInputError (too many types).
    """
    schemas = [] if stored is None else list(stored.schemas)
    if declared not in schemas:
        if len(schemas) == MAX_SCHEMAS:
            raise InvalidInputError(
                f"A state has had {MAX_SCHEMAS} types of values, which is the maximum.", hint=ANOTHER_NAME
            )
        schemas.append(declared)
    return Schemas(schemas, schemas.index(declared) + 1)


def former_names(descriptor: Descriptor | None, declared: Mapping[str, str]) -> dict[str, str]:
    """Return the aliases of a state: those ``declared`` now, and those of other programs.

    A program therefore need not know every name that a field had before or has had since.
    """
    known = {} if descriptor is None or descriptor.aliases is UNSET else descriptor.aliases
    return {**known, **declared}


class EvolvedCodec(ValueCodec):
    """Writes by the current schema, and reads values of all former schemas."""

    def __init__(
        self, kinds: Sequence[pa.DataType], current: int, aliases: Mapping[str, str], whose: str = "a state"
    ) -> None:
        """``kinds``: the types of schemas 1, 2, ... Raises InvalidInputError (not readable as the current type)."""
        super().__init__(kinds[current - 1], current, whose)
        self._codec = make_value_codec(self.kind, current, whose)
        self._former: dict[int, tuple[ValueCodec, Adapt]] = {
            number: (make_value_codec(kind, number, whose), adaptation(kind, self.kind, aliases))
            for number, kind in enumerate(kinds, 1)
            if number != current
        }

    @override
    def encode(self, value: Any) -> bytes:
        return self._codec.encode(value)

    @override
    def encode_packed(self, values: pa.Array) -> Packed:
        return self._codec.encode_packed(values)

    @override
    def encode_cells(self, values: pa.Array) -> Cells:
        return self._codec.encode_cells(values)

    @override
    def decode_cells(self, stored: Cells) -> pa.Array:
        there = stored.values.take(stored.there)
        if there.size.all() and (there.data[there.at] == self._schema).all():
            return self._codec.decode_cells(stored)
        return self._decode_each(stored.strings())

    @override
    def decode(self, stored: bytes) -> Any:
        if stored and stored[0] == self._schema:
            return self._codec.decode(stored)
        codec, adapt = self._choose_reader(stored)
        return adapt(codec.decode(stored))

    @override
    def decode_column(self, stored: Sequence[bytes | None]) -> pa.Array:
        if all(value is None or (value and value[0] == self._schema) for value in stored):
            return self._codec.decode_column(stored)
        return self._decode_each(stored)

    def _decode_each(self, stored: Sequence[bytes | None]) -> pa.Array:
        """Decode values one by one, with dates and instants as numbers, since no adaptation changes them."""
        return arrow_of_plain([None if value is None else self._decode_plain(value) for value in stored], self.kind)

    def _decode_plain(self, stored: bytes) -> Any:
        codec, adapt = self._choose_reader(stored)
        return adapt(codec.plain.decode(stored))

    def _choose_reader(self, stored: bytes) -> tuple[ValueCodec, Adapt]:
        """Return the codec that reads a value, and its adaptation to the current type. Raises FormatError."""
        schema = stored[0] if stored else 0
        if schema == self._schema:
            return self._codec, _as_it_is
        if schema not in self._former:
            raise self._damage(stored, f"it was written by schema {schema}, which the state does not have")
        return self._former[schema]


def adaptation(old: pa.DataType, new: pa.DataType, aliases: Mapping[str, str], path: str = "") -> Adapt:
    """Return a function from Python values of type ``old`` to Python values of type ``new``.

    Raises InvalidInputError that names the field that cannot be read, with ``path`` before it.
    """
    adapt = _adaptation(old, new, aliases, path)
    return lambda value: None if value is None else adapt(value)


def _adaptation(old: pa.DataType, new: pa.DataType, aliases: Mapping[str, str], path: str) -> Adapt:
    if old == new:
        return _as_it_is
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return _struct(old, new, aliases, path)
    if pa.types.is_map(old) and pa.types.is_map(new) and old.key_type == new.key_type:
        item = adaptation(old.item_type, new.item_type, aliases, f"{path}value.")
        return lambda value: {key: item(each) for key, each in value.items()}
    if pa.types.is_list(old) and pa.types.is_list(new):
        element = adaptation(old.value_type, new.value_type, aliases, f"{path}element.")
        return lambda value: [element(each) for each in value]
    widened = _widening(old, new)
    if widened is None:
        where = f"field {path[:-1]!r}: " if path else ""
        raise InvalidInputError(
            f"{where}values of type {spark_name(old)} cannot be read as {spark_name(new)}.", hint=READABLE
        )
    return widened


def _widening(old: pa.DataType, new: pa.DataType) -> Adapt | None:
    """Return how a number is read as a type that holds it without loss; None if the type does not."""
    if pa.types.is_signed_integer(old):
        if pa.types.is_signed_integer(new) and new.bit_width >= old.bit_width:
            return _as_it_is
        if new == pa.float64() and old.bit_width <= _EXACT_IN_DOUBLE:
            return float
        if pa.types.is_decimal(new) and new.precision - new.scale >= _DIGITS[old.bit_width]:
            return _make_rescaler(new)
    elif old == pa.float32() and new == pa.float64():
        return _as_it_is
    elif pa.types.is_decimal(old) and pa.types.is_decimal(new) and _holds(new, old):
        return _make_rescaler(new)
    return None


def _make_rescaler(kind: pa.DataType) -> Adapt:
    """Return a function that makes a decimal with the scale of ``kind`` from a number."""
    step = Decimal(1).scaleb(-kind.scale)
    return lambda value: Decimal(value).quantize(step, context=EXACT)


def _holds(new: pa.DataType, old: pa.DataType) -> bool:
    """Whether ``new`` has at least as many digits as ``old``, both before and after the decimal point."""
    return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)


def _struct(old: pa.StructType, new: pa.StructType, aliases: Mapping[str, str], path: str) -> Adapt:
    make = struct_maker(new)
    found = find_positions(old, new, aliases)
    unread = [field for position, field in enumerate(old) if position not in found]
    taken: list[tuple[int, Adapt] | None] = []
    for field, position in zip(new, found, strict=True):
        if position is None:
            _require_known_origin(field, old, unread, aliases)
            taken.append(None)
        else:
            adapt = adaptation(old[position].type, field.type, aliases, f"{path}{field.name}.")
            taken.append((position, adapt))
    return lambda value: make([None if each is None else each[1](value[each[0]]) for each in taken])


def _require_known_origin(
    field: pa.Field, old: pa.StructType, unread: Sequence[pa.Field], aliases: Mapping[str, str]
) -> None:
    """Raise InvalidInputError if a renamed field may be in ``old`` under a name that is not in ``aliases``."""
    *_, first = names = list_names(field.name, aliases)
    lost = [each.name for each in unread if _is_readable(each.type, field.type, aliases)]
    if lost and len(names) > 1 and first not in aliases:
        raise InvalidInputError(
            f"field {field.name!r}, formerly {first!r}, is not in {spark_name(old)}, "
            f"and nothing reads its fields {lost}.",
            hint=f"If one of them is this field, add {{{first!r}: {lost[0]!r}}} to the aliases; "
            f"if not, add {{{first!r}: {first!r}}}.",
        )


def _is_readable(old: pa.DataType, new: pa.DataType, aliases: Mapping[str, str]) -> bool:
    try:
        adaptation(old, new, aliases)
    except InvalidInputError:
        return False
    return True


def _as_it_is(value: Any) -> Any:
    return value
