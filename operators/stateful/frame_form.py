"""pandas frames, as Spark's transformWithStateInPandas passes and takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.types import StructType
from typing_extensions import override

from pyspark_ckpt.operators.groups.frames import Conversion, GroupFrames, ReturnedFrames
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark_ckpt.operators.declarations.host import Conf

FRAMES_AT_ONCE = 8192
_WIDE: Mapping[str, str] = {"int8": "int64", "int16": "int64", "int32": "int64", "float32": "float64"}
"""Spark makes each frame of single rows, whose numbers are those of Python."""


class WideConversion(Conversion):
    """Makes frames whose numbers have 64 bits."""

    @override
    def to_frame(self, rows: pa.Table | pa.RecordBatch) -> pd.DataFrame:
        frame = super().to_frame(rows)
        if not any(kind.name in _WIDE for kind in frame.dtypes):
            return frame
        columns: list[Any] = [frame.iloc[:, n] for n in range(frame.shape[1])]
        wide = [each.astype(_WIDE.get(each.dtype.name, each.dtype)) for each in columns]
        joined: pd.DataFrame = pd.concat(wide, axis=1)
        return joined


@dataclass(frozen=True)
class FrameForm:
    """The form of transformWithStateInPandas."""

    output: StructType
    how: Conversion

    @classmethod
    def of(cls, conf: Conf, output: StructType) -> FrameForm:
        """Return the form for a session. ``output``: the columns of the frames that a program returns."""
        return cls(output, WideConversion(**asdict(Conversion.of(conf))))

    def group(self, rows: pa.Table, key_names: Sequence[str]) -> FrameGroups:
        """Return ``rows``, which are in the order of their keys."""
        return FrameGroups(GroupFrames(rows, key_names, self.how))

    def collect(self, who: Callable[[], str]) -> FrameResults:
        """Return a place for what the calls of ``who`` return."""
        return FrameResults(self, who)


class FrameGroups:
    """Rows as frames."""

    def __init__(self, groups: GroupFrames) -> None:
        self._groups = groups

    def take(self, begin: int, end: int) -> tuple[tuple[Any, ...], Iterator[pd.DataFrame]]:
        """Return the key and the rows from ``begin`` up to ``end``, exclusive: those of one key."""
        key = tuple([each.item() if isinstance(each, np.generic) else each for each in self._groups.key(begin)])
        return key, self._groups.frames(begin, end)


class FrameResults:
    """Frames that a program has returned."""

    def __init__(self, form: FrameForm, who: Callable[[], str]) -> None:
        """``who``: the method that returned them, for errors."""
        self._form = form
        self._who = who
        self._width = len(form.output)
        self._frames = ReturnedFrames()
        self._batches: list[pa.RecordBatch] = []

    def take(self, returned: Any) -> None:
        """Take all frames that one call has returned. Raises InvalidInputError (anything else)."""
        if isinstance(returned, pd.DataFrame):
            raise self._refuse("returned a pandas.DataFrame, not an iterable of them.")
        if not hasattr(returned, "__iter__"):
            raise self._refuse(f"returned {type(returned).__name__}, not an iterable of pandas.DataFrame.")
        for frame in returned:
            if not isinstance(frame, pd.DataFrame):
                raise self._refuse(f"returned {type(frame).__name__} in place of a pandas.DataFrame.")
            width = len(frame.columns)
            if 0 < width < self._width:
                names = self._form.output.names
                raise self._refuse(f"returned a frame of {width} columns, but the output has {self._width}: {names}.")
            if len(frame):
                self._frames.add(frame)
        if len(self._frames) >= FRAMES_AT_ONCE:
            self._pack()

    def finish(self) -> pa.Table | None:
        """Return the rows of all calls; None if there are none."""
        self._pack()
        return pa.Table.from_batches(self._batches) if self._batches else None

    def _pack(self) -> None:
        for frame in self._frames.take():
            try:
                self._batches.append(self._form.how.to_rows(frame, self._form.output))
            except KeyError as problem:
                names = self._form.output.names
                raise self._refuse(f"returned frames of {list(frame.columns)}; the output has {names}.") from problem

    def _refuse(self, what: str) -> InvalidInputError:
        return InvalidInputError(f"{self._who()} {what}", hint="Yield frames, or return a list of them.")
