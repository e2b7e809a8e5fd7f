"""What a user writes: a processor, called for one key after another or for many keys of a partition at once."""

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
    """What a processor knows about the batch. Times are ms since 1970; ``watermark_ms`` is -1 without a watermark."""

    batch_id: int
    partition: int
    processing_time_ms: int
    watermark_ms: int


@dataclass(frozen=True)
class VectorContext(Context):
    """A Context with keys: ``keys`` are the distinct keys of the rows, ``keys[key_index[i]]`` is the key of row i."""

    keys: Keys
    key_index: NDArray[Any]


class KeyedProcessor(ABC):
    """A processor that is called for each key that has rows in a batch. Declare states as attributes of the class.

    The processor is copied to the workers for each batch. Keep in its states whatever it must remember.
    """

    @abstractmethod
    def process(self, ctx: Context, key: Any, rows: Sequence[Any]) -> Iterable[Sequence[Any]] | None:
        """Process the rows of a key. Rows and ``key`` are named tuples. Yield sequences, mappings or objects."""

    def on_timer(self, ctx: Context, key: Any, timer: Timer) -> Iterable[Sequence[Any]] | None:
        """Handle a timer of ``key`` that fires. Yield output rows, as ``process`` does."""
        raise NotImplementedError


class VectorProcessor(ABC):
    """A processor that is called for many keys at once. Declare states as attributes of the class."""

    @abstractmethod
    def process_batch(self, ctx: VectorContext, batch: pa.Table) -> pa.Table | None:
        """Process rows of one partition. Return the output rows, with the columns of the output.

        A partition with very many rows may come in several calls; all rows of a key come in one call.
        """

    def process_timers(self, ctx: VectorContext, timers: pa.Table) -> pa.Table | None:
        """Handle timers that fire: a table of ``name``, ``namespace`` and ``at``, in time order for each clock.

        ``ctx.keys`` are their keys. If there are very many timers, further calls bring the rest. Further calls also
        bring timers that were registered meanwhile and are due.
        """
        raise NotImplementedError


def find_declarations(holder: object) -> dict[str, Declared]:
    """Return what the class of ``holder`` declares, by attribute, in a fixed order. Raises InvalidInputError."""
    found: dict[str, Declared] = {}
    for kind in reversed(type(holder).__mro__):
        for attribute, value in vars(kind).items():
            if isinstance(value, Declared):
                found[attribute] = value
            elif not isinstance(value, _SLOT):  # the class overrides a declaration of its base
                found.pop(attribute, None)
    names = [state.name for state in found.values()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(
            f"{type(holder).__name__} declares more than one state with the name {twice[0]!r}.",
            hint="Give each state its own name.",
        )
    _require_in_class(holder, found)
    return dict(sorted(found.items(), key=lambda item: item[1].name))


def _require_in_class(holder: object, found: Mapping[str, Declared]) -> None:
    """Raise InvalidInputError for states that the instance itself declares, hides, or has no ``__dict__`` for."""
    who, own = type(holder).__name__, dict(getattr(holder, "__dict__", {}))
    slots = [name for kind in type(holder).__mro__ for name, each in vars(kind).items() if isinstance(each, _SLOT)]
    own.update({name: getattr(holder, name, None) for name in slots})
    of_instance = [name for name, value in own.items() if isinstance(value, Declared) and value is not found.get(name)]
    if of_instance:
        raise InvalidInputError(
            f"{who} has the state {of_instance[0]!r} in an instance.",
            hint="Declare states as attributes of the class. A dataclass with slots=True moves annotated ones away.",
        )
    hidden = [name for name in found if name in own and own[name] is not found[name]]
    if hidden:
        raise InvalidInputError(
            f"{who} has {repr(own[hidden[0]])[:200]} as its attribute {hidden[0]!r}, which is a state of the class.",
            hint="Rename the attribute or the state.",
        )
    if found and not hasattr(holder, "__dict__"):
        raise InvalidInputError(
            f"{who} has no room for its states in an instance: it has __slots__ and no __dict__.",
            hint="Write a plain class, or a dataclass without slots=True.",
        )


def states_of(processor: KeyedProcessor | VectorProcessor) -> dict[str, Declared]:
    """Return the declared states and timers by attribute, in a fixed order.

    Raises InvalidInputError if this is not a processor, if two states share a name, or if no method handles its timers.
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
    """Raise InvalidInputError unless this is an instance of a processor class."""
    if isinstance(processor, type):
        raise InvalidInputError(
            f"The processor is the class {processor.__name__}.", hint=f"Give an instance: {processor.__name__}()."
        )
    if not isinstance(processor, (KeyedProcessor, VectorProcessor)):
        raise InvalidInputError(
            f"The processor is {repr(processor)[:200]}, of type {type(processor).__name__}.",
            hint="Give an instance of a class that derives from KeyedProcessor or VectorProcessor.",
        )
