"""Errors of the user's own code say where they happened: operator, key, partition and batch, and what was raised."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.state_store.errors import CkptError

if TYPE_CHECKING:
    from pyspark_ckpt.operators.declarations.processors import Context

SHOWN_CHARACTERS = 200
"""Of a key."""


class ProcessorError(CkptError):
    """The user's own code has raised ``__cause__``. What the batch has written is dropped, as it is for any error."""

    default_hint = "The traceback of that error is above this one. What this batch has written is dropped."


class CallError(Exception):
    """A call for one of many keys has raised ``__cause__``; for who knows the rest."""

    def __init__(self, key: object) -> None:
        """Keep the key: a named tuple, or a tuple of its values."""
        super().__init__(show(key))
        self.key = key


def _no_key() -> None:
    """Many keys are processed at once."""


@contextmanager
def locate_errors(who: str, where: Context, key_of: Callable[[], object] = _no_key) -> Iterator[None]:
    """Raise ProcessorError for what the user's code raises within: ``who`` was called, for the key that is given.

    An error of this package that the code has met, such as a value of a wrong type, stays what it is, with a note.
    """
    try:
        yield
    except ProcessorError:
        raise
    except CkptError as problem:
        if sys.version_info >= (3, 11):
            problem.add_note(f"In {who}, {_place(where, None)}.")  # output is converted for several keys at once
        raise
    except CallError as problem:
        cause = problem.__cause__ or problem
        raise ProcessorError(_text(who, _place(where, problem.key), cause)) from cause
    except GeneratorExit:  # whoever takes the output has ended: nobody has raised a thing
        raise
    except BaseException as problem:  # sys.exit() as well: it would end the worker without a word
        raise ProcessorError(_text(who, _place(where, key_of()), problem)) from problem


def show(key: object) -> str:
    """A key, shortened: with the names of its columns where it has any."""
    named = getattr(key, "_asdict", None)
    columns: Mapping[str, Any] | None = named() if named is not None else None
    try:
        text = repr(key) if columns is None else ", ".join(f"{name}={value!r}" for name, value in columns.items())
    except BaseException:  # noqa: BLE001 - of the user's own: it must not hide the first error
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
