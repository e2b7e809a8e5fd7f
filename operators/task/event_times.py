"""The event times of rows, by which states with a time to live in event time are read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MICROSECONDS = 1000
_WINDOW_END = 1


def read_times_ms(rows: pa.Table, column: str | None, least_ms: int) -> NDArray[np.int64]:
    """Return the event time of each row, of a window its end, but ``least_ms`` if it is earlier or absent."""
    if column is None:
        return np.full(len(rows), least_ms)
    times = rows.column(column).combine_chunks()
    if pa.types.is_struct(times.type):
        times = pc.struct_field(times, _WINDOW_END)
    micros = times.cast(pa.int64()).fill_null(np.iinfo(np.int64).min).to_numpy(zero_copy_only=False)
    return np.maximum(micros // _MICROSECONDS, least_ms)


def greatest_so_far(times: NDArray[np.int64], of_key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each row the greatest time of its key up to this row. The rows of a key follow one another."""
    if not ((times[1:] < times[:-1]) & (of_key[1:] == of_key[:-1])).any():
        return times
    known, ranks = np.unique(times, return_inverse=True)
    numbers = of_key * len(known) + ranks
    greatest: NDArray[np.int64] = known[np.maximum.accumulate(numbers) - of_key * len(known)]
    return greatest
