"""The rows of a list: one for each element, and a head before them that says how many there have been.

With a time to live, what was appended to a list in one batch is one *span* in the expiry index, and is freed without
being read: a span and the head of its list name the *life* that the list had then, which is the version that wrote its
first span. Reads that refresh elements break spans: so elements of such lists have index rows of their own, and a list
that has been read so says it in its head.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyspark_ckpt.operators.expiry import MOST_BEGUN_BYTES, ExpiryIndex, TimedEntryRows
from pyspark_ckpt.operators.ordered_rows import INSTANT, THERE, ordered_key, row_of
from pyspark_ckpt.operators.state_rows import EntryRows, KeyRows
from pyspark_ckpt.operators.stored_values import SHOWN_BYTES
from pyspark_ckpt.operators.ttl import MOST_STEP_BITS, Life
from pyspark_ckpt.state_store.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.worker_session import WorkerSession

SEQUENCE = struct.Struct(">Q")
FIRST = SEQUENCE.pack(0)
SPAN_ELEMENTS = 4096
"""No span has more: it is freed as a whole."""
_SPAN_BIT = 1 << 63
_SPAN = struct.Struct("<BBQQ")
_SPAN_MARK = 2
_HEAD = struct.Struct("<BQ")
_LIVING_HEAD = struct.Struct("<BQQ")
_PLAIN, _IN_SPANS, _REFRESHED = 1, 2, 3
_WITH_LIFE = (_IN_SPANS, _REFRESHED)


class Head(NamedTuple):
    """The number of the next element; ``life``: 0 if it has no spans; whether reads have refreshed any of theirs."""

    end: int = 0
    life: int = 0
    is_refreshed: bool = False

    @classmethod
    def decode(cls, stored: bytes | None) -> Head:
        """The head in a row. Raises FormatError for what is none."""
        if stored is None:
            return _NONE
        if len(stored) == _HEAD.size and stored[0] == _PLAIN:
            end, life = _HEAD.unpack(stored)[1], 0
        elif len(stored) == _LIVING_HEAD.size and stored[0] in _WITH_LIFE:
            _, end, life = _LIVING_HEAD.unpack(stored)
        else:
            end, life = 0, 0
        if not 0 < end < _SPAN_BIT:
            raise FormatError(f"The head of a list is stored as {stored[:SHOWN_BYTES].hex()!r}, which is none.")
        return cls(end, life, stored[0] == _REFRESHED)

    def encode(self) -> bytes:
        """The row of a head."""
        end, life, is_refreshed = self
        return (
            _LIVING_HEAD.pack(_REFRESHED if is_refreshed else _IN_SPANS, end, life) if life else _HEAD.pack(_PLAIN, end)
        )


_NONE = Head()


class ListRows:
    """Lists whose elements live until they are cleared."""

    def __init__(self, number: int, session: WorkerSession) -> None:
        """Read and write state ``number``."""
        self._heads = KeyRows(number, session)
        self._elements = EntryRows(number, session)

    def get(self, suffix: bytes) -> Iterator[bytes]:
        """The elements of a key, lazily, as they are now."""
        return self._behind(suffix, self._head(suffix))

    def get_many(self, suffixes: Sequence[bytes]) -> Iterator[Iterator[bytes]]:
        """``get`` of many keys, which are in stored order."""
        for suffix, stored in zip(suffixes, self._heads.get_many(suffixes), strict=True):
            yield self._behind(suffix, Head.decode(stored))

    def append(self, suffix: bytes, elements: Sequence[bytes]) -> None:
        """Add elements to the list of a key."""
        if elements:
            head = self._head(suffix)
            self._heads.put(suffix, self._added(suffix, head, elements).encode())

    def append_many(self, suffixes: Sequence[bytes], ends: NDArray[np.int64], elements: Sequence[bytes]) -> None:
        """Add elements to many lists, whose keys are in stored order: to each those up to its one of ``ends``."""
        heads, begin = [], 0
        added, decode, encode = self._added, Head.decode, Head.encode
        for suffix, stored, end in zip(suffixes, self._heads.get_many(suffixes), ends.tolist(), strict=True):
            heads.append(encode(added(suffix, decode(stored), elements[begin:end])))
            begin = end
        self._heads.put_many(suffixes, heads)

    def clear(self, suffix: bytes) -> None:
        """Remove all elements of a key; however many, they take no memory."""
        if self._head(suffix).end:
            self._elements.remove_all(suffix, FIRST)
            self._heads.put(suffix, None)

    def sweep(self, _most: int) -> int:
        """Nothing expires."""
        return 0

    @property
    def change(self) -> int:
        """How many rows more there are than in the base version, behind the flush of all that was cleared."""
        return self._heads.change + self._elements.change

    def flush(self, end: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """What was written for keys below ``end``, or all of it, in stored order; it is forgotten."""
        return self._elements.flush(end, self._heads)

    def _head(self, suffix: bytes) -> Head:
        return Head.decode(self._heads.get(suffix))

    def _behind(self, suffix: bytes, head: Head) -> Iterator[bytes]:
        """The elements behind a head."""
        if head.end == 0:
            return iter(())
        return (element for _, element in self._elements.scan(suffix, FIRST))

    def _added(self, suffix: bytes, head: Head, elements: Sequence[bytes]) -> Head:
        """Write elements behind those of ``head``; returns the head with them."""
        begin, life, is_refreshed = head
        end = begin + len(elements)
        self._elements.add(suffix, list(map(SEQUENCE.pack, range(begin, end))), elements)
        return Head(end, life, is_refreshed)


class TimedListRows(ListRows):
    """Lists whose elements have a time to live, each its own."""

    def __init__(self, number: int, session: WorkerSession, life: Life, index: ExpiryIndex) -> None:
        """Keep ``index`` as elements are written."""
        super().__init__(number, session)
        self._timed = TimedEntryRows(self._elements, life, index)
        self._life, self._index = life, index
        self._new_life = session.version
        """Of lists whose first span this task writes. One that is cleared then takes its spans with it."""
        self._spans: dict[bytes, list[int]] = {}

    def clear(self, suffix: bytes) -> None:
        """See ListRows; what the index has of earlier batches' elements stays until their time is over."""
        for first in self._spans.pop(suffix, ()):
            self._index.put(self._span_key(suffix, first), there=False)
        super().clear(suffix)

    def flush(self, end: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """See ListRows."""
        self._spans = {}
        return super().flush(end)

    def sweep(self, most: int) -> int:
        """Free up to ``most`` expired elements, or one span; returns how many."""
        singles: list[tuple[bytes, bytes, bytes]] = []
        spans: list[tuple[bytes, bytes, _Span]] = []
        count = begun_bytes = 0
        for key, value in self._index.expired(self._life):
            suffix, entry, span = _indexed(key, value)
            instant: int = INSTANT.unpack_from(key)[0]
            if span is not None and instant + (1 << span.step_bits) - 1 > self._life.dead_ms:
                continue  # a time to live that was longer had longer steps
            if count >= most or begun_bytes >= MOST_BEGUN_BYTES:
                break
            if span is None:
                singles.append((key, suffix, entry))
                count += 1
            elif instant == 0 and self._life.begins_late and (size_bytes := self._begin(key, suffix, span)):
                begun_bytes += size_bytes
                count += span.size
            else:
                spans.append((key, suffix, span))
                count += span.size
        suffixes = sorted({suffix for _, suffix, *_ in singles} | {suffix for _, suffix, _ in spans})
        heads = dict(zip(suffixes, map(Head.decode, self._heads.get_many(suffixes)), strict=True))
        dead: dict[bytes, set[bytes]] = {}
        for elements in (self._dead_alone(singles), self._dead_in_spans(spans, heads)):
            for suffix, entries in elements:
                dead.setdefault(suffix, set()).update(entries)
        self._free(dead, heads)
        return sum(map(len, dead.values()))

    def _dead_alone(self, found: Sequence[tuple[bytes, bytes, bytes]]) -> list[tuple[bytes, Iterable[bytes]]]:
        """The elements of index rows, which are removed, but for those that live."""
        elements = [(suffix, entry) for _, suffix, entry in found]
        changes = self._index.settle([key for key, _, _ in found], self._stored(elements), self._life)
        for position, row in changes.items():
            if row is not None:
                self._elements.put(*elements[position], row, there=True)
        dead = [elements[position] for position, row in changes.items() if row is None]
        return [(suffix, [entry]) for suffix, entry in dead]

    def _begin(self, key: bytes, suffix: bytes, span: _Span) -> int:
        """Let the lives of a span's elements begin that have not; returns how many bytes were written."""
        if self._head(suffix).life != span.life:
            return 0
        elements = [(suffix, entry) for entry in span.entries]
        begun_bytes = 0
        for element, stored in zip(elements, self._stored(elements), strict=True):
            row = None if stored is None else self._life.begun(stored)
            if row is not None:
                self._elements.put(*element, row, there=True)
                begun_bytes += len(row)
        if begun_bytes:
            self._index.put(key, there=False)
            self._write_span(suffix, span.first, span.first + span.size, span.life)
        return begun_bytes

    def _dead_in_spans(
        self, found: Sequence[tuple[bytes, bytes, _Span]], heads: Mapping[bytes, Head]
    ) -> list[tuple[bytes, Iterable[bytes]]]:
        """The elements of spans, which are removed, but for those that reads have refreshed or that were cleared."""
        dead: list[tuple[bytes, Iterable[bytes]]] = []
        read: list[tuple[bytes, bytes]] = []
        for key, suffix, span in found:
            self._index.put(key, there=False)
            head = heads[suffix]
            if head.life == span.life and head.is_refreshed:
                read += [(suffix, entry) for entry in span.entries]
            elif head.life == span.life:
                dead.append((suffix, span.entries))
        for (suffix, entry), row in zip(read, self._stored(read), strict=True):
            if row is not None and self._life.is_dead(row):
                dead.append((suffix, [entry]))
        return dead

    def _free(self, dead: Mapping[bytes, set[bytes]], heads: Mapping[bytes, Head]) -> None:
        """Remove elements that are there. A list that has lost its last one begins anew."""
        for suffix, entries in dead.items():
            self._elements.remove(suffix, entries)
            # The newest element is the last to expire, but for older ones that have been read since. (A clock that
            # goes back, or another kind of refresh, may leave a head alone: it waits for the next elements.)
            head = heads[suffix]
            has_newest = SEQUENCE.unpack(max(entries))[0] + 1 < head.end
            is_refreshed = self._life.refreshed_by_reads or head.is_refreshed
            if head.end and (is_refreshed or not has_newest):
                are_all = len(entries) == head.end and not has_newest
                if are_all or not self._elements.has_rows(suffix, FIRST):
                    self._heads.put(suffix, None)

    def _behind(self, suffix: bytes, head: Head) -> Iterator[bytes]:
        """Without expired elements."""
        if head.end == 0:
            return iter(())
        if self._life.refreshed_by_reads and head.life and not head.is_refreshed:
            self._heads.put(suffix, head._replace(is_refreshed=True).encode())
        return (element for _, element in self._timed.scan(suffix, FIRST))

    def _added(self, suffix: bytes, head: Head, elements: Sequence[bytes]) -> Head:
        begin, life, is_refreshed = head
        end = super()._added(suffix, head, list(map(self._life.stamped, elements))).end
        if self._life.refreshed_by_reads:
            for number in range(begin, end):
                self._index.put(ordered_key(self._life.index_instant, suffix + SEQUENCE.pack(number)), there=True)
        else:
            life = life or self._new_life
            firsts = self._spans.setdefault(suffix, [begin])
            self._write_span(suffix, firsts[-1], end, life)
            while end - firsts[-1] > SPAN_ELEMENTS:
                firsts.append(firsts[-1] + SPAN_ELEMENTS)
                self._write_span(suffix, firsts[-1], end, life)
        return Head(end, life, is_refreshed)

    def _write_span(self, suffix: bytes, first: int, end: int, life: int) -> None:
        size = min(end - first, SPAN_ELEMENTS)
        self._index.write(self._span_key(suffix, first), _SPAN.pack(_SPAN_MARK, self._life.step_bits, size, life))

    def _span_key(self, suffix: bytes, first: int) -> bytes:
        return ordered_key(self._life.index_instant, suffix + SEQUENCE.pack(first | _SPAN_BIT))

    def _stored(self, elements: Sequence[tuple[bytes, bytes]]) -> list[bytes | None]:
        return self._elements.get_many([suffix for suffix, _ in elements], [entry for _, entry in elements])


class _Span(NamedTuple):
    """What an index row says of elements that were appended together."""

    first: int
    size: int
    life: int
    step_bits: int

    @property
    def entries(self) -> Iterator[bytes]:
        """Of its elements."""
        return map(SEQUENCE.pack, range(self.first, self.first + self.size))


def _indexed(key: bytes, value: bytes) -> tuple[bytes, bytes, _Span | None]:
    """Suffix and entry of an index row, and what it says if it is of a span. Raises FormatError."""
    row = row_of(key)
    suffix, entry = row[: -SEQUENCE.size], row[-SEQUENCE.size :]
    if value == THERE and len(entry) == SEQUENCE.size:
        return suffix, entry, None
    if len(value) == _SPAN.size and value[0] == _SPAN_MARK and len(entry) == SEQUENCE.size:
        _, step_bits, size, life = _SPAN.unpack(value)
        first = SEQUENCE.unpack(entry)[0] - _SPAN_BIT
        # Nothing of its size is made before that is known to be one: a span is bounded.
        if 0 <= first < _SPAN_BIT - size and 0 < size <= SPAN_ELEMENTS and step_bits <= MOST_STEP_BITS:
            return suffix, entry, _Span(first, size, life, step_bits)
    raise FormatError(
        f"The expiry index of a list has {value[:SHOWN_BYTES].hex()!r} under {key[:SHOWN_BYTES].hex()!r}, "
        "which is no element and no span."
    )
