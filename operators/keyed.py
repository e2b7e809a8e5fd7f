"""``keyed()``: a keyed operator in a streaming query, run on one Spark group per partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from pyspark_ckpt.operators.broadcast import BroadcastInput, read_broadcast
from pyspark_ckpt.operators.declarations.states import ValueState
from pyspark_ckpt.operators.frames import Columns, find_keys, find_names, read_groups, require_frame, resolve_columns
from pyspark_ckpt.operators.plan import KeyedColumns, LateOutput, OperatorPlan, Processor, Result
from pyspark_ckpt.operators.spark_query import SparkQuery
from pyspark_ckpt.operators.task.group_times import TIME_OUTS
from pyspark_ckpt.operators.types.value_types import make_handed_schema
from pyspark_ckpt.pyspark_releases import require_stateful_processors
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.key_groups import MAX_PARALLELISM
from pyspark_ckpt.state_store.format.meta import check_uid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

    from pyspark_ckpt.operators.declarations.host import InitialState
    from pyspark_ckpt.operators.groups.function import GroupFunction
    from pyspark_ckpt.operators.stateful.processor import Form


def keyed(
    frame: DataFrame,
    by: str | Sequence[str],
    *,
    uid: str,
    order_by: str | Sequence[str] = (),
    max_parallelism: int = MAX_PARALLELISM,
    broadcast: DataFrame | BroadcastInput | None = None,
) -> KeyedStream[DataFrame]:
    """Key a streaming frame by columns; call ``process`` on the result.

    ``by``: the key columns, of any type that Spark groups by except maps, VARIANT and collated text; letter case
    matters only if it does to Spark. ``uid``: the operator's name, without ``/``, which must not change while its state
    lives. ``order_by``: sort the rows of a key within a batch by these columns, as Spark's orderBy does: ascending,
    nulls first, NaN last. ``max_parallelism``: the number of key groups, 1 to 32768, which is the largest number of
    partitions that the query can ever have. The first batch fixes it. ``broadcast``: a stream whose rows go to all
    partitions. The processor gets them in ``process_broadcast``, before the other rows of the batch.

    Raises InvalidInputError (not a streaming frame, unknown columns, a wrong uid or number).
    """
    who = f"keyed(uid={uid!r})"
    require_frame(frame, who)
    columns = Columns.of(frame)
    names, order = find_keys(columns, by, who), find_names(columns, order_by, who, "to order by")
    check_uid(uid, who)
    if not frame.isStreaming:
        raise InvalidInputError(f"{who}: the frame is not a stream. Only streaming queries have keyed state.")
    inputs = (KeyedColumns("", columns.schema, names, order),)
    given, rules = read_broadcast(broadcast, who)
    host = SparkQuery((frame,), rules)
    return KeyedStream(OperatorPlan(inputs, uid, read_groups(max_parallelism, who), who, host, broadcast=given))


@dataclass(frozen=True)
class KeyedStream(Generic[Result]):
    """A frame whose rows are keyed, as ``keyed`` returns it."""

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

        ``processor``: an instance of a KeyedProcessor or VectorProcessor. ``output``: the type of its rows, as a
        StructType or Spark DDL. ``mode``: "update" or "append" (needed before Spark's own stateful operators), in any
        letter case. ``event_time``: the output's timestamp column that later operators use as event time, under the
        watermark of ``frame``. ``late_output``: what to do with output rows that are late for those operators, which
        may drop them: "count" them in the metric ckptLateOutputRows, or "fail".
        ``initial_state``: a frame that is not a stream, with the key columns. The first batch of the query reads it,
        exactly once, before the rows of the stream. Its other columns become the first values of the states with the
        same names (an array for a ListState, a map for a MapState; null leaves a state empty). A processor with
        ``process_initial`` gets its rows instead, any number for a key. Later batches, restarts and restores do not
        read it.

        Raises InvalidInputError (types, timers or times to live that do not fit, no watermark for ``event_time``).
        """
        return self.plan.process(processor, output, mode, event_time, late_output, initial_state)

    def apply_in_pandas_with_state(
        self,
        func: GroupFunction,
        outputStructType: StructType | str,  # noqa: N803 - the names are Spark's
        stateStructType: StructType | str,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeoutConf: str,  # noqa: N803
    ) -> Result:
        """Do what ``GroupedData.applyInPandasWithState`` does by the key columns: same arguments, same results.

        State is stored by name and type. Where Spark stores null because a value does not fit its type, the value is
        kept or the query fails. The state of an existing Spark query is not read. Raises InvalidInputError.
        """
        from pyspark_ckpt.operators.groups.frames import Conversion
        from pyspark_ckpt.operators.groups.function import make_processor

        who = self.plan.who
        self._refuse_broadcast("A function on pandas frames")
        if timeoutConf not in TIME_OUTS.values():
            known = list(TIME_OUTS.values())
            raise InvalidInputError(f"{who}: the timeoutConf is {timeoutConf!r}, not one of {known}.")
        output = resolve_columns(outputStructType, f"{who}: the output")
        resolve_columns(stateStructType, f"{who}: the state")
        how = Conversion.of(self.plan.host.conf)
        state = ValueState("state", stateStructType)
        processor = make_processor(func, state, output, timeoutConf, how, self.plan.inputs[0].schema.names)
        return self.plan.start(processor, output, outputMode, keeps_late_rows=True)

    def transform_with_state(
        self,
        statefulProcessor: StatefulProcessor,  # noqa: N803 - the names are Spark's
        outputStructType: StructType | str,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeMode: str,  # noqa: N803
        initial_state: InitialState | None = None,
        eventTimeColumnName: str = "",  # noqa: N803
    ) -> Result:
        """Do what ``GroupedData.transformWithState`` does by the key columns: same results.

        ``statefulProcessor``: an instance of PySpark's StatefulProcessor, which gets and returns Rows. Its ``init`` is
        also called here, on a copy, to find its state variables. ``initial_state``: a frame that is not a stream, with
        the key columns; Spark's ``initialState`` is such a frame, grouped. The other arguments are Spark's.

        State is stored by name and type, as for any keyed operator. Where Spark stores null because a value does not
        fit its type, the value is converted without loss or the query fails. The state of an existing Spark query is
        not read. Raises InvalidInputError.
        """
        require_stateful_processors(f"{self.plan.who}.transform_with_state()")
        from pyspark_ckpt.operators.stateful.row_form import RowForm

        output = resolve_columns(outputStructType, f"{self.plan.who}: the output")
        form = RowForm.of(self.plan.host.conf, make_handed_schema(output))
        how = outputMode, timeMode, initial_state, eventTimeColumnName
        return self._transform(statefulProcessor, output, form, *how)

    def transform_with_state_in_pandas(
        self,
        statefulProcessor: StatefulProcessor,  # noqa: N803 - the names are Spark's
        outputStructType: StructType | str,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeMode: str,  # noqa: N803
        initial_state: InitialState | None = None,
        eventTimeColumnName: str = "",  # noqa: N803
    ) -> Result:
        """Do what ``GroupedData.transformWithStateInPandas`` does by the key columns: same results.

        The processor gets and returns pandas frames. Otherwise as ``transform_with_state``. Raises InvalidInputError.
        """
        require_stateful_processors(f"{self.plan.who}.transform_with_state_in_pandas()")
        from pyspark_ckpt.operators.stateful.frame_form import FrameForm

        output = resolve_columns(outputStructType, f"{self.plan.who}: the output")
        form = FrameForm.of(self.plan.host.conf, output)
        how = outputMode, timeMode, initial_state, eventTimeColumnName
        return self._transform(statefulProcessor, output, form, *how)

    def _refuse_broadcast(self, program: str) -> None:
        if self.plan.broadcast is not None:
            raise InvalidInputError(
                f"{self.plan.who}: there is a broadcast input. {program} has no method for its rows.",
                hint="Write a KeyedProcessor or a VectorProcessor with the method process_broadcast.",
            )

    def _transform(
        self,
        processor: object,
        output: StructType,
        form: Form,
        mode: str,
        time_mode: str,
        initial_state: InitialState | None,
        event_time: str,
    ) -> Result:
        from pyspark_ckpt.operators.stateful.declarations import find_clock, find_variables, require_processor
        from pyspark_ckpt.operators.stateful.processor import make_calls

        who = self.plan.who
        self._refuse_broadcast("A StatefulProcessor")
        program, clock = require_processor(processor, who), find_clock(time_mode, who)
        variables = find_variables(program, clock, who)
        name = event_time or None
        self.plan.check_event_time(name, "fail", output)
        return self.plan.start(
            make_calls(program, list(variables.values()), clock, form, self.plan.uid),
            output,
            mode,
            keeps_late_rows=True,
            event_time=name,
            refuses_late_output=True,
            initial=initial_state,
        )
