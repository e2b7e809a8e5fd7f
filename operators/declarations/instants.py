"""Instants as users give them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

InstantLike: TypeAlias = "datetime | np.datetime64 | int"
"""One instant; a number is in milliseconds since 1970."""
InstantsLike: TypeAlias = "pa.Array | pa.ChunkedArray | InstantLike | None"
"""An instant for each row, or one for all; None for the event times of the call."""
