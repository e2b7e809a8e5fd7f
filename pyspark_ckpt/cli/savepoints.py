"""``pyspark-ckpt savepoint create | list | inspect | verify | restore | delete`` and ``pyspark-ckpt rescale``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.operators import SHORT_ID, name_operator
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.inventory import list_operators
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.display import size_text
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.state_store.savepoints.query_restore import QueryRestore
from pyspark_ckpt.state_store.savepoints.request import QueryId, Restored, RestoreRequest
from pyspark_ckpt.state_store.savepoints.savepoint import (
    Kind,
    Savepoint,
    SavepointInfo,
    find_savepoints,
    open_target,
)
from pyspark_ckpt.terminal import (
    print_bars,
    print_json,
    print_outcome,
    print_table,
    progress_bar,
)

Settings: TypeAlias = Mapping[str, str]


def create(checkpoint: str, target: str, settings: Settings, kind: Kind, *, digests: bool, as_json: bool) -> int:
    """Take a savepoint of a checkpoint, whose query may be running."""
    info = savepoints.savepoint(checkpoint, target, kind=kind, digests=digests, options=settings)
    return _print_info(info, target, as_json=as_json)


def list_all(folder: str, settings: Settings, *, as_json: bool) -> int:
    """List savepoints below a folder; exit code 1 if one is damaged, 2 if there is no such folder."""
    place = open_target(folder, parse(settings))
    found = find_savepoints(place)
    if not found:
        _require_there(place)
    if as_json:
        print_json([{"name": name, **_as_json(info)} for name, info in found])
    else:
        rows = [
            (name, *(_short_row(info) if isinstance(info, SavepointInfo) else _no_row(info))) for name, info in found
        ]
        print_table(("savepoint", "taken", "query", "batch", "partitions", "bytes"), rows)
    return int(any(isinstance(info, FormatError) for _, info in found))


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
    return _print_info(Savepoint(savepoint, parse(settings)).info, savepoint, as_json=as_json)


def verify(savepoint: str, settings: Settings, *, as_json: bool) -> int:
    """Read and check everything in a savepoint."""
    saved = Savepoint(savepoint, parse(settings))
    with progress_bar(savepoint) as progress:
        stores, problems, of_stores = saved.verify_stores(progress)
        more, of_rows = saved.verify_rows(progress)
    problems += [*saved.verify_files(), *more]
    found = {
        (operator, store, state): digest
        for (operator, store), digests in {**of_stores, **of_rows}.items()
        for state, digest in digests.items()
    }
    if as_json:
        named = ("operator", "store", "state", "rows", "digest")
        states = [dict(zip(named, (*state, each.rows, each.sum), strict=True)) for state, each in found.items()]
        read = [asdict(each) for each in stores]
        whole = {"problems": problems, "version": saved.info.version, "states": states, "stores": read}
        print_json(whole, msgspec.to_builtins)
        return int(bool(problems))
    if not problems:
        _print_states(saved.info, found)
    rows = sum(each.rows for each in found.values())
    return print_outcome(f"version {saved.info.version}: {rows:,} rows, {size_text(saved.info.size_bytes)}", problems)


def remove(savepoint: str, settings: Settings, *, as_json: bool) -> int:
    """Delete a savepoint, or the remains of an unfinished one."""
    deleted = delete(savepoint, parse(settings))
    if as_json:
        return print_json({"savepoint": savepoint, "deleted": deleted})
    print(f"{deleted:,} objects deleted")
    return 0


def restore(
    savepoint: str,
    target: str,
    settings: Settings,
    uid_map: Mapping[str, str],
    parallelism: int | None,
    query_id: QueryId,
    claim: Literal["no_claim", "claim"],
    *,
    allow_non_restored_state: bool,
    explain: bool,
    quick: bool,
    as_json: bool,
) -> int:
    """Restore a savepoint as a checkpoint."""
    _refuse_quick_work(explain=explain, quick=quick)
    if explain:
        options = parse(settings)
        saved = Savepoint(savepoint, options)
        request = RestoreRequest(parallelism, query_id, uid_map, allow_non_restored_state)
        rest = saved.info.files, saved.info.rows
        plan = QueryRestore(saved, saved.info.version, saved.versions(), target, request, options, *rest)
        return _explain(plan, quick=quick, as_json=as_json)
    done = savepoints.restore(
        savepoint,
        target,
        parallelism=parallelism,
        claim=claim,
        uid_map=uid_map,
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
    explain: bool,
    quick: bool,
    as_json: bool,
) -> int:
    """Copy the checkpoint of a stopped query for another number of partitions."""
    _refuse_quick_work(explain=explain, quick=quick)
    if explain:
        options = parse(settings)
        source = Checkpoint(checkpoint, options)
        version = source.newest_version
        if version == 0:
            raise LifecycleError(
                f"{source.place.url} cannot be rescaled: no batch of the query has been committed yet."
            )
        request, operators = RestoreRequest(parallelism, query_id), list_operators(source, version)
        plan = QueryRestore(source, version, operators, target, request, options)
        return _explain(plan, quick=quick, as_json=as_json)
    done = savepoints.rescale(checkpoint, target, parallelism, query_id=query_id, options=settings)
    return _print_restored(done, as_json=as_json)


def _refuse_quick_work(*, explain: bool, quick: bool) -> None:
    if quick and not explain:
        raise InvalidInputError("--quick is of --explain, which changes nothing: give both, or neither.")


def _explain(restoration: QueryRestore, *, quick: bool, as_json: bool) -> int:
    plan = savepoints.explain(restoration, counts=not quick)
    if as_json:
        return print_json(plan, asdict)
    planned = restoration.plan
    names = {
        each.operator.number: _name(each.operator.number, each.operator.name, each.uids, each.layout)
        for each in planned.operators
    }
    print(f"{planned.source_url}: {planned.old_partitions} to {planned.partitions} partitions")
    print_table(
        ("operator", "layout", "partitions", "rows", "objects", "bytes", "how"),
        [
            (
                names[each.number],
                each.layout,
                f"{each.old_partitions} to {each.partitions}",
                each.rows,
                each.objects,
                size_text(each.size_bytes),
                each.how,
            )
            for each in plan.operators
        ],
    )
    print(f"about {plan.seconds:.0f} s on {plan.processors} processors")
    for each in plan.operators:
        if each.expected_rows:
            how = "counted" if each.is_counted else "if they are spread evenly"
            print(f"\nrows of each new partition of operator {each.number}, {how}")
            print_bars({str(partition): rows for partition, rows in enumerate(each.expected_rows)})
    return 0


def _print_info(info: SavepointInfo, where: str, *, as_json: bool) -> int:
    if as_json:
        return print_json(msgspec.to_builtins(info))
    taken, query, batch, partitions, size = _row(info)
    print(f"savepoint {where}: {info.kind}, {size}, {partitions} partitions")
    print(f"of {info.checkpoint}, batch {batch} of query {query}")
    print(f"taken {taken} by {info.written_by}")
    recorded = {
        (operator.number, store, state): digest
        for operator in info.operators
        for store in operator.stores
        for state, digest in info.digests_of(operator.number, store).items()
    }
    _print_states(info, recorded)
    if not recorded and info.operators:
        print("\nno digests are recorded: savepoint verify reads all rows for them,")
        print("and so does savepoint create --digests")
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
        print(f"\noperator {operator.number}: {name}, in {operator.layout}")
        print_table(("store", "state", "stored rows", "digest"), rows)


def _print_restored(done: Restored, *, as_json: bool) -> int:
    if as_json:
        return print_json(msgspec.to_builtins(done))
    print_table(
        ("operator", "store", "state", "stored rows", "digest, before and after"),
        [(str(each.operator), each.store, each.name, each.digest.rows, each.digest.sum or "") for each in done.states],
    )
    print(f"{size_text(done.copied_bytes)} copied, {size_text(done.rewritten_bytes)} rewritten")
    print(f"{done.checkpoint} continues after batch {done.version - 1} of query {done.query_id}")
    print(f"with {done.partitions} partitions: start the query with spark.sql.shuffle.partitions={done.partitions}")
    return 0


def _name(number: int, name: str, uids: Iterable[str], layout: Layout) -> str:
    return f"{number} {name_operator(name, uids, is_keyed=layout is Layout.KEY_GROUPS)}"


def _row(info: SavepointInfo) -> tuple[str, str, str, str, str]:
    taken = datetime.fromtimestamp(info.created_ms / 1000, UTC)
    return (
        f"{taken:%Y-%m-%d %H:%M:%S} UTC",
        info.query_id,
        str(info.version - 1),
        str(info.partitions),
        size_text(info.size_bytes),
    )


def _short_row(info: SavepointInfo) -> tuple[str, ...]:
    """Return the row of a table, with the begin of the query's id."""
    taken, query, *rest = _row(info)
    return taken, query[:SHORT_ID], *rest


def _no_row(problem: FormatError | None) -> tuple[str, ...]:
    """Return the row of a savepoint that cannot be used."""
    return "unfinished" if problem is None else f"DAMAGED: {problem.message}", "", "", "", ""


def _as_json(info: SavepointInfo | FormatError | None) -> dict[str, Any]:
    if isinstance(info, FormatError):
        return {"damaged": info.message}
    return msgspec.to_builtins(info) if info else {}
