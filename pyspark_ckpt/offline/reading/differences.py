"""``diff``: the rows in which a state differs between two versions, checkpoints or savepoints.

Both sides are read in the order of their stored keys, which do not depend on the number of partitions. Two portions of
rows are in memory at a time. Between two versions of one checkpoint, the deltas say which keys may differ, and only
these are looked up. State that two savepoints record as equal is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from pyspark_ckpt.offline.reading.closeable import Closeable
from pyspark_ckpt.offline.reading.reader import StateReader, open_state
from pyspark_ckpt.offline.reading.row_location import read_stored_row
from pyspark_ckpt.offline.reading.splits import Splits
from pyspark_ckpt.state_store.arguments import Location
from pyspark_ckpt.state_store.arrays.order import are_equal, in_order, join_runs, next_portion, part_run
from pyspark_ckpt.state_store.arrays.packed import concatenate
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.chunks import count_row_bytes, take_portion
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.keys import STATE_BYTES
from pyspark_ckpt.state_store.format.meta import Descriptor

if TYPE_CHECKING:
    import pandas as pd

CHANGE, SIDE = pa.field("change", pa.string()), pa.field("side", pa.string())
REMOVED, ADDED, CHANGED = "removed", "added", "changed"
PORTION_ROWS = 16_384
PORTION_BYTES = 4 << 20
BATCH_KEYS = 4096
LOOKED_UP_KEYS = 512
_SPLIT_BYTES = 4
"""The number of a split, before each value while rows are compared."""


def diff(
    a: Location,
    b: Location,
    *,
    uid: str | None = None,
    operator: int | None = None,
    state: str | None = None,
    store: str | None = None,
    version_a: int | None = None,
    version_b: int | None = None,
    options: Mapping[str, str] | None = None,
) -> StateDiff:
    """Compare one state of ``a`` with the same state of ``b``, two versions of it by default the newest committed ones.

    ``a``, ``b``: checkpointLocations or savepoints, perhaps the same one, with any number of partitions. The other
    arguments are those of ``open_state``. Close the result, or use a ``with`` block. If one side lacks the state, as
    before its first row, all rows are from the other side.

    Raises InvalidInputError (no checkpoint, no such version, no such state on either side), FormatError, StorageError.
    """

    def open_side(location: Location, version: int | None) -> StateReader:
        return open_state(
            location, uid=uid, operator=operator, state=state, store=store, version=version, options=options
        )

    with ExitStack() as stack:
        left = stack.enter_context(open_side(a, version_a))
        right = stack.enter_context(open_side(b, version_b))
        found = StateDiff(left, right)
        stack.pop_all()
    return found


class _Difference(NamedTuple):
    """A stored key without the number of its state, and the values on both sides, each after the number of its split.

    None: the side has no such key.
    """

    key: bytes
    a: bytes | None
    b: bytes | None

    def count_bytes(self) -> int:
        """Return the bytes of the values."""
        return len(self.a or b"") + len(self.b or b"")


class StateDiff(Closeable):
    """The differences of one state. Rows that are equal on both sides are not shown.

    The columns are ``change`` ("removed": only ``a`` has the row; "added": only ``b`` has it; "changed"), ``side`` ("a"
    or "b"), and those of ``open_state`` without the place of the row. A changed row is shown twice, as ``a`` has
    it first. Rows are equal if all shown columns are: a value that was written again has changed if its ``written_at``
    or ``expires_at`` has.
    """

    def __init__(self, a: StateReader, b: StateReader, is_late: Callable[[], bool] = lambda: False) -> None:
        """See ``diff``. Closes both readers at the end. Raises InvalidInputError, FormatError, StorageError.

        If ``is_late`` returns True, differences end early: ``is_all`` is False.
        """
        self._a, self._b, self._is_late = a, b, is_late
        self.is_all = True
        self._sides = [each for each in (a, b) if each.has_state] or [a]
        self._has_forms = any(_has_forms(each.state.descriptor) for each in self._sides)

    def __repr__(self) -> str:
        return f"StateDiff(a={self._a!r}, b={self._b!r})"

    def close(self) -> None:
        """Release both sides. May be called twice."""
        self._a.close()
        self._b.close()

    @property
    def schema(self) -> pa.Schema:
        """The columns. Raises InvalidInputError (the state has other types on the other side), as ``open_state``."""
        a, *others = (side.state.codec().fields for side in self._sides)
        b = others[0] if others else a
        if a != b:
            raise InvalidInputError(
                f"{self._a.state.whose} has the columns {_show(a)} in {self._a.checkpoint.place.url}, "
                f"and {_show(b)} in {self._b.checkpoint.place.url}.",
                hint="Only states of the same types can be compared.",
            )
        return pa.schema([CHANGE, SIDE, *a])

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield the differences in a bounded amount of memory.

        Raises as ``schema`` does, NotFoundError, FormatError.
        """
        schema = self.schema
        found = self._find()
        while some := take_portion(found, BATCH_KEYS, PORTION_BYTES, _Difference.count_bytes):
            batch = self._decode(some, schema)
            yield _without_equal(batch) if self._has_forms else batch

    def to_arrow(self) -> pa.Table:
        """Return all differences, in memory. Raises as ``batches`` does."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """Return all differences, in memory, as a pandas frame. Raises as ``batches`` does."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def _ends(self) -> bool:
        if self.is_all and self._is_late():
            self.is_all = False
        return not self.is_all

    def _find(self) -> Iterator[_Difference]:
        with ExitStack() as stack:
            if len(self._sides) == 1:
                (side,) = self._sides
                only = side.splits
                for split in only.shown:
                    if self._ends():
                        return
                    rows = _read(only, [split], stack)
                    none: Iterator[PackedRows] = iter(())
                    yield from self._compare(rows, none) if side is self._a else self._compare(none, rows)
                    stack.close()
                return
            a, b = self._a.splits, self._b.splits
            if a.are_proven_equal(b):
                return
            if a.are_split_as(b):
                for split in a.shown:
                    if self._ends():
                        return
                    if a.is_proven_equal(split, b):
                        continue
                    older, newer = (a, b) if a.version <= b.version else (b, a)
                    keys = newer.find_touched(older, split)
                    if keys is not None:
                        yield from self._compare_some(split, keys)
                        continue
                    yield from self._compare(_read(a, [split], stack), _read(b, [split], stack))
                    stack.close()
            else:
                yield from self._compare(_read(a, a.shown, stack), _read(b, b.shown, stack))

    def _compare(self, a: Iterator[PackedRows], b: Iterator[PackedRows]) -> Iterator[_Difference]:
        left, right = next_portion(a), next_portion(b)
        while left is not None and right is not None:
            if self._ends():
                return
            cut = min(left.keys[len(left) - 1], right.keys[len(right) - 1])
            (some, left), (others, right) = part_run(left, a, cut), part_run(right, b, cut)
            yield from _find_changes(some, others)
        for rest, run in ((left, a), (right, b)):
            for rows in chain([] if rest is None else [rest], run):
                if self._ends():
                    return
                for key, value in rows.rows():
                    yield _Difference(key, value, None) if run is a else _Difference(key, None, value)

    def _compare_some(self, split: int, keys: Sequence[bytes]) -> Iterator[_Difference]:
        """Yield the differences between rows of some keys of a split. No other keys may differ."""
        if not keys:
            return
        head = split.to_bytes(_SPLIT_BYTES, "big")
        with self._a.splits.look_up(split) as get_a, self._b.splits.look_up(split) as get_b:
            for begin in range(0, len(keys), LOOKED_UP_KEYS):
                if self._ends():
                    return
                some = list(keys[begin : begin + LOOKED_UP_KEYS])
                for key, old, new in zip(some, get_a(some), get_b(some), strict=True):
                    if old != new:
                        values = (None if value is None else head + value for value in (old, new))
                        yield _Difference(key[STATE_BYTES:], *values)

    def _decode(self, found: Sequence[_Difference], schema: pa.Schema) -> pa.RecordBatch:
        """Return differences as columns: those of ``a`` and then of ``b``, brought into the order of their keys."""
        changes, sides, orders, columns = [], [], [], []
        for name, side in (("a", self._a), ("b", self._b)):
            own = [(number, each.key, value) for number, each in enumerate(found) if (value := getattr(each, name))]
            for split in sorted({value[:_SPLIT_BYTES] for _, _, value in own}):
                some = [each for each in own if each[2].startswith(split)]
                codec, is_ordered, head = side.splits.describe(int.from_bytes(split, "big"))
                rows = [
                    read_stored_row(head + key, value[_SPLIT_BYTES:], is_ordered=is_ordered) for _, key, value in some
                ]
                decoded = codec.decode(rows)
                positions = [some[row][0] for row in decoded.rows.tolist()]
                changes += [_name(found[position]) for position in positions]
                sides += [name] * len(positions)
                orders += positions
                columns.append(decoded.columns)
        order = np.lexsort((np.array(sides), np.array(orders)))
        whole = [pa.concat_arrays(parts) for parts in zip(*columns, strict=True)]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(changes, pa.string()), pa.array(sides, pa.string()), *whole], schema=schema
        )
        return batch.take(pa.array(order))


def _read(state: Splits, splits: Sequence[int], stack: ExitStack) -> Iterator[PackedRows]:
    """Return rows of some splits in key order, without the number of the state."""
    runs = [_portions(stack.enter_context(state.open_rows(split)), split) for split in splits]
    return join_runs(runs)


def _portions(rows: Iterator[tuple[bytes, bytes]], split: int) -> Iterator[PackedRows]:
    head = split.to_bytes(_SPLIT_BYTES, "big")
    while some := take_portion(rows, PORTION_ROWS, PORTION_BYTES, count_row_bytes):
        packed = PackedRows.of(some)
        yield PackedRows(packed.keys.behind(STATE_BYTES), packed.values.prefix(head))  # noqa: PD011 - of PackedRows


def _find_changes(a: PackedRows, b: PackedRows) -> Iterator[_Difference]:
    """Yield what differs between rows of one range of keys, in key order."""
    keys, values = concatenate([a.keys, b.keys]), concatenate([a.values, b.values])  # noqa: PD011 - of PackedRows
    order, is_same = in_order(keys)
    seconds = np.flatnonzero(is_same)
    firsts = seconds - 1
    old, new = (values.take(order[places]).behind(_SPLIT_BYTES) for places in (firsts, seconds))
    is_equal = are_equal(old, new) if len(seconds) else np.zeros(0, np.bool_)
    shown = np.ones(len(order), np.bool_)
    shown[seconds] = False
    shown[firsts[is_equal]] = False
    for place in np.flatnonzero(shown).tolist():
        position = int(order[place])
        key, value = keys[position], values[position]
        if place + 1 < len(order) and is_same[place + 1]:
            yield _Difference(key, value, values[int(order[place + 1])])
        else:
            yield _Difference(key, value, None) if position < len(a) else _Difference(key, None, value)


def _has_forms(descriptor: Descriptor) -> bool:
    """Whether equal values may have other bytes, because types have changed since some were written."""
    stored = descriptor.value_schema
    histories = (
        [each.get("schemas", ()) for each in stored.values() if isinstance(each, dict)]
        if isinstance(stored, dict)
        else []
    )
    own = () if descriptor.value_schemas is UNSET else descriptor.value_schemas
    return any(len(each) > 1 for each in (*histories, own))


def _without_equal(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Leave out rows whose bytes alone have changed: two neighbours that show the same."""
    shown = list(map(repr, batch.drop_columns([CHANGE.name, SIDE.name]).to_pylist()))
    sides, changes = (batch.column(field.name).to_pylist() for field in (SIDE, CHANGE))
    kept = np.ones(len(batch), np.bool_)
    for second in range(1, len(shown)):
        is_pair = changes[second] == CHANGED and (sides[second - 1], sides[second]) == ("a", "b")
        if is_pair and shown[second - 1] == shown[second]:
            kept[second - 1 : second + 1] = False
    return batch.filter(pa.array(kept))


def _name(found: _Difference) -> str:
    if found.b is None:
        return REMOVED
    return ADDED if found.a is None else CHANGED


def _show(fields: Sequence[pa.Field]) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in fields)
