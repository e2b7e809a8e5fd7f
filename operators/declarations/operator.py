"""A keyed operator as its query was planned. The driver sends it to the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_ckpt.operators.declarations.timers import Timers

if TYPE_CHECKING:
    from pyspark_ckpt.operators.declarations.states import Declared
    from pyspark_ckpt.operators.declarations.ttl import Clock
    from pyspark_ckpt.operators.types.value_types import ValueType

HASH = "__ckpt_hash"
ROUTE = "__ckpt_route"
ROUTE_SCHEMA = {
    "type": "struct",
    "fields": [{"name": ROUTE, "type": "integer", "nullable": True, "metadata": {}}],
}
"""The key of Spark's own state of a keyed operator, GROUPS, which has a row for each partition's only group."""
GROUPS = "default"
SPARKS_NAME = "applyInPandasWithState"
"""What a keyed operator is to Spark."""
TIME = "__ckpt_time"
TIME_OF_ALL = "__ckpt_time_of_all"
"""The name of TIME if the processor takes late rows: the shim's KeyedExec then leaves them to it."""
INPUT = "__ckpt_input"
"""The column with the number of a row's input, from 0, if there are several."""
INITIAL = -1
"""The number of the initial state, in place of an input's."""
BROADCAST = -2
"""The number of the broadcast input, in place of another's."""
BROADCAST_NAME = "broadcast"
NEVER_LATE = 2**63 - 1
"""The event time, in microseconds, of rows that have none."""
PLAIN = "ckpt.plain"
"""The key in the metadata of a column that Spark shall not take for an event time."""
ROWS = "rows"
CLOCKS = "clocks"


def row_column(number: int) -> str:
    """Return the name of the column that has the rows of one of several inputs: those of the broadcast input as bytes.

    It is null for rows of other inputs.
    """
    return f"__ckpt_row_{number}"


def plain_column(number: int) -> str:
    """Return the name of a column of the only input."""
    return f"__ckpt_{number}"


def with_hash(columns: pa.Schema) -> pa.Schema:
    """Return the columns, and one for the hash of the key."""
    return columns.append(pa.field(HASH, pa.int32()))


@dataclass(frozen=True)
class ProcessorState:
    """One state that a processor declares, with its attribute and its types."""

    attribute: str
    state: Declared
    types: Mapping[str, ValueType]


@dataclass(frozen=True)
class Input:
    """One input of a keyed operator: the columns of its rows, which of them are the key, and their order within a key.

    ``name``: empty if it is the only one. ``takes_late_rows``: the processor has a method for its late rows. ``time``:
    the column with the event time, or None.
    """

    name: str
    by: tuple[str, ...]
    columns: pa.Schema
    order_by: tuple[str, ...] = ()
    takes_late_rows: bool = False
    time: str | None = None

    @property
    def rows(self) -> pa.Schema:
        """The columns of a row after the shuffle: those of the input, and the hash of the key."""
        return with_hash(self.columns)


@dataclass(frozen=True)
class KeyedOperator:
    """A keyed operator as its query was planned. Keys are named as in its first input.

    ``keeps_late_rows``: late rows are processed like others. ``merges_inputs``: a key gets the rows of all inputs in
    one order, that of their ``order_by``. ``event_time``: the column of the output that later operators use as event
    time. ``refuses_late_output``: an output row that is late for those operators fails the query; else it is counted.
    ``initial``: the columns of the initial state, None without one. ``broadcast``: the input whose rows go to all
    partitions; it has no keys.
    """

    uid: str
    inputs: tuple[Input, ...]
    output: pa.Schema
    states: tuple[ProcessorState, ...]
    partitions: int
    max_parallelism: int
    local_dir: str
    has_watermark: bool
    memory_bytes: int
    keeps_late_rows: bool = False
    merges_inputs: bool = False
    event_time: str | None = None
    refuses_late_output: bool = False
    allow_non_restored_state: bool = False
    initial: pa.Schema | None = None
    broadcast: Input | None = None

    @property
    def clocks(self) -> set[Clock]:
        """The clocks of its timers."""
        return {each.state.clock for each in self.states if isinstance(each.state, Timers)}

    @property
    def event_life_ms(self) -> int | None:
        """The shortest time to live of its states in event time; None if there is none."""
        lives = [each.state.ttl for each in self.states if each.state.ttl is not None]
        return min((each.duration_ms for each in lives if each.clock == "event"), default=None)

    @property
    def time_out_clock(self) -> Clock | None:
        """The clock of Spark's time-outs, one per operator. With processing time, timers of both clocks can fire."""
        return "processing" if "processing" in self.clocks else next(iter(self.clocks), None)

    @property
    def time(self) -> str:
        """The name of the column with the event time of a row."""
        return TIME_OF_ALL if self.takes_late_rows else TIME

    @property
    def takes_late_rows(self) -> bool:
        """Whether the processor has a method for the late rows of any input."""
        return any(each.takes_late_rows for each in self.inputs)

    @property
    def by(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.inputs[0].by

    @property
    def key_fields(self) -> list[pa.Field]:
        """The key columns."""
        return [self.inputs[0].columns.field(name) for name in self.by]

    @property
    def key_types(self) -> list[pa.DataType]:
        """The types of the key columns."""
        return [field.type for field in self.key_fields]
