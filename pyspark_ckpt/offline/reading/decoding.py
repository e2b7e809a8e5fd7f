"""Stored rows of a state as Arrow, with the columns that say where a row lies, and without those that have expired."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.offline.reading.batch_clocks import clock_ms
from pyspark_ckpt.offline.reading.row_location import PLACE, place_columns, read_stored_row
from pyspark_ckpt.offline.reading.rows.keyed_rows import INSTANTS, find_ttl, has_ended
from pyspark_ckpt.offline.reading.rows.state_codec import StateCodec, StoredRow
from pyspark_ckpt.offline.reading.stored_state import StoredState
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.meta import StateMeta

BATCH_ROWS = 8192
BATCH_BYTES = 4 << 20


def make_schema(codec: StateCodec) -> pa.Schema:
    """Return the columns of rows of a state: those of its codec, and where a row lies."""
    return pa.schema([*codec.fields, *PLACE])


class Decoder:
    """Decodes rows of one version of a checkpoint."""

    def __init__(self, place: BlobPlace, version: int, *, include_expired: bool) -> None:
        """``place``: of the checkpoint, whose logs have the clocks of the version."""
        self._place, self._version, self._include_expired = place, version, include_expired
        self._clocks_ms: dict[str, int] = {}

    def decode(
        self, state: StoredState, split: int, own: StateMeta, rows: Iterator[tuple[bytes, bytes]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield stored rows of a split as batches, in a bounded amount of memory. Raises FormatError, StorageError."""
        codec = state.codec(own.descriptor)
        schema = make_schema(codec)
        stored = (read_stored_row(key, value, is_ordered=own.descriptor.ordered) for key, value in rows)
        while portion := _portion(stored):
            decoded = codec.decode(portion)
            place = place_columns(state, split, [portion[position] for position in decoded.rows.tolist()])
            batch = pa.RecordBatch.from_arrays([*decoded.columns, *place], schema=schema)
            batch = batch if self._include_expired else self._without_expired(state, own, batch)
            if batch.num_rows:
                yield batch

    def _without_expired(self, state: StoredState, own: StateMeta, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not state.has_life or has_ended(own.descriptor):
            return batch
        alive = pc.greater(batch["expires_at"], pa.scalar(self._now_ms(state, own) * 1000, pa.int64()).cast(INSTANTS))
        return batch.filter(pc.fill_null(alive, True))

    def _now_ms(self, state: StoredState, own: StateMeta) -> int:
        """Return the time of the clock of the state's time to live when the version was made."""
        ttl = find_ttl(own.descriptor, state.descriptor)
        if ttl is None:
            raise InvalidInputError(
                f"{state.whose} was last written by a release that does not record the time to live of rows.",
                hint="Read expired rows as well, and compare written_at with a time of your choice.",
            )
        if ttl.clock not in self._clocks_ms:
            self._clocks_ms[ttl.clock] = clock_ms(self._place, self._version, ttl.clock)
        return self._clocks_ms[ttl.clock]


def _portion(rows: Iterator[StoredRow]) -> list[StoredRow]:
    """Take rows until their columns would take much memory."""
    taken, size = [], 0
    for row in islice(rows, BATCH_ROWS):
        taken.append(row)
        size += len(row.key) + len(row.value)
        if size >= BATCH_BYTES:
            break
    return taken
