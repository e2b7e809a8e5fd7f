"""States that a ``transformWithState`` program once declared, and no longer does. Spark keeps their rows.

A program that leaves out a variable leaves its rows in the store, under a number that the snapshots of RocksDB name.
``deleteIfExists`` deletes the rows of a list, and leaves those that count them. The newest schema file of Spark knows
only what the newest program has declared. Earlier files are in the checkpoint for as many batches as Spark retains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from pyspark_ckpt.offline.adopting.stores import Form, StoreFiles
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.query.files import BATCH
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator, read_operator
from pyspark_ckpt.state_store.checkpoints.query.spark_files import StateSchema, read_schemas
from pyspark_ckpt.state_store.checkpoints.workplace import THREADS, StoreVersion, Workplace
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.json_objects import Name, decode_as

LIST = "ListState"
"""What Spark calls the kind of a list."""
_INTERNAL = "$"
"""Beginnings of names of states that Spark keeps for other states."""


class _Variable(msgspec.Struct):
    stateName: Name  # noqa: N815 - Spark's names, here and below
    stateVariableType: Name  # noqa: N815


class _Properties(msgspec.Struct):
    stateVariables: list[_Variable] = []  # noqa: N815


def find_variables(operator: Operator) -> dict[str, str]:
    """Return the kinds of the variables of an operator by their names. Raises FormatError."""
    if not operator.properties:
        return {}
    what = f"The properties of operator {operator.number} ({operator.name})"
    properties = decode_as(operator.properties.encode(), _Properties, what)
    return {each.stateName: each.stateVariableType for each in properties.stateVariables}


def list_kept_states(workplace: Workplace, form: Form, stores: Iterable[StoreVersion]) -> set[str]:
    """Return the names of all states that the snapshots of some stores know, with rows or without.

    Raises NotFoundError, FormatError, StorageError.
    """

    def read(store: StoreVersion) -> set[str]:
        with workplace.folder() as folder:
            return StoreFiles.of(workplace, store, form).read_state_names(folder)

    with ThreadPoolExecutor(THREADS) as pool:
        return set[str]().union(*pool.map(read, stores))


def find_states_with_rows(
    workplace: Workplace, form: Form, stores: Iterable[StoreVersion], names: Collection[str]
) -> set[str]:
    """Read some stores, and return which of the states ``names`` have rows. Raises as ``load``."""
    found = set[str]()
    for store in stores:
        with workplace.folder() as folder:
            found |= StoreFiles.of(workplace, store, form).find_states_with_rows(folder / "old", names)
    return found


class EarlierDescriptions:
    """What the checkpoint still records of the earlier states of one operator."""

    def __init__(self, place: BlobPlace, operator: Operator) -> None:
        """Look below ``place``, a checkpoint. Nothing is read."""
        self._place, self._operator = place, operator

    def read_schemas(self, store: str, names: Collection[str]) -> dict[str, list[StateSchema]]:
        """Return the schemas of each of the states ``names`` of a store that has some, the newest last.

        Raises FormatError.

        A state of unknown kind is left out, because the values of lists are stored in another form.
        """
        known = {variable for each in self._read_metadata() for variable in find_variables(each)}
        found: dict[str, list[StateSchema]] = {}
        for schema in self._read_files(f"state/{self._operator.number}/_stateSchema/{store}"):
            if schema.name in names and (schema.name in known or schema.name.startswith(_INTERNAL)):
                found.setdefault(schema.name, []).append(schema)
        return found

    def find_lists(self) -> set[str]:
        """Return the names of the states that are, or were, lists. Raises FormatError."""
        variables = (find_variables(each) for each in self._read_metadata())
        return {name for each in variables for name, kind in each.items() if kind == LIST}

    def _read_files(self, folder: str) -> Iterator[StateSchema]:
        """Yield the schemas of all files in a folder, from the oldest file on."""
        files = (blob.name for blob in self._place.list(folder))
        ordered = sorted((int(batch), name) for name in files if BATCH.fullmatch(batch := _batch_of(name)))
        for _, name in ordered:
            with suppress(NotFoundError):  # Spark has just deleted it
                yield from read_schemas(self._place.get(name), f"{self._place.url}/{name}")

    def _read_metadata(self) -> Iterator[Operator]:
        """Yield Spark's records of the operator, of any batch."""
        yield self._operator
        for blob in self._place.list(f"state/{self._operator.number}/_metadata/v2"):
            if BATCH.fullmatch(blob.name.rpartition("/")[2]):
                with suppress(NotFoundError):
                    where = f"{self._place.url}/{blob.name}"
                    yield read_operator(self._place.get(blob.name), self._operator.number, where)


def _batch_of(name: str) -> str:
    """Return the batch in the name of a schema file: ``<batch>_<random>``."""
    return name.rpartition("/")[2].partition("_")[0]
