"""``pyspark-ckpt savepoint create | list | inspect | verify | restore | delete``, and moves of whole checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pyspark_ckpt import moving, savepoints
from pyspark_ckpt.cli.arguments import DryRun
from pyspark_ckpt.offline.adopting.stores import Provider
from pyspark_ckpt.offline.descriptions.json_forms import (
    describe_explanation,
    describe_restore,
    describe_savepoint,
    describe_state_digest,
    describe_verification,
)
from pyspark_ckpt.offline.descriptions.operators import SHORT_ID, FilesRead, describe_reading, name_operator
from pyspark_ckpt.offline.writing.held_state import open_whole
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.query.sources import list_sources
from pyspark_ckpt.state_store.display import count_text, size_text
from pyspark_ckpt.state_store.errors import CkptError, FormatError, InvalidInputError, StorageError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.state_store.savepoints.listing import Found, find_savepoints
from pyspark_ckpt.state_store.savepoints.restoring.query_restore import QueryRestore
from pyspark_ckpt.state_store.savepoints.restoring.request import QueryId, Restored, RestoreRequest
from pyspark_ckpt.state_store.savepoints.savepoint import (
    Kind,
    Savepoint,
    SavepointInfo,
    open_target,
)
from pyspark_ckpt.terminal import (
    escape_controls,
    print_bars,
    print_json,
    print_outcome,
    print_table,
    print_text,
    progress_bar,
)

Settings: TypeAlias = Mapping[str, str]


def create(checkpoint: str, target: str, settings: Settings, kind: Kind, *, digests: bool, as_json: bool) -> int:
    """Take a savepoint of a checkpoint, whose query may be running."""
    info = savepoints.savepoint(checkpoint, target, kind=kind, digests=digests, options=settings)
    return _print_info(info, target, open_target(target, parse(settings)), as_json=as_json)


def list_all(folder: str, settings: Settings, *, as_json: bool) -> int:
    """List savepoints below a folder; exit code 1 if one is damaged or unreadable, 2 if there is no such folder."""
    place = open_target(folder, parse(settings))
    found = find_savepoints(place)
    if not found:
        _require_there(place)
    if as_json:
        print_json([_as_json(name, f"{place.url}/{name}".removesuffix("/."), info) for name, info in found])
    elif not found:
        print("no savepoint")
    else:
        rows = [
            (name, *(_short_row(info) if isinstance(info, SavepointInfo) else _no_row(info))) for name, info in found
        ]
        print_table(("savepoint", "taken", "query", "batch", "partitions", "bytes"), rows)
    return int(any(isinstance(info, CkptError) for _, info in found))


def _require_there(place: BlobPlace) -> None:
    """Raise InvalidInputError if there is no such folder. In S3 and HDFS an empty folder counts as missing."""
    is_there = Path(place.url).is_dir() if place.url.startswith("/") else bool(place.walk())
    if not is_there:
        raise InvalidInputError(
            f"{place.url} does not exist, so there is no savepoint below it.",
            hint="Name the folder in which savepoints were taken, or one above it.",
        )


def inspect(savepoint: str, settings: Settings, *, as_json: bool) -> int:
    """Show what a savepoint holds."""
    saved = Savepoint(savepoint, parse(settings))
    return _print_info(saved.info, savepoint, saved.place, as_json=as_json)


def verify(savepoint: str, settings: Settings, *, as_json: bool) -> int:
    """Read and check everything in a savepoint."""
    options = parse(settings)
    try:
        saved = Savepoint(savepoint, options)
    except FormatError as problem:  # savepoint.json is damaged, so its list of files is unknown
        return _tell_unreadable(savepoint, open_target(savepoint, options).url, str(problem), as_json=as_json)
    with progress_bar(savepoint) as progress:
        stores, problems, of_stores = saved.verify_stores(progress)
        more, of_rows = saved.verify_rows(progress)
    problems += [*saved.verify_files(), *more]
    found = {
        (operator, store, state): digest
        for (operator, store), digests in {**of_stores, **of_rows}.items()
        for state, digest in digests.items()
    }
    info = saved.info
    row_files = [file.size_bytes for rows in info.rows for file in rows.files]
    if as_json:
        names = {each.number: each.name for each in info.operators}
        whole = {
            "savepoint": savepoint,
            "place": saved.place.url,
            "query_id": info.query_id,
            "version": info.version,
            "query_files": len(info.files),
            "row_files": len(row_files),
            "problems": problems,
            "states": [describe_state_digest(*state, each) for state, each in found.items()],
            "stores": [describe_verification(each, names.get(each.identity.operator, "")) for each in stores],
        }
        print_json(whole)
        return int(bool(problems))
    if not problems:
        _print_states(info, found)
    query = FilesRead(len(info.files), sum(file.size_bytes for file in info.files))
    rows = sum(digest.rows for digests in of_rows.values() for digest in digests.values())
    canonical = FilesRead(len(row_files), sum(row_files), rows) if info.kind == "canonical" else None
    return print_outcome(f"version {info.version}: {describe_reading(stores, query, canonical)}", problems)


def _tell_unreadable(savepoint: str, place: str, problem: str, *, as_json: bool) -> int:
    if not as_json:
        return print_outcome(f"savepoint {escape_controls(savepoint)}: nothing else was read", [problem])
    known = {"savepoint": savepoint, "place": place, "problems": [problem]}
    unknown: dict[str, Any] = {
        "query_id": None,
        "version": None,
        "query_files": 0,
        "row_files": 0,
        "states": [],
        "stores": [],
    }
    print_json(known | unknown)
    return 1


def remove(savepoint: str, settings: Settings, *, as_json: bool) -> int:
    """Delete a savepoint, or the remains of an unfinished one."""
    options = parse(settings)
    deleted = delete(savepoint, options)
    if as_json:
        return print_json({"savepoint": savepoint, "place": open_target(savepoint, options).url, "deleted": deleted})
    print(f"{count_text(deleted, 'object')} deleted")
    return 0


def restore(
    savepoint: str,
    target: str,
    settings: Settings,
    uid_map: Mapping[str, str],
    source_names: Sequence[str] | None,
    replay_from: Sequence[str],
    parallelism: int | None,
    query_id: QueryId,
    claim: Literal["no_claim", "claim"],
    *,
    allow_non_restored_state: bool,
    dry_run: DryRun | None,
    as_json: bool,
) -> int:
    """Restore a savepoint as a checkpoint."""
    if dry_run:
        options = parse(settings)
        opened = open_whole(savepoint, options)
        names, earlier = tuple(source_names or ()), tuple(replay_from)
        request = RestoreRequest(parallelism, query_id, uid_map, allow_non_restored_state, names, replay_from=earlier)
        return _print_dry_run(savepoints.plan_restore(opened, target, request, options), dry_run, as_json=as_json)
    done = savepoints.restore(
        savepoint,
        target,
        parallelism=parallelism,
        claim=claim,
        uid_map=uid_map,
        source_names=source_names,
        replay_from=replay_from or None,
        allow_non_restored_state=allow_non_restored_state,
        query_id=query_id,
        options=settings,
    )
    return _print_restored(done, as_json=as_json)


def rescale(
    checkpoint: str,
    target: str,
    settings: Settings,
    parallelism: int,
    query_id: QueryId,
    *,
    dry_run: DryRun | None,
    as_json: bool,
) -> int:
    """Copy the checkpoint of a stopped query for another number of partitions."""
    options = parse(settings)
    source = Checkpoint(checkpoint, options)
    if dry_run:
        plan = savepoints.plan_restore(source, target, RestoreRequest(parallelism, query_id), options)
        return _print_dry_run(plan, dry_run, as_json=as_json)
    done = savepoints.restore(checkpoint, target, parallelism=parallelism, query_id=query_id, options=settings)
    return _print_restored(done, as_json=as_json)


def move_in(
    checkpoint: str,
    target: str,
    settings: Settings,
    parallelism: int | None,
    query_id: QueryId,
    *,
    drop_unknown_states: bool,
    dry_run: DryRun | None,
    as_json: bool,
) -> int:
    """Copy the checkpoint of a stopped query whose state is in one of Spark's own providers."""
    if dry_run:
        request, options = RestoreRequest(parallelism, query_id), parse(settings)
        planned = moving.plan_adoption(checkpoint, target, request, options, drops_unknown_states=drop_unknown_states)
        return _print_dry_run(planned, dry_run, as_json=as_json)
    done = moving.adopt(
        checkpoint,
        target,
        parallelism,
        query_id=query_id,
        drop_unknown_states=drop_unknown_states,
        options=settings,
    )
    return _print_restored(done, as_json=as_json)


def branch(checkpoint: str, target: str, settings: Settings, batch: int | None, *, as_json: bool) -> int:
    """Make another checkpoint from a retained batch of a query."""
    return _print_restored(moving.branch(checkpoint, target, batch=batch, options=settings), as_json=as_json)


def hand_back(
    checkpoint: str,
    target: str,
    settings: Settings,
    provider: Provider,
    query_id: QueryId,
    *,
    dry_run: DryRun | None,
    as_json: bool,
) -> int:
    """Copy the checkpoint of a stopped query as one of Spark's own providers."""
    if dry_run:
        planned = moving.plan_hand_back(checkpoint, target, provider, query_id, parse(settings))
        return _print_dry_run(planned, dry_run, as_json=as_json)
    done = moving.hand_back(checkpoint, target, provider, query_id=query_id, options=settings)
    return _print_restored(done, as_json=as_json)


def _print_dry_run(restoration: QueryRestore, how: DryRun, *, as_json: bool) -> int:
    plan = savepoints.explain(restoration, counts=how == "counted")
    if as_json:
        return print_json(describe_explanation(plan))
    planned = restoration.plan
    names = {
        each.operator.number: _name(each.operator.number, each.operator.name, each.uids, each.layout)
        for each in planned.source.operators
    }
    source = escape_controls(planned.source.url)
    print_text(f"{source}: {planned.old_partitions} to {count_text(planned.partitions, 'partition')}")
    print_table(
        ("operator", "layout", "partitions", "rows with indexes", "objects", "bytes", "how"),
        [
            (
                names[each.number],
                each.layout,
                f"{each.old_partitions} to {each.partitions}",
                "" if each.rows is None else each.rows,
                each.objects,
                size_text(each.size_bytes),
                each.how,
            )
            for each in plan.operators
        ],
    )
    if plan.seconds is None:
        print_text("rows and time are unknown: leave out --quick to read and count all rows")
    else:
        print(f"about {plan.seconds:.0f} s on {count_text(plan.processors, 'processor')}")
    for each in plan.operators:
        if each.expected_rows:
            known = "counted" if each.is_counted else "if they are spread evenly"
            print_text(f"\nrows with indexes of each new partition of operator {each.number}, {known}")
            print_bars({str(partition): rows for partition, rows in enumerate(each.expected_rows)})
    return 0


def _print_info(info: SavepointInfo, where: str, place: BlobPlace, *, as_json: bool) -> int:
    sources = list_sources(place, info.version - 1)
    if as_json:
        return print_json({**describe_savepoint(where, place.url, info), "sources": list(map(asdict, sources))})
    taken, query, batch, _, size = _row(info)
    print_text(f"savepoint {escape_controls(where)}: {info.kind}, {size}, {count_text(info.partitions, 'partition')}")
    print_text(f"of {escape_controls(info.checkpoint)}, batch {batch} of query {query}")
    print_text(f"taken {taken} by {info.written_by}")
    print_text("\nsources, in the order of the offset log")
    rows = [(number, "" if each.name is None else each.name, each) for number, each in enumerate(sources)]
    print_table(("source", "name", "offset"), rows)
    recorded = {
        (operator.number, store, state): digest
        for operator in info.operators
        for store in operator.stores
        for state, digest in info.digests_of(operator.number, store).items()
    }
    _print_states(info, recorded)
    if not recorded and info.operators:
        print_text("\nno digests are recorded: savepoint verify reads all rows to compute them,")
        print_text("and so does savepoint create --digests")
    return 0


def _print_states(info: SavepointInfo, digests: Mapping[tuple[int, str, str], Digest]) -> None:
    """Print all states, with known digests. Only a digest counts the rows of an expiry index."""
    for operator in info.operators:
        rows = []
        for state in operator.states:
            known = digests.get((operator.number, state.store, state.name))
            number = known.rows if known is not None else state.rows if state.is_counted else None
            shown = "" if number is None else number
            rows.append((state.store, state.name, shown, "" if known is None else known.sum or ""))
        name = name_operator(operator.name, operator.uids, is_keyed=operator.layout == Layout.KEY_GROUPS.value)
        print_text(f"\noperator {operator.number}: {name}, in {operator.layout}")
        print_table(("store", "state", "stored rows", "digest"), rows)


def _print_restored(done: Restored, *, as_json: bool) -> int:
    if as_json:
        return print_json(describe_restore(done))
    print_table(
        ("operator", "store", "state", "stored rows", "digest, before and after"),
        [(str(each.operator), each.store, each.name, each.digest.rows, each.digest.sum or "") for each in done.states],
    )
    print_text(f"{size_text(done.copied_bytes)} copied, {size_text(done.rewritten_bytes)} rewritten")
    print_text(f"{escape_controls(done.checkpoint)} continues after batch {done.version - 1} of query {done.query_id}")
    number = count_text(done.partitions, "partition")
    print_text(f"with {number}: start the query with spark.sql.shuffle.partitions={done.partitions}")
    return 0


def _name(number: int, name: str, uids: Iterable[str], layout: Layout) -> str:
    return f"{number} {name_operator(name, uids, is_keyed=layout is Layout.KEY_GROUPS)}"


def _row(info: SavepointInfo) -> tuple[str, str, str, str, str]:
    taken = datetime.fromtimestamp(info.created_ms / 1000, timezone.utc)
    return (
        f"{taken:%Y-%m-%d %H:%M:%S} UTC",
        info.query_id,
        str(info.version - 1),
        str(info.partitions),
        size_text(info.size_bytes),
    )


def _short_row(info: SavepointInfo) -> tuple[str, ...]:
    """Return the row of a table, with the first characters of the query's id."""
    taken, query, *rest = _row(info)
    return taken, query[:SHORT_ID], *rest


def _no_row(problem: FormatError | InvalidInputError | StorageError | None) -> tuple[str, ...]:
    """Return the row of a savepoint that cannot be used, or of an unreadable folder."""
    told = "unfinished" if problem is None else f"{_name_problem(problem).replace('_', ' ').upper()}: {problem.message}"
    return told, "", "", "", ""


def _name_problem(problem: FormatError | InvalidInputError | StorageError) -> str:
    """Return in a word why a savepoint cannot be used."""
    if isinstance(problem, InvalidInputError):
        return "live_checkpoint"
    return "damaged" if isinstance(problem, FormatError) else "unreadable"


def _as_json(name: str, place: str, info: Found) -> dict[str, Any]:
    """Return a savepoint as JSON, also one that cannot be used."""
    if isinstance(info, SavepointInfo):
        return describe_savepoint(name, place, info)
    problem: dict[str, Any] = {"unfinished": True}
    if info is not None:
        problem = {_name_problem(info): info.message}
    return {"savepoint": name, "place": place, **problem}
