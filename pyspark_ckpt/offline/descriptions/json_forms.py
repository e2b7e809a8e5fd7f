"""What ``--json`` prints: one form for each thing, whatever command tells of it.

A store is ``operator``, ``partition`` and ``store``, a state has its name as ``state``, a commit its id as
``commit_id``. docs/command-line.md lists the fields of each command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark_ckpt.state_store.blobs import Blob
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.checkpoints.query_start import StartFiles
from pyspark_ckpt.state_store.checkpoints.store_contents import StoredObjects
from pyspark_ckpt.state_store.checkpoints.verification import Verified
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta
from pyspark_ckpt.state_store.identity import Identity

if TYPE_CHECKING:
    from pyspark_ckpt.state_store.savepoints.restoring.request import Restored, RestoreExplanation
    from pyspark_ckpt.state_store.savepoints.savepoint import SavedState, SavepointInfo

Fields: TypeAlias = dict[str, Any]


def describe_store(identity: Identity, operator_name: str) -> Fields:
    """Return which store something is of. ``operator_name``: Spark's."""
    return {
        "operator": identity.operator,
        "operator_name": operator_name,
        "partition": identity.partition,
        "store": identity.name,
    }


def describe_objects(operator: Operator, stored: StoredObjects) -> Fields:
    """Return the objects of a store, counted."""
    counted = asdict(stored)
    del counted["identity"]
    return {**describe_store(stored.identity, operator.name), **counted}


def describe_version(
    operator: Operator,
    identity: Identity,
    meta: StoreMeta,
    rows_by_key_groups: Mapping[str, int] | None,
    lineage: tuple[Marker, Sequence[Marker]] | None,
) -> Fields:
    """Return a store at a version: its commit, its states, and what was asked for besides."""
    return {
        **describe_store(identity, operator.name),
        "commit_id": meta.id,
        "parent_id": meta.parent,
        "rows": meta.rows,
        "states": list(map(_describe_state, meta.states)),
        "rows_by_key_groups": rows_by_key_groups,
        "lineage": None if lineage is None else _describe_lineage(*lineage),
    }


def _describe_state(state: StateMeta) -> Fields:
    return {
        "state": state.name,
        "number": state.number,
        "rows": state.rows if state.is_counted else None,
        "key_schema": state.descriptor.key_schema,
        "value_schema": state.descriptor.value_schema,
        "key_encoder": state.descriptor.key_encoder,
    }


def _describe_lineage(base: Marker, deltas: Iterable[Marker]) -> list[Fields]:
    """Return what a restore reads, in this order."""
    read = [("snapshot", base)] if base != EMPTY else []
    read += [("delta", each) for each in deltas]
    return [{"kind": kind, "version": each.version, "commit_id": each.id} for kind, each in read]


def describe_verification(found: Verified, operator_name: str) -> Fields:
    """Return what was read of a store, and what is wrong with it."""
    return {
        **describe_store(found.identity, operator_name),
        "version": found.version,
        "rows": found.rows,
        "snapshots": found.snapshots,
        "deltas": found.deltas,
        "table_files": found.table_files,
        "bytes_read": found.bytes_read,
        "problems": list(found.problems),
        "states": [{"state": name, **_describe_digest(each)} for name, each in found.digests.items()],
    }


def describe_start(start: StartFiles) -> Fields:
    """Return how many files of the query were read."""
    return {
        "query_files": start.files,
        "source_files": start.source_files,
        "operator_files": start.operator_files,
    }


def describe_garbage(operator_name: str, identity: Identity, place: str, blobs: Iterable[Blob]) -> Fields:
    """Return the objects of a store that are not needed."""
    return {**describe_store(identity, operator_name), "place": place, "garbage": list(map(asdict, blobs))}


def describe_state_digest(operator: int, store: str, state: str, digest: Digest) -> Fields:
    """Return a state of all partitions, of which all rows were read."""
    return {"operator": operator, "store": store, "state": state, **_describe_digest(digest)}


def _describe_digest(digest: Digest) -> Fields:
    return {"rows": digest.rows, "digest": digest.sum}


def describe_savepoint(savepoint: str, place: str, info: SavepointInfo) -> Fields:
    """Return what a savepoint holds. ``savepoint``: its name for the user. ``place``: its URL."""
    names = {each.number: each.name for each in info.operators}
    return {
        "savepoint": savepoint,
        "place": place,
        "kind": info.kind,
        "created_ms": info.created_ms,
        "written_by": info.written_by,
        "query_id": info.query_id,
        "checkpoint": info.checkpoint,
        "version": info.version,
        "partitions": info.partitions,
        "size_bytes": info.size_bytes,
        "query_files": len(info.files),
        "operators": [
            {
                "operator": each.number,
                "operator_name": each.name,
                "layout": each.layout,
                "partitions": each.partitions,
                "uids": list(each.uids),
                "states": [_describe_saved_state(info, each.number, state) for state in each.states],
            }
            for each in info.operators
        ],
        "stores": [
            {
                **describe_store(Identity(each.operator, each.partition, each.name), names.get(each.operator, "")),
                "commit_id": each.commit_id,
                "objects": each.objects,
                "size_bytes": each.size_bytes,
            }
            for each in info.stores
        ],
        "row_files": [
            {"operator": rows.operator, "store": rows.name, "name": each.name, "size_bytes": each.size_bytes}
            for rows in info.rows
            for each in rows.files
        ],
    }


def _describe_saved_state(info: SavepointInfo, operator: int, state: SavedState) -> Fields:
    known = info.digests_of(operator, state.store).get(state.name)
    return {
        "store": state.store,
        "state": state.name,
        "rows": state.rows if state.is_counted else None if known is None else known.rows,
        "digest": None if known is None else known.sum,
        "key_schema": state.key_schema,
        "value_schema": state.value_schema,
        "key_encoder": state.key_encoder,
    }


def describe_restore(done: Restored) -> Fields:
    """Return what a restore has made."""
    return {
        "checkpoint": done.checkpoint,
        "query_id": done.query_id,
        "version": done.version,
        "partitions": done.partitions,
        "copied_bytes": done.copied_bytes,
        "rewritten_bytes": done.rewritten_bytes,
        "states": [describe_state_digest(each.operator, each.store, each.name, each.digest) for each in done.states],
    }


def describe_explanation(plan: RestoreExplanation) -> Fields:
    """Return what a restore would do."""
    operators = []
    for each in plan.operators:
        told = asdict(each)
        operators.append({"operator": told.pop("number"), "operator_name": told.pop("name"), **told})
    return {"processors": plan.processors, "seconds": plan.seconds, "operators": operators}
