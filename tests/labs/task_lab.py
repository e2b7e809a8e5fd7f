"""Tasks of a keyed operator as Spark calls them, on a real store, without Spark: all is built as a query builds it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from pyspark_ckpt.operators.bound.declared_states import with_types
from pyspark_ckpt.operators.declarations.operator import HASH, INITIAL, INPUT, TIME, Input, KeyedOperator, row_column
from pyspark_ckpt.operators.declarations.processors import Context, KeyedProcessor, VectorProcessor, find_states
from pyspark_ckpt.operators.encoding.spark_hash import SparkHash
from pyspark_ckpt.operators.session.told_operators import NO_WATERMARK, Clocks
from pyspark_ckpt.operators.task.arrivals import split_by_input
from pyspark_ckpt.operators.task.group_times import GroupTimes
from pyspark_ckpt.operators.task.partition_run import PartitionRun
from pyspark_ckpt.operators.types.conversions import EPOCH, microseconds_at
from pyspark_ckpt.state_store.format.spark_groups import NO_TIME_OUT, GroupTimesRow
from pyspark_ckpt.state_store.transactions.ticket import read_ticket
from tests.labs.lab import Lab

COLUMNS = pa.schema(
    [("user", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("text", pa.string())]
)
"""The columns of a row."""
Row: TypeAlias = tuple[str, int, datetime, str]
_HASH = SparkHash([pa.string()])
_AT_ONCE = 7
"""So many rows come in one batch."""
_ROW = pa.struct(list(COLUMNS))
_SENT = pa.schema(
    [(HASH, pa.int32()), (TIME, pa.int64()), (INPUT, pa.int8()), (row_column(0), _ROW), (row_column(INITIAL), _ROW)]
)


def hash_of_user(user: str) -> bytes:
    """Spark's hash of a key, as stored rows have it."""
    return struct.pack(">I", _HASH((user,)))


@dataclass(frozen=True)
class Batch:
    """What has come of a batch: the rows of each group, when the task is to run again, and how many are stored."""

    groups: list[list[tuple[Any, ...]]]
    time_out_ms: int | None
    stored: dict[str, int]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """All of them."""
        return [row for group in self.groups for row in group]


class TaskLab:
    """A query with one partition."""

    def __init__(self, folder: Path, processor: KeyedProcessor | VectorProcessor, output: pa.Schema) -> None:
        """States must be declared by Spark's objects for types: there is no JVM to read text."""
        self._lab = Lab(folder)
        self._handle = self._lab.open()
        self._version, self._id = 0, None
        self._attempts = count(1)
        self._row: GroupTimesRow | None = None
        self._processor = processor
        self._operator = KeyedOperator(
            uid="it",
            inputs=(Input("", ("user",), COLUMNS, ("n",)),),
            output=output,
            states=with_types(find_states(processor), "the operator"),
            partitions=1,
            max_parallelism=8,
            local_dir="",
            has_watermark=True,
            memory_bytes=1 << 30,
        )

    def run(
        self, rows: Sequence[Row], *, watermark_ms: int, now_ms: int, memory_bytes: int, initial: Sequence[Row] = ()
    ) -> Batch:
        """Process and commit a batch, which may have an initial state with the columns of a row."""
        marked = [*((row, False) for row in rows), *((row, True) for row in initial)]
        with self._begin(watermark_ms, now_ms, memory_bytes, initial=COLUMNS if initial else None) as (operator, run):
            batches = run.process(split_by_input(_chunks(marked), operator.time))
            found = [_read(list(batches))]
        return self._commit(found)

    def run_live(
        self,
        groups: Iterator[Sequence[Row]],
        *,
        watermark_ms: int,
        now_ms: int,
        memory_bytes: int,
        read_clock_ms: Callable[[], int] = lambda: 0,
    ) -> Batch:
        """The same in real-time mode, with ``groups`` of rows. The clock stands still if it is not given."""
        unordered = tuple(replace(each, order_by=()) for each in self._operator.inputs)
        with self._begin(watermark_ms, now_ms, memory_bytes, inputs=unordered) as (operator, run):
            split = (split_by_input(_chunks([(row, False) for row in rows]), operator.time) for rows in groups)
            found = [_read(batches) for batches in run.process_live(split, read_clock_ms)]
        return self._commit(found)

    @contextmanager
    def _begin(
        self,
        watermark_ms: int,
        now_ms: int,
        memory_bytes: int,
        **changed: Any,  # noqa: ANN401
    ) -> Iterator[tuple[KeyedOperator, PartitionRun]]:
        attempt = next(self._attempts)
        self._begun = self._lab.server.call(
            "begin", handle=self._handle, version=self._version, id=self._id, attempt=attempt
        )
        (path,) = (self._lab.local_dir / "tickets").glob(f"{attempt}-*.json")
        operator = replace(self._operator, memory_bytes=memory_bytes, **changed)
        times = GroupTimes(operator, self._row, Clocks(watermark_ms, now_ms, NO_WATERMARK))
        context = Context(attempt, 0, times.processing_ms, times.watermark_ms)
        with closing(PartitionRun(operator, self._processor, read_ticket(path), times, context)) as run:
            yield operator, run
        self._row = times.new_row or self._row

    def _commit(self, groups: list[list[tuple[Any, ...]]]) -> Batch:
        answer = self._lab.server.call("commit", txn=self._begun["txn"], files=[], rows={}, num_partitions=1)
        self._version, self._id = answer["version"], answer["id"]
        stored = {state["name"]: state["rows"] for state in answer["states"]}
        called_ms = NO_TIME_OUT if self._row is None else self._row.time_out_ms
        return Batch(groups, None if called_ms == NO_TIME_OUT else called_ms, stored)

    def change(self, processor: KeyedProcessor | VectorProcessor) -> None:
        """Go on with another program, which leaves alone what it does not declare."""
        states = with_types(find_states(processor), "the operator")
        self._processor = processor
        self._operator = replace(self._operator, states=states, allow_non_restored_state=True)

    def close(self) -> None:
        """End the server."""
        self._lab.server.stores.shut_down()


def _read(batches: Sequence[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def _chunks(rows: Sequence[tuple[Row, bool]]) -> Iterator[pa.RecordBatch]:
    """Batches of rows, each of which may be one of the initial state."""
    for begin in range(0, len(rows), _AT_ONCE):
        some = [row for row, _ in rows[begin : begin + _AT_ONCE]]
        hashes = [struct.unpack("<i", struct.pack("<I", _HASH((user,))))[0] for user, *_ in some]
        numbers = [INITIAL if is_initial else 0 for _, is_initial in rows[begin : begin + _AT_ONCE]]
        columns = {HASH: hashes, TIME: [_micros(row[2]) for row in some], INPUT: numbers}
        for number in (0, INITIAL):
            own = [row if its == number else None for row, its in zip(some, numbers, strict=True)]
            columns[row_column(number)] = [
                None if row is None else dict(zip(COLUMNS.names, row, strict=True)) for row in own
            ]
        yield pa.RecordBatch.from_pydict(columns, _SENT)


def _micros(at: datetime) -> int:
    return microseconds_at(at)


def at_us(micros: int) -> datetime:
    """An instant so many microseconds after 1970."""
    return EPOCH + timedelta(microseconds=micros)
