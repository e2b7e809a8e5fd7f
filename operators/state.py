"""State descriptors as a processor declares them; while a batch is processed each is the way to its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.layout import PackedLayout
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError

if TYPE_CHECKING:
    from pyspark_ckpt.operators.vector import Keys
    from pyspark_ckpt.operators.worker_session import WorkerSession


class ValueState:
    """One value for each key; absent at first, and again when it is set to null."""

    def __init__(self, name: str, type: str) -> None:  # noqa: A002 - the word that users expect
        """Declare state ``name`` with values of a Spark DDL type."""
        self.name = name
        self.type = type
        self._values: PackedValues | None = None

    def get(self, keys: Keys) -> pa.Array:
        """The values of ``keys``, in their order, null where absent."""
        return self._running.get(keys)

    def put(self, keys: Keys, values: pa.Array) -> None:
        """Set the values of all ``keys``, in their order; null removes. Raises InvalidInputError for other types."""
        self._running.put(keys, values)

    @property
    def _running(self) -> PackedValues:
        if self._values is None:
            raise LifecycleError(f"State {self.name!r} is used outside of process_batch().")
        return self._values


class PackedValues:
    """The values of one state in one task: what the base version has, under what was put."""

    def __init__(self, name: str, kind: pa.DataType, number: int, session: WorkerSession) -> None:
        """Read and write state ``number``."""
        self._name = name
        self._kind = kind
        self._layout = PackedLayout(kind)
        self._number = number
        self._session = session
        self._written: dict[bytes, bytes | None] = {}
        self._in_order = True
        self._rows_before = 0
        self._read: tuple[Keys, list[bytes | None]] | None = None

    @property
    def row_change(self) -> int:
        """How many rows this task adds to the state."""
        return sum(value is not None for value in self._written.values()) - self._rows_before

    def get(self, keys: Keys) -> pa.Array:
        """As ``ValueState.get``."""
        stored_keys, base = keys.stored(self._number), self._base(keys)
        if self._written:
            return self._layout.decode([self._written.get(key, value) for key, value in zip(stored_keys, base, strict=True)])
        return self._layout.decode(base)

    def put(self, keys: Keys, values: pa.Array) -> None:
        """As ``ValueState.put``."""
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if len(values) != len(keys):
            raise InvalidInputError(f"State {self._name!r}: {len(values)} values were put for {len(keys)} keys.")
        if values.type != self._kind:
            raise InvalidInputError(f"State {self._name!r} holds {self._kind}, and values of {values.type} were put.")
        encoded: list[bytes | None] = list(self._layout.encode(values))
        if values.null_count:
            for position in np.flatnonzero(~values.is_valid().to_numpy(zero_copy_only=False)):
                encoded[position] = None
        stored_keys, base = keys.stored(self._number), self._base(keys)
        if self._written:
            self._in_order = False
            self._rows_before += sum(
                value is not None for key, value in zip(stored_keys, base, strict=True) if key not in self._written
            )
        else:
            self._rows_before = len(base) - base.count(None)
        self._written.update(zip(stored_keys, encoded, strict=True))

    def rows(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Everything put, in key order."""
        return iter(self._written.items() if self._in_order else sorted(self._written.items()))

    def _base(self, keys: Keys) -> list[bytes | None]:
        if self._read is None or self._read[0] is not keys:
            self._read = (keys, self._session.get_many(keys.stored(self._number)))
        return self._read[1]
