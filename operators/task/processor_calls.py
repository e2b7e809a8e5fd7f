"""Call a processor for the keys of some rows, one by one or all at once, and collect its output rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat
from operator import is_
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.declarations.operator import HASH
from pyspark_ckpt.operators.declarations.processors import (
    Context,
    KeyedProcessor,
    VectorContext,
    VectorProcessor,
    name_method,
)
from pyspark_ckpt.operators.encoding.distinct_keys import Groups, Keys
from pyspark_ckpt.operators.encoding.suffixes import Suffixes, behind_hash
from pyspark_ckpt.operators.rows.event_time import RowsInTime
from pyspark_ckpt.operators.task.merging import Merged
from pyspark_ckpt.operators.task.results import Results
from pyspark_ckpt.operators.task.user_errors import locate_errors
from pyspark_ckpt.operators.types.columns import AS_ARROW, arrow_of_plain, arrow_values, find_misfit, python_values
from pyspark_ckpt.operators.types.conversions import CONVERT, WRONG_VALUE
from pyspark_ckpt.operators.types.exact_columns import exact_column
from pyspark_ckpt.operators.types.struct_values import get_fields, struct_maker
from pyspark_ckpt.operators.types.value_types import no_null
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.declarations.operator import KeyedOperator
    from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
    from pyspark_ckpt.operators.rows.base import Position
    from pyspark_ckpt.operators.task.firing import Due, Firing

Result: TypeAlias = "Iterable[Sequence[Any]] | None"
Method: TypeAlias = str | Callable[[], str]
"""The name of the method that is called; a function if it changes from call to call."""

KEYS_AT_ONCE = 8192
TIMERS_AT_ONCE = 65536
OUTPUT_ROWS = 65536
OUTPUT_BYTES = 8 << 20
"""The maximum size of a batch of output, unless one row is larger. Several batches are in memory at once."""
_MIN_AT_ONCE, _MAX_AT_ONCE = 64, 1024
"""How many rows are collected before they become a batch: as many as the size of the former ones allows."""
_MAX_COMBINED_BYTES = 1 << 30
"""A text column of 2 GiB cannot be one chunk."""
_IN_ARROW = "Process the rows in a VectorProcessor, or give the column another type, such as a number."

TIMERS = pa.schema([("name", pa.string()), ("namespace", pa.string()), ("at", pa.timestamp("us", "UTC"))])
"""The columns of the timers that a VectorProcessor gets."""


@dataclass
class ProcessorCalls:
    """What all calls of a task share. The states of ``processor`` are bound; ``position`` is their current key.

    Calls get the ``context`` of the moment: in real-time mode, another one for each group of rows.
    """

    operator: KeyedOperator
    processor: KeyedProcessor | VectorProcessor
    context: Context
    position: Position

    def process(self, groups: Groups, rows: pa.Table, method: str) -> Iterator[pa.RecordBatch]:
        """Yield the output of a ``method`` of the processor for ``rows``, which are in these groups."""
        if isinstance(self.processor, VectorProcessor):
            return self._process_batch(groups.keys, groups.places, rows, method)
        return self._pack(method, self._process_keys(getattr(self.processor, method), groups, rows))

    def _process_batch(
        self, keys: Keys, index: NDArray[np.int64], rows: pa.Table, method: str
    ) -> Iterator[pa.RecordBatch]:
        """Call a VectorProcessor. ``keys``: the distinct ones; ``index``: the position of every row's key."""
        self.position.upcoming = keys.suffixes
        told = VectorContext(**vars(self.context), keys=keys, key_index=index)
        return self._shape(method, self._call(getattr(self.processor, method), told, rows))

    def process_few(self, rows: pa.Table, by: Sequence[str], codec: KeyCodec, method: str) -> Iterator[pa.RecordBatch]:
        """Yield the same output for some rows with their hashes, without the fixed costs of columns.

        The processor takes one key after the other. ``by``: its columns in ``rows``.
        """
        return self._pack(method, self._process_few(getattr(self.processor, method), rows, by, codec))

    def process_broadcast(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the output for the rows of the broadcast input. Broadcast states can be written meanwhile."""
        method = name_method(self.processor, "broadcast")
        call = getattr(self.processor, method)
        self.position.takes_broadcast = True
        try:
            if isinstance(self.processor, VectorProcessor):
                yield from self._shape(method, self._call(call, self.context, rows))
            else:
                results = (call(self.context, given) for given in [self._python_rows(rows)])
                yield from self._pack(method, results)
        finally:
            self.position.takes_broadcast = False

    def process_merged(
        self, merged: Merged, tables: Sequence[pa.Table], methods: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the output for the rows of several inputs in one order: see ``Merged``.

        ``tables``: the rows of each input; ``methods``: the method for each.
        """
        if isinstance(self.processor, VectorProcessor):
            for number, chosen in merged.choose():
                wanted, index = np.unique(merged.of_key[chosen], return_inverse=True)
                rows, keys = tables[number].take(pa.array(merged.places[chosen])), merged.keys.at(wanted.tolist())
                if merged.times_ms is not None:
                    self.position.time.begin_keys(keys, index, merged.times_ms[chosen])
                yield from self._process_batch(keys, index, rows, methods[number])
                self.position.time.end()
        else:
            called = [methods[0]]
            runs = self._process_runs(merged, tables, methods, called)
            yield from self._pack(lambda: called[0], runs)
            self.position.time.end()

    def fire(self, firing: Firing, listed: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the output for the due ``listed`` timers, and for due timers that calls for them register."""
        yield from self._fire(firing.due(listed))
        while firing.has_registered:  # by the last call for many timers, after all of them were taken
            yield from self._fire(firing.due(listed.slice(len(listed))))

    def _fire(self, due: Iterator[Due]) -> Iterator[pa.RecordBatch]:
        if isinstance(self.processor, VectorProcessor):
            return self._call_on_timers(self.processor, due)
        return self._pack("on_timer", self._call_on_timer(self.processor, due))

    def _process_keys(self, process: Callable[..., Result], groups: Groups, rows: pa.Table) -> Iterator[Result]:
        keys = groups.keys
        ends = np.cumsum(np.bincount(groups.places, minlength=len(keys)))
        sorted_rows = rows.take(pa.array(groups.order))
        position, context = self.position, self.context
        for begin in range(0, len(keys), KEYS_AT_ONCE):
            end = min(begin + KEYS_AT_ONCE, len(keys))
            position.upcoming = keys.suffixes[begin:end]
            first = int(ends[begin - 1]) if begin else 0
            of_keys = self._python_rows(sorted_rows.slice(first, int(ends[end - 1]) - first))
            at = 0
            stops = (ends[begin:end] - first).tolist()
            for suffix, key, stop in zip(position.upcoming, keys.to_python(begin, end), stops, strict=True):
                position.suffix, position.key = suffix, key
                yield process(context, key, of_keys[at:stop])
                at = stop

    def _process_few(
        self, process: Callable[..., Result], rows: pa.Table, by: Sequence[str], codec: KeyCodec
    ) -> Iterator[Result]:
        hashes, rows = rows.column(HASH).to_pylist(), rows.drop_columns([HASH])
        places = [rows.column_names.index(name) for name in by]
        make = struct_maker(pa.struct(self.operator.key_fields))
        of_keys: dict[bytes, tuple[Any, list[Any]]] = {}
        for spark_hash, row in zip(hashes, self._python_rows(rows), strict=True):
            key = [tuple.__getitem__(row, place) for place in places]
            suffix = behind_hash(spark_hash, codec.encode(key))
            if suffix not in of_keys:
                of_keys[suffix] = make(key), []
            of_keys[suffix][1].append(row)
        position, context = self.position, self.context
        position.upcoming = sorted(of_keys)
        for suffix in position.upcoming:
            key, own = of_keys[suffix]
            position.suffix, position.key = suffix, key
            yield process(context, key, own)

    def _process_runs(
        self, merged: Merged, tables: Sequence[pa.Table], methods: Sequence[str], called: list[str]
    ) -> Iterator[Result]:
        """Call the method of an input for each of its runs; ``called`` has the name of the current one."""
        position, context, keys = self.position, self.context, merged.keys
        calls = [getattr(self.processor, method) for method in methods]
        ends = np.cumsum(np.bincount(merged.of_key, minlength=len(keys)))
        for begin in range(0, len(keys), KEYS_AT_ONCE):
            end = min(begin + KEYS_AT_ONCE, len(keys))
            position.upcoming = keys.suffixes[begin:end]
            part = slice(int(ends[begin - 1]) if begin else 0, int(ends[end - 1]))
            rows = [
                iter(self._python_rows(table.take(pa.array(merged.places[part][merged.inputs[part] == number]))))
                for number, table in enumerate(tables)
            ]
            suffixes, of_python = list(position.upcoming), keys.to_python(begin, end)
            runs = merged.runs[slice(*np.searchsorted(merged.runs, [part.start, part.stop]))]
            lengths = np.diff(runs, append=part.stop).tolist()
            places, numbers = (merged.of_key[runs] - begin).tolist(), merged.inputs[runs].tolist()
            times_ms = iter(() if merged.times_ms is None else merged.times_ms[part].tolist())
            for place, number, length in zip(places, numbers, lengths, strict=True):
                position.suffix, position.key = suffixes[place], of_python[place]
                called[0] = methods[number]
                given = list(islice(rows[number], length))
                if merged.times_ms is not None:
                    given = RowsInTime(given, list(islice(times_ms, length)), position.time)
                yield calls[number](context, position.key, given)

    def _python_rows(self, rows: pa.Table) -> list[Any]:
        make = struct_maker(pa.struct(list(rows.schema)))
        columns = map(self._python_values, rows.column_names, rows.columns)
        return list(map(make, zip(*columns, strict=True)))

    def _python_values(self, name: str, column: pa.ChunkedArray) -> list[Any]:
        try:
            return python_values(column.combine_chunks())
        except InvalidInputError as problem:
            raise InvalidInputError(
                f"Column {name!r} of keyed operator {self.operator.uid!r}: {problem.message}",
                hint=_IN_ARROW if problem.hint == AS_ARROW else problem.hint,
            ) from problem

    def _call_on_timer(self, processor: KeyedProcessor, due: Iterator[Due]) -> Iterator[Result]:
        make = struct_maker(pa.struct(self.operator.key_fields))
        on_timer, position, context = processor.on_timer, self.position, self.context
        lives_by_events = self.operator.event_life_ms is not None
        for each in due:
            key = make(each.key)
            position.suffix, position.key = each.suffix, key
            if lives_by_events:
                at_ms = self._time_ms(each)
                position.time.begin(at_ms, at_ms)
            yield on_timer(context, key, each.timer)
        position.time.end()

    def _call_on_timers(self, processor: VectorProcessor, due: Iterator[Due]) -> Iterator[pa.RecordBatch]:
        for chunk in self._chunks(due):
            found = {each.suffix: each.key for each in chunk}
            suffixes = sorted(found)
            columns = zip(*(found[suffix] for suffix in suffixes), strict=True)
            fields = self.operator.key_fields
            arrays = [arrow_of_plain(column, field.type) for column, field in zip(columns, fields, strict=True)]
            keys = Keys(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), Suffixes(suffixes))
            position_of = {suffix: position for position, suffix in enumerate(suffixes)}
            index = np.array([position_of[each.suffix] for each in chunk], np.int64)
            micros = np.array([each.timer.at_us for each in chunk], np.int64)
            names, namespaces = [each.timer.name for each in chunk], [each.timer.namespace for each in chunk]
            timers = pa.table([names, namespaces, pa.array(micros, TIMERS.field("at").type)], schema=TIMERS)
            self.position.upcoming = suffixes
            if self.operator.event_life_ms is not None:
                self.position.time.begin_keys(keys, index, np.array(list(map(self._time_ms, chunk)), np.int64))
            told = VectorContext(**vars(self.context), keys=keys, key_index=index)
            yield from self._shape("process_timers", self._call(processor.process_timers, told, timers))
            self.position.time.end()

    def _chunks(self, due: Iterator[Due]) -> Iterator[list[Due]]:
        """Yield the timers of each call: after a pause as long as the shortest life, a key's go to the next call.

        What a key gets in a call does not depend on other keys.
        """
        life_ms = self.operator.event_life_ms
        while chunk := list(islice(due, TIMERS_AT_ONCE)):
            if life_ms is None:
                yield chunk
                continue
            calls: list[list[Due]] = []
            last: dict[bytes, tuple[int, int]] = {}
            for each in chunk:
                at_ms = self._time_ms(each)
                number, last_ms = last.get(each.suffix, (0, at_ms))
                number += at_ms - last_ms >= life_ms
                last[each.suffix] = number, at_ms
                if number == len(calls):
                    calls.append([])
                calls[number].append(each)
            yield from calls

    def _time_ms(self, due: Due) -> int:
        """Return the event time of the call for a timer."""
        time = self.position.time
        return max(time.passed_ms, due.timer.at_us // 1000) if due.clock == "event" else time.watermark_ms

    def _shape(self, method: str, result: pa.Table | None) -> Iterator[pa.RecordBatch]:
        """Yield the result in batches with exactly the output's columns."""
        if result is None:
            return iter(())
        who, output = self._who(method), self.operator.output
        if not isinstance(result, pa.Table):
            raise InvalidInputError(f"{who} must return a pyarrow.Table, but returned {type(result).__name__}.")
        if sorted(result.column_names) != sorted(output.names):
            raise InvalidInputError(f"{who} returned columns {result.column_names}, not {output.names}.")
        try:
            columns = [self._exact(who, result.column(field.name), field) for field in output]
            table = pa.Table.from_arrays(columns, schema=output)
            table = table if table.nbytes > _MAX_COMBINED_BYTES else table.combine_chunks()
        except pa.ArrowException as problem:
            raise InvalidInputError(f"{who} returned values that do not fit the output's types: {problem}") from problem
        return iter(table.to_batches(max_chunksize=_choose_batch_rows(table.nbytes, len(table))))

    def _exact(self, who: str, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
        """Return a column of the result as a column of the output."""
        try:
            if column.null_count and not field.nullable:
                raise ValueError(no_null(field))
            return pa.chunked_array([exact_column(chunk, field.type) for chunk in column.chunks], field.type)
        except WRONG_VALUE as problem:
            raise InvalidInputError(
                f"{who} returned a column {field.name!r} of type {column.type}, but the output's is of type "
                f"{field.type}: {problem}.",
                hint=CONVERT,
            ) from problem

    def _pack(self, method: Method, results: Iterator[Result]) -> Iterator[pa.RecordBatch]:
        """Yield rows in batches. All rows of one result are taken before the next call."""
        waiting: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        for batch in self._locate_errors(method, self._small_batches(method, results)):
            if waiting and (rows + len(batch) > OUTPUT_ROWS or size_bytes + batch.nbytes > OUTPUT_BYTES):
                yield _merge(waiting)
                waiting, rows, size_bytes = [], 0, 0
            waiting.append(batch)
            rows, size_bytes = rows + len(batch), size_bytes + batch.nbytes
        if waiting:
            yield _merge(waiting)

    def _locate_errors(self, method: Method, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same batches; errors of the user's code meanwhile name their key."""
        with locate_errors(partial(self._who, method), self.context, lambda: self.position.key):
            yield from batches

    def _call(self, method: Callable[..., pa.Table | None], *told: object) -> pa.Table | None:
        """Call a method of a VectorProcessor."""
        with locate_errors(self._who(method.__name__), self.context):
            return method(*told)

    def _small_batches(self, method: Method, results: Iterator[Result]) -> Iterator[pa.RecordBatch]:
        out: list[Sequence[Any]] = []
        at_once = _MIN_AT_ONCE
        rows_of = Results(partial(self._who, method), self.operator.output.names).rows
        for result in results:
            if result is not None:
                remaining = rows_of(result)
                out.extend(islice(remaining, at_once))
                while len(out) >= at_once:
                    batch = self._batch(method, out)
                    yield from _portions(batch)
                    at_once = min(_MAX_AT_ONCE, 4 * at_once, _choose_batch_rows(batch.nbytes, len(batch)))
                    out = list(islice(remaining, at_once))
        if out:
            yield from _portions(self._batch(method, out))

    def _batch(self, method: Method, out: Sequence[Any]) -> pa.RecordBatch:
        kind = pa.struct(list(self.operator.output))
        try:
            if not any(map(is_, out, repeat(None))):
                return pa.RecordBatch.from_struct_array(arrow_values(out, kind))
        except WRONG_VALUE as problem:
            for row in out:
                self._check_row(method, row)
            raise InvalidInputError(f"{self._who(method)} yielded rows that are not {kind}: {problem}") from problem
        raise self._no_row(method, None, "it is not a row")

    def _check_row(self, method: Method, row: Any) -> None:
        """Raise InvalidInputError, naming the column, for a row that does not fit the output."""
        output = self.operator.output
        Results(partial(self._who, method), output.names).check_row(row)
        try:
            values = get_fields(row, tuple(output.names))
        except WRONG_VALUE as problem:
            raise self._no_row(method, row, problem) from problem
        if (found := find_misfit(values, output)) is not None:
            raise InvalidInputError(
                f"{self._who(method)} yielded rows that are not those of the output: {found}.", hint=CONVERT
            ) from found.why

    def _no_row(self, method: Method, row: Any, problem: object) -> InvalidInputError:
        return InvalidInputError(
            f"{self._who(method)} yielded {repr(row)[:200]}, which does not fit the columns "
            f"{self.operator.output.names}: {problem}."
        )

    def _who(self, method: Method) -> str:
        name = method if isinstance(method, str) else method()
        return f"{type(self.processor).__name__}.{name}() of keyed operator {self.operator.uid!r}"


def _choose_batch_rows(size_bytes: int, rows: int) -> int:
    """Return how many rows a batch may have, if ``rows`` rows have this size."""
    return max(1, min(OUTPUT_ROWS, rows * OUTPUT_BYTES // max(1, size_bytes)))


def _portions(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = _choose_batch_rows(batch.nbytes, len(batch))
    if len(batch) <= rows:
        return iter([batch])
    return (batch.slice(begin, rows) for begin in range(0, len(batch), rows))


def _merge(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (merged,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return merged
