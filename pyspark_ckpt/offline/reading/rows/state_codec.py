"""How stored rows of any operator become columns, and how a single key is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class StoredRow(NamedTuple):
    """A row of a state: its unsigned hash, its key without the state's number and the hash, and its value."""

    hash: int
    key: bytes
    value: bytes


class Decoded(NamedTuple):
    """Columns, and for each of their rows the position of its stored row."""

    columns: list[pa.Array]
    rows: NDArray[np.int64]


class Wanted(NamedTuple):
    """A key to look up: its hash, and the bytes that follow the hash in the stored keys of a hashed state.

    ``encoded``: the given columns as KeyCodec encodes them.
    """

    hash: int
    prefix: bytes
    values: tuple[Any, ...]
    encoded: bytes


class StateCodec(Protocol):
    """Reads the rows of one state of one store."""

    @property
    def key_fields(self) -> list[pa.Field]:
        """The columns of a key."""
        ...

    @property
    def placing_fields(self) -> list[pa.Field]:
        """The columns of a key that decide in which partition its row lies."""
        ...

    @property
    def fields(self) -> list[pa.Field]:
        """The columns that ``decode`` makes."""
        ...

    @property
    def is_one_to_one(self) -> bool:
        """Whether each stored row becomes one row of the columns."""
        ...

    def decode(self, rows: Sequence[StoredRow]) -> Decoded:
        """Return the columns of stored rows. Raises FormatError."""
        ...

    def decode_keys(self, rows: Sequence[StoredRow]) -> Decoded:
        """Return the columns that keys alone make, the first ones of ``fields``. Raises FormatError."""
        ...

    def find_wanted(self, key: Sequence[Any]) -> Wanted:
        """Return what to look up for a key, given by all of its columns or by those that place it.

        Raises InvalidInputError, and what KeyCodec raises for a value of another type.
        """
        ...

    def has_key(self, row: Any, wanted: Wanted) -> bool:  # noqa: ANN401 - values of any type
        """Whether a decoded key, as Python values, is the wanted one."""
        ...

    def build_value(self, columns: pa.Table, wanted: Wanted) -> Any:  # noqa: ANN401
        """Return the rows of the wanted key as a program sees them; None if there are none."""
        ...


def struct_column(fields: Sequence[pa.Field], columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """Return columns as one column of structs, which may have no fields."""
    if not fields:
        return pa.array([{}] * rows, pa.struct([]))
    return pa.StructArray.from_arrays(list(columns), fields=list(fields))
