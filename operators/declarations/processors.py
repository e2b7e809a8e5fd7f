"""What a user writes: a processor, given one key after the other, or all keys of a partition at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.operators.declarations.states import Declared
from pyspark_ckpt.operators.declarations.timers import Timer, Timers
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.encoding.keys import Keys

_SLOT = MemberDescriptorType


@dataclass(frozen=True)
class Context:
    """What a processor is told about the batch. Times are ms since 1970; ``watermark_ms`` is -1 without one."""

    batch_id: int
    partition: int
    processing_time_ms: int
    watermark_ms: int


@dataclass(frozen=True)
class VectorContext(Context):
    """And about its rows: ``keys`` are their distinct keys, ``key_index[i]`` is the position of row i's key in them."""

    keys: Keys
    key_index: NDArray[Any]


class KeyedProcessor(ABC):
    """Is called for each key that has rows in a batch. States are declared as attributes of the class.

    A processor is copied to the workers for each batch: what it must remember belongs into its states.
    """

    @abstractmethod
    def process(self, ctx: Context, key: Any, rows: Sequence[Any]) -> Iterable[Sequence[Any]] | None:
        """Process a key's rows: named tuples, like ``key``. Yields output rows: sequences, mappings or objects."""

    def on_timer(self, ctx: Context, key: Any, timer: Timer) -> Iterable[Sequence[Any]] | None:
        """A timer of ``key`` fires. Yields output rows, as ``process`` does."""
        raise NotImplementedError


class VectorProcessor(ABC):
    """Is called for many keys at once. States are declared as attributes of the class."""

    @abstractmethod
    def process_batch(self, ctx: VectorContext, batch: pa.Table) -> pa.Table | None:
        """Process rows of one partition. Returns the output rows, with the output's columns.

        A partition with very many rows may come in several calls; all rows of a key come in one.
        """

    def process_timers(self, ctx: VectorContext, timers: pa.Table) -> pa.Table | None:
        """Timers fire: a table of their ``name``, ``namespace`` and ``at``, those of one clock in the order of time.

        ``ctx.keys`` are their keys. Further calls bring the rest of very many, and due ones registered meanwhile.
        """
        raise NotImplementedError


def find_declarations(holder: object) -> dict[str, Declared]:
    """What the class of an object declares, by attribute, in a fixed order. Raises InvalidInputError."""
    found: dict[str, Declared] = {}
    for kind in reversed(type(holder).__mro__):
        for attribute, value in vars(kind).items():
            if isinstance(value, Declared):
                found[attribute] = value
            elif not isinstance(value, _SLOT):  # a class has something else in place of what its base declares
                found.pop(attribute, None)
    names = [state.name for state in found.values()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(f"{type(holder).__name__} declares more than one state with the name {twice[0]!r}.")
    _require_in_class(holder, found)
    return dict(sorted(found.items(), key=lambda item: item[1].name))


def _require_in_class(holder: object, found: Mapping[str, Declared]) -> None:
    """Raise InvalidInputError for states that an object has itself, or has no room for."""
    who, own = type(holder).__name__, dict(getattr(holder, "__dict__", {}))
    slots = [name for kind in type(holder).__mro__ for name, each in vars(kind).items() if isinstance(each, _SLOT)]
    own.update({name: getattr(holder, name, None) for name in slots})
    of_instance = [name for name, value in own.items() if isinstance(value, Declared) and value is not found.get(name)]
    if of_instance:
        raise InvalidInputError(
            f"{who} has the state {of_instance[0]!r} in an instance.",
            hint="Declare states as attributes of the class; slots=True of a dataclass moves annotated ones away.",
        )
    hidden = [name for name in found if name in own and own[name] is not found[name]]
    if hidden:
        raise InvalidInputError(
            f"{who} has {repr(own[hidden[0]])[:200]} as its attribute {hidden[0]!r}, which is a state of the class.",
            hint="Give one of them another name.",
        )
    if found and not hasattr(holder, "__dict__"):
        raise InvalidInputError(
            f"{who} has no room for its states in an instance: it has __slots__, and no __dict__.",
            hint="Write a plain class, or a dataclass without slots=True.",
        )


def states_of(processor: KeyedProcessor | VectorProcessor) -> dict[str, Declared]:
    """The declared states and timers by attribute, in a fixed order.

    Raises InvalidInputError if this is not a processor, if two have one name, or nothing is called when timers fire.
    """
    _require_processor(processor)
    found = find_declarations(processor)
    base, method = (
        (VectorProcessor, "process_timers") if isinstance(processor, VectorProcessor) else (KeyedProcessor, "on_timer")
    )
    timers = [each.name for each in found.values() if isinstance(each, Timers)]
    if timers and getattr(type(processor), method) is getattr(base, method):
        raise InvalidInputError(f"{type(processor).__name__} declares the timers {timers[0]!r} and has no {method}().")
    return found


def _require_processor(processor: object) -> None:
    """Raise InvalidInputError unless this is an instance of a processor's class."""
    if isinstance(processor, type):
        raise InvalidInputError(
            f"The processor is the class {processor.__name__}.", hint=f"Give an instance: {processor.__name__}()."
        )
    if not isinstance(processor, (KeyedProcessor, VectorProcessor)):
        raise InvalidInputError(
            f"The processor is {repr(processor)[:200]}, of type {type(processor).__name__}.",
            hint="Give an instance of a class that derives from KeyedProcessor or VectorProcessor.",
        )
