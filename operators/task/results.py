"""Check what a call for one key returns: rows, or something else that the error explains."""

from __future__ import annotations

import dis
from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from functools import lru_cache
from types import CodeType, GeneratorType
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_ckpt.state_store.errors import InvalidInputError

_CODES = 64
"""Of how many generators it is remembered what they return."""
_PLAIN = (type(None), str, bytes, bytearray, int, float, complex, Decimal, timedelta, np.generic)
_YIELD = "Yield each row, or return a list of rows. A row is a sequence, a mapping or an object with the fields"


class Results:
    """Reads the results of calls of one method, which ``who`` names in errors."""

    def __init__(self, who: Callable[[], str], names: list[str]) -> None:
        """``names``: the names of the fields of a row."""
        self._who = who
        self._names = names
        self._code: CodeType | None = None
        """The code of generators that return nothing, which need no check."""

    def rows(self, result: Any) -> Iterator[Any]:
        """Return the rows of a result that is not None. Raises InvalidInputError (not an iterable of rows)."""
        if type(result) is GeneratorType:
            code = result.gi_code
            if code is not self._code and _returns_values(code):
                return self._without_return(result)
            self._code = code
            return result
        return self._of_other(result)

    def check_row(self, row: Any) -> None:
        """Raise InvalidInputError if a plain value was yielded in place of a row."""
        if isinstance(row, (*_PLAIN, date, time)):
            one = f"({self._names[0]},)" if len(self._names) == 1 else "a tuple of its fields"
            raise self._make_error(f"yielded {_show(row)} in place of a row", f"{_YIELD} {self._names}: {one}.")

    def _of_other(self, result: Any) -> Iterator[Any]:
        hint = f"{_YIELD} {self._names}."
        if isinstance(result, (pa.Table, pa.RecordBatch)) or hasattr(type(result), "itertuples"):
            hint = "Yield its rows one by one, for example with itertuples(index=False), or write a VectorProcessor."
            raise self._make_error(f"returned a {type(result).__name__} in place of rows", hint)
        if isinstance(result, (str, bytes, bytearray, Mapping)) or not hasattr(type(result), "__iter__"):
            raise self._make_error(f"returned {_show(result)} in place of rows", hint)
        if isinstance(result, (tuple, list)) and len(result) and isinstance(result[0], _PLAIN):
            raise self._make_error(f"returned {_show(result)}, which looks like one row, not a list of rows", hint)
        return iter(result)

    def _without_return(self, rows: Generator[Any, None, Any]) -> Iterator[Any]:
        given = yield from rows
        if given is not None:
            raise self._make_error(f"yields rows, but also returned {_show(given)}, which would be lost", f"{_YIELD}.")

    def _make_error(self, what: str, hint: str) -> InvalidInputError:
        return InvalidInputError(f"{self._who()} {what}.", hint=hint)


@lru_cache(maxsize=_CODES)
def _returns_values(code: CodeType) -> bool:
    """Whether a generator may return a value."""
    before = None
    for instruction in dis.get_instructions(code):
        is_nothing = before is not None and before.opname == "LOAD_CONST" and before.argval is None
        if instruction.opname == "RETURN_VALUE" and not is_nothing:
            return True
        if instruction.opname == "RETURN_CONST" and instruction.argval is not None:
            return True
        before = instruction
    return False


def _show(value: Any) -> str:
    return f"{repr(value)[:200]} ({type(value).__name__})"
