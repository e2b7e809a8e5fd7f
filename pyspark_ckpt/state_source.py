"""``spark.read.format("ckpt_state")``: the state of a checkpoint as a frame, with one task per partition of its store.

Spark finds it in the Python path of the driver, as ``DefaultSource`` of a package whose name begins with ``pyspark_``.
Spark looks only once: ``register_state_source`` adds it to a session that has looked already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_ckpt.operators.types.value_types import make_handed_schema
from pyspark_ckpt.reading.reader import StateReader
from pyspark_ckpt.reading.sources import state_at
from pyspark_ckpt.reading.stored_state import Selection, StoredState
from pyspark_ckpt.state_store.blobs import names_scheme
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import PREFIX, parse, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "ckpt_state"
_TRUTH = {"true": True, "false": False}
_OWN = ("path", "uid", "operator", "state", "store", "version", "includeExpired")


def register_state_source(spark: SparkSession) -> None:
    """Make ``spark.read.format("ckpt_state")`` known to a session that looked for sources before it was installed.

    Other sessions find it by themselves. Repeating the call does no harm.
    """
    try:
        spark.dataSource.register(StateDataSource)
    except AnalysisException as problem:  # from Spark 4.0, if the session has found it
        if problem.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


class StateDataSource(DataSource):
    """The ``ckpt_state`` data source.

    Options: ``path`` (or the argument of ``load``), ``uid``, ``operator``, ``state``, ``store``, ``version``,
    ``includeExpired``, and those of the store, such as ``s3Endpoint``. See ``open_state``.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name that ``format`` takes."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the selected state. Raises as ``open_state`` does."""
        with open_selected_state(self.options) as state:
            return from_arrow_schema(state.schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of rows with ``schema``."""
        return _Reader(dict(self.options), schema)


DefaultSource = StateDataSource


@dataclass
class StorePartition(InputPartition):
    """A partition of the store."""

    number: int


class _Reader(DataSourceReader):
    """Reads the same version in all tasks, even if a query commits meanwhile."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        with open_selected_state(options) as state:
            self._state = state.state  # found once, so that a task need not read the metadata of all stores
            self._partitions = list(state.shown_partitions)
            self._options = {**_lower_keys(options), "version": str(state.version)}
        path = self._options["path"]
        if not names_scheme(path):  # a task has the working folder of its executor
            self._options["path"] = str(Path(path).absolute())
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [StorePartition(number) for number in self._partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StorePartition)  # noqa: S101 - one of those above
        schema = make_handed_schema(self._schema)
        with open_selected_state(self._options, self._state) as state:
            for batch in state.batches(partition.number):
                yield batch if batch.schema.equals(schema) else batch.cast(schema)


def open_selected_state(options: Mapping[str, str], known: StoredState | None = None) -> StateReader:
    """Open the state that the options select; ``known``: see StateReader. Raises as ``open_state`` does."""
    given = _lower_keys(options)
    own = {name: given.pop(name.lower(), None) for name in _OWN}
    if not own["path"]:
        raise InvalidInputError(f"{NAME} needs a path.", hint="Pass a checkpointLocation or a savepoint to load().")
    include_expired = str(own["includeExpired"] or "true").lower()
    if include_expired not in _TRUTH:
        raise InvalidInputError(f"Option includeExpired of {NAME} must be true or false, got {include_expired!r}.")
    wanted = Selection(own["uid"], _number("operator", own["operator"]), own["store"], own["state"])
    version = _number("version", own["version"])
    of_store = _store_options(given)
    if unknown := [name for name in of_store if name not in table()]:
        raise InvalidInputError(
            f"There is no option {unknown[0]} of {NAME}.{suggest(unknown[0], (*_OWN, *table()))}",
            hint=f"Its own options are {', '.join(_OWN)}. Options of the store, such as s3Endpoint, are listed in "
            "docs/options.md.",
        )
    checkpoint = state_at(own["path"], parse(of_store))
    return StateReader(checkpoint, wanted, version, include_expired=_TRUTH[include_expired], known=known)


def _lower_keys(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with lower-case names: Spark's options ignore case."""
    return {name.lower(): value for name, value in options.items()}


def _store_options(given: Mapping[str, str]) -> dict[str, str]:
    known = {name.lower(): name for name in table()}
    return {known.get(name.removeprefix(PREFIX.lower()), name): value for name, value in given.items()}


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit():
        raise InvalidInputError(f"Option {name} of {NAME} must be a whole number, got {text!r}.")
    return int(text)
