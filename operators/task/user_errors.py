"""Errors of the user's code, with where they happened: operator, key, partition and batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.state_store.errors import CkptError, add_note

if TYPE_CHECKING:
    from pyspark_ckpt.operators.declarations.processors import Context

SHOWN_CHARACTERS = 200
"""How much of a key is shown."""


class ProcessorError(CkptError):
    """The user's code has raised ``__cause__``. The writes of the batch are dropped, as for any error."""

    default_hint = "The traceback of that error is above this one. The writes of this batch are dropped."


class CallError(Exception):
    """A call for one of many keys has raised ``__cause__``. ``locate_errors`` adds the rest to the message."""

    def __init__(self, key: object) -> None:
        """``key``: a named tuple, or a tuple of its values."""
        super().__init__(show(key))
        self.key = key


def _no_key() -> None:
    """Return None: many keys are processed at once."""


@contextmanager
def locate_errors(
    who: str | Callable[[], str], where: Context, key_of: Callable[[], object] = _no_key
) -> Iterator[None]:
    """Raise ProcessorError for errors of the user's code in the block: ``who`` was called, for the key of ``key_of``.

    An error of this package, such as one for a value of a wrong type, is raised unchanged, with a note.
    """

    def name() -> str:
        return who if isinstance(who, str) else who()

    try:
        yield
    except ProcessorError:
        raise
    except CkptError as problem:
        if not getattr(problem, "__notes__", None):  # an inner block knows better who was called
            add_note(problem, f"In {name()}, {_place(where, None)}.")  # output is converted for several keys at once
        raise
    except CallError as problem:
        cause = problem.__cause__ or problem
        raise ProcessorError(_text(name(), _place(where, problem.key), cause)) from cause
    except GeneratorExit:  # the consumer of the output has stopped: this is not an error
        raise
    except BaseException as problem:  # also sys.exit(), which would end the worker silently
        raise ProcessorError(_text(name(), _place(where, key_of()), problem)) from problem


def show(key: object) -> str:
    """Return the shortened text of a key, with the names of its columns if it has any."""
    named = getattr(key, "_asdict", None)
    columns: Mapping[str, Any] | None = named() if named is not None else None
    try:
        text = repr(key) if columns is None else ", ".join(f"{name}={value!r}" for name, value in columns.items())
    except BaseException:  # noqa: BLE001 - an error in the user's __repr__ must not hide the first error
        text = f"a {type(key).__name__} that cannot be shown"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _place(where: Context, key: object) -> str:
    of_key = "" if key is None else f"key ({show(key)}), "
    return f"{of_key}partition {where.partition}, batch {where.batch_id}"


def _text(who: str, place: str, cause: BaseException) -> str:
    try:
        message = str(cause)
    except BaseException:  # noqa: BLE001 - as above
        message = "its text cannot be shown"
    return f"{who} failed for {place}: {type(cause).__name__}{f': {message}' if message else ''}"
