"""``spark.read.format("ckpt_state")``: the state of a checkpoint as a frame, with one task per partition of its store.

Spark finds it in the Python path of the driver, as ``DefaultSource`` of a package whose name begins with ``pyspark_``.
Spark looks only once: ``register_state_source`` adds it to a session that has looked already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_ckpt.offline.reading.batch_changes import Batches, StateChangeFeed, open_changes
from pyspark_ckpt.offline.reading.reader import StateReader
from pyspark_ckpt.offline.reading.sources import state_at
from pyspark_ckpt.offline.reading.stored_state import Selection, StoredState
from pyspark_ckpt.operators.types.value_types import make_handed_schema
from pyspark_ckpt.state_store.blobs import names_scheme
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import PREFIX, parse, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "ckpt_state"
_NUMBER = re.compile(r"[0-9]{1,18}")
_TRUTH = {"true": True, "false": False}
_SELECTION = ("path", "uid", "operator", "state", "store")
_OF_A_VERSION = ("version", "includeExpired")
_TRUTHS = {"includeExpired": True, "readChangeFeed": False}
"""Options that are true or false, with their defaults."""
_BATCHES = ("changeStartBatchId", "changeEndBatchId")
_OWN = (*_SELECTION, *_OF_A_VERSION, "readChangeFeed", *_BATCHES)


def register_state_source(spark: SparkSession) -> None:
    """Make ``spark.read.format("ckpt_state")`` known to a session that looked for sources before it was installed.

    Other sessions find it by themselves. Repeating the call does no harm. Raises InvalidInputError.
    """
    if not hasattr(spark, "dataSource"):
        raise InvalidInputError(
            f"spark must be a SparkSession, got {repr(spark)[:200]} of type {type(spark).__name__}."
        )
    try:
        spark.dataSource.register(StateDataSource)
    except AnalysisException as problem:  # from Spark 4.0, if the session has found it
        if problem.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


class StateDataSource(DataSource):
    """The ``ckpt_state`` data source.

    Options: ``path`` (or the argument of ``load``), ``uid``, ``operator``, ``state``, ``store``, ``version``,
    ``includeExpired``, and those of the store, such as ``s3Endpoint``. See ``open_state``. With ``readChangeFeed`` it
    has the changes of the batches from ``changeStartBatchId`` to ``changeEndBatchId``: see ``change_feed``.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name that ``format`` takes."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the selected state. Raises as ``open_state`` and ``change_feed`` do."""
        with open_selected(self.options) as rows:
            return from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of rows with ``schema``."""
        return _Reader(dict(self.options), schema)


DefaultSource = StateDataSource


@dataclass
class StorePartition(InputPartition):
    """A partition of the store."""

    number: int


class _Reader(DataSourceReader):
    """Reads the same version or batches in all tasks, even if a query commits meanwhile."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        with open_selected(options) as rows:
            self._state = rows.state  # found once, so that a task need not read the metadata of all stores
            self._partitions = list(rows.shown_partitions)
            self._options = {**_lower_keys(options), **_lower_keys(_fix(rows))}
        path = self._options["path"]
        if not names_scheme(path):  # a task has the working folder of its executor
            self._options["path"] = str(Path(path).absolute())
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [StorePartition(number) for number in self._partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StorePartition):  # what PySpark gives in place of an empty list of partitions
            return
        schema = make_handed_schema(self._schema)
        with open_selected(self._options, self._state, partition.number) as rows:
            for batch in rows.batches(partition.number):
                yield batch if batch.schema.equals(schema) else batch.cast(schema)


def _fix(rows: StateReader | StateChangeFeed) -> dict[str, str]:
    """Return the options that select what is open now, whatever is committed later."""
    if isinstance(rows, StateReader):
        return {"version": str(rows.version)}
    return {"changeStartBatchId": str(rows.first_batch), "changeEndBatchId": str(rows.last_batch)}


def open_selected(
    options: Mapping[str, str], known: StoredState | None = None, partition: int | None = None
) -> StateReader | StateChangeFeed:
    """Open the state that the options select, or its changes. ``known``: see StateReader.

    ``partition``: of changes, the only one that is read. Raises as ``open_state`` and ``change_feed`` do.
    """
    given = _lower_keys(options)
    own = {name: given.pop(name.lower(), None) for name in _OWN}
    if not own["path"]:
        raise InvalidInputError(f"{NAME} needs a path.", hint="Pass a checkpointLocation or a savepoint to load().")
    numbers = {name: _number(name, own[name]) for name in ("operator", "version", *_BATCHES)}
    include_expired, has_changes = (_truth(name, own[name], default) for name, default in _TRUTHS.items())
    wanted = Selection(own["uid"], numbers["operator"], own["store"], own["state"])
    of_store = _store_options(given)
    if unknown := [name for name in of_store if name not in table()]:
        raise InvalidInputError(
            f"There is no option {unknown[0]} of {NAME}.{suggest(unknown[0], (*_OWN, *table()))}",
            hint=f"Its own options are {', '.join(_OWN)}. Options of the store, such as s3Endpoint, are listed in "
            "docs/options.md.",
        )
    if foreign := [name for name in (_OF_A_VERSION if has_changes else _BATCHES) if own[name] is not None]:
        where = "with readChangeFeed" if has_changes else "without readChangeFeed"
        raise InvalidInputError(f"Option {foreign[0]} of {NAME} has no meaning {where}.")
    checkpoint = state_at(own["path"], parse(of_store))
    if not has_changes:
        return StateReader(checkpoint, wanted, numbers["version"], include_expired=include_expired, known=known)
    first, last = (numbers[name] for name in _BATCHES)
    return open_changes(checkpoint, wanted, Batches(first, last), known=known, partition=partition)


def _lower_keys(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with lower-case names: Spark's options ignore case."""
    return {name.lower(): value for name, value in options.items()}


def _store_options(given: Mapping[str, str]) -> dict[str, str]:
    known = {name.lower(): name for name in table()}
    return {known.get(name.removeprefix(PREFIX.lower()), name): value for name, value in given.items()}


def _truth(name: str, text: str | None, default: bool) -> bool:  # noqa: FBT001 - of an option
    given = str(default if text is None else text).lower()
    if given not in _TRUTH:
        raise InvalidInputError(f"Option {name} of {NAME} must be true or false, got {given!r}.")
    return _TRUTH[given]


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None:
        raise InvalidInputError(f"Option {name} of {NAME} must be a whole number, got {text!r}.")
    return int(text)
