"""The stateful operators of a query that keeps its state in one of Spark's own providers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from pyspark_ckpt.offline.adopting.earlier_states import (
    LIST,
    EarlierDescriptions,
    find_states_with_rows,
    find_variables,
    list_kept_states,
)
from pyspark_ckpt.offline.adopting.recognition import SparkCheckpoint
from pyspark_ckpt.offline.adopting.rows import RowConverter
from pyspark_ckpt.offline.adopting.stores import Form, Provider
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion, refuse_unnamed_operators
from pyspark_ckpt.state_store.checkpoints.layout import keeps_one_partition
from pyspark_ckpt.state_store.checkpoints.query.entries import read_confs, read_partitions
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.checkpoints.query.rewriter import find_schema_file
from pyspark_ckpt.state_store.checkpoints.query.spark_files import StateSchema, read_schemas
from pyspark_ckpt.state_store.checkpoints.workplace import THREADS, StoreVersion
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.keys import EMPTY_ID
from pyspark_ckpt.state_store.format.meta import EMPTY_META, Descriptor, StoreMeta
from pyspark_ckpt.state_store.format.names import PROVIDER_CLASS, PROVIDER_CONF
from pyspark_ckpt.state_store.format.remote import DEFAULT_STORE, store_folder
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.sst.table import FORMATS

_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
PROVIDERS: dict[str, Provider] = {
    f"{_PACKAGE}.RocksDBStateStoreProvider": "rocksdb",
    f"{_PACKAGE}.HDFSBackedStateStoreProvider": "hdfs",
}
_DEFAULT_PROVIDER = f"{_PACKAGE}.HDFSBackedStateStoreProvider"

_CONFS = "spark.sql.streaming.stateStore."
_MERGE_CONF = f"{_CONFS}rocksdb.mergeOperatorVersion"
_DELIMITERS = {"1": b","}
"""What RocksDB's merge operator puts between values, by its version in Spark; later ones put nothing."""
_TABLES_CONF = f"{_CONFS}rocksdb.formatVersion"
_TABLES_DEFAULT = 5
_ENCODING_CONF, _SUMS_CONF = f"{_CONFS}encodingFormat", f"{_CONFS}rowChecksum.enabled"
_AVRO = "avro"
_ENCODINGS = ("unsaferow", _AVRO)
_OF_AVRO = "transformWithState"
"""How the name of the only operator begins that Spark stores as Avro."""
EVENT_TIME = "__event_time"
MULTIPLE = ("keyWithTsToValues", "tsWithKey")
"""Ends of the names of states of a join that have several values for a key."""
INTERNAL = ("keyToNumValues", "tsWithKey")
"""Ends of the names of states of a join that Spark keeps to find others."""
_ORDERED = ("RangeKeyScan", "TimestampAsPrefixKey", "TimestampAsPostfixKey")


def is_of_join(name: str, ends: tuple[str, ...]) -> bool:
    """Return whether a state of a join has such an end of its name."""
    side, _, kind = name.partition("-")
    return side in ("left", "right") and kind in ends


def is_ordered(encoder: Mapping[str, Any]) -> bool:
    """Return whether Spark scans the keys in order: see ``KeyCodec.needsOrder`` in the shim."""
    return str(encoder.get("keyStateEncoderType")).startswith(_ORDERED)


def is_timed(encoder: Mapping[str, Any]) -> bool:
    """Return whether keys have an event time that is not among their columns here."""
    return str(encoder.get("keyStateEncoderType")).startswith("TimestampAs")


def without_time(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the schema of keys without the event time, which Spark writes as their last column."""
    fields = [each for each in schema["fields"] if each["name"] != EVENT_TIME]
    return {**schema, "fields": fields}


def find_form(confs: Mapping[str, Any], provider: Provider, where: str) -> Form:
    """Return how a query stores rows with a provider. ``confs``: those of its newest batch.

    Raises InvalidInputError about ``where`` if rows are in an unknown form.
    """
    encoding = str(confs.get(_ENCODING_CONF, _ENCODINGS[0])).lower()
    if encoding not in _ENCODINGS:
        raise InvalidInputError(
            f"{where}: the query runs with {_ENCODING_CONF}={encoding}, so its state cannot be moved.",
            hint=f"Only state written with {' or '.join(_ENCODINGS)} can be moved.",
        )
    delimiter = _DELIMITERS.get(str(confs.get(_MERGE_CONF, "1")), b"")
    has_sums = str(confs.get(_SUMS_CONF, "false")).lower() == "true"
    return Form(provider, delimiter, has_sums, encoding == _AVRO)


class SparkState:
    """The state of a query in one of Spark's own providers, at its newest committed version."""

    def __init__(self, checkpoint: SparkCheckpoint, *, drops_unknown_states: bool = False) -> None:
        """``drops_unknown_states``: whether to leave behind rows that no program can read.

        Raises InvalidInputError (another provider, or state that cannot be moved), FormatError, StorageError.
        """
        self.checkpoint = checkpoint
        self._drops_unknown_states = drops_unknown_states
        self.dropped: dict[tuple[int, str], frozenset[str]] = {}
        """By operator and store, the states whose rows are left behind."""
        self.version = checkpoint.newest_version
        if self.version < 1:
            raise InvalidInputError(
                f"{checkpoint.place.url}: no batch is committed yet, so there is no state to move.",
                hint="Start the query with an empty checkpointLocation, in a session that "
                "pyspark_ckpt.configure(builder) has set up.",
            )
        confs = read_confs(checkpoint.place, self.version - 1)
        self.form = find_form(confs, self._find_provider(confs), checkpoint.place.url)
        self.operators = list(self._read_operators())
        if not self.operators:
            raise InvalidInputError(
                f"{checkpoint.place.url} has no state.",
                hint="If the query has a stateful operator, restore the folder `state` from a backup. If not, there is "
                "nothing to move: start the query on its checkpoint.",
            )
        self._require_tables(confs.get(_TABLES_CONF, _TABLES_DEFAULT))

    def _require_tables(self, table_format: object) -> None:
        """Raise InvalidInputError if table files have a format whose lists of values are not read here."""
        states = [state for each in self.operators for meta in each.metas for state in meta.states]
        are_lists = self.form.provider == "rocksdb" and any(state.descriptor.multiple_values for state in states)
        if are_lists and str(table_format) not in map(str, FORMATS):
            raise InvalidInputError(
                f"{self.checkpoint.place.url}: the query runs with {_TABLES_CONF}={table_format}, and has keys with "
                f"several values, which can be read only from table files of the formats {FORMATS.start} to "
                f"{FORMATS.stop - 1}.",
                hint="Only Spark itself can read this state. Run the query over its history on a new checkpoint, or "
                "with the default of this conf.",
            )

    def _find_provider(self, confs: Mapping[str, Any]) -> Provider:
        place = self.checkpoint.place
        name = confs.get(PROVIDER_CONF, _DEFAULT_PROVIDER)
        if name == PROVIDER_CLASS:
            raise InvalidInputError(
                f"{place.url}: the query keeps its state in pyspark-ckpt already.",
                hint="To change the number of partitions, use `pyspark-ckpt checkpoint rescale`.",
            )
        if not isinstance(name, str) or name not in PROVIDERS:
            raise InvalidInputError(
                f"{place.url}: the query keeps its state in {name}, which cannot be read.",
                hint=f"Only state of {' and '.join(each.rpartition('.')[2] for each in PROVIDERS)} can be moved.",
            )
        return PROVIDERS[name]

    def _read_operators(self) -> Iterator[OperatorVersion]:
        operators = self.checkpoint.operators()
        refuse_unnamed_operators(self.checkpoint, len(operators))
        with ThreadPoolExecutor(THREADS) as pool:
            for operator in operators:
                metas = {name: self._describe(operator, name) for name in operator.stores}
                for name, meta in metas.items():
                    self._require_keys(operator, name, meta)
                partitions = self._count_partitions(operator, metas.values())
                stores = {}
                for name, meta in metas.items():
                    identities = [Identity(operator.number, partition, name) for partition in range(partitions)]
                    found = tuple(pool.map(partial(self._find_store, meta=meta), identities))
                    stores[name] = self._with_earlier_states(operator, name, found)
                yield OperatorVersion(operator, stores)

    def _require_keys(self, operator: Operator, name: str, meta: StoreMeta) -> None:
        """Raise InvalidInputError if keys of a store cannot be hashed, FormatError if their types are damaged."""
        for state in meta.states:
            whose = f"{self.checkpoint.place.url}, operator {operator.number} ({operator.name}), state {state.name!r}"
            try:
                RowConverter(state, name if state.name == DEFAULT_STORE else state.name, self.form, whose)
            except FormatError as problem:
                raise InvalidInputError(
                    f"{whose} cannot be moved, because its keys cannot be hashed. {problem.message}", hint=problem.hint
                ) from problem

    def _count_partitions(self, operator: Operator, metas: Iterable[StoreMeta]) -> int:
        """Return in how many partitions Spark has the state of an operator.

        Raises FormatError if the number is not that of the query, or if there is state in others.
        """
        place, what = self.checkpoint.place, f"operator {operator.number} ({operator.name})"
        recorded = read_partitions(place, self.version - 1)
        if operator.partitions != recorded:
            raise FormatError(
                f"{place.url}: {what} has {operator.partitions} partitions by its metadata, but {recorded} by the "
                "offset log."
            )
        states = [state for meta in metas for state in meta.states]
        if not states or not keeps_one_partition(operator.name, states):
            return operator.partitions
        folders = {blob.name.split("/")[2] for blob in place.walk(f"state/{operator.number}")}
        if others := folders - {"0"} - {name for name in folders if not name.isdecimal()}:
            raise FormatError(
                f"{place.url}: {what} keeps all its state in partition 0, but there is state of partition "
                f"{min(others)}."
            )
        return 1

    def _find_store(self, identity: Identity, meta: StoreMeta) -> StoreVersion:
        """Return a store: its files, and the id of its commit in checkpoint format 2."""
        place = self.checkpoint.workplace.place(f"{self.checkpoint.place.url}/{store_folder(identity)}")
        found = place.walk()
        if not any("_metadata/" not in blob.name for blob in found):
            raise NotFoundError(
                f"{place.url} has no file of the state of {identity}, but each partition has some.",
                hint="Restore the folder from a backup of the checkpoint.",
            )
        commit_id = EMPTY_ID
        if named := self.checkpoint.ids(identity.operator):
            ids, begins = named[identity.partition], {blob.name.partition(".")[0] for blob in found}
            own = ids if len(ids) == 1 else [each for each in ids if f"{self.version}_{each}" in begins]
            if len(own) != 1:
                raise FormatError(f"{place.url} should have the files of one of the commits {ids}.")
            commit_id = own[0]
        size = sum(blob.size_bytes for blob in found)
        return StoreVersion(identity, place.url, msgspec.structs.replace(meta, id=commit_id), len(found), size)

    def _describe(self, operator: Operator, name: str) -> StoreMeta:
        """Return the states of a store, as this store would describe them."""
        meta = EMPTY_META
        lists = {each for each, kind in find_variables(operator).items() if kind == LIST}
        is_avro = self.form.is_avro and operator.name.startswith(_OF_AVRO)
        histories = self._read_histories(operator, name) if is_avro else {}
        for schema in self._read_schemas(operator, name):
            encoder = schema.encoder or self._choose_encoder(operator, name)
            history = histories.get(schema.name)
            meta, _ = meta.with_state(schema.name, _describe_state(schema, encoder, lists, history))
        return msgspec.structs.replace(meta, version=self.version)

    def _with_earlier_states(
        self, operator: Operator, name: str, stores: tuple[StoreVersion, ...]
    ) -> tuple[StoreVersion, ...]:
        """Return stores, also with states that the program no longer declares. States without a schema are dropped.

        Raises InvalidInputError (such states have rows, and are not to be dropped), FormatError, NotFoundError,
        StorageError.
        """
        if self.form.provider != "rocksdb" or not operator.name.startswith(_OF_AVRO):
            return stores
        workplace, declared = self.checkpoint.workplace, {state.name for state in stores[0].meta.states}
        earlier = list_kept_states(workplace, self.form, stores) - declared - {DEFAULT_STORE}
        descriptions = EarlierDescriptions(self.checkpoint.place, operator)
        schemas = descriptions.read_schemas(name, earlier) if earlier else {}
        if unknown := earlier - schemas.keys():
            unknown = find_states_with_rows(workplace, self.form, stores, unknown)
            self._refuse_unknown_states(operator, unknown)
            self.dropped[operator.number, name] = frozenset(unknown)
        lists = descriptions.find_lists() if schemas else set()
        meta = stores[0].meta
        for each in sorted(schemas):
            newest = schemas[each][-1]
            history = self._order(operator, each, schemas[each]) if self.form.is_avro else None
            meta, _ = meta.with_state(each, _describe_state(newest, newest.encoder, lists, history))
        self._require_keys(operator, name, meta)
        own = {"states": meta.states, "counter": meta.counter}
        return tuple(replace(store, meta=msgspec.structs.replace(store.meta, **own)) for store in stores)

    def _refuse_unknown_states(self, operator: Operator, states: set[str]) -> None:
        """Raise InvalidInputError if there are such states and they are not to be dropped."""
        if states and not self._drops_unknown_states:
            raise InvalidInputError(
                f"{self.checkpoint.place.url}: operator {operator.number} ({operator.name}) has rows of the states "
                f"{sorted(states)}, which its program no longer declares and whose schema Spark has deleted. "
                "Nothing was written.",
                hint="No program can read these rows. Leave them behind with `drop_unknown_states=True` "
                "(--drop-unknown-states).",
            )

    def _read_schemas(self, operator: Operator, name: str) -> list[StateSchema]:
        place, first = self.checkpoint.place, store_folder(Identity(operator.number, 0, name))
        spark_paths = operator.schema_files[operator.stores.index(name)]
        file = (spark_paths and find_schema_file(spark_paths[-1])) or f"{first}/_metadata/schema"
        try:
            return read_schemas(place.get(file), f"{place.url}/{file}")
        except NotFoundError as problem:
            raise InvalidInputError(
                f"Operator {operator.number} ({operator.name}) has no schema of its state in {place.url}/{file}.",
                hint="Spark writes it when a query starts, unless spark.sql.streaming.stateStore.stateSchemaCheck is "
                "false. Start the query once without that conf, and try again.",
            ) from problem

    def _read_histories(self, operator: Operator, name: str) -> dict[str, list[Any]]:
        """Return the schemas of the values of each state of a store, by Spark's ids. Raises FormatError."""
        place, found = self.checkpoint.place, dict[str, list[StateSchema]]()
        for spark_path in operator.schema_files[operator.stores.index(name)]:
            file = find_schema_file(spark_path) or spark_path
            for schema in read_schemas(place.get(file), f"{place.url}/{file}"):
                found.setdefault(schema.name, []).append(schema)
        return {state: self._order(operator, state, schemas) for state, schemas in found.items()}

    def _order(self, operator: Operator, state: str, schemas: Iterable[StateSchema]) -> list[Any]:
        """Return the schemas of the values of a state by Spark's ids. Raises FormatError (one is missing)."""
        by_id = {each.value_id: each.values for each in schemas}
        if sorted(by_id) != list(range(len(by_id))):
            raise FormatError(
                f"{self.checkpoint.place.url}, operator {operator.number} ({operator.name}), state {state!r}: its "
                f"values have the schemas {sorted(by_id)}, but one is missing."
            )
        return [by_id[number] for number in sorted(by_id)]

    def _choose_encoder(self, operator: Operator, name: str) -> dict[str, Any]:
        if prefix := operator.prefix_columns[operator.stores.index(name)]:
            return {"keyStateEncoderType": "PrefixKeyScanStateEncoderSpec", "numColsPrefixKey": prefix}
        return {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}


def _describe_state(
    schema: StateSchema, encoder: Mapping[str, Any], lists: Collection[str], history: list[Any] | None
) -> Descriptor:
    """Return a state as this store would describe it. ``history``: the schemas of its values, if they may change."""
    return Descriptor(
        ordered=is_ordered(encoder),
        multiple_values=schema.name in lists or is_of_join(schema.name, MULTIPLE),
        internal=schema.name.startswith("$") or is_of_join(schema.name, INTERNAL),
        key_schema=without_time(schema.keys) if is_timed(encoder) else schema.keys,
        value_schema=schema.values,
        key_encoder=encoder,
        value_schemas=msgspec.UNSET if history is None else history,
    )
