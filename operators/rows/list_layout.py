"""The contents of list rows, for many lists at once: heads, and the rows of elements in the expiry index.

A head is a row that precedes the elements of its list and counts all elements that were ever appended. With a time to
live, the elements of one instant that one batch appends to a list are one *span* in the expiry index. A span and the
head of its list name the *life* of the list at that time: the version that wrote its first span. The upper 16 bits of a
life have the number of the session if it is not the first one of its task.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from pyspark_ckpt.operators.encoding.value_codec import SHOWN_BYTES
from pyspark_ckpt.operators.rows.ordered_rows import (
    INSTANT,
    THERE,
    decode_ordered_keys,
    encode_ordered_key,
    numbers_at,
)
from pyspark_ckpt.operators.rows.ttl_stamps import MAX_STEP_BITS
from pyspark_ckpt.state_store.arrays.cells import Cells
from pyspark_ckpt.state_store.arrays.packed import Packed, concatenate
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import HASH_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEQUENCE = struct.Struct(">Q")
_SPAN = struct.Struct("<BBQQ")
SPAN_ELEMENTS = 4096
"""The most elements of a span: it is freed as a whole."""
SPAN_BIT = 1 << 63
_SPAN_MARK = 2
_HEAD = struct.Struct("<BQ")
_LIVING_HEAD = struct.Struct("<BQQ")
_PLAIN, _IN_SPANS, _REFRESHED = 1, 2, 3
_HEADS = np.dtype([("mark", "u1"), ("end", "<u8")])
_LIVING_HEADS = np.dtype([("mark", "u1"), ("end", "<u8"), ("life", "<u8")])
_SPANS = np.dtype([("mark", "u1"), ("step_bits", "u1"), ("size", "<u8"), ("life", "<u8")])
_COLUMNS = np.dtype(
    [("instant", "u8"), ("first", "u8"), ("size", "u8"), ("life", "u8"), ("step_bits", "u8"), ("is_span", "?")]
)
_MIN_KEY_BYTES = INSTANT.size + SEQUENCE.size + HASH_BYTES
_ONE, _BIT = np.uint64(1), np.uint64(SPAN_BIT)

Numbers: TypeAlias = "NDArray[np.uint64]"
Bools: TypeAlias = "NDArray[np.bool_]"
Places: TypeAlias = "NDArray[np.int64]"
Elements: TypeAlias = "tuple[Places, Numbers]"
"""The places of lists, and numbers of elements in them."""


class Head(NamedTuple):
    """``end``: the number of the next element. ``life``: 0 without spans. ``is_refreshed``: by reads, in its spans."""

    end: int = 0
    life: int = 0
    is_refreshed: bool = False

    @classmethod
    def decode(cls, stored: bytes | None) -> Head:
        """Read the head in a row. Raises FormatError for an invalid one."""
        if stored is None:
            return _NONE
        if len(stored) == _HEAD.size and stored[0] == _PLAIN:
            end, life = _HEAD.unpack(stored)[1], 0
        elif len(stored) == _LIVING_HEAD.size and stored[0] in (_IN_SPANS, _REFRESHED):
            _, end, life = _LIVING_HEAD.unpack(stored)
        else:
            end, life = 0, 0
        if not 0 < end < SPAN_BIT:
            raise FormatError(
                f"The head of a list is stored as {stored[:SHOWN_BYTES].hex()!r}, which is not a valid head."
            )
        return cls(end, life, stored[0] == _REFRESHED)

    def encode(self) -> bytes:
        """Return the row of a head."""
        end, life, is_refreshed = self
        return (
            _LIVING_HEAD.pack(_REFRESHED if is_refreshed else _IN_SPANS, end, life) if life else _HEAD.pack(_PLAIN, end)
        )


_NONE = Head()


@dataclass(frozen=True, eq=False)
class Heads:
    """Heads of many lists."""

    end: Numbers
    life: Numbers
    is_refreshed: Bools

    @classmethod
    def of(cls, heads: Sequence[Head]) -> Heads:
        """Convert ``heads`` to columns."""
        end, life, is_refreshed = zip(*heads, strict=True) if heads else ((), (), ())
        return cls(np.array(end, np.uint64), np.array(life, np.uint64), np.array(is_refreshed, np.bool_))

    @classmethod
    def decode(cls, stored: Cells) -> Heads:
        """``Head.decode`` for many; without a Python loop if all heads that exist have a life."""
        values, places = stored.values.take(stored.there), stored.there
        is_living = len(values) > 0 and bool((values.size == _LIVING_HEAD.size).all())
        rows = values.matrix(_LIVING_HEAD.size).reshape(-1).view(_LIVING_HEADS) if is_living else None
        if rows is None or not _are_living(rows):
            return cls.of(list(map(Head.decode, stored.strings())))
        count = len(stored)
        heads = cls(np.zeros(count, np.uint64), np.zeros(count, np.uint64), np.zeros(count, np.bool_))
        heads.end[places], heads.life[places] = rows["end"], rows["life"]
        heads.is_refreshed[places] = rows["mark"] == _REFRESHED
        return heads

    def encode(self) -> Packed:
        """``Head.encode`` for each."""
        if self.life.all():
            living = np.empty(len(self.end), _LIVING_HEADS)
            living["mark"] = np.where(self.is_refreshed, _REFRESHED, _IN_SPANS)
            living["end"], living["life"] = self.end, self.life
            return _pack(living)
        if self.life.any():
            return Packed.of([head.encode() for head in self])
        plain = np.empty(len(self.end), _HEADS)
        plain["mark"], plain["end"] = _PLAIN, self.end
        return _pack(plain)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.end)

    def __iter__(self) -> Iterator[Head]:
        """One by one."""
        return map(Head, self.end.tolist(), self.life.tolist(), self.is_refreshed.tolist())


@dataclass(frozen=True, eq=False)
class IndexRows:
    """Rows of the expiry index of a list state. Each is for one element or for a span.

    ``columns`` has the contents of each: its ``instant``, the number of its ``first`` element, its ``size`` in
    elements, its ``life`` and ``step_bits`` (0 for a single element), and whether it ``is_span``.
    """

    keys: Packed
    suffixes: Packed
    columns: NDArray[np.void]

    @classmethod
    def of(cls, rows: Sequence[tuple[bytes, bytes]]) -> IndexRows:
        """Read index rows. Raises FormatError for one that is neither of an element nor of a span."""
        keys, values = Packed.of([key for key, _ in rows]), Packed.of([value for _, value in rows])
        # The row of a single element has the value THERE. Its size tells it from a span.
        are_spans = values.size == _SPAN.size
        are_single = values.size == len(THERE)
        are_single[are_single] = values.data[values.at[are_single]] == THERE[0]
        is_right = (keys.size >= _MIN_KEY_BYTES) & (are_spans | are_single)
        if not is_right.all():
            raise _damage(*rows[int(np.argmin(is_right))])
        columns = np.zeros(len(rows), _COLUMNS)
        columns["size"] = 1
        columns["is_span"] = are_spans
        said = values.take(are_spans).matrix(_SPAN.size).reshape(-1).view(_SPANS)
        for name in ("step_bits", "size", "life"):
            columns[name][are_spans] = said[name]
        columns["instant"] = numbers_at(keys, 0)
        columns["first"] = numbers_at(keys, keys.size - HASH_BYTES - SEQUENCE.size)
        has_bit = columns["first"] >= _BIT
        columns["first"][are_spans] -= _BIT
        # The size of a span is checked before anything of that size is allocated.
        is_right = has_bit & (columns["first"] < _BIT - columns["size"])
        is_right &= (columns["size"] > 0) & (columns["size"] <= SPAN_ELEMENTS) & (columns["step_bits"] <= MAX_STEP_BITS)
        is_right[are_spans] &= said["mark"] == _SPAN_MARK
        is_right |= ~are_spans
        if not is_right.all():
            raise _damage(*rows[int(np.argmin(is_right))])
        without_entry = decode_ordered_keys(keys).before(SEQUENCE.size)
        return cls(keys, without_entry, columns)

    @classmethod
    def join(cls, parts: Sequence[IndexRows]) -> IndexRows:
        """Join the rows of all parts."""
        keys, suffixes = (concatenate([getattr(part, name) for part in parts]) for name in ("keys", "suffixes"))
        return cls(keys, suffixes, np.concatenate([np.zeros(0, _COLUMNS), *(part.columns for part in parts)]))

    def __len__(self) -> int:
        """How many there are."""
        return len(self.keys)

    def take(self, which: Bools) -> IndexRows:
        """Return those where a mask is true."""
        if which.all():
            return self
        return IndexRows(self.keys.take(which), self.suffixes.take(which), self.columns[which])

    @property
    def last_ms(self) -> Numbers:
        """The last instant that each row stands for: its elements may have been appended as late as that."""
        last: Numbers = self.columns["instant"] + (_ONE << self.columns["step_bits"]) - _ONE
        return last

    def count_expired(self, dead_ms: int) -> int:
        """Return for how many elements the rows are whose elements have all expired at ``dead_ms``."""
        return int(self.columns["size"][self.last_ms <= dead_ms].astype(np.int64).sum())


def span_key(suffix: bytes, instant: int, first: int) -> bytes:
    """Return the key of the index row of a span of a list: of elements from ``first`` on, all of one instant."""
    return encode_ordered_key(instant, suffix + SEQUENCE.pack(first | SPAN_BIT))


def span(step_bits: int, size: int, life: int) -> bytes:
    """Return the index row of a span."""
    return _SPAN.pack(_SPAN_MARK, step_bits, size, life)


def spans(step_bits: int, sizes: NDArray[np.integer[Any]], lives: Numbers) -> Packed:
    """``span`` for many."""
    rows = np.empty(len(sizes), _SPANS)
    rows["mark"], rows["step_bits"], rows["size"], rows["life"] = _SPAN_MARK, step_bits, sizes, lives
    return _pack(rows)


def different_elements(places: Sequence[Places], numbers: Sequence[Numbers]) -> Elements:
    """Merge several groups of elements: each element once, in stored order."""
    at, number = np.concatenate(places), np.concatenate(numbers)
    order = np.lexsort((number, at))
    at, number = at[order], number[order]
    is_new = np.ones(len(at), np.bool_)
    is_new[1:] = (at[1:] != at[:-1]) | (number[1:] != number[:-1])
    return at[is_new], number[is_new]


def encode_numbers(numbers: Numbers) -> Packed:
    """Return what follows the suffix of a list in the keys of its elements, from their numbers."""
    return _pack(numbers.astype(">u8"))


def count_on(firsts: Numbers, counts: NDArray[np.integer[Any]]) -> Numbers:
    """Return, for each of ``firsts``, as many consecutive numbers from it on as ``counts`` has for it."""
    counts = counts.astype(np.int64)
    begins = (np.cumsum(counts) - counts).astype(np.uint64)
    return np.repeat(firsts - begins, counts) + np.arange(counts.sum(), dtype=np.uint64)


def _are_living(rows: NDArray[np.void]) -> bool:
    is_marked = (rows["mark"] == _IN_SPANS) | (rows["mark"] == _REFRESHED)
    return bool((is_marked & (rows["end"] > 0) & (rows["end"] < _BIT)).all())


def _damage(key: bytes, value: bytes) -> FormatError:
    return FormatError(
        f"The expiry index of a list has {value[:SHOWN_BYTES].hex()!r} under {key[:SHOWN_BYTES].hex()!r}, "
        "which is neither an element nor a span."
    )


def _pack(rows: NDArray[Any]) -> Packed:
    return Packed.of_matrix(rows.view(np.uint8).reshape(len(rows), rows.itemsize))
