"""pandas frames of a few rows each, which are created only if a function needs a real frame.

Most functions that are called for each key ask a frame only for its length and for the sum, maximum or values of a
column. These are answered from the column's array. For anything else the frame becomes an ordinary ``DataFrame``, by
class and content, and so do the columns that were taken from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import ref

import numpy as np
import numpy.typing as npt
import pandas as pd

_KINDS = "iufbO"
"""Kinds of numpy types whose arrays a Series holds unchanged."""
_NUMBERS = "iu"
_FLOATS = "f"


class Slices:
    """Ranges of rows of one frame, each as a frame with its own index."""

    def __init__(self, frame: pd.DataFrame) -> None:
        """Slice ``frame``, which nobody else may change."""
        self.frame = frame
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        """The arrays of columns that can be used without a frame."""
        is_shared = not pd.get_option("mode.copy_on_write")  # otherwise a frame returns a new column each time
        if is_shared and frame.columns.is_unique:
            for name, column in frame.items():
                if isinstance(name, str) and isinstance(column.dtype, np.dtype) and column.dtype.kind in _KINDS:
                    self.arrays[name] = column.to_numpy()

    def rows(self, first: int, behind: int) -> pd.DataFrame:
        """Return the rows from ``first`` up to ``behind``, exclusive, as a lazy frame; there must be at least one."""
        frame = _LazyFrame.__new__(_LazyFrame)
        frame.__dict__["_lazy"] = self, first, behind, {}
        return frame

    def make(self, first: int, behind: int) -> pd.DataFrame:
        """Return the same rows as an ordinary frame."""
        frame = self.frame.iloc[first:behind].copy(deep=False)
        frame.index = pd.RangeIndex(behind - first)
        return frame


class _LazyFrame(pd.DataFrame):
    """A frame without pandas' attributes. As soon as pandas looks for one, ``__getattr__`` creates the frame."""

    def __getattr__(self, name: str) -> Any:  # type: ignore[misc]
        if name in self.__dict__["_lazy"][0].arrays:
            return self[name]
        _fill_in(self)
        return getattr(self, name)

    def __len__(self) -> int:
        first: int
        behind: int
        _, first, behind, _ = self.__dict__["_lazy"]
        return behind - first

    @property
    def empty(self) -> bool:
        return False

    def __getitem__(self, name: Any) -> Any:
        slices, first, behind, columns = self.__dict__["_lazy"]
        array = slices.arrays.get(name) if type(name) is str else None
        if array is None:
            return _fill_in(self)[name]
        column = columns[name]() if name in columns else None
        if column is None:
            column = _LazyColumn.__new__(_LazyColumn)
            column.__dict__["_lazy"] = self, array[first:behind]
            columns[name] = ref(column)
        return column

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _fill_in(self).__reduce_ex__(protocol)


class _LazyColumn(pd.Series):
    """A column of a lazy frame, created together with it."""

    def __getattr__(self, name: str) -> Any:  # type: ignore[misc]
        return getattr(_fill_in(self), name)

    def __len__(self) -> int:
        return len(self.__dict__["_lazy"][1])

    @property
    def empty(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__dict__["_lazy"][1].tolist())

    def __getitem__(self, label: Any) -> Any:
        array = self.__dict__["_lazy"][1]
        return array[label] if type(label) is int and 0 <= label < len(array) else _fill_in(self)[label]

    def tolist(self) -> list[Any]:
        values: list[Any] = self.__dict__["_lazy"][1].tolist()
        return values

    to_list = tolist

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        array = self.__dict__["_lazy"][1]
        if not args and not kwargs:
            if array.dtype.kind in _NUMBERS:
                return array.sum()
            if array.dtype.kind in _FLOATS:
                with np.errstate(invalid="ignore"):
                    total = array.sum()
                if total == total:  # noqa: PLR0124 - otherwise pandas skips NaN
                    return total
        return _fill_in(self).sum(*args, **kwargs)

    def min(self, *args: Any, **kwargs: Any) -> Any:
        return self._extreme("min", args, kwargs)

    def max(self, *args: Any, **kwargs: Any) -> Any:
        return self._extreme("max", args, kwargs)

    def _extreme(self, which: str, args: Any, kwargs: Any) -> Any:
        array = self.__dict__["_lazy"][1]
        if not args and not kwargs and array.dtype.kind in _NUMBERS + _FLOATS:
            value = getattr(array, which)()
            if value == value:  # noqa: PLR0124 - otherwise pandas skips NaN
                return value
        return getattr(_fill_in(self), which)(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _fill_in(self).__reduce_ex__(protocol)


def _fill_in(lazy: Any) -> Any:
    """Turn a lazy frame or column into an ordinary one; return it."""
    _make(lazy if isinstance(lazy, pd.DataFrame) else lazy.__dict__["_lazy"][0])
    return lazy


def _make(frame: pd.DataFrame) -> None:
    slices, first, behind, columns = frame.__dict__["_lazy"]
    _turn_into(frame, slices.make(first, behind))
    for name, reference in columns.items():
        column = reference()
        if column is not None:
            _turn_into(column, frame[name])
            frame._item_cache[name] = column  # noqa: SLF001 - so that the frame returns this column again


def _turn_into(lazy: Any, made: Any) -> None:
    lazy.__dict__.update(made.__dict__)
    lazy.__dict__["_flags"] = pd.Flags(lazy, allows_duplicate_labels=True)  # type: ignore[attr-defined]
    object.__setattr__(lazy, "__class__", type(made))
