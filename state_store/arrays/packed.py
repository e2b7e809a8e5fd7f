"""Many byte strings in one array, so that numpy works on all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

WIDEST = 512
"""Longer strings are handled one by one: a matrix of all strings would be much larger than the strings."""

FEW_WIDTHS = 64
"""Strings of more different sizes are copied one by one."""

WORD = 8

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


def repeat(number: int, count: int) -> Integers:
    """Return an array with a number ``count`` times. It takes no memory and is read-only."""
    return _fill(np.array([number]), count)


def are_same(numbers: Integers) -> bool:
    """Return whether all numbers are the same; true if there are none."""
    return _is_repeated(numbers) or not len(numbers) or bool((numbers == numbers[0]).all())


def _is_repeated(numbers: Integers) -> bool:
    return numbers.strides == (0,) and len(numbers) > 0


def _fill(one: Integers, count: int) -> Integers:
    """Return the only number of an array ``count`` times. numpy's own way takes several microseconds."""
    numbers: Integers = np.ndarray((count,), one.dtype, one, 0, (0,))
    numbers.flags.writeable = False
    return numbers


def chain_arrays(parts: Sequence[Integers]) -> Integers:
    """Return arrays joined into one. There must be at least one."""
    first = parts[0]
    if all(_is_repeated(each) and each[0] == first[0] for each in parts):
        return _fill(first[:1], sum(map(len, parts)))
    return np.concatenate(parts)


def _more(numbers: Integers, count: int) -> Integers:
    """Add ``count`` to each number."""
    return _fill(numbers[:1] + count, len(numbers)) if _is_repeated(numbers) else numbers + count


@dataclass(frozen=True, eq=False)
class Packed:
    """Byte strings: string i is the ``size[i]`` bytes of ``data`` from ``at[i]`` on.

    Strings may overlap, and may be in any order in ``data``.
    """

    data: Bytes
    at: Integers
    size: Integers

    @classmethod
    def of(cls, strings: Sequence[bytes]) -> Packed:
        """Pack ``strings`` into one array."""
        size = np.fromiter(map(len, strings), np.int64, len(strings))
        return cls(np.frombuffer(b"".join(strings), np.uint8), np.cumsum(size) - size, size)

    @classmethod
    def of_arrow(cls, strings: pa.BinaryArray) -> Packed:
        """Return the values of an array without nulls. Their bytes are not copied."""
        _, offsets, data = strings.buffers()
        ends = np.frombuffer(offsets, np.int32, len(strings) + 1, strings.offset * 4).astype(np.int64)
        content = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
        return cls(content, ends[:-1] - ends[0], np.diff(ends))

    @classmethod
    def of_matrix(cls, rows: Bytes) -> Packed:
        """Return the rows of a matrix as strings. A contiguous matrix is not copied."""
        count, width = rows.shape
        return cls(rows.reshape(-1), np.arange(count) * width, repeat(width, count))

    def __len__(self) -> int:
        """Return the number of strings."""
        return len(self.at)

    def __getitem__(self, index: int) -> bytes:
        """Return one string."""
        at = self.at[index]
        return self.data[at : at + self.size[index]].tobytes()

    def take(self, which: slice | npt.NDArray[np.generic]) -> Packed:
        """Return the strings at some positions, or where a mask is true. Their bytes are not copied."""
        at = self.at[which]
        is_one = _is_repeated(self.size)
        return Packed(self.data, at, _fill(self.size[:1], len(at)) if is_one else self.size[which])

    def prefix(self, head: bytes) -> Packed:
        """Return each string with ``head`` before it, copied."""
        return self.behind_heads(np.broadcast_to(np.frombuffer(head, np.uint8), (len(self), len(head))))

    def behind_heads(self, heads: Bytes) -> Packed:
        """Return each string with its row of a matrix before it, copied."""
        if len(self) and are_same(self.size):
            return Packed.of_matrix(np.concatenate([heads, self.matrix(int(self.size[0]))], axis=1))
        return side_by_side(Packed.of_matrix(np.ascontiguousarray(heads)), self)

    def dense(self) -> Packed:
        """Return a copy whose array has nothing but the strings."""
        return side_by_side(self)

    def behind(self, count: int) -> Packed:
        """Return each string without its first ``count`` bytes. No string may be shorter."""
        return Packed(self.data, self.at + count, _more(self.size, -count))

    def before(self, count: int) -> Packed:
        """Return each string without its last ``count`` bytes. No string may be shorter."""
        return Packed(self.data, self.at, _more(self.size, -count))

    def widths(self) -> list[int]:
        """Return the distinct sizes in rising order."""
        if len(self) and are_same(self.size):
            return [int(self.size[0])]
        return [int(size) for size in np.unique(self.size)]

    def matrix(self, width: int) -> Bytes:
        """Return the first ``width`` bytes of each string as rows of a matrix, copied. No string may be shorter."""
        if not width or not len(self):
            return np.zeros((len(self), width), np.uint8)
        windows = np.ndarray((len(self.data) - width + 1,), f"V{width}", self.data, 0, (1,))
        return windows[self.at].view(np.uint8).reshape(len(self), width)

    def words(self, number: int) -> Words:
        """Return eight bytes of each string, from ``number`` times eight on, as a number that compares like them.

        Bytes after the end of a string are zeros.
        """
        at, data = self.at + number * WORD if number else self.at, self.data
        if len(self) and int(at.max()) + WORD > len(data):
            data = np.concatenate([data, np.zeros(WORD * (number + 1), np.uint8)])
        words = np.ndarray((max(0, len(data) - WORD + 1),), ">u8", data, 0, (1,))[at].astype(np.uint64)
        if int(self.size.min(initial=WORD * (number + 1))) >= WORD * (number + 1):
            return words
        count = np.clip(self.size - number * WORD, 0, WORD)
        lacking = (8 * (WORD - count)).astype(np.uint64)
        return np.where(count > 0, words >> lacking << lacking, np.uint64(0))

    @cached_property
    def first_words(self) -> Words:
        """``words(0)``, cached."""
        return self.words(0)

    def strings(self) -> list[bytes]:
        """Return each string as a separate object."""
        widths = self.widths()
        if widths and widths[-1] > WIDEST:
            return [self[index] for index in range(len(self))]
        if widths in ([], [0]):
            return [b""] * len(self)
        if len(widths) == 1:
            return self.matrix(widths[0]).reshape(-1).view(f"V{widths[0]}").tolist()
        first, ends = int(self.at.min()), self.at + self.size
        data, begins = self.data[first : int(ends.max())].tobytes(), (self.at - first).tolist()
        return [data[at:end] for at, end in zip(begins, (ends - first).tolist(), strict=True)]


def concatenate(parts: Sequence[Packed]) -> Packed:
    """Return the strings of all parts in one, part after part, copied."""
    dense = [part.dense() for part in parts if len(part)]
    if len(dense) < 2:  # noqa: PLR2004 - there is nothing to join
        return dense[0] if dense else Packed.of([])
    begins = np.cumsum([0, *(len(part.data) for part in dense)])
    at = [part.at + begin for part, begin in zip(dense, begins.tolist(), strict=False)]
    return Packed(
        np.concatenate([part.data for part in dense]), np.concatenate(at), chain_arrays([part.size for part in dense])
    )


def side_by_side(*parts: Packed) -> Packed:
    """Return the strings of all parts, joined position by position, copied."""
    if all(len(column) == len(parts[0]) > 0 and are_same(column.size) for column in parts):
        matrices = [column.matrix(int(column.size[0])) for column in parts]
        return Packed.of_matrix(matrices[0] if len(matrices) == 1 else np.concatenate(matrices, axis=1))
    size = np.sum([column.size for column in parts], axis=0)
    at = np.cumsum(size) - size
    data = np.empty(int(size.sum()), np.uint8)
    begins = at.copy()
    for column in parts:
        _copy(column, data, begins)
        begins += column.size
    return Packed(data, at, size)


def _copy(strings: Packed, data: Bytes, begins: Integers) -> None:
    """Copy each string into ``data``, where ``begins`` says."""
    widths = strings.widths()
    if len(widths) > FEW_WIDTHS or (widths and widths[-1] > WIDEST):
        for string, begin in zip(strings.strings(), begins.tolist(), strict=True):
            data[begin : begin + len(string)] = np.frombuffer(string, np.uint8)
        return
    for width in widths:
        which = slice(None) if len(widths) == 1 else np.flatnonzero(strings.size == width)
        if width:
            places = np.ndarray((len(data) - width + 1,), f"V{width}", data, 0, (1,))
            places[begins[which]] = strings.take(which).matrix(width).reshape(-1).view(f"V{width}")
