"""``keyed()``: a keyed operator in a streaming query, on one Spark group for each partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_ckpt.operators.layout import KeyLayout
from pyspark_ckpt.operators.placement import hash_column, murmur3_of_int, route_column
from pyspark_ckpt.operators.state import PackedValues, ValueState
from pyspark_ckpt.operators.vector import VectorContext, VectorProcessor, group_keys
from pyspark_ckpt.operators.worker_session import WorkerSession, find_ticket
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.meta import Descriptor
from pyspark_ckpt.state_store.options import PREFIX

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

MOST_PARALLELISM = 32768
HASH = "__ckpt_hash"
ROUTE = "__ckpt_route"
_OWN_STATE = "routed boolean"


def keyed(frame: DataFrame, by: str | Sequence[str], *, uid: str, max_parallelism: int = MOST_PARALLELISM) -> KeyedStream:
    """Key a streaming frame by columns, for ``process``.

    ``uid`` names the operator for as long as its state lives. ``max_parallelism`` is fixed with the first batch.
    Raises InvalidInputError.
    """
    names = (by,) if isinstance(by, str) else tuple(by)
    missing = [name for name in names if name not in frame.columns]
    if missing or not names:
        raise InvalidInputError(f"keyed(uid={uid!r}): there are no columns {missing} to key by, only {frame.columns}.")
    if not uid:
        raise InvalidInputError("keyed() needs a uid that stays the same when the program changes.")
    if not 1 <= max_parallelism <= MOST_PARALLELISM:
        raise InvalidInputError(f"keyed(uid={uid!r}): max_parallelism is {max_parallelism}, not 1 to {MOST_PARALLELISM}.")
    return KeyedStream(frame, names, uid, max_parallelism)


@dataclass(frozen=True)
class KeyedStream:
    """A frame whose rows are keyed."""

    frame: DataFrame
    by: tuple[str, ...]
    uid: str
    max_parallelism: int

    def process(self, processor: VectorProcessor, output: str, mode: str = "update") -> DataFrame:
        """The rows that ``processor`` returns, of the Spark DDL type ``output``. Raises InvalidInputError."""
        from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415 - slow to import

        session = self.frame.sparkSession
        partitions = int(str(session.conf.get("spark.sql.shuffle.partitions")))
        schema = self.frame.schema
        task = VectorTask(
            processor,
            self.uid,
            KeyLayout(self.by, tuple(to_arrow_type(schema[name].dataType) for name in self.by)),
            tuple((state, to_arrow_type(_parsed(state.type))) for state in _states_of(processor)),
            partitions,
            str(session.conf.get(f"{PREFIX}localDir", "")),
        )
        routed = self.frame.withColumn(HASH, hash_column(self.by))
        routed = routed.withColumn(ROUTE, route_column(HASH, partitions, self.max_parallelism))
        return routed.groupBy(ROUTE).applyInPandasWithState(task, output, _OWN_STATE, mode, "NoTimeout")


@dataclass(frozen=True)
class VectorTask:
    """What runs in the Python worker, once for each partition that has rows."""

    processor: VectorProcessor
    uid: str
    layout: KeyLayout
    states: tuple[tuple[ValueState, pa.DataType], ...]
    partitions: int
    local_dir: str

    def __call__(self, key: tuple[int], chunks: Iterator[pd.DataFrame], _state: GroupState) -> Iterator[pd.DataFrame]:
        """Process all rows of the partition; their state is staged before the last output row is taken."""
        from pyspark import TaskContext  # noqa: PLC0415 - in the worker only

        context = TaskContext.get()
        if context is None:
            raise LifecycleError(f"keyed operator {self.uid!r} runs outside of a Spark task")
        self._check_place(int(key[0]), context.partitionId())
        ticket = find_ticket(context.taskAttemptId(), self.local_dir)
        declared = [(state.name, self._descriptor(kind)) for state, kind in self.states]
        session = WorkerSession(ticket, declared, self.partitions)
        values = []
        for state, kind in self.states:
            bound = PackedValues(state.name, kind, session.numbers[state.name], session)
            state._values = bound  # noqa: SLF001 - the descriptor is this package's own
            values.append((session.numbers[state.name], bound))
        batch = pa.concat_tables([pa.Table.from_pandas(chunk, preserve_index=False) for chunk in chunks])
        hashes = batch.column(HASH).to_numpy()
        keys, key_index = group_keys(batch, self.layout, hashes)
        result = self.processor.process_batch(VectorContext(keys, key_index), batch.drop_columns([HASH, ROUTE]))
        values.sort(key=lambda pair: pair[0])
        session.stage(
            (row for _, bound in values for row in bound.rows()),
            {number: bound.row_change for number, bound in values},
        )
        yield result.to_pandas()

    def _check_place(self, route: int, partition: int) -> None:
        if murmur3_of_int(route) % self.partitions != partition:
            raise LifecycleError(
                f"keyed operator {self.uid!r} was planned for {self.partitions} partitions and runs with another number.",
                hint="Set spark.sql.shuffle.partitions to the number of the checkpoint before the query is built.",
            )

    def _descriptor(self, kind: pa.DataType) -> Descriptor:
        return Descriptor(
            key_schema={name: str(each) for name, each in zip(self.layout.names, self.layout.types, strict=True)},
            value_schema=str(kind),
            key_encoder={"keyed": self.uid},
        )


def _states_of(processor: VectorProcessor) -> list[ValueState]:
    found: dict[str, ValueState] = {}
    for kind in type(processor).__mro__:
        for value in vars(kind).values():
            if isinstance(value, ValueState):
                if value.name in found and found[value.name] is not value:
                    raise InvalidInputError(f"{type(processor).__name__} declares state {value.name!r} twice.")
                found[value.name] = value
    return [found[name] for name in sorted(found)]


def _parsed(ddl: str) -> Any:  # noqa: ANN401 - a Spark DataType
    from pyspark.sql.types import _parse_datatype_string  # noqa: PLC0415, PLC2701 - PySpark has no public one

    return _parse_datatype_string(ddl)
