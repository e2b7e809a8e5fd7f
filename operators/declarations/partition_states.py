"""Declared states that belong to a partition of an operator, and not to a key: operator lists and broadcast states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from pyspark_ckpt.operators.declarations.states import Declared
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.partition_states import Scope

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_ckpt.operators.types.value_types import TypeLike

Redistribution: TypeAlias = Literal["split", "union"]


class PartitionState(Declared):
    """A named state of each partition. Its writes commit with the batch, or not at all.

    All calls are for the partition, whichever key is processed, and they are the same in both forms of processors.

    Every method raises InvalidInputError for a value that does not fit the type; LifecycleError outside of a running
    query; FormatError and StorageError if stored state is damaged or cannot be read.
    """

    scope: Scope
    """What happens to it when the state of the operator is restored or redistributed."""


class OperatorListState(PartitionState):
    """Any number of elements per partition, in the order of adding.

    Restoring a savepoint or a checkpoint, at the same or another parallelism, *redistributes* the lists of all
    partitions. Restarting the query does not. Methods raise the errors that ``PartitionState`` lists.
    """

    change_calls = ("update({})", "put_values(values)")

    def __init__(
        self,
        name: str,
        type: TypeLike,  # noqa: A002
        *,
        redistribute: Redistribution = "split",
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """Declare elements of ``type``: Spark DDL or a Python type.

        ``redistribute``: with "split", the lists are joined in the order of the partitions, and each new partition gets
        an equal part, give or take one element; at the same parallelism they stay as they are. With "union", each new
        partition gets all elements, even at the same parallelism, and the program keeps those that it needs.
        ``aliases``: the former name of each renamed field of a struct. Raises InvalidInputError.
        """
        super().__init__(name, {"element": type}, None, aliases)
        if redistribute not in get_args(Redistribution):
            raise InvalidInputError(
                f"OperatorListState {name!r}: redistribute must be 'split' or 'union', got {redistribute!r}."
            )
        self.scope = Scope(redistribute)

    def get(self) -> Iterator[Any]:
        """Return the elements as they are now, read lazily. Use the iterator within this call."""
        self._unbound()

    def add(self, value: Any) -> None:
        """Append an element, without reading the others; None is refused."""
        self._unbound()

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements: all of them, or none if one is refused."""
        self._unbound()

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements."""
        self._unbound()

    def clear(self) -> None:
        """Remove all elements."""
        self._unbound()

    def get_values(self) -> pa.Array:
        """Return all elements as one array."""
        self._unbound()

    def add_values(self, values: pa.Array) -> None:
        """Append the elements of an array; null is refused."""
        self._unbound()

    def put_values(self, values: pa.Array) -> None:
        """Replace all elements by those of an array; null is refused."""
        self._unbound()


class BroadcastState(PartitionState):
    """A map that is the same in all partitions, sorted by its keys. It must fit into memory.

    Only ``process_broadcast`` may write it, from the rows of the broadcast input, which every partition gets in the
    same order. Each commit records a digest of the map: if a program makes the copies differ, the batch fails.
    Methods raise the errors that ``PartitionState`` lists.
    """

    change_calls = ("put(key, value)", "put_entries(map_keys, values)")
    scope = Scope.BROADCAST

    def __init__(
        self, name: str, key_type: TypeLike, value_type: TypeLike, *, aliases: Mapping[str, str] | None = None
    ) -> None:
        """Declare a map of ``key_type`` to ``value_type``: Spark DDL or Python types.

        ``aliases``: the former name of each renamed field of a struct value. Raises InvalidInputError.
        """
        super().__init__(name, {"key": key_type, "value": value_type}, None, aliases)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key of the map, or the default."""
        self._unbound()

    def contains(self, key: Any) -> bool:
        """Return whether the map has the key."""
        self._unbound()

    def items(self, begin: Any = None, end: Any = None) -> Iterator[tuple[Any, Any]]:
        """Return the entries in key order, from key ``begin`` up to ``end`` (exclusive), if given."""
        self._unbound()

    def keys(self) -> Iterator[Any]:
        """Return the map's keys, in order."""
        self._unbound()

    def values(self) -> Iterator[Any]:
        """Return the map's values, in the order of their keys."""
        self._unbound()

    def is_empty(self) -> bool:
        """Return whether the map has no entry."""
        self._unbound()

    def put(self, key: Any, value: Any) -> None:
        """Set one entry; the value None removes it, the key None is refused."""
        self._unbound()

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set several entries as ``put`` does: all of them, or none if one is refused."""
        self._unbound()

    def remove(self, key: Any) -> None:
        """Remove one entry; no error if there is none."""
        self._unbound()

    def clear(self) -> None:
        """Remove all entries."""
        self._unbound()

    def get_entries(self, map_keys: pa.Array) -> pa.Array:
        """Return for each of ``map_keys`` its value, null where absent."""
        self._unbound()

    def to_table(self) -> pa.Table:
        """Return the whole map as a table of ``key`` and ``value``, in key order."""
        self._unbound()

    def put_entries(self, map_keys: pa.Array, values: pa.Array) -> None:
        """Set ``map_keys[i]`` to ``values[i]``, for all i in order. A null in ``values`` removes the entry."""
        self._unbound()
