"""The rows that a test gives to a batch, by input, and the partitions that get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyspark_ckpt.operators.declarations.operator import BROADCAST, BROADCAST_NAME, INITIAL, KeyedOperator
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.testing.given_rows import GivenRows, read_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.testing.given_rows import RowsLike
    from pyspark_ckpt.testing.seen_times import Watermark

_EVERYWHERE = -1
"""Stands for the partition of rows that all partitions get."""


class Placed(NamedTuple):
    """Some rows of the input with this number, and the partition of each."""

    number: int
    rows: GivenRows
    partitions: NDArray[np.int64]

    def of(self, partition: int) -> tuple[int, GivenRows]:
        """Return the rows of a partition."""
        is_there = (self.partitions == partition) | (self.partitions == _EVERYWHERE)
        return self.number, self.rows.where(is_there)


@dataclass(frozen=True)
class GivenInputs:
    """The inputs of an operator, each with its watermark, or None."""

    operator: KeyedOperator
    watermarks: Sequence[Watermark | None]

    def read(self, inputs: Mapping[str, RowsLike]) -> list[GivenRows]:
        """Return the rows of each input but the broadcast one. Raises InvalidInputError."""
        names = [each.name for each in self.operator.inputs]
        if names != [""] and "" in inputs:
            raise InvalidInputError(
                f"Give rows by the name of their input: {names[0]}=[...], or in run_live {{{names[0]!r}: [...]}}."
            )
        names += [BROADCAST_NAME] if self.operator.broadcast else []
        unknown = [name for name in inputs if name not in names]
        if unknown and names[0] == "":
            raise InvalidInputError(f"The harness has one input, but rows are given for {sorted(unknown)}.")
        if unknown:
            raise InvalidInputError(f"There is no input {unknown[0]!r}, only {names}.{suggest(unknown[0], names)}")
        found = []
        for each, watermark in zip(self.operator.inputs, self.watermarks, strict=True):
            who = f"The rows of input {each.name!r}" if each.name else "The rows"
            column = None if watermark is None else watermark.column
            found.append(read_rows(inputs.get(each.name, ()), each.columns, each.by, column, who))
        return found

    def place(self, given: Sequence[GivenRows], inputs: Mapping[str, RowsLike], late_ms: int) -> list[Placed]:
        """Place rows as Spark would: without late ones, if the processor does not see them. Raise InvalidInputError."""
        placed = []
        for number, rows in enumerate(given):
            kept = rows.where(rows.are_after(late_ms * 1000)) if self._drops_late else rows
            placed.append(Placed(number, kept, self._partitions_of(kept)))
        if (broadcast := self.operator.broadcast) is not None:
            who = "The broadcast rows"
            rows = read_rows(inputs.get(BROADCAST_NAME, ()), broadcast.columns, (), None, who)
            placed.append(Placed(BROADCAST, rows, np.full(len(rows), _EVERYWHERE)))
        return placed

    def place_initial(self, rows: GivenRows) -> Placed:
        """Place the rows of the initial state."""
        return Placed(INITIAL, rows, self._partitions_of(rows))

    def count_dropped(self, given: Sequence[GivenRows], late_ms: int) -> int:
        """Return how many late rows Spark drops."""
        if not self._drops_late:
            return 0
        return sum(int(np.count_nonzero(~rows.are_after(late_ms * 1000))) for rows in given)

    @property
    def _drops_late(self) -> bool:
        """Whether Spark drops late rows."""
        operator = self.operator
        return operator.has_watermark and operator.time_out_clock == "event" and not operator.takes_late_rows

    def _partitions_of(self, rows: GivenRows) -> NDArray[np.int64]:
        return rows.partitions(self.operator.partitions, self.operator.max_parallelism)
