"""A state in a checkpoint, and a selection of states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from pyspark_ckpt.offline.reading.rows.keyed_rows import TIMERS, VALUES, KeyedTimers, KeyedValues, find_ttl
from pyspark_ckpt.offline.reading.rows.native_rows import NativeRows
from pyspark_ckpt.offline.reading.rows.partition_rows import BROADCASTS, OPERATOR_LISTS, BroadcastRows, OperatorListRows
from pyspark_ckpt.offline.reading.rows.state_codec import StateCodec
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.display import html_table
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.meta import Descriptor, TimeToLive
from pyspark_ckpt.state_store.format.remote import DEFAULT_STORE

SPARKS = "spark"


@dataclass(frozen=True)
class StoredState:
    """A state of a checkpoint, as ``StateReader.states`` lists it.

    ``kind``: its declared kind, such as ``ValueState``, or ``spark`` for Spark's own. ``uid`` and ``name`` of a keyed
    operator's state are those of the program. A state of Spark's has the uid None and Spark's name, which is
    ``default`` if a store has only one. ``operator.number``: Spark's number of the operator. ``store``: ``default``,
    except in joins. ``rows`` counts stored rows of the partitions that were read; the head of a list counts as one, and
    the copies of a broadcast state count once.
    """

    operator: Operator
    store: str
    name: str
    uid: str | None
    kind: str
    rows: int
    descriptor: Descriptor
    has_life: bool

    def __repr__(self) -> str:
        return f"StoredState({self.whose}, {self.kind}, {self.rows:,} stored rows)"

    def _repr_html_(self) -> str:
        return states_as_html("", [self])

    @property
    def stored_name(self) -> str:
        """The name of the state in its store."""
        return self.name if self.uid is None else f"{self.uid}/{self.name}"

    @property
    def key_type(self) -> pa.StructType:
        """The columns of its keys. Raises FormatError."""
        return pa.struct(self.codec().key_fields)

    @property
    def value_type(self) -> pa.DataType | None:
        """The type of its values; None for timers. Raises FormatError."""
        return next((field.type for field in self.codec().fields if field.name == "value"), None)

    @property
    def ttl(self) -> TimeToLive | None:
        """The time to live of rows, if they have one and the checkpoint records it.

        A partition without rows since a change keeps the former time to live, and which one is newer is not stored.
        """
        return find_ttl(self.descriptor)

    @property
    def whose(self) -> str:
        """The name of the state in messages."""
        of_keyed = "" if self.uid is None else f" of {self.uid!r}"
        where = "" if self.store == DEFAULT_STORE else f", store {self.store!r}"
        return f"state {self.name!r}{of_keyed} (operator {self.operator.number}{where})"

    def codec(self, own: Descriptor | None = None) -> StateCodec:
        """Return the codec of rows in a store with the descriptor ``own``. Raises FormatError, InvalidInputError."""
        descriptor = own or self.descriptor
        if self.uid is None:
            return NativeRows(descriptor, self.store if self.name == DEFAULT_STORE else self.name, self.whose)
        return make_keyed_codec(descriptor, self.descriptor, self.name, self.whose, has_life=self.has_life)


def make_keyed_codec(own: Descriptor, newest: Descriptor, name: str, whose: str, *, has_life: bool) -> StateCodec:
    """Return the codec of a keyed operator's state as a store describes it. Raises FormatError, InvalidInputError."""
    kind = own.encoder.get("kind")
    if kind == TIMERS:
        return KeyedTimers(own, name, whose)
    if kind == OPERATOR_LISTS:
        return OperatorListRows(own, newest, whose)
    if kind == BROADCASTS:
        return BroadcastRows(own, newest, whose)
    if kind in VALUES:
        return KeyedValues(own, newest, whose, has_life=has_life)
    raise FormatError(f"{whose} is stored as a {kind!r}, which is not a known kind of state.")


def states_as_html(title: str, states: Iterable[StoredState]) -> str:
    """Return a table of states for a notebook."""
    header = ("operator", "store", "uid", "state", "kind", "stored rows")
    rows = ((str(each.operator.number), each.store, each.uid, each.name, each.kind, each.rows) for each in states)
    return html_table(title, header, rows)


@dataclass(frozen=True)
class Selection:
    """Which states are selected; None selects any."""

    uid: str | None = None
    operator: int | None = None
    store: str | None = None
    state: str | None = None

    @classmethod
    def of(cls, uid: str | None, operator: int | None, store: str | None, state: str | None) -> Selection:
        """Return the selection that a user gives. Raises InvalidInputError (a wrong type)."""
        for name, given, kind in (
            ("uid", uid, str),
            ("operator", operator, int),
            ("state", state, str),
            ("store", store, str),
        ):
            if given is not None and (isinstance(given, bool) or not isinstance(given, kind)):
                raise InvalidInputError(
                    f"{name} must be {'a text' if kind is str else 'an integer'}, got {repr(given)[:200]} of type "
                    f"{type(given).__name__}.",
                )
        return cls(uid, operator, store, state)

    def includes(self, state: StoredState) -> bool:
        """Whether a state is selected."""
        return (
            self.uid in {None, state.uid}
            and self.operator in {None, state.operator.number}
            and self.store in {None, state.store}
            and self.state in {None, state.name, state.stored_name}
        )

    def __str__(self) -> str:
        given = {"uid": self.uid, "operator": self.operator, "store": self.store, "state": self.state}
        return (
            ", ".join(f"{what} {value!r}" for what, value in given.items() if value is not None) or "an empty selection"
        )
