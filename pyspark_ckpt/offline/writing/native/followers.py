"""States that follow from others: Spark keeps them beside a state to count its values, or to find rows by their time.

::

    variable of transformWithState    $rowCounter_x, $count_x    key > number of values
                                      $min_x                     key > when the first value expires
                                      $ttl_x                     that instant, key
    its timers                        ..._keyToTimestamp         key, instant
                                      ..._timestampToKey         instant, key
    side of a join in format 4        ...-tsWithKey              event time, key > a null for each value

When a state is written, its followers are rebuilt: Spark trusts them. Source of the names:
``TTLState``, ``ListStateMetricsImpl``, ``TimerStateImpl`` and ``SymmetricHashJoinStateManagerV4`` of Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.offline.reading.row_location import read_stored_row
from pyspark_ckpt.offline.reading.rows.native_rows import NativeRows
from pyspark_ckpt.offline.reading.rows.state_codec import StoredRow
from pyspark_ckpt.offline.writing.given_columns import INDEX, KEY, VALUE, WrittenState
from pyspark_ckpt.offline.writing.native.encoder import NativeEncoder
from pyspark_ckpt.offline.writing.native.value_lists import ValueLists
from pyspark_ckpt.state_store.arrays.order import in_order
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.state_rows import Tally, scan_state
from pyspark_ckpt.state_store.database import Database, Tuning, write_table_file
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError

_COUNTS = ("$rowCounter_", "$count_")
_FIRST_EXPIRY, _BY_EXPIRY = "$min_", "$ttl_"
_BY_KEY, _BY_INSTANT = "_keyToTimestamp", "_timestampToKey"
_TIMERS = ("$eventTimers", "$procTimers")
_VALUES, _BY_TIME = "-keyWithTsToValues", "-tsWithKey"
_SIDES = ("left", "right")
_EXPIRES = "ttlExpirationMs"
PORTION_BYTES = 16 << 20


def find_leader(name: str, written: Collection[str]) -> str | None:
    """Return the written state from which another state, ``name``, follows; None if there is none.

    ``name`` is not written itself.
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
        """Add its rows to a database that has its leader's rows; return their digest.

        Raises InvalidInputError (a null as a time), FormatError (states that do not belong together), StorageError.
        """
        encoder, tally = NativeEncoder(self.state), Tally()
        for number, portion in enumerate(PackedRows.join_portions(self._encode(encoder, database), PORTION_BYTES)):
            order, _ = in_order(portion.keys)
            rows = portion.take(order)
            if self.state.is_joined:  # a portion has whole keys
                rows = PackedRows.join(list(self._lists(self.state).join(iter([rows]))))
            tally.count(rows)
            path = folder / f"follower-{self.state.state.number}-{number}.sst"
            write_table_file(path, rows.rows(), tuning)
            database.ingest([path])
        return tally.digest

    def _encode(self, encoder: NativeEncoder, database: Database) -> Iterator[PackedRows]:
        rows = scan_state(database, self.leader.state.number)
        if self.leader.is_joined:
            rows = self._lists(self.leader).join(rows)
        for portion in rows:
            if len(portion):
                for _, encoded in encoder.encode(encoder.prepare(self._make(portion))):
                    yield encoded

    @staticmethod
    def _lists(state: WrittenState) -> ValueLists:
        return ValueLists(is_ordered=state.state.descriptor.ordered)

    def _make(self, rows: PackedRows) -> pa.Table:
        """Return what follows from rows of the leader, each of a key with all of its values."""
        leader, own = (
            NativeRows(each.state.descriptor, each.native_name, each.whose) for each in (self.leader, self.state)
        )
        is_ordered, name = self.leader.state.descriptor.ordered, self.state.state.name
        stored = [read_stored_row(key, value, is_ordered=is_ordered) for key, value in rows.rows()]
        (keys,) = leader.decode_keys(stored).columns
        if name.endswith((_BY_KEY, _BY_INSTANT)):
            parts = {field.name: column for field, column in zip(keys.type, keys.flatten(), strict=True)}
            return _make_table([parts[field.name] for field in own.key_fields], None, own)
        if name.startswith(_FIRST_EXPIRY):
            return _make_table(keys.flatten(), self._find_first_expiry(leader, stored), own)
        if name.startswith(_BY_EXPIRY):
            return _make_table([self._find_first_expiry(leader, stored), keys], None, own)
        _, counts = leader.split_values([row.value for row in stored])
        if own.is_multiple:  # a null for each value
            whose = np.repeat(np.arange(len(counts)), counts)
            index = np.arange(len(whose)) - np.repeat(np.cumsum(counts) - counts, counts)
            made = _make_table(keys.take(pa.array(whose)).flatten(), None, own)
            return made.append_column(INDEX, pa.array(index, pa.int64()))
        return _make_table(keys.flatten(), pa.array(counts, pa.int64()), own)

    def _find_first_expiry(self, leader: NativeRows, stored: Sequence[StoredRow]) -> pa.Array:
        """Return when the first value of each key expires."""
        if _EXPIRES not in [field.name for field in leader.value_fields]:
            raise FormatError(f"{self.leader.whose} has an index of expiries, but its values have no {_EXPIRES!r}.")
        decoded = leader.decode(stored)
        expires = pc.struct_field(decoded.columns[-1], _EXPIRES)
        if expires.null_count:
            raise InvalidInputError(
                f"{self.leader.whose}: a value has a null as its {_EXPIRES!r}.",
                hint="Give the time at which it expires, in milliseconds since 1970.",
            )
        begins = np.flatnonzero(np.diff(decoded.rows, prepend=-1))
        return pa.array(np.minimum.reduceat(expires.to_numpy(), begins), pa.int64())


def _make_table(keys: Sequence[pa.Array], values: pa.Array | None, own: NativeRows) -> pa.Table:
    """Return rows of a state with these columns of its key and of its value, which has one: without it, nulls."""
    count = len(keys[0])
    (value,) = own.value_fields
    return pa.table(
        {
            KEY: pa.StructArray.from_arrays(keys, [field.name for field in own.key_fields]),
            VALUE: pa.StructArray.from_arrays([pa.nulls(count) if values is None else values], [value.name]),
        }
    )
