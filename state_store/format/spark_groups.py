"""How a keyed operator gets its rows into their partition, and the row of clocks that each partition has.

Spark places a group by the hash of its grouping column. For a keyed operator, that column is the *route*: for each
partition p of n, the smallest integer whose hash modulo n is p. The key of the row of clocks is the route. The value
has the clocks of the partition's last batch, and after which instant a batch without rows has something to do there::

    key    UnsafeRow(route int)
    value  UnsafeRow(groupState struct<watermark_ms bigint, processing_ms bigint>, timeoutTimestamp bigint)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import encode_hashed_key
from pyspark_ckpt.state_store.format.spark_hash import hash_int_signed

NO_TIME_OUT = -1
AT_ONCE_MS = 0
"""A time-out that has passed as soon as there is a clock."""
_U32 = 0xFFFFFFFF
_KEY = struct.Struct("<qi4x")
_VALUE = struct.Struct("<qqqqqq")
_STRUCT_AT = 24 << 32 | 24
"""The offset and the size of the struct in the row, as an UnsafeRow encodes them."""


def find_routes(partitions: int) -> list[int]:
    """Return, for each of ``partitions``, the smallest integer from 0 on that Spark places there."""
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < partitions:
        found.setdefault(hash_int_signed(candidate) % partitions, candidate)
        candidate += 1
    return [found[partition] for partition in range(partitions)]


def encode_route_key(state: int, partition: int, partitions: int) -> bytes:
    """Return the stored key of the row of a partition, in the state with this number."""
    route = find_routes(partitions)[partition]
    return encode_hashed_key(state, hash_int_signed(route) & _U32, _KEY.pack(0, route))


class GroupTimesRow(NamedTuple):
    """The row of a group: the clocks of its last call, and when Spark calls it again; NO_TIME_OUT for never."""

    watermark_ms: int
    processing_ms: int
    time_out_ms: int = NO_TIME_OUT

    def encode(self) -> bytes:
        """Return the stored value."""
        return _VALUE.pack(0, _STRUCT_AT, self.time_out_ms, 0, self.watermark_ms, self.processing_ms)

    @classmethod
    def decode(cls, value: bytes, what: str) -> GroupTimesRow:
        """Return the row that ``value`` holds. Raises FormatError that names ``what``."""
        if len(value) != _VALUE.size or _VALUE.unpack(value)[:2] != (0, _STRUCT_AT) or _VALUE.unpack(value)[3] != 0:
            raise FormatError(f"{what}: Spark's row of the partition is {value.hex()!r}, which has no valid clocks.")
        _, _, time_out, _, watermark, processing = _VALUE.unpack(value)
        return cls(watermark, processing, time_out)


def make_times_before(due_ms: Mapping[str, int], values: Sequence[bytes], what: str) -> bytes:
    """Return a row for new timers, to be joined with the old ``values``: no timer counts as already fired.

    ``due_ms``: when the first timers of each clock are due. No clock is later than in the old rows, since an operator's
    clocks do not go back, and Spark calls the group as soon as it can. Raises as ``join_times``.
    """
    old = GroupTimesRow.decode(join_times(values, what), what) if values else GroupTimesRow(0, 0)
    clocks = (("event", old.watermark_ms), ("processing", old.processing_ms))
    watermark_ms, processing_ms = (min(ms, due_ms[clock] - 1) if clock in due_ms else ms for clock, ms in clocks)
    return GroupTimesRow(watermark_ms, processing_ms, AT_ONCE_MS).encode()


def join_times(values: Sequence[bytes], what: str) -> bytes:
    """Return the row of a group that replaces several.

    It has the earliest clocks: timers up to these have fired in all groups. Its timeout is the earliest of all. Raises
    FormatError that names ``what`` if a value is not such a row.
    """
    rows = [GroupTimesRow.decode(value, what) for value in values]
    time_outs = [row.time_out_ms for row in rows if row.time_out_ms != NO_TIME_OUT]
    return GroupTimesRow(
        min(row.watermark_ms for row in rows),
        min(row.processing_ms for row in rows),
        min(time_outs, default=NO_TIME_OUT),
    ).encode()
