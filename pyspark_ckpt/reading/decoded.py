"""What is made of stored rows, whoever wrote them: columns, and how a single key is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class StoredRow(NamedTuple):
    """A row of a state: its hash, unsigned, its key without number and hash, and its value."""

    hash: int
    key: bytes
    value: bytes


class Decoded(NamedTuple):
    """Columns, and for each of their rows which stored row it is of."""

    columns: list[pa.Array]
    rows: NDArray[np.int64]


class Wanted(NamedTuple):
    """A key that is looked for: its hash, and what the stored keys of a hashed state begin with behind the hash.

    ``encoded``: the given columns as KeyCodec has them.
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
        """Those columns of a key that its row is placed by."""
        ...

    @property
    def fields(self) -> list[pa.Field]:
        """The columns that ``decode`` makes."""
        ...

    @property
    def is_one_to_one(self) -> bool:
        """Whether each stored row is one row of the columns."""
        ...

    def decode(self, rows: Sequence[StoredRow]) -> Decoded:
        """The columns of stored rows. Raises FormatError."""
        ...

    def find_wanted(self, key: Sequence[Any]) -> Wanted:
        """What is looked for when a key is, given by its columns, or by those that place it, as many as they are.

        Raises InvalidInputError, and what KeyCodec raises for a value of another type.
        """
        ...

    def has_key(self, row: Any, wanted: Wanted) -> bool:  # noqa: ANN401 - values of any type
        """Whether a decoded key, as Python values, is the wanted one."""
        ...

    def value_of(self, columns: pa.Table, wanted: Wanted) -> Any:  # noqa: ANN401
        """The rows of the wanted key as the value that a program has; None if there are none."""
        ...


def struct_column(fields: Sequence[pa.Field], columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """Columns as one of structs, which may have no field."""
    if not fields:
        return pa.array([{}] * rows, pa.struct([]))
    return pa.StructArray.from_arrays(list(columns), fields=list(fields))
