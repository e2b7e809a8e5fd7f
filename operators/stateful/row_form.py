"""Rows of PySpark, as Spark's transformWithState passes and takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import Row

from pyspark_ckpt.operators.groups.frames import in_zone
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark_ckpt.operators.declarations.host import Conf

ROWS_AT_ONCE = 512
"""So few that Python's garbage collector, which visits all that are left, does not take half of the time."""
_WRONG = (TypeError, ValueError, OverflowError, AttributeError, pa.ArrowException)
_new_tuple = tuple.__new__


@dataclass(frozen=True)
class RowForm:
    """The form of transformWithState. Instants have ``time_zone``, that of the session."""

    output: pa.Schema
    time_zone: str

    @classmethod
    def of(cls, conf: Conf, output: pa.Schema) -> RowForm:
        """Return the form for a session. ``output``: the columns of the rows that a program returns."""
        return cls(output, str(conf.get("spark.sql.session.timeZone")))

    def group(self, rows: pa.Table, key_names: Sequence[str]) -> RowGroups:
        """Return ``rows``, which are in the order of their keys."""
        return RowGroups(rows, key_names, self.time_zone)

    def collect(self, who: Callable[[], str]) -> ReturnedRows:
        """Return a place for what the calls of ``who`` return."""
        return ReturnedRows(self.output, who)


class RowGroups:
    """Rows of a table, made when they are needed."""

    def __init__(self, rows: pa.Table, key_names: Sequence[str], time_zone: str) -> None:
        """``rows`` are in the order of their keys. Instants are shown in ``time_zone``."""
        self._columns = in_zone(rows, time_zone).columns
        self._keys_at = [rows.column_names.index(name) for name in key_names]
        self._count = len(rows)
        self._first = self._end = 0
        self._values: list[tuple[Any, ...]] = []
        self._keys: list[tuple[Any, ...]] = []
        self._make = row_maker(rows.column_names)

    def take(self, begin: int, end: int) -> tuple[tuple[Any, ...], Iterator[Row]]:
        """Return the key and the rows from ``begin`` up to ``end``, exclusive: those of one key. Call it in order."""
        if end > self._end:
            self._first, self._end = begin, min(max(end, begin + ROWS_AT_ONCE), self._count)
            columns = [column.slice(begin, self._end - begin).to_pylist() for column in self._columns]
            self._values = list(zip(*columns, strict=True))
            self._keys = list(zip(*(columns[at] for at in self._keys_at), strict=True))
        begin -= self._first
        return self._keys[begin], map(self._make, self._values[begin : end - self._first])


class ReturnedRows:
    """Rows that a program has returned.

    A field of the output that a Row does not have is null, as in Spark, unless the Row has a field of another name.
    """

    def __init__(self, output: pa.Schema, who: Callable[[], str]) -> None:
        """``output``: the columns. ``who``: the method that returned them, for errors."""
        self._output = output
        self._who = who
        self._rows: list[Row] = []
        self._batches: list[pa.RecordBatch] = []

    def take(self, returned: Any) -> None:
        """Take all rows that one call has returned. Raises InvalidInputError (anything else)."""
        if not hasattr(returned, "__iter__"):
            raise self._refuse(f"returned {_show(returned)}, not an iterable of Row.")
        self._rows.extend(returned)
        if len(self._rows) >= ROWS_AT_ONCE:
            self._pack()

    def finish(self) -> pa.Table | None:
        """Return the rows of all calls; None if there are none."""
        if self._rows:
            self._pack()
        return pa.Table.from_batches(self._batches) if self._batches else None

    def _pack(self) -> None:
        rows, self._rows = self._rows, []
        begin, fields = 0, None
        for place, row in enumerate(rows):
            own = getattr(row, "__fields__", None)
            if own != fields or own is None:
                self._pack_alike(rows[begin:place], fields)
                begin, fields = place, self._fields(row)
        self._pack_alike(rows[begin:], fields)

    def _pack_alike(self, rows: Sequence[Row], fields: Sequence[str] | None) -> None:
        """Pack rows with the same fields."""
        if fields is None or not rows:
            return
        place_of = {name: place for place, name in enumerate(fields)}
        values = list(zip(*rows, strict=True))
        nothing = [None] * len(rows)
        columns = []
        for field in self._output:
            place = place_of.get(field.name)
            columns.append(self._column(field, nothing if place is None else values[place]))
        self._batches.append(pa.RecordBatch.from_arrays(columns, schema=self._output))

    def _column(self, field: pa.Field, values: Sequence[Any]) -> pa.Array:
        try:
            return _convert(values, field)
        except _WRONG as problem:
            wrong = next((value for value in values if not _fits(value, field)), None)
            raise self._refuse(
                f"returned a row whose column {field.name!r} is {_show(wrong)}; the output's is of type {field.type}: "
                f"{problem}."
            ) from problem

    def _fields(self, row: Any) -> Sequence[str]:
        if not isinstance(row, Row):
            raise self._refuse(f"returned {_show(row)} in place of a Row.")
        fields: Sequence[str] | None = getattr(row, "__fields__", None)
        if fields is None:
            raise self._refuse(f"returned {_show(row)}, which has no field names.")
        unknown = [name for name in fields if name not in self._output.names]
        if unknown and len(fields) - len(unknown) < len(self._output):
            raise self._refuse(f"returned {_show(row)}, but the output has no column {unknown[0]!r}.")
        return fields

    def _refuse(self, what: str) -> InvalidInputError:
        names = ", ".join(f"{name}=..." for name in self._output.names)
        return InvalidInputError(f"{self._who()} {what}", hint=f"Yield Row({names}), or return a list of such rows.")


def row_maker(names: Sequence[str]) -> Callable[[tuple[Any, ...]], Row]:
    """Return a function that makes a Row of its values, faster than the class itself."""
    fields = Row(*names)

    def make(values: tuple[Any, ...]) -> Row:
        row = _new_tuple(Row, values)
        row.__fields__ = fields
        return row

    return make


def _convert(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return values of one column, converted as Spark converts them: by pyarrow alone."""
    if pa.types.is_nested(field.type):
        values = list(map(_as_dicts, values))
    return pa.array(values, field.type)


def _as_dicts(value: Any) -> Any:
    """Return a value with a dict in place of each Row in it."""
    if isinstance(value, Row):
        return value.asDict(recursive=True)
    if isinstance(value, list):
        return list(map(_as_dicts, value))
    if isinstance(value, dict):
        return {key: _as_dicts(each) for key, each in value.items()}
    return value


def _fits(value: Any, field: pa.Field) -> bool:
    try:
        _convert([value], field)
    except _WRONG:
        return False
    return True


def _show(value: Any) -> str:
    return f"{repr(value)[:200]} of type {type(value).__name__}"
