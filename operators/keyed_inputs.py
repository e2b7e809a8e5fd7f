"""``keyed_inputs()``: several streams, keyed alike, into one operator that shares its state and timers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from pyspark_ckpt.operators.broadcast import BroadcastInput, read_broadcast
from pyspark_ckpt.operators.declarations.processors import check_input_name
from pyspark_ckpt.operators.frames import Columns, find_keys, find_names, read_groups, require_frame
from pyspark_ckpt.operators.plan import KeyedColumns, LateOutput, OperatorPlan, Processor, Result
from pyspark_ckpt.operators.spark_query import SparkQuery
from pyspark_ckpt.state_store.arguments import require_truth
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.key_groups import MAX_PARALLELISM
from pyspark_ckpt.state_store.format.meta import check_uid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from pyspark_ckpt.operators.declarations.host import Host, InitialState


@dataclass(frozen=True)
class KeyedInput:
    """One input of ``keyed_inputs``: a streaming frame, its key columns, and the order of its rows.

    ``by`` and ``order_by`` are as for ``keyed``: rows are in this order within a key and a batch.
    """

    frame: DataFrame
    by: str | Sequence[str]
    order_by: str | Sequence[str] = ()


def keyed_inputs(
    *,
    uid: str,
    merge: bool = False,
    max_parallelism: int = MAX_PARALLELISM,
    broadcast: DataFrame | BroadcastInput | None = None,
    **inputs: KeyedInput,
) -> KeyedInputs[DataFrame]:
    """Key several streaming frames alike, for one operator; call ``process`` on the result.

    ``inputs``: a KeyedInput by name, in the order in which a key gets their rows. The processor needs a method
    ``process_<name>`` for each (``process_<name>_batch`` if it is a VectorProcessor). The key columns of all inputs
    must have the same types in the same order; their names may differ, and ``key`` has those of the first input.
    ``merge``: sort the rows of a key across all inputs by ``order_by``, for example by time; ties follow the order of
    the inputs. A method is then called several times in a batch, each time for consecutive rows of its input. Without
    ``merge``, a key gets all rows of the first input, then those of the second, and so on. ``uid``,
    ``max_parallelism`` and ``broadcast`` are as for ``keyed``.

    Raises InvalidInputError (not a streaming frame, unknown columns, keys of other types, a wrong name, uid or number).
    """
    who = f"keyed_inputs(uid={uid!r})"
    check_uid(uid, who)
    columns = [_read(name, given, who) for name, given in inputs.items()]
    given, rules = read_broadcast(broadcast, who)
    host = SparkQuery(tuple(given.frame for given in inputs.values()), rules)
    return make_keyed_inputs(columns, uid, host, merge=merge, max_parallelism=max_parallelism, broadcast=given)


def make_keyed_inputs(
    inputs: Sequence[KeyedColumns],
    uid: str,
    host: Host[Result],
    *,
    merge: bool,
    max_parallelism: int,
    broadcast: KeyedColumns | None = None,
) -> KeyedInputs[Result]:
    """Return the streams that have these columns. Raises InvalidInputError."""
    who = f"keyed_inputs(uid={uid!r})"
    require_truth(merge, f"{who}: merge")
    if not inputs:
        raise InvalidInputError(
            f"{who}: there are no inputs.", hint="Give each a name: orders=ckpt.KeyedInput(orders, by='user')."
        )
    _require_alike(inputs, who)
    if merge:
        _require_order(inputs, who)
    groups = read_groups(max_parallelism, who)
    return KeyedInputs(OperatorPlan(tuple(inputs), uid, groups, who, host, merge, broadcast))


@dataclass(frozen=True)
class KeyedInputs(Generic[Result]):
    """Streaming frames that are keyed alike, as ``keyed_inputs`` returns them."""

    plan: OperatorPlan[Result]

    def process(
        self,
        processor: Processor,
        output: StructType | str,
        mode: str = "update",
        *,
        event_time: str | None = None,
        late_output: LateOutput = "count",
        initial_state: InitialState | None = None,
    ) -> Result:
        """Return the frame of the rows that ``processor`` outputs, an ordinary streaming frame.

        In a batch, a key gets its rows, in the order that ``keyed_inputs`` describes, and then its timers. All inputs
        share states and timers. Each input may have its own watermark; Spark uses the earliest, or the latest if
        spark.sql.streaming.multipleWatermarkPolicy says so. Late rows of an input go to ``process_late_<name>``, or are
        dropped and counted. ``initial_state`` has the key columns of the first input. Arguments are as for ``keyed``.

        Raises InvalidInputError.
        """
        return self.plan.process(processor, output, mode, event_time, late_output, initial_state)


def _read(name: str, given: KeyedInput, who: str) -> KeyedColumns:
    check_input_name(name, who)
    who = f"{who}: input {name!r}"
    if not isinstance(given, KeyedInput):
        raise InvalidInputError(
            f"{who} is {repr(given)[:200]}, of type {type(given).__name__}.",
            hint=f"Give its frame and its keys: {name}=ckpt.KeyedInput(frame, by='...').",
        )
    require_frame(given.frame, who)
    columns = Columns.of(given.frame)
    by = find_keys(columns, given.by, who)
    if not given.frame.isStreaming:
        raise InvalidInputError(
            f"{who} is not a stream.",
            hint="Pass a frame that is not a stream to process() as initial_state, or join it to an input.",
        )
    return KeyedColumns(name, columns.schema, by, find_names(columns, given.order_by, who, "to order by"))


def _require_order(inputs: Sequence[KeyedColumns], who: str) -> None:
    """Raise InvalidInputError unless the rows of all frames can be in one order."""
    kinds = {each.name: [each.schema[name].dataType.simpleString() for name in each.order_by] for each in inputs}
    first = inputs[0].name
    for name, kind in kinds.items():
        if not kind or kind != kinds[first]:
            raise InvalidInputError(
                f"{who}: merge=True needs an order_by of the same types in all inputs, and input {name!r} has "
                f"{', '.join(kind) or 'none'}, input {first!r} {', '.join(kinds[first]) or 'none'}.",
                hint="Give each KeyedInput an order_by, such as its event time; cast the columns to the same types.",
            )


def _require_alike(inputs: Sequence[KeyedColumns], who: str) -> None:
    """Raise InvalidInputError unless the keys of all frames have the same types."""
    first, *others = inputs
    kinds = [[each.schema[name].dataType.simpleString() for name in each.by] for each in inputs]
    for other, kind in zip(others, kinds[1:], strict=True):
        if kind != kinds[0]:
            raise InvalidInputError(
                f"{who}: input {other.name!r} is keyed by {list(other.by)} of type {', '.join(kind)}, and input "
                f"{first.name!r} by {list(first.by)} of type {', '.join(kinds[0])}.",
                hint="Give all inputs the same number of keys, and cast the columns to the same types.",
            )
