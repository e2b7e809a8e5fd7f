"""What a user writes: a processor, called for one key after another or for many keys of a partition at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pyspark_ckpt.operators.declarations.partition_states import BroadcastState
from pyspark_ckpt.operators.declarations.states import Declared
from pyspark_ckpt.operators.declarations.timers import Timer, Timers
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.encoding.distinct_keys import Keys

_SLOT = MemberDescriptorType

Arrival: TypeAlias = Literal["initial", "late", "in time", "broadcast"]
"""How rows have come to a batch. A processor may have a method of its own for each."""
_WORDS: Mapping[Arrival, Sequence[str]] = {
    "initial": ["initial"],
    "late": ["late"],
    "in time": [],
    "broadcast": ["broadcast"],
}


@dataclass(frozen=True)
class Context:
    """What a processor knows about the batch. A retried batch has the same values.

    ``batch_id``: Spark's number of the batch, from 0. ``partition``: the number of the state's partition, from 0.
    ``processing_time_ms``: when Spark began the batch, in ms since 1970. ``watermark_ms``: the watermark in ms since
    1970; -1 if the frame has none, 0 in the first batch. ``partitions``: the number of partitions.
    """

    batch_id: int
    partition: int
    processing_time_ms: int
    watermark_ms: int
    partitions: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class VectorContext(Context):
    """A Context with the keys of the rows, or of the timers.

    ``keys``: the distinct keys. ``key_index``: an integer array with one position in ``keys`` for each row or timer.
    """

    keys: Keys
    key_index: NDArray[Any]


class KeyedProcessor:
    """A processor that is called for each key that has rows in a batch. Declare states as attributes of the class.

    Its writes commit with the batch, or not at all; a failed task is repeated from the state before the batch. Each
    batch copies the processor to the workers: keep whatever it must remember in its states.
    """

    def process(self, ctx: Context, key: Any, rows: Sequence[Any]) -> Iterable[Sequence[Any]] | None:
        """Process all rows that a key has in the batch, before its timers. Yield or return output rows, or return None.

        ``key`` and each of ``rows`` are named tuples; timestamps are aware datetimes in UTC. An output row is a
        sequence, a mapping or an object with the fields of the output. Every processor needs this method, or with
        several inputs (see ``keyed_inputs``) a method ``process_<input>`` for each.
        """
        raise NotImplementedError

    def on_timer(self, ctx: Context, key: Any, timer: Timer) -> Iterable[Sequence[Any]] | None:
        """Handle a firing timer of ``key``; needed if timers are declared. Yield output rows, as ``process`` does."""
        raise NotImplementedError

    def process_late(self, ctx: Context, key: Any, rows: Sequence[Any]) -> Iterable[Sequence[Any]] | None:
        """Process the late rows of a key, before its other rows. Otherwise as ``process``.

        A row is late if its event time is not after the watermark of the batch before. Without this method, late rows
        are dropped and counted.
        """
        raise NotImplementedError

    def process_broadcast(self, ctx: Context, rows: Sequence[Any]) -> Iterable[Sequence[Any]] | None:
        """Process the rows of the broadcast input, which every partition gets, before all other rows of the batch.

        If a batch has such rows, this is called once in each partition, with the rows in the same order everywhere.
        Only this method may write a BroadcastState. There is no current key. Yield output rows, as ``process`` does;
        each partition outputs its own.
        """
        raise NotImplementedError

    def process_initial(self, ctx: Context, key: Any, rows: Sequence[Any]) -> Iterable[Sequence[Any]] | None:
        """Process all rows that a key has in the initial state, before its other rows. Otherwise as ``process``.

        It is called only in the first batch of a query. Without this method, the columns of the initial state are the
        first values of the states with the same names.
        """
        raise NotImplementedError


class VectorProcessor:
    """A processor that is called for many keys at once. Declare states as attributes of the class.

    It gets and returns Arrow columns, without a Python call for each key. Otherwise as KeyedProcessor.
    """

    def process_batch(self, ctx: VectorContext, batch: pa.Table) -> pa.Table | None:
        """Process rows of one partition, with the columns of the frame. Return the output rows as a table, or None.

        ``ctx.keys`` are the distinct keys of ``batch``, ``ctx.key_index`` has the position of each row's key. Rows
        beyond the option ``workerMemory`` come in further calls; all rows of a key come in one call. With several
        inputs (see ``keyed_inputs``), the methods are ``process_<input>_batch``.
        """
        raise NotImplementedError

    def process_timers(self, ctx: VectorContext, timers: pa.Table) -> pa.Table | None:
        """Handle timers that fire: a table of ``name``, ``namespace`` and ``at``, in time order for each clock.

        ``ctx.keys`` are their distinct keys, ``ctx.key_index`` has the position of each timer's key. Further calls
        bring the rest if there are very many, and timers registered meanwhile that are already due. Return output rows
        as a table, or None.
        """
        raise NotImplementedError

    def process_late_batch(self, ctx: VectorContext, batch: pa.Table) -> pa.Table | None:
        """Process late rows, before the other rows of their keys: see ``KeyedProcessor.process_late``."""
        raise NotImplementedError

    def process_broadcast_batch(self, ctx: Context, batch: pa.Table) -> pa.Table | None:
        """Process the rows of the broadcast input: see ``KeyedProcessor.process_broadcast``."""
        raise NotImplementedError

    def process_initial_batch(self, ctx: VectorContext, batch: pa.Table) -> pa.Table | None:
        """Process rows of the initial state, before the other rows of their keys.

        See ``KeyedProcessor.process_initial``. All rows of a key come in one call.
        """
        raise NotImplementedError


class AdaptingProcessor(VectorProcessor):
    """A VectorProcessor that calls a program written for another interface, one key at a time.

    Its states also take calls for the current key, which it sets itself, in the ``position`` of the task's rows.
    """

    position: Any

    def close(self) -> None:
        """End the task: called after its last rows and timers were processed. Nothing can be written to states."""


def name_method(processor: KeyedProcessor | VectorProcessor, arrival: Arrival, name: str = "") -> str:
    """Return the name of the method for rows of an input that come to a batch in this way."""
    words = ["process", *_WORDS[arrival], *([name] if arrival in ("late", "in time") and name else [])]
    return "_".join([*words, *(["batch"] if isinstance(processor, VectorProcessor) else [])])


def check_input_name(name: str, who: str) -> None:
    """Raise InvalidInputError unless ``process_<name>`` can be the method for the rows of an input of this name."""
    taken = {"late", "initial", "batch", "timers", "broadcast"}
    if (
        name in taken
        or name.startswith(("_", "late_", "initial_"))
        or name.endswith("_batch")
        or not name.isidentifier()
    ):
        raise InvalidInputError(
            f"{who}: {name!r} cannot be the name of an input, whose rows go to the method process_{name}.",
            hint=f"Choose a name that Python allows, other than {sorted(taken)}, that does not begin with 'late_' or "
            "'initial_' or end with '_batch'.",
        )


def takes_late_rows(processor: KeyedProcessor | VectorProcessor, name: str = "") -> bool:
    """Return whether the class of a processor has a method for late rows of the input ``name``."""
    return _has(processor, name_method(processor, "late", name))


def require_broadcast(processor: KeyedProcessor | VectorProcessor, *, has_input: bool) -> None:
    """Raise InvalidInputError unless the class has a method for the rows of a broadcast input if there is one.

    Without one, the method and BroadcastStates are refused: nothing would call it, and the states would stay empty.
    """
    who, method = type(processor).__name__, name_method(processor, "broadcast")
    if has_input:
        if not _has(processor, method):
            raise InvalidInputError(f"There is a broadcast input, but {who} has no {method}() for its rows.")
        return
    hint = "Give the frame whose rows go to all partitions: broadcast=rules."
    if _has(processor, method):
        raise InvalidInputError(f"{who} has a method {method}(), but there is no broadcast input.", hint=hint)
    for each in find_declarations(processor).values():
        if isinstance(each, BroadcastState):
            raise InvalidInputError(
                f"{who} declares the broadcast state {each.name!r}, but there is no broadcast input.", hint=hint
            )


def takes_initial_rows(processor: KeyedProcessor | VectorProcessor) -> bool:
    """Return whether the class of a processor has a method for the rows of an initial state."""
    return _has(processor, name_method(processor, "initial"))


def require_methods(processor: KeyedProcessor | VectorProcessor, inputs: Sequence[str]) -> None:
    """Raise InvalidInputError unless the class of a processor has a method for the rows of each input."""
    _require_processor(processor)
    for name in inputs:
        if not _has(processor, method := name_method(processor, "in time", name)):
            known = [each for each in dir(type(processor)) if each.startswith("process") and _has(processor, each)]
            raise InvalidInputError(
                f"{type(processor).__name__} has no {method}(){f' for the input {name!r}' if name else ''}."
                f"{suggest(method, known)}"
            )
    _refuse_stray_methods(processor, inputs)


def _refuse_stray_methods(processor: KeyedProcessor | VectorProcessor, inputs: Sequence[str]) -> None:
    """Raise InvalidInputError for a method that nothing calls, although its name says that it takes late rows."""
    wanted = [name_method(processor, "late", name) for name in inputs]
    for method in dir(type(processor)):
        if method.startswith("process_late") and method not in wanted and _has(processor, method):
            raise InvalidInputError(
                f"{type(processor).__name__} has a method {method}(), which nothing calls: the methods for late rows "
                f"are {wanted}.",
                hint="Rename the method, or remove it.",
            )


def _has(processor: KeyedProcessor | VectorProcessor, method: str) -> bool:
    base = VectorProcessor if isinstance(processor, VectorProcessor) else KeyedProcessor
    return getattr(type(processor), method, None) not in (None, getattr(base, method, None))


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
            f"{who} declares the state {of_instance[0]!r} in an instance.",
            hint="Declare states as attributes of the class. A dataclass with slots=True moves annotated ones away.",
        )
    hidden = [name for name in found if name in own and own[name] is not found[name]]
    if hidden:
        raise InvalidInputError(
            f"{who} sets its attribute {hidden[0]!r} to {repr(own[hidden[0]])[:200]}, but the class declares it as a "
            "state.",
            hint="Rename the attribute or the state.",
        )
    if found and not hasattr(holder, "__dict__"):
        raise InvalidInputError(
            f"{who} has no room for states in its instances: it has __slots__ and no __dict__.",
            hint="Write a plain class, or a dataclass without slots=True.",
        )


def find_states(processor: KeyedProcessor | VectorProcessor) -> dict[str, Declared]:
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
        raise InvalidInputError(f"{type(processor).__name__} declares the timers {timers[0]!r} but has no {method}().")
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
