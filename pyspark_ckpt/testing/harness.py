"""``Harness``: runs batches of a keyed operator in this process, without Spark, on the state code of a query."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_ckpt.offline.reading.closeable import Closeable
from pyspark_ckpt.offline.reading.reader import StateReader
from pyspark_ckpt.offline.reading.stored_state import Selection
from pyspark_ckpt.operators.declarations.counters import MetricCounter, metric_name
from pyspark_ckpt.operators.declarations.operator import KeyedOperator
from pyspark_ckpt.operators.declarations.partition_states import PartitionState
from pyspark_ckpt.operators.declarations.processors import Context
from pyspark_ckpt.operators.declarations.programs import dump_program, load_program
from pyspark_ckpt.operators.declarations.states import DeclaredState
from pyspark_ckpt.operators.declarations.timers import Timer, Timers
from pyspark_ckpt.operators.session.told_operators import NO_WATERMARK, Clocks
from pyspark_ckpt.operators.session.worker import naming
from pyspark_ckpt.operators.task.group_times import GroupTimes
from pyspark_ckpt.operators.task.partition_run import PartitionRun
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.operators.types.conversions import EPOCH
from pyspark_ckpt.operators.types.struct_values import struct_maker
from pyspark_ckpt.savepoints import restore, savepoint
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.testing.clocks import is_due, move_clock
from pyspark_ckpt.testing.comparison import count_rows, last_by_key
from pyspark_ckpt.testing.contents import read_contents
from pyspark_ckpt.testing.given_inputs import GivenInputs
from pyspark_ckpt.testing.local_query import CHECKPOINT, LocalQuery, PartitionBatch
from pyspark_ckpt.testing.seen_times import SeenTimes, Watermark

if TYPE_CHECKING:
    from pyspark_ckpt.operators.plan import Processor
    from pyspark_ckpt.state_store.savepoints.savepoint import Kind
    from pyspark_ckpt.testing.given_inputs import Placed
    from pyspark_ckpt.testing.given_rows import GivenRows, RowsLike

Step: TypeAlias = "RowsLike | Mapping[str, RowsLike] | timedelta | datetime | str"
"""Rows that come together in real-time mode, or where the clock of processing time moves."""

BEGIN = datetime.fromisoformat("2020-01-01T00:00:00+00:00")
"""When a harness begins, by its clock of processing time."""
METRICS = ("late_rows", "fired_timers", "expired_rows", "expired_rows_left", "late_output_rows")
"""The metrics that a batch has even if no task ran."""
_ONE_AT_A_TIME = threading.RLock()
"""Held while a harness works: all harnesses of a process share the readers of local databases."""


@dataclass(frozen=True)
class Settings:
    """Options of the state store, and Spark's policy for several watermarks."""

    options: Mapping[str, str]
    takes_latest_watermark: bool


@dataclass(frozen=True)
class Origin:
    """What a harness begins from: its folder, which is temporary if None, and a savepoint to restore there."""

    folder: str | PathLike[str] | None = None
    savepoint: str | PathLike[str] | None = None


class Harness(Closeable):
    """Runs one keyed operator batch by batch. Close it, or use a ``with`` block.

    States, timers and commits are those of a query: the same code on the same stored format, in a checkpoint of its
    own. Only Spark's plan is missing: rows are given, output is returned, and the clocks stand still until they are
    moved. Each task gets a copy of the processor, as in Spark, so changes to its attributes are lost. Harnesses of one
    process take turns.
    """

    def __init__(
        self,
        operator: KeyedOperator,
        processor: Processor,
        watermarks: Sequence[Watermark | None],
        settings: Settings,
        origin: Origin,
        mode: str,
        initial: GivenRows | None = None,
    ) -> None:
        """See ``keyed`` and ``keyed_inputs`` of this package, which make harnesses."""
        self._operator = operator
        self._program = _dump(processor)
        self._given = GivenInputs(operator, watermarks)
        self._initial = initial
        self.mode = mode
        """The output mode: ``append`` or ``update``."""
        given = tempfile.mkdtemp(prefix="pyspark-ckpt-harness-") if origin.folder is None else origin.folder
        home = Path(given).absolute()
        temporary = home if origin.folder is None else None
        try:
            if origin.savepoint is not None:
                options = settings.options
                restore(origin.savepoint, home / CHECKPOINT, parallelism=operator.partitions, options=options)
            self._query = LocalQuery(home, operator, settings.options)
        except BaseException:
            _remove(temporary)
            raise
        self._end = weakref.finalize(self, _end, self._query, temporary)
        """Also called if nobody closes the harness."""
        self._make_row = struct_maker(pa.struct(list(operator.output)))
        before = self._query.read_clocks()
        begin_ms = (BEGIN - EPOCH) // timedelta(milliseconds=1)
        self._processing_ms = begin_ms if before is None else before.processing_ms
        watermark_ms, self._late_ms = (0, 0) if before is None else (before.watermark_ms, before.late_ms)
        self._watermark_ms = watermark_ms if operator.has_watermark else NO_WATERMARK
        self._seen = SeenTimes.of(watermarks, self._query.read_seen(), takes_latest=settings.takes_latest_watermark)
        self.output: list[Any] = []
        """All rows that the operator has output."""
        self.metrics: Mapping[str, int] = dict.fromkeys(METRICS, 0)
        """The metrics of the last batch, such as ``late_rows``, ``fired_timers`` and ``expired_rows``."""
        self.dropped = 0
        """How many late rows the last batch has dropped, as Spark does where a processor does not take them."""

    def close(self) -> None:
        """End the state server, and remove the checkpoint, unless the harness was given a folder."""
        with _ONE_AT_A_TIME:
            self._end()

    @property
    def checkpoint(self) -> Path:
        """The checkpointLocation, for ``open_state`` and savepoints."""
        return self._query.checkpoint

    @property
    def watermark(self) -> datetime | None:
        """The watermark of the next batch; None without an input that has one."""
        return None if self._watermark_ms == NO_WATERMARK else EPOCH + timedelta(milliseconds=self._watermark_ms)

    @property
    def processing_time(self) -> datetime:
        """The processing time of the next batch."""
        return EPOCH + timedelta(milliseconds=self._processing_ms)

    def run(self, rows: RowsLike = (), /, **inputs: RowsLike) -> list[Any]:
        """Run one batch, and return its output as named tuples, with the keys in no particular order.

        ``rows``: of the only input, as a list of tuples or dicts, a pandas frame or an Arrow table. With several
        inputs, give the rows of each by its name; those of a broadcast input are ``broadcast``. Timers that are due by
        the present clocks fire in this batch. Afterwards the watermark follows the rows, as in Spark, for the next
        batch. A batch without rows is what Spark runs when the watermark has moved and no rows come. If the processor
        fails, nothing is committed, and the same batch may be run again.

        Raises InvalidInputError (rows that do not fit), ProcessorError (the processor failed), and what a query raises.
        """
        return self._run([{**inputs, **({} if _is_nothing(rows) else {"": rows})}])

    def run_live(self, *steps: Step) -> list[Any]:
        """Run one batch as in real-time mode, and return its output: rows reach the processor in groups.

        ``steps``: the rows of each group, as for ``run``; with several inputs, a mapping from their names to rows. An
        instant or a duration moves the clock of processing time, and timers that are then due fire in the same batch.
        The watermark follows after the batch. Raises as ``run``; InvalidInputError for an operator with
        ``order_by``.
        """
        groups: list[Mapping[str, RowsLike]] = []
        clocks_ms, now_ms = [], self._processing_ms
        for step in steps:
            if isinstance(step, (timedelta, datetime, str)):
                now_ms = move_clock(now_ms, step, "The processing time")
                groups.append({})
            else:
                groups.append(step if isinstance(step, Mapping) else {"": step})
            clocks_ms.append(now_ms)
        found = self._run(groups or [{}], clocks_ms or [now_ms])
        self._processing_ms = now_ms
        return found

    def _run(self, groups: Sequence[Mapping[str, RowsLike]], clocks_ms: Sequence[int] | None = None) -> list[Any]:
        """Run one batch with the rows of all ``groups``: one by one if there are ``clocks_ms``, the time of each."""
        given = [self._given.read(group) for group in groups]
        clocks = Clocks(self._watermark_ms, self._processing_ms, self._late_ms)
        with self._open(), self._query.begin() as partitions:
            placed = [self._given.place(rows, group, self._late_ms) for rows, group in zip(given, groups, strict=True)]
            if self._initial is not None and self._query.version == 0:
                placed[0].insert(0, self._given.place_initial(self._initial))
            found = [row for each in partitions for row in self._process(each, placed, clocks, clocks_ms)]
            of_inputs = list(zip(*given, strict=True))
            event_us = [np.concatenate([rows.event_us for rows in some]) for some in of_inputs]
            seen = self._seen.see(event_us, self._processing_ms)
            next_ms = seen.advance(self._watermark_ms, self._processing_ms)
            metrics = self._query.commit(partitions, clocks, next_ms, seen.dump())
        self.metrics = {**dict.fromkeys(METRICS, 0), **metrics}
        self.dropped = sum(self._given.count_dropped(rows, self._late_ms) for rows in given)
        self.output.extend(found)
        self._late_ms, self._watermark_ms, self._seen = max(0, self._watermark_ms), next_ms, seen
        return found

    def advance_watermark(self, to: datetime | str | timedelta) -> list[Any]:
        """Move the watermark to an instant, or by a duration, and run a batch without rows; return its output.

        It is as if rows of the last batch had moved the watermark that far. Raises InvalidInputError (no input has a
        watermark; it would go back).
        """
        if self._watermark_ms == NO_WATERMARK:
            raise InvalidInputError(
                "No input of the harness has a watermark.", hint="Give the input one: watermark=('at', '10 minutes')."
            )
        before_ms = self._watermark_ms
        self._watermark_ms = move_clock(before_ms, to, "The watermark")
        try:
            return self.run()
        except BaseException:
            self._watermark_ms = before_ms
            raise

    def advance_processing_time(self, to: datetime | str | timedelta) -> list[Any]:
        """Move the clock of processing time to an instant, or by a duration, and run a batch without rows.

        Return its output. Raises InvalidInputError (it would go back).
        """
        before_ms = self._processing_ms
        self._processing_ms = move_clock(before_ms, to, "The processing time")
        try:
            return self.run()
        except BaseException:
            self._processing_ms = before_ms
            raise

    def state(self, name: str) -> dict[tuple[Any, ...], Any]:
        """Return what a state holds after the last batch, by key: values, lists or dicts, of live rows only.

        A key is a tuple: for an OperatorListState of the partition, for a BroadcastState of the map key. Raises
        InvalidInputError (the processor declares no such state).
        """
        self._require_state(name)
        return dict(self._read_state(name))

    def timers(self) -> dict[tuple[Any, ...], list[Timer]]:
        """Return the timers that have not fired, by key, in the order of their instants."""
        found: dict[tuple[Any, ...], list[Timer]] = {}
        for each in self._operator.states:
            if isinstance(each.state, Timers):
                for key, timers in self._read_state(each.state.name):
                    found.setdefault(key, []).extend(timers)
        return {key: sorted(timers, key=lambda timer: timer.at_us) for key, timers in found.items()}

    def states(self) -> dict[str, Any]:
        """Return what each state holds after the last batch, by its name; Timers hold timers."""
        kinds = (DeclaredState, PartitionState, Timers)
        kept = [each.state.name for each in self._operator.states if isinstance(each.state, kinds)]
        return {name: dict(self._read_state(name)) for name in kept}

    def summarise(self, rows: Sequence[Any]) -> Any:  # noqa: ANN401 - comparable
        """Summarise ``rows`` of the output.

        In append mode, return how often each was output; in update mode, where later rows replace earlier ones, the
        last one of each key. Raises InvalidInputError in update mode, if the output does not have the key columns.
        """
        if self.mode == "append":
            return count_rows(rows)
        names, by = self._operator.output.names, self._operator.by
        if missing := [name for name in by if name not in names]:
            raise InvalidInputError(
                f"The output has no key column {missing[0]!r}, so it is unknown which rows replace which.",
                hint="Give `result`, a function of all output rows, or output the key columns.",
            )
        return last_by_key(rows, names, by)

    @property
    def counters(self) -> dict[str, int]:
        """The sum that the last batch has added to each declared MetricCounter."""
        counters = [each.state for each in self._operator.states if isinstance(each.state, MetricCounter)]
        return {each.name: self.metrics.get(metric_name(self._operator.uid, each), 0) for each in counters}

    def savepoint(self, target: str | PathLike[str], *, kind: Kind = "native") -> None:
        """Take a savepoint after the last batch, in the empty folder ``target``: see ``pyspark_ckpt.savepoint``.

        Pass it as ``savepoint`` to another ``keyed`` or ``keyed_inputs`` of this package, with another program or at
        another parallelism. No Spark query can continue from it, because it has no offsets of sources. Raises as
        ``pyspark_ckpt.savepoint``.
        """
        with self._open():
            savepoint(self.checkpoint, target, kind=kind)

    def restart(self) -> None:
        """Restart the query: the next batch restores its state from the checkpoint, as on another machine."""
        with self._open():
            self._query.restart()
        self._seen = self._seen.restart()

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Work on the query, while no other harness does. Raises LifecycleError if it is closed."""
        with _ONE_AT_A_TIME:
            if not self._end.alive:
                raise LifecycleError("The harness is closed.", hint="Use it within its `with` block.")
            yield

    def _process(
        self,
        batch: PartitionBatch,
        groups: Sequence[Sequence[Placed]],
        clocks: Clocks,
        clocks_ms: Sequence[int] | None,
    ) -> Iterator[Any]:
        """Run the task of a partition if it has rows or a timer is due, as Spark does; in real-time mode, always."""
        operator = self._operator
        mine = [[own for each in group if len((own := each.of(batch.partition))[1])] for group in groups]
        if clocks_ms is None and not any(mine) and not is_due(batch.group, operator, clocks):
            return
        times = GroupTimes(operator, batch.group, clocks)
        where, partitions = (self._query.batch_id, batch.partition), operator.partitions
        context = Context(*where, times.processing_ms, times.watermark_ms, partitions=partitions)
        with (
            naming(batch.ticket, operator.uid),
            closing(PartitionRun(operator, load_program(self._program), batch.ticket, times, context)) as run,
        ):
            if clocks_ms is None:
                output = run.process(chain.from_iterable(mine))
            else:
                output = chain.from_iterable(run.process_live(mine, iter(clocks_ms).__next__))
            for each in output:
                yield from self._rows(each)
        batch.group = times.new_row or batch.group

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Any]:
        columns = map(python_values, batch.columns)
        return map(self._make_row, zip(*columns, strict=True))

    def _require_state(self, name: str) -> None:
        kinds = (DeclaredState, PartitionState)
        names = [each.state.name for each in self._operator.states if isinstance(each.state, kinds)]
        if name not in names:
            raise InvalidInputError(f"The processor declares no state {name!r}, only {names}.{suggest(name, names)}")

    def _read_state(self, name: str) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Yield each key that has the state, and what it holds."""
        with self._open():
            if self._query.version:
                yield from self._read_committed(name)

    def _read_committed(self, name: str) -> Iterator[tuple[tuple[Any, ...], Any]]:
        checkpoint, wanted = Checkpoint(str(self.checkpoint), parse({})), Selection(uid=self._operator.uid, state=name)
        with (
            self._query.open_state() as source,
            StateReader(checkpoint, wanted, self._query.version, include_expired=False, source=source) as reader,
        ):
            if reader.states:  # none before the operator gets its first row
                yield from read_contents(reader)


def _is_nothing(rows: RowsLike) -> bool:
    return isinstance(rows, (list, tuple)) and not rows


def _end(query: LocalQuery, temporary: Path | None) -> None:
    query.stop()
    _remove(temporary)


def _remove(temporary: Path | None) -> None:
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)


def _dump(processor: Processor) -> bytes:
    """Return the processor as Spark sends it to tasks. Raises InvalidInputError."""
    try:
        return dump_program(processor)
    except Exception as problem:
        name = type(processor).__name__
        raise InvalidInputError(
            f"{name} cannot be copied to the workers: {type(problem).__name__}: {problem}",
            hint="Open files, locks and connections in the methods that use them.",
        ) from problem
