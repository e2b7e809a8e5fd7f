"""The event times of rows, by which states with a time to live in event time are read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

_MICROSECONDS = 1000
_WINDOW_END = 1


def read_times_us(rows: pa.Table, column: str | None, least_ms: int) -> NDArray[np.int64]:
    """Return the event time of each row in µs, for a window its end; ``least_ms`` if it is earlier or absent."""
    if column is None:
        return np.full(len(rows), least_ms * _MICROSECONDS)
    times = rows.column(column).combine_chunks()
    if pa.types.is_struct(times.type):
        times = pc.struct_field(times, _WINDOW_END)
    micros = times.cast(pa.int64()).fill_null(np.iinfo(np.int64).min).to_numpy(zero_copy_only=False)
    times_us: NDArray[np.int64] = np.maximum(micros, least_ms * _MICROSECONDS)
    return times_us


def read_times_ms(rows: pa.Table, column: str | None, least_ms: int) -> NDArray[np.int64]:
    """``read_times_us`` in ms, as lives are stored."""
    return read_times_us(rows, column, least_ms) // _MICROSECONDS


def read_frame_ms(frame: pd.DataFrame, column: str, zone: str, least_ms: int, who: str) -> NDArray[np.int64]:
    """Return the same for the rows of a frame from Spark, whose instants are by a clock in the session's ``zone``.

    Of two instants that the clock shows alike, the later one counts. Raises InvalidInputError about ``who``.
    """
    if not len(frame.columns) or not len(frame):
        return np.zeros(0, np.int64)
    if column not in frame.columns:
        raise InvalidInputError(
            f"{who}: the frames have no column {column!r} for event_time.{suggest(column, map(str, frame.columns))}"
        )
    local = frame[column]
    if local.dtype.kind != "M":
        raise InvalidInputError(
            f"{who}: the column {column!r} for event_time has the type {local.dtype}.",
            hint="Name the column with the event time, a timestamp.",
        )
    if getattr(local.dt, "tz", None) is None:
        later = np.zeros(len(local), np.bool_)
        local = local.dt.tz_localize(zone, ambiguous=later, nonexistent="shift_forward")
    instants = local.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy("datetime64[ms]")
    known = ~np.isnat(instants)
    times_ms: NDArray[np.int64] = np.where(known, instants.astype(np.int64), least_ms)
    return np.maximum(times_ms, least_ms)


def greatest_so_far(times: NDArray[np.int64], of_key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each row the greatest time of its key up to this row. The rows of a key follow one another."""
    if not ((times[1:] < times[:-1]) & (of_key[1:] == of_key[:-1])).any():
        return times
    known, ranks = np.unique(times, return_inverse=True)
    numbers = of_key * len(known) + ranks
    greatest: NDArray[np.int64] = known[np.maximum.accumulate(numbers) - of_key * len(known)]
    return greatest
