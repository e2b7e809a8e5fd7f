"""Convert rows to the pandas frames of applyInPandasWithState and back, with PySpark's own code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_ckpt.operators.groups.lazy_frames import Slices
from pyspark_ckpt.operators.types.columns import validity
from pyspark_ckpt.operators.types.value_types import make_handed_type
from pyspark_ckpt.pyspark_releases import to_rows, to_series

if TYPE_CHECKING:
    from pyspark_ckpt.operators.declarations.host import Conf


@dataclass(frozen=True)
class Conversion:
    """Spark's settings for the conversion from Arrow to pandas and back."""

    time_zone: str
    checks_casts: bool
    columns_by_name: bool
    prefers_integer_types: bool
    coerces_integers_to_decimals: bool
    rows_at_once: int

    @classmethod
    def of(cls, conf: Conf) -> Conversion:
        """Return the settings of a session."""

        def is_on(name: str, default: str) -> bool:
            return conf.get(name, default) == "true"

        rows_at_once = int(str(conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")))
        return cls(
            time_zone=str(conf.get("spark.sql.session.timeZone")),
            checks_casts=is_on("spark.sql.execution.pandas.convertToArrowArraySafely", "false"),
            columns_by_name=is_on("spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName", "true"),
            prefers_integer_types=is_on("spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype", "false"),
            coerces_integers_to_decimals=is_on(
                "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled", "false"
            ),
            rows_at_once=rows_at_once if rows_at_once > 0 else 1 << 31,
        )

    def to_frame(self, rows: pa.Table | pa.RecordBatch) -> pd.DataFrame:
        """Return rows as the frame that a function of applyInPandasWithState gets."""
        zoned = in_zone(rows, self.time_zone)
        return pd.concat(to_series(zoned, self.time_zone, prefers_integer_types=self.prefers_integer_types), axis=1)

    def to_rows(self, frame: pd.DataFrame, output: StructType) -> pa.RecordBatch:
        """Return a frame that such a function returned as rows of the output."""
        return to_rows(
            frame,
            output,
            make_handed_type(output),
            self.time_zone,
            checks_casts=self.checks_casts,
            columns_by_name=self.columns_by_name,
            coerces_integers=self.coerces_integers_to_decimals,
        )


Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def in_zone(rows: Rows, time_zone: str) -> Rows:
    """Return rows as Spark passes them to Python: their instants have the time zone of the session."""
    zoned = pa.schema([field.with_type(_set_zone(field.type, time_zone)) for field in rows.schema])
    return rows if zoned == rows.schema else rows.cast(zoned)


def _set_zone(kind: pa.DataType, time_zone: str) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, time_zone)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_set_zone(field.type, time_zone)) for field in kind])
    if pa.types.is_map(kind):
        entries = (each.with_type(_set_zone(each.type, time_zone)) for each in (kind.key_field, kind.item_field))
        return pa.map_(*entries)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_set_zone(kind.value_type, time_zone)))
    return kind


class ReturnedFrames:
    """Collects frames that a function has returned, and combines them.

    For consecutive frames with the same names and types, it keeps only the arrays of their columns: combining many
    frames of one row each would take long, and so would the garbage collection of so many objects.
    """

    def __init__(self) -> None:
        self._frames: list[pd.DataFrame] = []
        self._run: list[list[Any]] = []
        self._first = pd.DataFrame()
        self._said: tuple[list[Any], list[Any]] = [], []
        self._count = 0

    def __len__(self) -> int:
        """Return how many frames there are."""
        return self._count

    def add(self, frame: pd.DataFrame) -> None:
        """Add a frame."""
        blocks: Any = frame._mgr.blocks  # noqa: SLF001 - the public ways are slow
        arrays = [block.values for block in blocks]  # noqa: PD011 - a block has nothing else
        said = frame.columns.tolist(), [(a.dtype, *block.mgr_locs) for a, block in zip(arrays, blocks, strict=True)]
        if said != self._said:
            self._end_run()
            self._first, self._said = frame, said
        self._run.append(arrays)
        self._count += 1

    def take(self) -> list[pd.DataFrame]:
        """Return the frames, those with the same columns one after another as one, and forget them."""
        self._end_run()
        frames, self._frames, self._count = self._frames, [], 0
        alike = groupby(frames, key=lambda frame: frame.columns.tolist())
        return [pd.concat(list(some), ignore_index=True) for _, some in alike]

    def _end_run(self) -> None:
        if len(self._run) > 1:
            columns: dict[int, Any] = {}
            for (_, *places), *arrays in zip(self._said[1], *self._run, strict=True):
                array = _one_behind_the_other(arrays)
                columns.update(zip(places, array if array.ndim > 1 else [array], strict=True))
            frame = pd.DataFrame({place: columns[place] for place in sorted(columns)}, copy=False)
            frame.columns = self._first.columns
            self._frames.append(frame)
        elif self._run:
            self._frames.append(self._first)
        self._run, self._said = [], ([], [])


def _one_behind_the_other(arrays: Sequence[Any]) -> Any:
    first = arrays[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(arrays, axis=-1)
    join = type(first)._concat_same_type  # noqa: SLF001
    return join(arrays, axis=1) if first.ndim > 1 else join(arrays)


class GroupFrames:
    """Rows as pandas frames, each with the types that it would have if its range of rows were converted alone.

    All rows are converted at once, which takes as long as one row. But a column of integers with a null in it becomes
    floats, so ranges with a null are converted again on their own.
    """

    def __init__(self, rows: pa.Table, key_names: Sequence[str], how: Conversion) -> None:
        self._rows = rows
        self._how = how
        self._is_uneven = np.zeros(len(rows), np.bool_)
        columns = []
        for column in rows.columns:
            if pa.types.is_nested(column.type):
                self._is_uneven[:] = True
            elif column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
                self._is_uneven |= ~validity(column)
                column = column.fill_null(pa.scalar(0).cast(column.type))  # noqa: PLW2901
            columns.append(column)
        everything = how.to_frame(pa.Table.from_arrays(columns, names=rows.column_names))
        self._slices = Slices(everything)
        self._has_uneven = bool(self._is_uneven.any())
        self._key_columns = [rows.column_names.index(name) for name in key_names]
        found = [everything.iloc[:, n] for n in self._key_columns]
        self._keys = [each.to_numpy() if each.dtype.kind in "biuf" else list(each) for each in found]

    def key(self, at: int) -> tuple[Any, ...]:
        """Return the key of a row."""
        if self._has_uneven and self._is_uneven[at]:
            alone = self._how.to_frame(self._rows.slice(at, 1))
            return tuple(alone.iloc[:, n][0] for n in self._key_columns)
        return tuple([each[at] for each in self._keys])

    def frames(self, begin: int, end: int) -> Iterator[pd.DataFrame]:
        """Yield the rows from ``begin`` up to ``end``, exclusive, as frames with their own indexes."""
        for first in range(begin, end, self._how.rows_at_once):
            last = min(first + self._how.rows_at_once, end)
            if self._has_uneven and self._is_uneven[first:last].any():
                yield self._how.to_frame(self._rows.slice(first, last - first))
            else:
                yield self._slices.rows(first, last)
