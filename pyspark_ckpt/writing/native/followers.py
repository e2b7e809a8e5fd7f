"""States that follow from others: Spark keeps them beside a state to count its values, or to find rows by their time.

::

    variable of transformWithState    $rowCounter_x, $count_x    key > number of values
                                      $min_x                     key > when the first value expires
                                      $ttl_x                     that instant, key
    its timers                        ..._keyToTimestamp         key, instant
                                      ..._timestampToKey         instant, key
    side of a join in format 4        ...-tsWithKey              event time, key > number of values

When a state is written, those that follow from it are made anew: Spark takes them to be right. Source of the names:
``TTLState``, ``ListStateMetricsImpl``, ``TimerStateImpl`` and ``SymmetricHashJoinStateManagerV4`` of Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.reading.row_location import read_stored_row
from pyspark_ckpt.reading.rows.native_rows import NativeRows
from pyspark_ckpt.state_store.arrays.order import in_order
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.state_rows import Tally, scan_state
from pyspark_ckpt.state_store.database import Database, Tuning, write_table_file
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.writing.given_columns import INDEX, KEY, VALUE, WrittenState
from pyspark_ckpt.writing.native.encoder import NativeEncoder
from pyspark_ckpt.writing.native.value_lists import ValueLists

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COUNTS = ("$rowCounter_", "$count_")
_FIRST_EXPIRY, _BY_EXPIRY = "$min_", "$ttl_"
_BY_KEY, _BY_INSTANT = "_keyToTimestamp", "_timestampToKey"
_TIMERS = ("$eventTimers", "$procTimers")
_VALUES, _BY_TIME = "-keyWithTsToValues", "-tsWithKey"
_SIDES = ("left", "right")
_EXPIRES = "ttlExpirationMs"
MAX_WAITING_BYTES = 16 << 20


def find_leader(name: str, written: Collection[str]) -> str | None:
    """Return from which of the states that are written another one follows; None if it follows from none of them.

    ``name``: of a state that is not written itself.
    """
    for head in (*_COUNTS, _FIRST_EXPIRY, _BY_EXPIRY):
        if name.startswith(head):
            leader = name.removeprefix(head)
            return leader if leader in written else None
    for timers in _TIMERS:
        pair = [f"{timers}{_BY_KEY}", f"{timers}{_BY_INSTANT}"]
        if name in pair:
            (leader,) = (each for each in pair if each != name)
            return leader if leader in written else None
    for side in _SIDES:
        if name == f"{side}{_BY_TIME}" and f"{side}{_VALUES}" in written:
            return f"{side}{_VALUES}"
    return None


@dataclass(frozen=True)
class Follower:
    """A state, and the one from which it follows."""

    leader: WrittenState
    state: WrittenState

    def write(self, database: Database, folder: Path, tuning: Tuning) -> Digest:
        """Add its rows to a database that has those of its leader; return their digest. Raises InvalidInputError."""
        encoder, tally = NativeEncoder(self.state), Tally()
        waiting: list[PackedRows] = []
        size = files = 0
        for rows in self._read(database):
            for _, encoded in encoder.encode(encoder.prepare(self._make(rows))):
                waiting.append(encoded)
                size += int(encoded.keys.size.sum()) + int(encoded.values.size.sum())
            if size > MAX_WAITING_BYTES:
                self._ingest(waiting, database, folder / f"follower-{self.state.state.number}-{files}.sst", tuning, tally)
                waiting, size, files = [], 0, files + 1
        if waiting:
            self._ingest(waiting, database, folder / f"follower-{self.state.state.number}-{files}.sst", tuning, tally)
        return tally.digest

    def _read(self, database: Database) -> Iterator[PackedRows]:
        """Yield the rows of the leader, each of a key with all of its values."""
        rows = scan_state(database, self.leader.state.number)
        if not self.leader.is_joined:
            return rows
        return ValueLists(is_ordered=self.leader.state.descriptor.ordered).join(rows)

    def _make(self, rows: PackedRows) -> pa.Table:
        """Return the rows that follow, as ``open_state`` shows them."""
        leader, own = (
            NativeRows(each.state.descriptor, each.native_name, each.whose) for each in (self.leader, self.state)
        )
        is_ordered = self.leader.state.descriptor.ordered
        stored = [read_stored_row(key, value, is_ordered=is_ordered) for key, value in rows.rows()]
        keys = leader.decode_keys(stored).columns[0]
        name = self.state.state.name
        if name.endswith((_BY_KEY, _BY_INSTANT)):
            parts = dict(zip([field.name for field in keys.type], keys.flatten(), strict=True))
            keys = _make_struct([field.name for field in own.key_fields], parts)
            return pa.table({KEY: keys, VALUE: _make_nulls(own, len(keys))})
        if name.startswith((_FIRST_EXPIRY, _BY_EXPIRY)):
            expires = self._find_first_expiry(leader, rows)
            if name.startswith(_FIRST_EXPIRY):
                return pa.table({KEY: keys, VALUE: _make_struct([own.value_fields[0].name], {own.value_fields[0].name: expires})})
            instant, of_key = (field.name for field in own.key_fields)
            keys = _make_struct([instant, of_key], {instant: expires, of_key: keys})
            return pa.table({KEY: keys, VALUE: _make_nulls(own, len(keys))})
        counts = pa.array(leader.split_values([row.value for row in stored])[1], pa.int64())
        (field,) = own.value_fields
        return pa.table({KEY: keys, VALUE: _make_struct([field.name], {field.name: counts})})
