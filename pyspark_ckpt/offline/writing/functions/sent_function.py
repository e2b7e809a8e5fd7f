"""Functions of users, which run in other processes: as bytes that are sent there, and what they raise.

The bytes are cloudpickle's, as PySpark sends programs. They go from one process to another one, and are never stored.
"""

from __future__ import annotations

import io
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, update_wrapper
from types import CodeType
from typing import Any

import cloudpickle
import pyarrow as pa
from typing_extensions import override

from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.local.worker_process import WorkerEnd

_CACHED = type(lru_cache(len))


@dataclass(frozen=True)
class SentFunction:
    """A function of a change that any process can call. Each process has a copy, and does not see changes of others.

    ``what``: what the function is of, for messages. ``name``: its own name.
    """

    what: str
    name: str
    dumped: bytes

    @classmethod
    def of(cls, function: object, what: str) -> SentFunction:
        """Return a function as it is sent. Raises InvalidInputError (it cannot be copied)."""
        name = getattr(function, "__qualname__", "") or type(function).__qualname__
        try:
            dumped = _dump(function)
        except Exception as problem:  # any object that the function uses may raise anything
            raise InvalidInputError(
                f"{what}: the function {name!r} cannot be sent to other processes: {type(problem).__name__}: {problem}",
                hint="It is copied with everything it uses. Open files, connections and sessions, and create "
                "locks, inside the function.",
            ) from problem
        return cls(what, name, dumped)

    def __reduce__(self) -> tuple[Any, ...]:
        return SentFunction, (self.what, self.name, self.dumped)

    def __call__(self, rows: pa.Table) -> Any:  # noqa: ANN401 - the caller checks what it returns
        """Call the function. Raises InvalidInputError (it cannot be loaded here), FunctionFailedError (it raised)."""
        function = self._function
        try:
            return function(rows)
        except (KeyboardInterrupt, WorkerEnd):  # of the process, not of the function
            raise
        except BaseException as problem:  # noqa: BLE001 - also sys.exit(): it must not end the process in silence
            frames = problem.__traceback__ and problem.__traceback__.tb_next  # without this call
            shown = "".join(traceback.format_exception(type(problem), problem, frames))
            raise FunctionFailedError(
                f"{self.what}: the function {self.name!r} raised an error.\n\n{shown}", dumped=_dump_error(problem)
            ) from None

    @cached_property
    def _function(self) -> Any:  # noqa: ANN401 - any callable
        try:
            return cloudpickle.loads(self.dumped)
        except Exception as problem:
            raise InvalidInputError(
                f"{self.what}: the function {self.name!r} cannot be loaded where the rows are: "
                f"{type(problem).__name__}: {problem}",
                hint="Functions of modules are imported there: install the module on all executors, or send it there "
                "with SparkContext.addPyFile. Or define the function in the program itself.",
            ) from problem


class FunctionFailedError(InvalidInputError):
    """A function of a user has raised an error, which ``raising_as_functions_do`` raises in its place.

    ``dumped``: the error; empty if it cannot be sent. The message has the traceback.
    """

    def __init__(self, message: str, *, hint: str | None = None, dumped: bytes = b"") -> None:
        """Keep ``dumped``."""
        super().__init__(message, hint=hint)
        self.dumped = dumped

    def load(self) -> Exception | None:
        """Return the error of the function; None if it cannot be copied, or would mean something else here.

        SystemExit would end the calling program, and StopIteration one of its loops.
        """
        if not self.dumped:
            return None
        try:
            found: object = cloudpickle.loads(self.dumped)
        except Exception:  # noqa: BLE001 - of a class that takes other arguments, or that is not known here
            return None
        return found if isinstance(found, Exception) and not isinstance(found, StopIteration) else None


@contextmanager
def raising_as_functions_do() -> Iterator[None]:
    """Raise what a user's function has raised in any process, with its traceback there as the cause."""
    try:
        yield
    except FunctionFailedError as problem:
        if (original := problem.load()) is None:
            raise
        raise original from problem


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # it has no types
    """Keeps the names of files, for tracebacks: newer releases of cloudpickle leave them out.

    Functions of the program that ``lru_cache`` has wrapped are copied like others: cloudpickle takes them to be in the
    ``__main__`` of the other process.
    """

    @override
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _CACHED) and _is_of_program(obj):
            return _new_cached, (obj.cache_parameters(),), obj.__wrapped__, None, None, _fill_cached
        if not isinstance(obj, CodeType):
            return super().reducer_override(obj)
        kind, arguments = cloudpickle.Pickler.dispatch_table[CodeType](obj)
        return _make_code, (kind, arguments, obj.co_filename)


class _Wrapped:
    """A function that is known later: one that is wrapped may call its wrapper, which then is made first."""

    function: Callable[..., Any]

    def __call__(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - of any function
        return self.function(*given, **named)


def _is_of_program(function: Any) -> bool:  # noqa: ANN401 - what lru_cache makes
    return function.__module__ == "__main__" or "<locals>" in function.__qualname__


def _new_cached(parameters: Mapping[str, Any]) -> Any:  # noqa: ANN401 - what lru_cache makes
    return lru_cache(parameters["maxsize"], parameters["typed"])(_Wrapped())


def _fill_cached(cached: Any, function: Callable[..., Any]) -> None:  # noqa: ANN401 - what lru_cache makes
    cached.__wrapped__.function = function
    update_wrapper(cached, function)


def _make_code(kind: type[CodeType], arguments: tuple[Any, ...], file: str) -> CodeType:
    return kind(*arguments).replace(co_filename=file)


def _dump_error(problem: BaseException) -> bytes:
    """Return an error as bytes; none if it cannot be copied."""
    try:
        return _dump(problem)
    except Exception:  # noqa: BLE001 - an error may hold anything; then it is shown as text
        return b""


def _dump(value: object) -> bytes:
    """Return an object as bytes. Raises what cloudpickle and the object raise."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()
