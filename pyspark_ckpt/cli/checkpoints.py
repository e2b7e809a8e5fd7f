"""``pyspark-ckpt checkpoint list | inspect | verify | gc``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace

from pyspark_ckpt.offline.descriptions.json_forms import (
    describe_garbage,
    describe_objects,
    describe_start,
    describe_verification,
    describe_version,
)
from pyspark_ckpt.offline.descriptions.operators import (
    OF_OURS,
    FilesRead,
    describe_reading,
    name_base,
    name_by_metas,
    name_deltas,
)
from pyspark_ckpt.offline.descriptions.states import GROUP_RANGES, count_by_groups, count_rows, describe_types
from pyspark_ckpt.state_store.attempts.damaged_logs import advise_repair
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import (
    FIRST_VERSION,
    describe_lost_log,
    find_last_version,
    refuse_unnamed_operators,
)
from pyspark_ckpt.state_store.checkpoints.query.files import list_batches
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.checkpoints.query_start import StartFiles, verify_start
from pyspark_ckpt.state_store.checkpoints.store_contents import StoredObjects, count_objects, list_restore_steps
from pyspark_ckpt.state_store.checkpoints.verification import find_differing_copies, verify_newest, verify_version
from pyspark_ckpt.state_store.display import count_text, size_text
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta
from pyspark_ckpt.state_store.format.names import CHECKPOINT_FOLDER
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.retention.collector import Collector
from pyspark_ckpt.terminal import (
    escape_controls,
    print_bars,
    print_json,
    print_outcome,
    print_table,
    print_text,
    progress_bar,
    wait,
    with_progress,
)

LISTS = "ListState"
NOTHING_YET, NO_STATE = "no batch is committed yet", "no operator of the query keeps state"


def open_checkpoint(location: str, settings: Mapping[str, str]) -> Checkpoint:
    """Open a checkpoint of this package's store.

    Raises InvalidInputError, StorageError; FormatError if there is state of an operator whose metadata is lost.
    """
    checkpoint = open_to_verify(location, settings)
    _refuse_unknown_state(checkpoint)
    return checkpoint


def open_to_verify(location: str, settings: Mapping[str, str]) -> Checkpoint:
    """Open a checkpoint whose logs may be damaged. Raises InvalidInputError, StorageError."""
    return Checkpoint(location, parse(settings))


def _refuse_unknown_state(checkpoint: Checkpoint) -> None:
    """Raise InvalidInputError for state of another provider; FormatError if some state cannot be identified."""
    checkpoint.refuse_other_provider()
    if checkpoint.newest_version:
        refuse_unnamed_operators(checkpoint, len(checkpoint.operators()))


def list_stores(checkpoint: Checkpoint, *, as_json: bool) -> int:
    """List what is stored: operators, versions, deltas, snapshots."""
    stores = [(operator, count_objects(checkpoint, identity)) for operator, identity in checkpoint.stores()]
    version = checkpoint.newest_version
    if as_json:
        described = [describe_objects(operator, stored) for operator, stored in stores]
        return print_json({"query_id": checkpoint.query_id, "version": version, "stores": described})
    is_committed = f"version {version} (batch {version - 1} is committed)"
    what = is_committed if version else _describe_uncommitted(checkpoint)
    print_text(f"query {checkpoint.query_id}, {what}")
    if version and not stores:
        print(NO_STATE)
    for operator in dict.fromkeys(each for each, _ in stores):
        print_text(f"\noperator {operator.number}: {_name_of(checkpoint, operator)}")
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
    except (FormatError, NotFoundError):  # `verify` says what is wrong; this lists the rest
        return f"{operator.name} (metadata unreadable)"
    return name_by_metas(operator.name, [meta])


def inspect(checkpoint: Checkpoint, version: int | None, *, key_groups: bool, lineage: bool, as_json: bool) -> int:
    """Show states with their types and rows, and how evenly rows are spread over partitions."""
    at = _require_version(checkpoint, version)
    if at == 0:
        return _print_nothing_yet(checkpoint, as_json=as_json)
    metas = [(operator, identity, checkpoint.meta(identity, at)) for operator, identity in checkpoint.stores()]
    if as_json:
        stores = [
            describe_version(
                operator,
                identity,
                meta,
                count_by_groups(checkpoint, [identity], at) if key_groups else None,
                list_restore_steps(checkpoint, identity, at) if lineage else None,
            )
            for operator, identity, meta in metas
        ]
        return print_json({"query_id": checkpoint.query_id, "version": at, "stores": stores})
    print_text(f"query {checkpoint.query_id}, version {at}")
    if not metas:
        print(NO_STATE)
    for operator in sorted({operator for operator, _, _ in metas}, key=lambda each: each.number):
        own = {identity: meta for each, identity, meta in metas if each == operator}
        print_text(f"\noperator {operator.number}: {name_by_metas(operator.name, own.values())}")
        _print_states(own)
        if key_groups:
            print_text(f"\nstored rows of each of {GROUP_RANGES} ranges of key groups")
            with progress_bar("reading all rows") as show:
                counted = count_by_groups(checkpoint, list(own), at, show)
            print_bars(counted)
        if lineage:
            print()
            steps = [(each, *list_restore_steps(checkpoint, each, at)) for each in own]
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
    rows = [
        (*names, "" if (number := count_rows(states)) is None else number, *describe_types(states[-1]))
        for names, states in found.items()
    ]
    print_table(("store", "state", "stored rows", "key", "value"), rows)
    kinds = {state.descriptor.encoder.get("kind") for states in found.values() for state in states}
    if LISTS in kinds:
        print_text("A list has a stored row for each element, and one for its key.\n`state count` counts elements.")
    print("\nstored rows of each partition")
    partitions: Counter[str] = Counter()
    for identity, meta in own.items():
        partitions[str(identity.partition)] += meta.rows
    print_bars(partitions)


def verify(checkpoint: Checkpoint, version: int | None, *, as_json: bool) -> int:
    """Read and check everything that a version needs; without a version, also what a start of the query needs."""
    at = _require_version(checkpoint, version)
    names, unknown = _find_stores(checkpoint)
    if at == 0:
        return _verify_uncommitted(checkpoint, list(names), unknown, as_json=as_json)
    stores = with_progress(list(names), str)
    if version is None:
        found = [verify_newest(checkpoint, identity) for identity in stores]
        start = verify_start(checkpoint)
    else:
        found = [verify_version(checkpoint, identity, at) for identity in stores]
        start = StartFiles()
    problems = [*unknown, *(problem for each in found for problem in each.problems), *start.problems]
    problems += checkpoint.find_damaged_packs()
    if len({each.version for each in found}) == 1:  # while the query runs, stores may be read at different versions
        problems += find_differing_copies(found)
    if as_json:
        read = {
            "query_id": checkpoint.query_id,
            "version": at,
            **describe_start(start),
            "problems": problems,
            "stores": [describe_verification(each, names[each.identity]) for each in found],
        }
        print_json(read)
        return int(bool(problems))
    versions = sorted({each.version for each in found}) or [at]
    which = f"version {versions[0]}" if len(versions) == 1 else f"versions {versions[0]} to {versions[-1]}"
    files = FilesRead(start.files, start.bytes_read, 0, start.source_files, start.operator_files)
    code = print_outcome(f"{which}: {describe_reading(found, files)}", problems)
    if start.problems:
        print_text(advise_repair(checkpoint.place))
    return code


def _find_stores(checkpoint: Checkpoint) -> tuple[dict[Identity, str], list[str]]:
    """Return all stores with Spark's names of their operators; or no store and the reason, if their files are bad.

    Raises InvalidInputError (state of another provider), StorageError.
    """
    try:
        _refuse_unknown_state(checkpoint)
        return {identity: operator.name for operator, identity in checkpoint.stores()}, []
    except FormatError as problem:
        return {}, [f"{problem!s} No state was read, because the stores are unknown"]


def _verify_uncommitted(
    checkpoint: Checkpoint, stores: Sequence[Identity], unknown: Sequence[str], *, as_json: bool
) -> int:
    """Look for later batches: a query before its first commit has none, unless its commit log is lost."""
    last = find_last_version(checkpoint, stores)
    start = verify_start(checkpoint)
    checkpoint.look_again()
    if checkpoint.newest_version:  # the query has committed a batch meanwhile
        return verify(checkpoint, None, as_json=as_json)
    problems = [*unknown, *start.problems]
    problems += filter(None, [describe_lost_log(checkpoint, last)])
    if as_json or not problems:
        _print_nothing_yet(checkpoint, as_json=as_json, **describe_start(start), problems=problems)
        return int(bool(problems))
    return print_outcome(f"query {checkpoint.query_id}, the commit log has no batch", problems)


def collect(checkpoint: Checkpoint, keep: int, *, dry_run: bool, as_json: bool) -> int:
    """Delete objects that are no longer needed, or print what would be deleted."""
    grace_s, deleted = checkpoint.workplace.options.retention_grace_period_s, 0
    names = {identity: each.name for each, identity in checkpoint.stores()} if checkpoint.newest_version else {}
    stores = list(names)
    with closing(Collector(checkpoint, keep, grace_s, only_finds=dry_run)) as collector:
        garbage = {identity: collector.find(identity) for identity in with_progress(stores, str)}
        unfinished = [replace(blob, name=f"{CHECKPOINT_FOLDER}/{blob.name}") for blob in collector.find_unfinished()]
        packs = collector.find_packs(garbage)
        if not dry_run:
            deleted += collector.discard_unfinished()
            deleted += sum(collector.clean(each) for each in with_progress(stores, str))
            if collector.waiting():
                wait(grace_s, "for snapshots that are being written (-o retentionGracePeriod=0 skips the wait)")
                checkpoint.look_again()
            deleted += sum(collector.clean(each) for each in with_progress(collector.waiting(), str))
            deleted += collector.clean_packs()
    version = checkpoint.newest_version
    places = {identity: checkpoint.find_place(identity).url for identity in garbage}
    if as_json:
        answer = {
            "query_id": checkpoint.query_id,
            "version": version,
            "keep": keep,
            "dry_run": dry_run,
            "deleted": deleted,
            "unfinished": list(map(asdict, unfinished)),
            "packs": [asdict(blob) for _, blob in packs],
            "stores": [
                describe_garbage(names[identity], identity, places[identity], each.blobs)
                for identity, each in garbage.items()
            ],
        }
        return print_json(answer)
    found = [(checkpoint.place.url, blob) for blob in unfinished] + packs
    found += [(places[identity], blob) for identity, each in garbage.items() for blob in each.blobs]
    for place, blob in found:
        print_text(escape_controls(f"{place}/{blob.name}  {size_text(blob.size_bytes)}"))
    size = sum(blob.size_bytes for _, blob in found)
    doomed = f"{count_text(len(found), 'object')}, {size_text(size)} would be"
    done = doomed if dry_run else count_text(deleted, "object")
    kept = f"version {version} and up to {count_text(keep, 'version')} below it are kept"
    kept = kept if version else _describe_uncommitted(checkpoint)
    print_text(f"{done} deleted; {kept}")
    return 0


def _require_version(checkpoint: Checkpoint, version: int | None) -> int:
    """Return the requested version, 0 if nothing is committed. Raises InvalidInputError (a version not committed)."""
    if version is None:
        return checkpoint.newest_version
    checkpoint.require_committed(version)
    return version


def _print_nothing_yet(checkpoint: Checkpoint, *, as_json: bool, **more: object) -> int:
    """Say that no batch is committed; in JSON by empty fields, with ``more`` fields of the command."""
    if as_json:
        return print_json({"query_id": checkpoint.query_id, "version": 0, **more, "stores": []})
    print_text(f"query {checkpoint.query_id}, {_describe_uncommitted(checkpoint)}")
    return 0


def _describe_uncommitted(checkpoint: Checkpoint) -> str:
    """Say that no batch is committed, or name a later batch, which shows that the commit log is lost."""
    last = find_last_version(checkpoint, (identity for _, identity in checkpoint.stores()))
    planned = max(list_batches(checkpoint.place, "offsets"), default=0)
    if last <= FIRST_VERSION and not planned:
        return NOTHING_YET
    what = f"there is state of version {last}" if last > FIRST_VERSION else f"batch {planned} was planned"
    return f"the commit log has no batch, but {what}: {checkpoint.write_command('checkpoint', 'verify')} says more"
