"""Keyed state, declared as attributes of a processor's class.

A state is found again by its name and the operator's uid: neither may change while the state lives. In a
KeyedProcessor, calls are for the current key. In a VectorProcessor, call the methods that take ``keys``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from pyspark_ckpt.operators.declarations.ttl import Ttl
from pyspark_ckpt.state_store.arguments import read_mapping
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.format.meta import is_text

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.declarations.instants import InstantLike, InstantsLike
    from pyspark_ckpt.operators.encoding.distinct_keys import Keys
    from pyspark_ckpt.operators.types.value_types import TypeLike

TtlLike: TypeAlias = "str | timedelta | Ttl | None"

INDEX_SUFFIX = "#expiry"
"""The name of a state's expiry index is the name of the state with this suffix."""


class Declared:
    """A named declaration in a processor's class. ``types``: each type, by the word for it in errors."""

    change_calls = ("", "")
    """The calls that change it, for error messages: for the current key, and for many keys."""

    def __init__(
        self,
        name: str,
        types: Mapping[str, TypeLike] | None = None,
        ttl: TtlLike = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """``aliases``: the former name of each renamed field; a former name may itself have one.

        Raises InvalidInputError for an empty name, the name of an expiry index, or an invalid time to live.
        """
        given: object = name  # from Python, which does not check types
        if not isinstance(given, str) or not given or not is_text(given):
            raise InvalidInputError(
                f"A {type(self).__name__} cannot have the name {name!r}: a name is Unicode text that is not empty.",
                hint="Give it a name that stays the same while the state lives.",
            )
        if name.endswith(INDEX_SUFFIX):
            raise InvalidInputError(
                f"{type(self).__name__} {name!r}: names that end in {INDEX_SUFFIX!r} are reserved for the indexes of "
                "states with a time to live.",
                hint="Give it another name.",
            )
        self.name = name
        self.types = dict(types or {})
        self.aliases = dict(read_mapping(aliases, f"{type(self).__name__} {name!r}: aliases", "{'new': 'old'}"))
        self.ttl = ttl if ttl is None or isinstance(ttl, Ttl) else Ttl(ttl)

    def __repr__(self) -> str:
        own = vars(self)
        shown = [repr(each) for each in (self.name, *own.get("types", {}).values())]
        if (ttl := own.get("ttl")) is not None:
            shown.append(f"ttl={ttl!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def __set__(self, holder: object, value: object) -> None:
        """Raise InvalidInputError: ``self.n = 5`` would replace the state with 5 and store nothing.

        A dataclass may set a field to its default, the declaration itself. There is no ``__get__``: the bound state is
        in the instance's own attributes, which Python reads before the declaration.
        """
        if value is not self:
            shown = repr(value)[:200]
            raise self._make_change_error(holder, f"was assigned the value {shown}", shown)

    def __delete__(self, holder: object) -> None:
        """Raise InvalidInputError: the attribute is the state."""
        raise self._make_change_error(holder, "was deleted as an attribute", "value")

    def _make_change_error(self, holder: object, what: str, value: str) -> InvalidInputError:
        attributes = [name for kind in type(holder).__mro__ for name, each in vars(kind).items() if each is self]
        own = f"self.{attributes[0]}" if attributes else "it"
        call = self.change_calls[hasattr(holder, "process_batch")].format(value)
        return InvalidInputError(
            f"{type(self).__name__} {self.name!r} of {type(holder).__name__} {what}.",
            hint=f"Call {own}.{call}. Declare a state once, as an attribute of the class.",
        )

    def __setattr__(self, name: str, value: object) -> None:
        """Raise InvalidInputError for ``self.n.value = 5``, which would replace the method with 5."""
        if callable(getattr(type(self), name, None)):
            raise InvalidInputError(
                f"State {self.name!r}: its method {name}() was assigned the value {repr(value)[:200]}.",
                hint=f"Call {' or '.join(self.change_calls).format('value')}.",
            )
        super().__setattr__(name, value)

    def __bool__(self) -> bool:
        """Raise InvalidInputError: ``if self.n:`` would be true for every key, whatever the state holds."""
        raise InvalidInputError(
            f"State {self.name!r} is used as a truth value, but it would be true whatever it holds.",
            hint="Call one of its methods, such as exists() or value() of a ValueState, exists() of a ListState, "
            "is_empty() of a MapState.",
        )

    def __eq__(self, other: object) -> bool:
        """Raise InvalidInputError: ``if self.n == 0:`` would be false for every key, whatever the state holds."""
        if isinstance(other, Declared):
            return self is other
        raise InvalidInputError(
            f"State {self.name!r} is compared with {repr(other)[:200]}, but this would not compare what it holds.",
            hint="Call one of its methods, such as value() or get(), and compare what it returns.",
        )

    __hash__ = object.__hash__

    def _unbound(self) -> NoReturn:
        raise LifecycleError(
            f"{type(self).__name__} {self.name!r} is used outside of a processor that a query is running.",
            hint="Declare it as an attribute of the processor's class, and use it as an attribute of self.",
        )


class DeclaredState(Declared):
    """A named state of a keyed operator. Its writes commit with the batch, or not at all.

    ``keys`` is ``ctx.keys`` of a VectorProcessor, or some of them. ``index`` has one position in ``keys`` for each row,
    such as ``ctx.key_index``. Results are in the order of ``keys``, or of the rows.

    ``at``, for a state with a time to live in event time: the event time of the written values, instead of the
    call's. It is a datetime or milliseconds since 1970; calls for many keys also take an Arrow array of timestamps. A
    write never shortens a life: if the row that it replaces has a later time, that time stays.

    Every method raises InvalidInputError for a value that does not fit the type, and for a call that this form of
    processor does not have; LifecycleError outside of a running query; FormatError and StorageError if stored state is
    damaged or cannot be read.
    """

    def clear(self) -> None:
        """Remove everything that this state holds for the current key."""
        self._unbound()

    def clear_keys(self, keys: Keys) -> None:
        """Remove everything that this state holds for ``keys``, in little memory, however large lists and maps are."""
        self._unbound()

    def exists_keys(self, keys: Keys) -> pa.BooleanArray:
        """Return for each of ``keys`` whether it has a value, an element or an entry."""
        self._unbound()


class ValueState(DeclaredState):
    """One value per key. It is absent until it is set, and after it is cleared or set to None.

    Methods raise the errors that ``DeclaredState`` lists.
    """

    change_calls = ("update({})", "put(keys, values)")

    def __init__(
        self,
        name: str,
        type: TypeLike,  # noqa: A002
        *,
        default: Any = None,
        ttl: TtlLike = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """Declare a value of ``type``: Spark DDL (``"long"``, ``"struct<n long>"``) or a Python type such as ``int``.

        ``default`` is what ``value`` returns while there is no value; it is not stored. ``ttl``: a duration such as
        ``"7 days"``, or a Ttl. ``aliases``: the former name of each renamed field. Raises InvalidInputError.
        """
        super().__init__(name, {"value": type}, ttl, aliases)
        self.default = default

    def value(self) -> Any:
        """Return the value of the current key, or the default. To change what is stored, call ``update``."""
        self._unbound()

    def exists(self) -> bool:
        """Return whether the current key has a value."""
        self._unbound()

    def update(self, value: Any, *, at: InstantLike | None = None) -> None:
        """Set the value of the current key; None clears it."""
        self._unbound()

    def get(self, keys: Keys) -> pa.Array:
        """Return one value of the state's type for each of ``keys``, null where there is none (not the default)."""
        self._unbound()

    def put(self, keys: Keys, values: pa.Array, *, at: InstantsLike = None) -> None:
        """Set the value of the key at each position in ``keys`` to the one in ``values``; null clears it."""
        self._unbound()


class ListState(DeclaredState):
    """Any number of elements per key, in the order of adding. A list may be larger than memory.

    Methods raise the errors that ``DeclaredState`` lists.
    """

    change_calls = ("update({})", "put_lists(keys, lists)")

    def __init__(
        self,
        name: str,
        type: TypeLike,  # noqa: A002
        *,
        ttl: TtlLike = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """Declare elements of ``type``: Spark DDL or a Python type. ``ttl``: each element expires on its own.

        ``aliases``: the former name of each renamed field of a struct. Raises InvalidInputError.
        """
        super().__init__(name, {"element": type}, ttl, aliases)

    def get(self) -> Iterator[Any]:
        """Return the elements of the current key as they are now, read lazily. Use the iterator within this call."""
        self._unbound()

    def exists(self) -> bool:
        """Return whether the current key has an element."""
        self._unbound()

    def add(self, value: Any, *, at: InstantLike | None = None) -> None:
        """Append an element for the current key, without reading the others; None is refused."""
        self._unbound()

    def add_all(self, values: Iterable[Any], *, at: InstantLike | None = None) -> None:
        """Append elements for the current key: all of them, or none if one is refused."""
        self._unbound()

    def update(self, values: Iterable[Any], *, at: InstantLike | None = None) -> None:
        """Replace all elements of the current key; an empty iterable clears it."""
        self._unbound()

    def add_rows(self, keys: Keys, index: NDArray[Any], values: pa.Array, *, at: InstantsLike = None) -> None:
        """Append ``values[i]`` to the list of ``keys[index[i]]``, for all i in order; null is refused."""
        self._unbound()

    def get_lists(self, keys: Keys) -> pa.ListArray:
        """Return one list for each of ``keys``, with all its elements in memory; empty where there are none."""
        self._unbound()

    def put_lists(self, keys: Keys, lists: pa.ListArray, *, at: InstantsLike = None) -> None:
        """Replace the list of the key at each position in ``keys`` with the one in ``lists``; null is an empty list."""
        self._unbound()


class MapState(DeclaredState):
    """A map per key, sorted by the map's own keys. A map may be larger than memory.

    Methods raise the errors that ``DeclaredState`` lists.
    """

    change_calls = ("put(key, value)", "put_entries(keys, index, map_keys, values)")

    def __init__(
        self,
        name: str,
        key_type: TypeLike,
        value_type: TypeLike,
        *,
        ttl: TtlLike = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """Declare a map of ``key_type`` to ``value_type``: Spark DDL or Python types.

        ``ttl``: each entry expires on its own. ``aliases``: the former name of each renamed field of a struct value.
        Raises InvalidInputError.
        """
        super().__init__(name, {"key": key_type, "value": value_type}, ttl, aliases)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key of the map, or the default."""
        self._unbound()

    def contains(self, key: Any) -> bool:
        """Return whether the map has the key."""
        self._unbound()

    def put(self, key: Any, value: Any, *, at: InstantLike | None = None) -> None:
        """Set one entry, without reading the others; the value None removes it, the key None is refused."""
        self._unbound()

    def put_all(self, entries: Mapping[Any, Any], *, at: InstantLike | None = None) -> None:
        """Set several entries as ``put`` does: all of them, or none if one is refused."""
        self._unbound()

    def remove(self, key: Any) -> None:
        """Remove one entry; no error if there is none."""
        self._unbound()

    def items(self, begin: Any = None, end: Any = None) -> Iterator[tuple[Any, Any]]:
        """Return the entries in key order, from key ``begin`` up to ``end`` (exclusive), if given.

        They are read lazily, as they are now, whatever is written meanwhile. Use the iterator within this call.
        """
        self._unbound()

    def keys(self) -> Iterator[Any]:
        """Return the map's keys, in order; lazily, as ``items`` does."""
        self._unbound()

    def values(self) -> Iterator[Any]:
        """Return the map's values, in the order of their keys; lazily, as ``items`` does."""
        self._unbound()

    def is_empty(self) -> bool:
        """Return whether the map has no entry."""
        self._unbound()

    def get_entries(self, keys: Keys, index: NDArray[Any], map_keys: pa.Array) -> pa.Array:
        """Return for each i the value under ``map_keys[i]`` in the map of ``keys[index[i]]``, null where absent."""
        self._unbound()

    def contains_entries(self, keys: Keys, index: NDArray[Any], map_keys: pa.Array) -> pa.BooleanArray:
        """Return for each i whether the map of ``keys[index[i]]`` has ``map_keys[i]``."""
        self._unbound()

    def get_range(self, keys: Keys, begin: Any = None, end: Any = None) -> pa.MapArray:
        """Return the entries of ``keys``, one map per key, in key order, from ``begin`` up to ``end`` (exclusive).

        A bound is one map key for all ``keys``, or an Arrow array with one per key, where null is no bound.
        """
        self._unbound()

    def put_entries(
        self, keys: Keys, index: NDArray[Any], map_keys: pa.Array, values: pa.Array, *, at: InstantsLike = None
    ) -> None:
        """Set ``map_keys[i]`` to ``values[i]`` in the map of ``keys[index[i]]``, for all i in order.

        A null in ``values`` removes the entry; a null in ``map_keys`` is refused.
        """
        self._unbound()
