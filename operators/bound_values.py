"""Bound states that keep one row for each key: values, and what values are reduced or aggregated to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.bound import Binding, Bound, Row
from pyspark_ckpt.operators.columns import validity
from pyspark_ckpt.operators.states import AggregatingState, ReducingState, ValueState

if TYPE_CHECKING:
    from pyspark_ckpt.operators.keys import Keys


class OneRow(Bound):
    """A state that keeps one row for each key."""

    def __init__(self, binding: Binding) -> None:
        """See Bound."""
        super().__init__(binding)
        self._rows = self._key_rows()

    def flush(self, end: bytes | None) -> Iterator[Row]:
        """See Bound."""
        return self._rows.flush(end)

    @property
    def change(self) -> int:
        """See Bound."""
        return self._rows.change

    def sweep(self, most: int) -> int:
        """See Bound."""
        return len(self._rows.sweep(most))

    def clear(self) -> None:
        """Remove the row of the current key."""
        self._rows.put(self._at.suffix, None)

    def exists(self) -> bool:
        """Whether the current key has a row."""
        return self._rows.get(self._at.suffix) is not None

    def _load(self) -> Any:
        stored = self._rows.get(self._at.suffix)
        return None if stored is None else self._codec.decode(stored)

    def _save(self, value: Any) -> None:
        self._rows.put(self._at.suffix, None if value is None else self._stored(value))


class BoundValue(OneRow, ValueState):
    """See ValueState."""

    def __init__(self, binding: Binding) -> None:
        """See Bound."""
        super().__init__(binding)
        default = binding.state.default  # type: ignore[attr-defined]  # it is a ValueState
        self._default = None if default is None else self._stored(default)

    def value(self) -> Any:
        """See ValueState."""
        stored = self._rows.get(self._at.suffix)
        if stored is None:
            stored = self._default
        return None if stored is None else self._codec.decode(stored)

    def update(self, value: Any) -> None:
        """See ValueState."""
        self._save(value)

    def get(self, keys: Keys) -> pa.Array:
        """See ValueState."""
        return self._codec.decode_column(self._rows.get_many(keys.suffixes))

    def put(self, keys: Keys, values: pa.Array) -> None:
        """See ValueState."""
        column = self._column("value", values, len(keys))
        stored: list[bytes | None] = list(self._codec.encode_column(column))
        for position in np.flatnonzero(~validity(column)).tolist():
            stored[position] = None
        self._rows.put_many(keys.suffixes, stored)


class BoundReducing(OneRow, ReducingState):
    """See ReducingState."""

    def __init__(self, binding: Binding) -> None:
        """See Bound."""
        super().__init__(binding)
        self.reduce = binding.state.reduce  # type: ignore[attr-defined]  # it is a ReducingState

    def get(self) -> Any:
        """See ReducingState."""
        return self._load()

    def add(self, value: Any) -> None:
        """See ReducingState."""
        kept = self._load()
        self._save(value if kept is None else self.reduce(kept, value))


class BoundAggregating(OneRow, AggregatingState):
    """See AggregatingState."""

    def __init__(self, binding: Binding) -> None:
        """See Bound."""
        super().__init__(binding)
        state: Any = binding.state
        self.create, self.accumulate, self.result = state.create, state.accumulate, state.result

    def get(self) -> Any:
        """See AggregatingState."""
        kept = self._load()
        return None if kept is None else self.result(kept)

    def add(self, value: Any) -> None:
        """See AggregatingState."""
        kept = self._load()
        self._save(self.accumulate(self.create() if kept is None else kept, value))
