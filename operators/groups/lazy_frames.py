"""pandas frames of a few rows each, which are created only if a function needs a real frame.

Most functions that are called for each key ask a frame only for its length and for the sum, maximum or values of a
column. These are answered from the column's array. Anything else first makes the frame, and the columns that were taken
from it: pandas' own constructors are called on the objects that the function holds. Both classes are subclasses as
pandas documents them, https://pandas.pydata.org/docs/development/extending.html: what is derived from such a frame is
an ordinary ``DataFrame`` or ``Series``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar
from weakref import ref

import numpy as np
import numpy.typing as npt
import pandas as pd
from typing_extensions import override

T = TypeVar("T")

_KINDS = "iufbO"
"""Kinds of numpy types whose arrays a Series holds unchanged."""
_NUMBERS = "iu"
_FLOATS = "f"
IS_ALWAYS_COPIED = int(pd.__version__.partition(".")[0]) >= 3  # noqa: PLR2004 - the release that has copy-on-write alone


class Slices:
    """Ranges of rows of one frame, each as a frame with its own index."""

    def __init__(self, frame: pd.DataFrame) -> None:
        """Slice ``frame``, which nobody else may change."""
        self.frame = frame
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        """The arrays of columns that can be used without a frame."""
        self.copies = IS_ALWAYS_COPIED or bool(pd.get_option("mode.copy_on_write"))
        """Whether a frame returns a new column each time, whose changes it does not see: pandas' copy-on-write."""
        if frame.columns.is_unique:
            for name, column in frame.items():
                if isinstance(name, str) and isinstance(column.dtype, np.dtype) and column.dtype.kind in _KINDS:
                    self.arrays[name] = column.to_numpy()

    def rows(self, first: int, end: int) -> pd.DataFrame:
        """Return the rows from ``first`` up to ``end``, exclusive, as a lazy frame; there must be at least one."""
        frame = LazyDataFrame.__new__(LazyDataFrame)
        frame.__dict__["_lazy"] = self, first, end, {}
        return frame

    def make(self, first: int, end: int) -> pd.DataFrame:
        """Return the same rows as an ordinary frame."""
        frame = self.frame.iloc[first:end].copy(deep=False)
        frame.index = pd.RangeIndex(end - first)
        return frame


class LazyDataFrame(pd.DataFrame):
    """Rows of ``Slices``. Until pandas' constructor has run, ``_lazy`` says which, and pandas' attributes are missing.

    ``__getattr__`` is called as soon as pandas looks for one of them, and runs the constructor.
    """

    @override  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        lazy = self.__dict__.get("_lazy")
        if lazy is None:
            return super().__getattr__(name)
        return self[name] if name in lazy[0].arrays else getattr(_fill_in(self), name)

    @override
    def __len__(self) -> int:
        lazy = self.__dict__.get("_lazy")
        return super().__len__() if lazy is None else int(lazy[2] - lazy[1])

    @property
    @override
    def empty(self) -> bool:
        return "_lazy" not in self.__dict__ and super().empty

    @override
    def __getitem__(self, name: Any) -> Any:
        lazy = self.__dict__.get("_lazy")
        if lazy is None:
            return super().__getitem__(name)
        slices, first, end, columns = lazy
        array = slices.arrays.get(name) if type(name) is str else None
        if array is None:
            return _fill_in(self)[name]
        if slices.copies:
            own = LazySeries.__new__(LazySeries)
            own.__dict__["_lazy"] = name, array[first:end]
            return own
        column = columns[name]() if name in columns else None
        if column is None:
            column = LazySeries.__new__(LazySeries)
            column.__dict__["_lazy"] = self, array[first:end]
            columns[name] = ref(column)
        return column

    @override
    def __reduce_ex__(self, _protocol: Any) -> Any:
        return _unpickle, (self.copy(),)


class LazySeries(pd.Series):
    """A column of a lazy frame. It is made together with it, or alone if frames return new columns."""

    @override  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if "_lazy" not in self.__dict__ else getattr(_fill_in(self), name)

    @override
    def __len__(self) -> int:
        array = self._lazy_array()
        return super().__len__() if array is None else len(array)

    @property
    @override
    def empty(self) -> bool:
        return "_lazy" not in self.__dict__ and super().empty

    @override
    def __iter__(self) -> Iterator[Any]:
        array = self._lazy_array()
        return super().__iter__() if array is None else iter(array.tolist())

    @override
    def __getitem__(self, label: Any) -> Any:
        array = self._lazy_array()
        if array is not None and type(label) is int and 0 <= label < len(array):
            return array[label]
        return super(LazySeries, _fill_in(self)).__getitem__(label)

    @override
    def tolist(self) -> list[Any]:
        array = self._lazy_array()
        values: list[Any] = super().tolist() if array is None else array.tolist()
        return values

    to_list = tolist

    @override
    def sum(self, *args: Any, **kwargs: Any) -> Any:
        array = self._lazy_array()
        if array is not None and not args and not kwargs:
            if array.dtype.kind in _NUMBERS:
                return array.sum()
            if array.dtype.kind in _FLOATS:
                with np.errstate(invalid="ignore"):
                    total = array.sum()
                if total == total:  # noqa: PLR0124 - otherwise pandas skips NaN
                    return total
        return super(LazySeries, _fill_in(self)).sum(*args, **kwargs)

    @override
    def min(self, *args: Any, **kwargs: Any) -> Any:
        value = None if args or kwargs else self._lazy_extreme("min")
        return super(LazySeries, _fill_in(self)).min(*args, **kwargs) if value is None else value

    @override
    def max(self, *args: Any, **kwargs: Any) -> Any:
        value = None if args or kwargs else self._lazy_extreme("max")
        return super(LazySeries, _fill_in(self)).max(*args, **kwargs) if value is None else value

    def _lazy_array(self) -> npt.NDArray[Any] | None:
        lazy = self.__dict__.get("_lazy")
        return None if lazy is None else lazy[1]

    def _lazy_extreme(self, which: str) -> Any:
        array = self._lazy_array()
        if array is None or array.dtype.kind not in _NUMBERS + _FLOATS:
            return None
        value = getattr(array, which)()
        return value if value == value else None  # noqa: PLR0124 - pandas skips NaN

    @override
    def __reduce_ex__(self, _protocol: Any) -> Any:
        return _unpickle, (self.copy(),)


def _fill_in(lazy: Any) -> Any:
    """Make the frame that a lazy frame or column stands for, and all columns that are held of it. Return ``lazy``."""
    if "_lazy" in lazy.__dict__:
        if isinstance(lazy.__dict__["_lazy"][0], str):
            name, array = lazy.__dict__.pop("_lazy")
            pd.Series.__init__(lazy, array.copy(), name=name, copy=False)  # type: ignore[call-arg]
            return lazy
        frame = lazy if isinstance(lazy, pd.DataFrame) else lazy.__dict__["_lazy"][0]
        slices, first, end, columns = frame.__dict__.pop("_lazy")
        pd.DataFrame.__init__(frame, slices.make(first, end), copy=False)  # type: ignore[call-arg]
        for name, reference in columns.items():
            column = reference()
            if column is not None:
                del column.__dict__["_lazy"]
                pd.Series.__init__(column, frame[name], copy=False)  # type: ignore[call-arg]
    return lazy


def _unpickle(ordinary: T) -> T:
    """Return what was pickled in place of a lazy frame or column: an ordinary copy, with its attributes and flags."""
    return ordinary
