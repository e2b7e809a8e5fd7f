"""The states of a query as a list of changes leaves them: worked out from metadata, before any row is read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import pyarrow as pa

from pyspark_ckpt.offline.writing.drafts.changes import Change, Drop, Put, ReKey, Rename, SetMaxParallelism, Transform
from pyspark_ckpt.offline.writing.drafts.store_draft import GivenRows, Keys, StoreDraft
from pyspark_ckpt.offline.writing.functions.key_pairs import KeyChange
from pyspark_ckpt.offline.writing.given_columns import with_key
from pyspark_ckpt.operators.declarations.operator import GROUPS, ROUTE_SCHEMA, SPARKS_NAME
from pyspark_ckpt.operators.declarations.states import Declared
from pyspark_ckpt.operators.frames import check_key, read_groups, resolve_columns
from pyspark_ckpt.operators.rows.expiry import index_name
from pyspark_ckpt.operators.types.value_types import make_handed_schema
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.display import suggest
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.key_groups import MAX_PARALLELISM, read_max_parallelism
from pyspark_ckpt.state_store.format.meta import EMPTY_META, Descriptor, StateMeta, check_uid
from pyspark_ckpt.state_store.format.partition_states import find_scope
from pyspark_ckpt.state_store.format.remote import DEFAULT_STORE
from pyspark_ckpt.state_store.redistribution.merged_states import merge_states, rename_uid


class Draft:
    """All stores of a query, changed step by step. Nothing is read or written."""

    def __init__(self, operators: Sequence[OperatorVersion] | None) -> None:
        """``operators``: of the source; None for a query that has never run, and gets them from the changes.

        Raises InvalidInputError, FormatError.
        """
        self._is_new = operators is None
        self.stores: list[StoreDraft] = [
            draft_store(operator, name) for operator in operators or () for name in operator.stores
        ]

    def settle(self, partitions: int) -> None:
        """Complete the stores when all changes are applied. ``partitions``: of the savepoint.

        A keyed operator without any state is left as one that has had no rows. Raises InvalidInputError (a new operator
        with fewer key groups than partitions).
        """
        for store in self.stores:
            store.find_following()
            for uid, keys in store.keys.items():
                if self._is_new and keys.max_parallelism < partitions:
                    raise InvalidInputError(
                        f"Operator {uid!r} has max_parallelism {keys.max_parallelism}, but the savepoint has the "
                        f"parallelism {partitions}.",
                        hint=f"Give write_state a parallelism of {keys.max_parallelism} or less.",
                    )
            if store.layout is Layout.KEY_GROUPS and not any(state.uid for state in store.meta.states):
                store.meta = msgspec.structs.replace(store.meta, states=())
                store.layout, store.kept = Layout.REMAINDERS, {}

    def apply(self, change: Change) -> None:
        """Apply a change. Raises InvalidInputError (a uid or state that is not there, or is already)."""
        if isinstance(change, Put):
            self._put(change)
        elif isinstance(change, Transform):
            self._transform(change)
        elif isinstance(change, Drop):
            self._drop(change)
        elif isinstance(change, Rename):
            self._rename(change)
        elif isinstance(change, SetMaxParallelism):
            self._set_max_parallelism(change)
        elif isinstance(change, ReKey):
            self._change_key(change)
        else:
            raise InvalidInputError(
                f"{repr(change)[:200]} of type {type(change).__name__} is not a change of state.",
                hint="Give Put, Transform, Drop, Rename, SetMaxParallelism and ReKey of pyspark_ckpt.writing.",
            )

    def _put(self, change: Put) -> None:
        given = [rows.rows for each in self.stores for rows in each.written.values() if isinstance(rows, GivenRows)]
        if isinstance(change.rows, (Iterator, pa.RecordBatchReader)) and any(rows is change.rows for rows in given):
            raise InvalidInputError(
                f"Put to {change.uid!r}: its rows are a reader that another Put has, too, but it can be read once.",
                hint="Give a table, or a reader for each.",
            )
        uid = change.uid
        if isinstance(uid, int):
            store, name = self._find_native(uid, change)
        else:
            check_uid(uid, f"Put to {uid!r}")
            store = self._find_or_add(uid, change)
            if isinstance(change.state, Declared):
                name = store.declare(uid, change.state)
            else:
                name = _require_state(store, uid, change.state).name
        store.forget_rows(name)
        store.written[name] = GivenRows(change.rows)

    def _transform(self, change: Transform) -> None:
        uid = change.uid
        if isinstance(uid, int):
            store, name = self._find_native(uid, change)
        else:
            store = self._find(uid)
            name = _require_state(store, uid, change.state).name
        before = store.find_rows(name, change)
        if change.declared is not None and not isinstance(uid, int):
            if not isinstance(change.declared, Declared):
                raise InvalidInputError(
                    f"State {name!r} is declared as {change.declared!r}, which is not a declaration of a state.",
                    hint="Give one as a program has it: ValueState('n', 'double').",
                )
            if change.declared.name != change.state:
                raise InvalidInputError(
                    f"State {name!r} is transformed, but declared as {change.declared.name!r}.",
                    hint="Declare it with its own name. To change the name, use Rename.",
                )
            store.declare(uid, change.declared)
        store.forget_rows(name)
        store.written[name] = before

    def _change_key(self, change: ReKey) -> None:
        store = self._find(change.uid)
        if store.layout is not Layout.KEY_GROUPS:
            raise InvalidInputError(
                f"Operator {change.uid!r} keeps its states beside one of Spark's, whose key cannot change.",
                hint="Put the rows into a query that has never run.",
            )
        schema = _read_key(change.key, f"ReKey of {change.uid!r}")
        states = [each for each in store.states_of(change.uid).values() if find_scope(each) is None]
        key_change = KeyChange(change.uid, schema, uuid.uuid4().hex)
        for name, rows in [(each.name, store.find_rows(each.name, change, key_change)) for each in states]:
            store.forget_rows(name)
            store.written[name] = rows
        changed = {name for each in states for name in (each.name, index_name(each.name))}
        store.replace_states(lambda state: with_key(state, schema) if state.name in changed else state)
        store.keys[change.uid] = replace(store.keys[change.uid], schema=schema)

    def _drop(self, change: Drop) -> None:
        store = self._find(change.uid)
        for name in list(store.states_of(change.uid)) if change.state is None else [change.state]:
            store.remove(_require_state(store, change.uid, name).name)

    def _rename(self, change: Rename) -> None:
        store = self._find(change.uid)
        if change.state is None:
            check_uid(change.to, f"Rename of {change.uid!r}")
            if any(change.to in each.keys for each in self.stores):
                raise InvalidInputError(f"uid {change.uid!r} cannot become {change.to!r}, which exists already.")
            store.replace_states(lambda state: rename_uid(state, {change.uid: change.to}))
            store.keys[change.to] = store.keys.pop(change.uid)
            return
        old = _require_state(store, change.uid, change.state)
        Declared(change.to)  # a name that a program can declare
        if change.to in store.states_of(change.uid):
            raise InvalidInputError(f"State {old.name!r} cannot become {change.to!r}, which exists already.")
        new = f"{change.uid}/{change.to}"
        names = {old.name: new, index_name(old.name): index_name(new)}
        store.replace_states(lambda state: msgspec.structs.replace(state, name=names.get(state.name, state.name)))

    def _set_max_parallelism(self, change: SetMaxParallelism) -> None:
        store = self._find(change.uid)
        groups = read_groups(change.max_parallelism, f"SetMaxParallelism of {change.uid!r}")
        store.replace_states(lambda state: _with_groups(state, groups))
        store.keys = {uid: replace(keys, max_parallelism=groups) for uid, keys in store.keys.items()}

    def _find_or_add(self, uid: str, change: Put) -> StoreDraft:
        """Return the store of a keyed operator. In a new query, it is made if there is none.

        An operator without any state, for example after all were dropped, has lost its uid. If it is the only one, it
        gets this uid.
        """
        can_add = self._is_new or len(self._list_empty()) == 1
        if not can_add or any(uid in store.keys for store in self.stores):
            store = self._find(uid)
            _require_same_keys(change, store.keys[uid])
            return store
        if change.key is None:
            raise InvalidInputError(
                f"Operator {change.uid!r} is new, but its first Put has no `key`.",
                hint="Give the columns of the key with their types: key='user string'.",
            )
        schema = _read_key(change.key, f"Put to {change.uid!r}")
        groups = MAX_PARALLELISM if change.max_parallelism is None else change.max_parallelism
        keys = Keys(schema, read_groups(groups, f"Put to {change.uid!r}"))
        if not self._is_new:
            (store,) = self._list_empty()
            store.meta, _ = store.meta.with_state(GROUPS, Descriptor(key_schema=ROUTE_SCHEMA))
            store.layout, store.keys[uid] = Layout.KEY_GROUPS, keys
            return store
        meta = msgspec.structs.replace(EMPTY_META, version=1, id=uuid.uuid4().hex)
        meta, _ = meta.with_state(GROUPS, Descriptor(key_schema=ROUTE_SCHEMA))
        operator = Operator(len(self.stores), SPARKS_NAME, (DEFAULT_STORE,), 1)
        self.stores.append(StoreDraft(operator, DEFAULT_STORE, Layout.KEY_GROUPS, meta, keys={uid: keys}))
        return self.stores[-1]

    def _list_empty(self) -> list[StoreDraft]:
        """Return the stores of keyed operators without any state."""
        return [store for store in self.stores if store.operator.name == SPARKS_NAME and not store.meta.states]

    def _find_native(self, number: int, change: Put | Transform) -> tuple[StoreDraft, str]:
        """Return the store and the name of a state of one of Spark's own operators. Raises InvalidInputError."""
        what = f"{type(change).__name__} to operator {number}"
        if isinstance(number, bool):
            raise InvalidInputError(f"{what}: {number} is not the number of an operator.")
        if isinstance(change.state, Declared) or (isinstance(change, Transform) and change.declared is not None):
            raise InvalidInputError(
                f"{what}: a state of Spark's keeps its types, and is named by a text, such as 'default'."
            )
        if isinstance(change, Put) and (change.key, change.max_parallelism) != (None, None):
            raise InvalidInputError(
                f"{what}: it has a `key` or `max_parallelism`, which only keyed operators have.",
                hint="Leave them out: a state of Spark's keeps its types.",
            )
        if self._is_new:
            raise InvalidInputError(
                f"{what}: a query that has never run has no operators of Spark's.",
                hint="Start from a savepoint of the query, whose metadata says which types their states have.",
            )
        stores = [store for store in self.stores if store.operator.number == number and store.is_native]
        if change.store is not None:
            stores = [store for store in stores if store.name == change.store]
        found = [
            (store, state)
            for store in stores
            for state in store.meta.states
            if state.name == change.state and state.uid is None
        ]
        if len(found) != 1:
            known = [
                f"{store.operator.number}, store {store.name!r}, {state.name!r}"
                for store in self.stores
                for state in store.meta.states
                if store.is_native and state.uid is None
            ]
            wanted = f"{change.state!r}" + ("" if change.store is None else f" in store {change.store!r}")
            has = f"has {len(found)} states" if found else "has no state"
            raise InvalidInputError(
                f"{what}: it {has} {wanted}. States of Spark's operators are: {'; '.join(known) or 'none'}.",
                hint="A keyed operator is named by its uid.",
            )
        ((store, state),) = found
        return store, state.name

    def _find(self, uid: str) -> StoreDraft:
        number: object = uid  # from Python, which does not check types
        if isinstance(number, int):
            raise InvalidInputError(
                f"A change of operator {number}: states of Spark's own operators get rows by Put and Transform alone. "
                "They cannot be dropped or renamed, and keep their key."
            )
        check_uid(uid, f"A change of {uid!r}")
        found = [store for store in self.stores if uid in store.keys]
        if not found:
            known = sorted({uid for store in self.stores for uid in store.keys})
            raise InvalidInputError(
                f"There is no keyed operator with the uid {uid!r}; there are {known}.{suggest(str(uid), known)}"
            )
        return found[0]


def _read_key(key: str, who: str) -> dict[str, str]:
    """Return the columns of a key with the names of their types. Raises InvalidInputError."""
    declared = resolve_columns(key, f"{who}: the key")
    columns = make_handed_schema(declared)
    for column in columns:
        check_key(declared, column.name, column.type, f"{who}: the key")
    return {column.name: str(column.type) for column in columns}


def _require_same_keys(change: Put, keys: Keys) -> None:
    """Raise InvalidInputError if a Put contradicts the known keys."""
    if change.key is not None and _read_key(change.key, f"Put to {change.uid!r}") != dict(keys.schema):
        raise InvalidInputError(
            f"Put to {change.uid!r}: its key is {change.key!r}, but the operator has the key {dict(keys.schema)}.",
            hint="Change the key by ReKey.",
        )
    if change.max_parallelism not in (None, keys.max_parallelism):
        raise InvalidInputError(
            f"Put to {change.uid!r}: its max_parallelism is {change.max_parallelism!r}, but the operator has "
            f"{keys.max_parallelism}.",
            hint="Change it by SetMaxParallelism.",
        )


def draft_store(operator: OperatorVersion, name: str) -> StoreDraft:
    """Return a store of an operator as it is. Raises FormatError (its partitions disagree)."""
    stores, what = operator.stores[name], f"operator {operator.operator.number}, store {name!r}"
    whole = merge_states([store.meta for store in stores], what)
    first = stores[0].meta
    meta = whole.meta(first.version, first.id, len(stores), operator.count_rows(name))
    keys = {
        state.uid: Keys(state.descriptor.key_schema, read_max_parallelism(state.descriptor, what) or MAX_PARALLELISM)
        for state in meta.states
        if state.uid is not None
    }
    names = {state.name: state.name for state in meta.states}
    formers = {state.name: state.name for state in meta.states if state.is_counted}
    return StoreDraft(operator.operator, name, operator.layout, meta, whole.numbers, names, formers, keys=keys)


def _require_state(store: StoreDraft, uid: str, name: object) -> StateMeta:
    states = store.states_of(uid)
    if not isinstance(name, str) or name not in states:
        more = suggest(name, states) if isinstance(name, str) else ""
        raise InvalidInputError(
            f"Operator {uid!r} has no state {name!r}; it has {sorted(states)}.{more}",
            hint="For a new state, give its declaration instead of its name.",
        )
    return states[name]


def _with_groups(state: StateMeta, groups: int) -> StateMeta:
    if state.uid is None:
        return state
    encoder = {**state.descriptor.encoder, "max_parallelism": groups}
    return msgspec.structs.replace(state, descriptor=msgspec.structs.replace(state.descriptor, key_encoder=encoder))
