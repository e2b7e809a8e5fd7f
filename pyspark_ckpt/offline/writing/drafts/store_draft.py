"""One store of a query as a list of changes leaves it, and where the rows of its states come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from pyspark_ckpt.offline.writing.drafts.changes import ReKey, Transform
from pyspark_ckpt.offline.writing.functions.key_pairs import KeyChange
from pyspark_ckpt.offline.writing.functions.sent_function import SentFunction
from pyspark_ckpt.offline.writing.functions.steps import Step
from pyspark_ckpt.offline.writing.given_columns import WrittenState
from pyspark_ckpt.offline.writing.native.followers import find_leader
from pyspark_ckpt.operators.bound.declared_states import DeclaredStates, with_types
from pyspark_ckpt.operators.declarations.counters import MetricCounter
from pyspark_ckpt.operators.declarations.states import Declared
from pyspark_ckpt.operators.rows.expiry import index_name
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta
from pyspark_ckpt.state_store.format.remote import DEFAULT_STORE

if TYPE_CHECKING:
    from pyspark_ckpt.offline.writing.drafts.changes import Rows

PLAIN_KEYS = ("applyInPandasWithState", "flatMapGroupsWithState", "transformWithState")
"""Names of operators that store the key of the first row of a group. In the keys of all others, Spark has one zero and
one NaN."""


def is_spark_frame(rows: object) -> bool:
    """Whether rows are a frame of PySpark, of a Connect client or not. Imports nothing."""
    return hasattr(rows, "mapInArrow") and hasattr(rows, "isStreaming")


def require_not_streaming(frame: Any) -> None:  # noqa: ANN401 - a frame of Spark or of Connect
    """Raise InvalidInputError for a stream."""
    if frame.isStreaming:
        raise InvalidInputError(
            "Rows are given as a stream.", hint="Give a batch frame: use spark.read instead of readStream."
        )


@dataclass(frozen=True)
class StoredRows:
    """Rows of a state of the source, and the steps that change them, one after another.

    ``uid``: None for a state of one of Spark's own operators.
    """

    operator: int
    store: str
    uid: str | None
    name: str
    steps: tuple[Step, ...] = ()

    @property
    def stored_name(self) -> str:
        """The name of the state in its store."""
        return self.name if self.uid is None else f"{self.uid}/{self.name}"


@dataclass(frozen=True)
class GivenRows:
    """Rows that the user gives, and the steps that change them, one after another."""

    rows: Rows
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Keys:
    """The keys of a keyed operator: their columns with the names of their types, and the number of their groups."""

    schema: Mapping[str, str]
    max_parallelism: int


@dataclass
class StoreDraft:
    """One store of an operator: its states with their new names, numbers and types.

    ``numbers``: those of the states in the new meta by those in each store of the source. ``kept``: the names in the
    source of states whose rows stay, by their new names. ``formers``: those of all states that are in the source.
    ``written``: the rows of states whose rows do not stay. ``following``: states of Spark's that follow from such, by
    the names of these. ``keys``: by uid.
    """

    operator: Operator
    name: str
    layout: Layout
    meta: StoreMeta
    numbers: Sequence[Mapping[int, int]] = ()
    kept: dict[str, str] = field(default_factory=dict)
    formers: dict[str, str] = field(default_factory=dict)
    written: dict[str, GivenRows | StoredRows] = field(default_factory=dict)
    following: dict[str, str] = field(default_factory=dict)
    keys: dict[str, Keys] = field(default_factory=dict)

    @property
    def is_native(self) -> bool:
        """Whether it is the store of one of Spark's own operators, perhaps with states of ours beside Spark's."""
        return self.layout is not Layout.KEY_GROUPS

    def states_of(self, uid: str) -> dict[str, StateMeta]:
        """Return the states of an operator by their names in the program, without indexes."""
        return {
            state.name.removeprefix(f"{uid}/"): state
            for state in self.meta.states
            if state.uid == uid and state.is_counted
        }

    def find_written(self, name: str, now_ms: int, partitions: int) -> WrittenState:
        """Return what is needed to encode rows of a state. Raises InternalError."""
        state = self._require(name)
        whose = f"State {name!r}"
        if state.uid is None:
            of_store = "" if self.name == DEFAULT_STORE else f", store {self.name!r}"
            whose = f"State {name!r} of operator {self.operator.number}{of_store}"
        has_plain_keys = self.operator.name.startswith(PLAIN_KEYS)
        index = self.meta.state(index_name(name))
        return WrittenState(state, index, whose, now_ms, partitions, self.name, has_plain_keys)

    def _require(self, name: str) -> StateMeta:
        state = self.meta.state(name)
        if state is None:
            raise InternalError(f"State {name!r} gets rows and is not among the states.")
        return state

    def remove(self, name: str) -> None:
        """Remove a state and its index."""
        self.meta = self.meta.without_state(name).without_state(index_name(name))
        self.formers.pop(name, None)
        self.forget_rows(name)

    def forget_rows(self, name: str) -> None:
        """Leave out the rows that a state has so far, and those of its index."""
        self.written.pop(name, None)
        for each in (name, index_name(name)):
            self.kept.pop(each, None)

    def find_following(self) -> None:
        """Find the states of Spark's that follow from those that are written, and leave out the rows that they have."""
        written = [name for name in self.written if self._require(name).uid is None]
        for state in self.meta.states if written else ():
            if state.uid is None and state.name not in written and (leader := find_leader(state.name, written)):
                self.following[state.name] = leader
                self.forget_rows(state.name)

    def find_rows(
        self, name: str, change: Transform | ReKey, key_change: KeyChange | None = None
    ) -> GivenRows | StoredRows:
        """Return the rows of a state, to be changed by one more function. Raises InvalidInputError."""
        what, function, state = type(change).__name__, change.function, self._require(name)
        if not callable(function):
            raise InvalidInputError(f"State {name!r}: the function of a {what} is {function!r}.")
        before = self.written.get(name)
        if before is None:
            uid, _, old = self.kept[name].partition("/")
            place = (None, name) if state.uid is None else (uid, old)
            before = StoredRows(self.operator.number, self.name, *place)
        sent = SentFunction.of(function, f"State {name!r}, {what}")
        step = Step(sent, state, self.meta.state(index_name(name)), key_change)
        return replace(before, steps=(*before.steps, step))

    def declare(self, uid: str, declared: Declared) -> str:
        """Add a declared state, or replace the one of the same name; return its stored name."""
        if isinstance(declared, MetricCounter):
            raise InvalidInputError(f"Operator {uid!r}: {declared.name!r} is a counter, which has no rows.")
        (typed,) = with_types({declared.name: declared}, f"Operator {uid!r}")
        keys = self.keys[uid]
        placement = {"max_parallelism": keys.max_parallelism}
        described = DeclaredStates(uid, (typed,)).describe_new(keys.schema, placement)
        (name, _), *_ = described
        former = self.formers.get(name)
        self.remove(name)
        for each, descriptor in described:
            self.meta, _ = self.meta.with_state(each, descriptor, keyed=True)
        if former is not None:
            self.formers[name] = former
        return name

    def replace_states(self, change: Callable[[StateMeta], StateMeta]) -> None:
        """Change states, and what is noted under their names."""
        names = {state.name: change(state).name for state in self.meta.states}
        self.meta = msgspec.structs.replace(self.meta, states=tuple(map(change, self.meta.states)))
        self.kept = {names[name]: old for name, old in self.kept.items()}
        self.formers = {names[name]: old for name, old in self.formers.items()}
        self.written = {names[name]: rows for name, rows in self.written.items()}
