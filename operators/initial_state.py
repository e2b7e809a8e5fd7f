"""The initial state of a keyed operator: which frames it may come from, and how its rows reach the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_ckpt.operators.declarations.operator import HASH, INITIAL, INPUT, KeyedOperator, ProcessorState
from pyspark_ckpt.operators.declarations.processors import KeyedProcessor, VectorProcessor, takes_initial_rows
from pyspark_ckpt.operators.declarations.states import DeclaredState, ListState, MapState
from pyspark_ckpt.operators.types.conversions import WRONG_VALUE
from pyspark_ckpt.operators.types.exact_columns import exact_column
from pyspark_ckpt.operators.types.value_types import check_handed, make_handed_schema
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

MARK = "ckpt.initial"
"""The key in the metadata of a column by which the shim knows initial rows (InitialRows.Mark)."""


def make_initial_schema(
    given: StructType,
    stream: StructType,
    operator: KeyedOperator,
    processor: KeyedProcessor | VectorProcessor,
    who: str,
) -> pa.Schema:
    """Return the columns in which Python gets the rows of an initial state, whose keys are named as in the stream.

    Raises InvalidInputError about ``who`` (keys of other types; columns that are not states, or not of their types).
    """
    for field in given:
        check_handed(field.dataType, f"{who}: column {field.name!r}")
    if twice := sorted({name for name in given.names if given.names.count(name) > 1}):
        raise InvalidInputError(f"{who} has several columns {twice[0]!r}.", hint="Give each column its own name.")
    if HASH in given.names:
        raise InvalidInputError(f"{who}: the name of column {HASH!r} is reserved.", hint="Rename the column.")
    for name in operator.by:
        has, needed = (each[name].dataType.simpleString() for each in (given, stream))
        if has != needed:
            raise InvalidInputError(
                f"{who} has the key {name!r} of type {has}, but in the stream its type is {needed}.",
                hint="Cast the column of the initial state.",
            )
    handed = make_handed_schema(given)
    if not takes_initial_rows(processor):
        _require_states(handed, operator, processor, who)
    keys = {field.name: field for field in operator.key_fields}
    return pa.schema([keys.get(each.name, each) for each in handed])


def add_initial_rows(routed: DataFrame, initial: DataFrame) -> DataFrame:
    """Return the rows of a stream, and of a batch frame in its first batch; these are marked."""
    from pyspark.sql import functions as f

    marked = initial.select("*", f.lit(INITIAL).cast("byte").alias(INPUT, metadata={MARK: True}))
    return routed.unionByName(marked, allowMissingColumns=True)


def _require_states(
    columns: pa.Schema, operator: KeyedOperator, processor: KeyedProcessor | VectorProcessor, who: str
) -> None:
    """Raise InvalidInputError unless each column is a key or holds the values of a state."""
    method = "process_initial_batch" if isinstance(processor, VectorProcessor) else "process_initial"
    states = {each.state.name: each for each in operator.states if isinstance(each.state, DeclaredState)}
    values = [field for field in columns if field.name not in operator.by]
    for field in values:
        if field.name not in states:
            raise InvalidInputError(
                f"{who} has a column {field.name!r}, but {type(processor).__name__} declares the states "
                f"{sorted(states)}.{suggest(field.name, states)}",
                hint=f"Name each column like the state that it fills, or write a method {method}().",
            )
        kind = _type_of_whole(states[field.name])
        try:
            exact_column(pa.array([], field.type), kind)
        except WRONG_VALUE as problem:
            raise InvalidInputError(
                f"{who}: column {field.name!r} of type {field.type} cannot fill the state of the same name, of type "
                f"{kind}: {problem}.",
                hint=f"Cast the column, or write a method {method}().",
            ) from problem
    if not values:
        raise InvalidInputError(
            f"{who} has only the key columns {list(operator.by)}.",
            hint=f"Add a column for each state that it fills, of {sorted(states)}, or write a method {method}().",
        )


def _type_of_whole(declared: ProcessorState) -> pa.DataType:
    """Return the type of a state's whole contents for one key."""
    kinds = {what: kind.arrow for what, kind in declared.types.items()}
    if isinstance(declared.state, ListState):
        return pa.list_(kinds["element"])
    if isinstance(declared.state, MapState):
        return pa.map_(kinds["key"], kinds["value"])
    (kind,) = kinds.values()
    return kind
