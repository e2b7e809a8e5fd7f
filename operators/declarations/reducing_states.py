"""Declared states into which values are reduced: by a function of the same type, or into an accumulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pyspark_ckpt.operators.declarations.states import DeclaredState, TtlLike
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.declarations.instants import InstantLike, InstantsLike
    from pyspark_ckpt.operators.encoding.distinct_keys import Keys
    from pyspark_ckpt.operators.types.value_types import TypeLike

Reduction: TypeAlias = Literal["sum", "min", "max"]
REDUCTIONS: tuple[Reduction, ...] = ("sum", "min", "max")


class ReducingState(DeclaredState):
    """One value per key, into which every added value is reduced. Adding None changes nothing.

    Methods raise the errors that ``DeclaredState`` lists.
    """

    change_calls = ("add({})", "add_rows(keys, index, values)")

    def __init__(
        self,
        name: str,
        type: TypeLike,  # noqa: A002
        reduce: Callable[[Any, Any], Any] | Reduction,
        *,
        ttl: TtlLike = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """Declare a value of ``type``, as ValueState does.

        ``reduce(kept, added)`` returns the value to keep. "sum", "min" and "max" reduce whole columns at once, the last
        two in Spark's order. Raises InvalidInputError.
        """
        super().__init__(name, {"value": type}, ttl, aliases)
        if not callable(reduce) and reduce not in REDUCTIONS:
            raise InvalidInputError(
                f"ReducingState {name!r}: reduce must be a function or one of {REDUCTIONS}, got {reduce!r}."
            )
        self.reduce = reduce

    def get(self) -> Any:
        """Return the reduced value of the current key, or None if nothing was added."""
        self._unbound()

    def add(self, value: Any, *, at: InstantLike | None = None) -> None:
        """Reduce a value into the one kept for the current key."""
        self._unbound()

    def get_values(self, keys: Keys) -> pa.Array:
        """Return one reduced value for each of ``keys``, null where nothing was added."""
        self._unbound()

    def add_rows(self, keys: Keys, index: NDArray[Any], values: pa.Array, *, at: InstantsLike = None) -> None:
        """Reduce ``values[i]`` into the value of ``keys[index[i]]``, for all i in order; null adds nothing."""
        self._unbound()


class AggregatingState(DeclaredState):
    """An accumulator per key, to which values of any type are added, and its result.

    Methods raise the errors that ``DeclaredState`` lists.
    """

    change_calls = ("add({})", "add_rows(keys, index, values)")

    def __init__(
        self,
        name: str,
        accumulator_type: TypeLike,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any],
        ttl: TtlLike = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """Declare an accumulator of ``accumulator_type``, as ValueState does.

        ``create()`` returns the first accumulator of a key, ``add(kept, value)`` the next one, ``result(kept)`` the
        value that reads return. Raises InvalidInputError.
        """
        super().__init__(name, {"accumulator": accumulator_type}, ttl, aliases)
        self.create = create
        self.accumulate = add
        self.result = result

    def get(self) -> Any:
        """Return the result for the current key, or None if nothing was added."""
        self._unbound()

    def add(self, value: Any, *, at: InstantLike | None = None) -> None:
        """Add a value to the accumulator of the current key."""
        self._unbound()

    def get_results(self, keys: Keys) -> list[Any]:
        """Return one result for each of ``keys``, None where nothing was added."""
        self._unbound()

    def add_rows(
        self, keys: Keys, index: NDArray[Any], values: Sequence[Any] | pa.Array, *, at: InstantsLike = None
    ) -> None:
        """Add ``values[i]`` to the accumulator of ``keys[index[i]]``, for all i in order."""
        self._unbound()
