"""A state that a checkpoint has, and what is selected of it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from pyspark_ckpt.reading.decoded import StateCodec
from pyspark_ckpt.reading.keyed_rows import make_keyed_codec, ttl_of
from pyspark_ckpt.reading.native_rows import NativeRows
from pyspark_ckpt.state_store.checkpoints.checkpoint import Operator
from pyspark_ckpt.state_store.format.meta import Descriptor, TimeToLive
from pyspark_ckpt.state_store.format.remote import DEFAULT_STORE

SPARKS = "spark"


@dataclass(frozen=True)
class StoredState:
    """A state of a checkpoint. ``kind`` is that of its declaration, such as ``ValueState``; Spark's own are ``spark``.

    ``uid`` and ``name`` are what the program says of a keyed operator's; Spark's have no uid, and its name of the
    state, ``default`` where a store has one only. ``rows`` are stored ones, of the partitions that were looked at; the
    head of a list is one.
    """

    operator: Operator
    store: str
    name: str
    uid: str | None
    kind: str
    rows: int
    descriptor: Descriptor
    has_life: bool

    @property
    def stored_name(self) -> str:
        """What the store calls it."""
        return self.name if self.uid is None else f"{self.uid}/{self.name}"

    @property
    def key_type(self) -> pa.StructType:
        """The columns of its keys. Raises FormatError."""
        return pa.struct(self.codec().key_fields)

    @property
    def value_type(self) -> pa.DataType | None:
        """The type of its values; None of timers. Raises FormatError."""
        return next((field.type for field in self.codec().fields if field.name == "value"), None)

    @property
    def ttl(self) -> TimeToLive | None:
        """How long rows live, if they do not for ever and the checkpoint says so.

        A partition without rows since a change of it still says the former one, and which is newer is not stored.
        """
        return ttl_of(self.descriptor)

    @property
    def whose(self) -> str:
        """The words of messages."""
        of_keyed = "" if self.uid is None else f" of {self.uid!r}"
        where = "" if self.store == DEFAULT_STORE else f", store {self.store!r}"
        return f"state {self.name!r}{of_keyed} (operator {self.operator.number}{where})"

    def codec(self, own: Descriptor | None = None) -> StateCodec:
        """Reads its rows, in a store that describes them as ``own``. Raises FormatError, InvalidInputError."""
        descriptor = own or self.descriptor
        if self.uid is None:
            return NativeRows(descriptor, self.store if self.name == DEFAULT_STORE else self.name, self.whose)
        return make_keyed_codec(descriptor, self.descriptor, self.name, self.whose, has_life=self.has_life)


@dataclass(frozen=True)
class Selection:
    """Which states are meant; what is None is left open."""

    uid: str | None = None
    operator: int | None = None
    store: str | None = None
    state: str | None = None

    def includes(self, state: StoredState) -> bool:
        """Whether a state is meant."""
        return (
            self.uid in {None, state.uid}
            and self.operator in {None, state.operator.number}
            and self.store in {None, state.store}
            and self.state in {None, state.name, state.stored_name}
        )

    def __str__(self) -> str:
        given = {"uid": self.uid, "operator": self.operator, "store": self.store, "state": self.state}
        return ", ".join(f"{what} {value!r}" for what, value in given.items() if value is not None) or "nothing"
