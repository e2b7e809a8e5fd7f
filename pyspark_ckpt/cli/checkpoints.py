"""``pyspark-ckpt checkpoint list | inspect | verify | gc``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

import msgspec

from pyspark_ckpt.cli.operators import (
    WHOLE_ID,
    key_text,
    name_base,
    name_by_metas,
    name_commit,
    name_deltas,
    type_text,
)
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint, Operator, StoredObjects
from pyspark_ckpt.state_store.checkpoints.inventory import refuse_unnamed_operators
from pyspark_ckpt.state_store.checkpoints.verification import verify_newest, verify_version
from pyspark_ckpt.state_store.display import size_text
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.format.key_groups import MAX_PARALLELISM
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.retention.collector import Collector
from pyspark_ckpt.terminal import print_bars, print_json, print_outcome, print_table, wait, with_progress

GROUP_RANGES = 32
LISTS = "ListState"
OF_OURS = "applyInPandasWithState"
"""Spark's name of the operator in which all operators with states of this package run."""
NOTHING_YET = "no batch is committed yet"


def open_checkpoint(location: str, settings: Mapping[str, str]) -> Checkpoint:
    """Open a checkpoint of this package's store.

    Raises InvalidInputError, StorageError; FormatError if there is state of an operator whose metadata is lost.
    """
    checkpoint = Checkpoint(location, parse(settings))
    checkpoint.refuse_other_provider()
    if checkpoint.newest_version:
        refuse_unnamed_operators(checkpoint, len(checkpoint.operators()))
    return checkpoint


def list_stores(checkpoint: Checkpoint, *, as_json: bool) -> int:
    """List what is stored: operators, versions, deltas, snapshots."""
    stores = [(operator, checkpoint.count_objects(identity)) for operator, identity in checkpoint.stores()]
    version = checkpoint.newest_version
    if as_json:
        described = [{"operator_name": operator.name, **asdict(stored)} for operator, stored in stores]
        return print_json({"query": checkpoint.query_id, "version": version, "stores": described})
    what = f"version {version} (batch {version - 1} is committed)" if version else NOTHING_YET
    print(f"query {checkpoint.query_id}, {what}")
    for operator in dict.fromkeys(each for each, _ in stores):
        print(f"\noperator {operator.number}: {_name_of(checkpoint, operator)}")
        header = ("partition", "store", "versions", "deltas", "snapshots", "lag", "table files")
        print_table(header, [_row_of(stored) for each, stored in stores if each == operator])
    return 0


def _row_of(stored: StoredObjects) -> tuple[object, ...]:
    return (
        str(stored.identity.partition),
        stored.identity.name,
        f"{stored.first_version}..{stored.last_version}",
        f"{stored.deltas:,}, {size_text(stored.delta_bytes)}",
        stored.snapshots,
        stored.lag,
        f"{stored.table_files:,}, {size_text(stored.table_bytes)}",
    )


def _name_of(checkpoint: Checkpoint, operator: Operator) -> str:
    """Return an operator's name by the metadata of its first store; Spark's name if nothing is committed."""
    if not checkpoint.newest_version or operator.name != OF_OURS:
        return operator.name
    try:
        meta = checkpoint.meta(Identity(operator.number, 0, operator.stores[0]), checkpoint.newest_version)
    except (FormatError, NotFoundError):  # `verify` says what is wrong; what can be listed is listed
        return f"{operator.name} (metadata unreadable)"
    return name_by_metas(operator.name, [meta])


def inspect(checkpoint: Checkpoint, version: int | None, *, key_groups: bool, lineage: bool, as_json: bool) -> int:
    """Show states with their types and rows, and how evenly rows are spread over partitions."""
    at = _require_version(checkpoint, version)
    if at == 0:
        return _print_nothing_yet(checkpoint, as_json=as_json)
    metas = [(operator, identity, checkpoint.meta(identity, at)) for operator, identity in checkpoint.stores()]
    if as_json:
        rows = [
            {
                "lineage": _lineage(checkpoint, identity, at) if lineage else None,
                "rows_by_key_groups": _by_groups(checkpoint, [identity], at) if key_groups else None,
                "operator": asdict(identity),
                "operator_name": operator.name,
                "id": meta.id,
                "parent": meta.parent,
                "rows": meta.rows,
                "states": [
                    {"name": state.name, "number": state.number, "rows": state.rows, **_describe(state)}
                    for state in meta.states
                ],
            }
            for operator, identity, meta in metas
        ]
        return print_json({"query": checkpoint.query_id, "version": at, "stores": rows})
    print(f"query {checkpoint.query_id}, version {at}")
    for operator in sorted({operator for operator, _, _ in metas}, key=lambda each: each.number):
        own = {identity: meta for each, identity, meta in metas if each == operator}
        print(f"\noperator {operator.number}: {name_by_metas(operator.name, own.values())}")
        _print_states(own)
        if key_groups:
            print(f"\nstored rows of each of {GROUP_RANGES} ranges of key groups")
            print_bars(_by_groups(checkpoint, with_progress(list(own), str), at))
        if lineage:
            print()
            steps = [(each, *checkpoint.steps(each, at)) for each in own]
            print_table(
                ("partition", "store", "restored from", "deltas"),
                [(str(each.partition), each.name, name_base(base), name_deltas(rest)) for each, base, rest in steps],
            )
    return 0


def _print_states(own: Mapping[Identity, StoreMeta]) -> None:
    """Print the states of an operator, and how many rows each partition has."""
    found: dict[tuple[str, str], list[StateMeta]] = {}
    for identity, meta in own.items():
        for state in meta.states:
            found.setdefault((identity.name, state.name), []).append(state)
    rows = [(*names, _count_rows(states), *_types(states[-1])) for names, states in found.items()]
    print_table(("store", "state", "stored rows", "key", "value"), rows)
    kinds = {state.descriptor.encoder.get("kind") for states in found.values() for state in states}
    if LISTS in kinds:
        print("A list has a stored row for each element, and one for its key.\n`state count` counts elements.")
    print("\nstored rows of each partition")
    partitions: Counter[str] = Counter()
    for identity, meta in own.items():
        partitions[str(identity.partition)] += meta.rows
    print_bars(partitions)


def _count_rows(states: Sequence[StateMeta]) -> int | str:
    """Return the stored rows of one state in all partitions; nothing for an expiry index, whose rows nobody counts."""
    return sum(each.rows for each in states) if all(each.is_counted for each in states) else ""


def _types(state: StateMeta) -> tuple[str, str]:
    keys = state.descriptor.key_schema
    shown = type_text(keys) if state.uid is None else key_text(keys)
    return shown, type_text(state.descriptor.value_schema)


def _describe(state: StateMeta) -> dict[str, Any]:
    descriptor = state.descriptor
    return {"key": descriptor.key_schema, "value": descriptor.value_schema, "encoder": descriptor.key_encoder}


def _lineage(checkpoint: Checkpoint, identity: Identity, version: int) -> tuple[str, str]:
    """Return the complete lineage of a store: what a restore begins with, and the deltas that it adds."""
    base, deltas = checkpoint.steps(identity, version)
    return name_base(base, WHOLE_ID), ", ".join(name_commit(delta, WHOLE_ID) for delta in deltas)


def _by_groups(checkpoint: Checkpoint, identities: Iterable[Identity], version: int) -> dict[str, int]:
    """Return the number of rows in each range of key groups; each one is a range of hashes."""
    rows: Counter[int] = Counter()
    for identity in identities:
        rows.update(checkpoint.rows_by_hash(identity, version, GROUP_RANGES))
    width = MAX_PARALLELISM // GROUP_RANGES
    return {f"{part * width}..{(part + 1) * width - 1}": rows[part] for part in range(GROUP_RANGES)}


def verify(checkpoint: Checkpoint, version: int | None, *, as_json: bool) -> int:
    """Read and check everything that a version needs."""
    at = _require_version(checkpoint, version)
    if at == 0:
        return _print_nothing_yet(checkpoint, as_json=as_json)
    stores = with_progress([identity for _, identity in checkpoint.stores()], str)
    if version is None:
        found = [verify_newest(checkpoint, identity) for identity in stores]
    else:
        found = [verify_version(checkpoint, identity, at) for identity in stores]
    problems = [problem for each in found for problem in each.problems]
    if as_json:
        stored = {"query": checkpoint.query_id, "version": at, "stores": [asdict(each) for each in found]}
        print_json(stored, msgspec.to_builtins)
        return int(bool(problems))
    rows, size = sum(each.rows for each in found), sum(each.bytes_read for each in found)
    versions = sorted({each.version for each in found}) or [at]
    which = f"version {versions[0]}" if len(versions) == 1 else f"versions {versions[0]} to {versions[-1]}"
    what = f"{which}: {len(found):,} stores, {rows:,} rows, {size_text(size)} read"
    return print_outcome(what, problems)


def collect(checkpoint: Checkpoint, keep: int, *, dry_run: bool, as_json: bool) -> int:
    """Delete what is not needed any more, or print what would be deleted."""
    grace_s, deleted = checkpoint.workplace.options.retention_grace_period_s, 0
    stores = [identity for _, identity in checkpoint.stores()] if checkpoint.newest_version else []
    with closing(Collector(checkpoint, keep, grace_s, only_finds=dry_run)) as collector:
        garbage = {identity: collector.find(identity) for identity in with_progress(stores, str)}
        if not dry_run:
            deleted += sum(collector.clean(each) for each in with_progress(stores, str))
            if collector.waiting():
                wait(grace_s, "for snapshots that are being written (-o retentionGracePeriod=0 skips the wait)")
                checkpoint.look_again()
            deleted += sum(collector.clean(each) for each in with_progress(collector.waiting(), str))
    if as_json:
        described = [
            {"store": asdict(identity), "place": checkpoint.find_place(identity).url, "objects": each.blobs}
            for identity, each in garbage.items()
        ]
        answer = {"query": checkpoint.query_id, "dry_run": dry_run, "deleted": deleted, "stores": described}
        return print_json(answer, asdict)
    for identity, each in garbage.items():
        for blob in each.blobs:
            print(f"{checkpoint.find_place(identity).url}/{blob.name}  {size_text(blob.size_bytes)}")
    found, size = sum(len(each.blobs) for each in garbage.values()), sum(each.size_bytes for each in garbage.values())
    print(f"{found:,} objects, {size_text(size)} would be deleted" if dry_run else f"{deleted:,} objects deleted")
    return 0


def _require_version(checkpoint: Checkpoint, version: int | None) -> int:
    """Return the requested version, 0 if nothing is committed. Raises InvalidInputError (a version not committed)."""
    if version is None:
        return checkpoint.newest_version
    checkpoint.require_committed(version)
    return version


def _print_nothing_yet(checkpoint: Checkpoint, *, as_json: bool) -> int:
    if as_json:
        return print_json({"query": checkpoint.query_id, "version": 0, "stores": []})
    print(f"query {checkpoint.query_id}, {NOTHING_YET}")
    return 0
