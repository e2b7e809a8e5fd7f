"""What is kept on purpose, pins and savepoints, and what a clean-up would delete."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from pyspark_ckpt.offline.descriptions.json_forms import Fields, describe_garbage, describe_savepoint, describe_store
from pyspark_ckpt.state_store.blobs import Blob
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import CkptError, FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.names import DeltaName, WinnerName, is_table_object, parse
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.retention.collector import Collector
from pyspark_ckpt.state_store.retention.retention import Garbage
from pyspark_ckpt.state_store.savepoints.listing import find_savepoints
from pyspark_ckpt.state_store.savepoints.savepoint import SavepointInfo
from pyspark_ckpt.web.overview import describe_error
from pyspark_ckpt.web.recollection import Progress
from pyspark_ckpt.web.subjects import Facts

THREADS = 8
SHOWN = 100
"""How many objects are listed by name; all are counted."""


def tell_kept(facts: Facts) -> Fields:
    """Return the pins that hold versions."""
    return {"pins": [{"version": each.version, "until_s": each.until_s, "id": each.id} for each in facts.pins]}


def list_savepoints(folder: str, options: Options) -> Fields:
    """Return the savepoints below a folder, the newest first, or ``error``, the reason why they are unknown."""
    try:
        place = Workplace(options).resolve(folder)
        found = find_savepoints(place)
    except CkptError as problem:
        return {"folder": folder, "savepoints": [], "error": describe_error(problem)}
    savepoints: list[dict[str, Any]] = []
    for name, info in found:
        if isinstance(info, SavepointInfo):
            url = place.url if name == "." else f"{place.url}/{name}"
            told = describe_savepoint(name, url, info)
            savepoints.append({**{key: told[key] for key in _SHORT}, "problem": None})
        else:
            wrong = "unfinished" if info is None else info.message
            savepoints.append({"savepoint": name, "created_ms": 0, "problem": wrong})
    savepoints.sort(key=lambda each: each["created_ms"], reverse=True)
    return {"folder": folder, "savepoints": savepoints, "error": None}


_SHORT = (
    "savepoint",
    "place",
    "kind",
    "created_ms",
    "written_by",
    "query_id",
    "checkpoint",
    "version",
    "partitions",
    "size_bytes",
)


def find_garbage(facts: Facts, keep: int, options: Options, progress: Progress) -> Fields:
    """Return what a clean-up would delete. Nothing is written or deleted.

    ``problems``: why the garbage of some stores is unknown, such as damage. Raises StorageError (the place does not
    answer, or denies it).
    """
    checkpoint = facts.checkpoint
    stores = list(checkpoint.stores()) if checkpoint.newest_version else []
    kinds: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    told: list[Fields] = []
    problems: list[Fields] = []
    named = 0
    with (
        closing(Collector(checkpoint, keep, options.retention_grace_period_s, only_finds=True)) as collector,
        ThreadPoolExecutor(THREADS, thread_name_prefix="dry-run") as pool,
    ):
        found = pool.map(lambda pair: _look(collector, pair[1]), stores)
        for done, ((operator, identity), garbage) in enumerate(zip(stores, found, strict=True), 1):
            if isinstance(garbage, CkptError):
                problems.append({**describe_store(identity, operator.name), **describe_error(garbage)})
                progress(done, len(stores))
                continue
            for blob in garbage.blobs:
                kind = _name_kind(blob)
                kinds[kind] += 1
                sizes[kind] += blob.size_bytes
            if garbage.blobs and named < SHOWN:
                shown = garbage.blobs[: SHOWN - named]
                named += len(shown)
                told.append(describe_garbage(operator.name, identity, checkpoint.find_place(identity).url, shown))
            progress(done, len(stores))
    return {
        "version": facts.version,
        "keep": keep,
        "grace_s": options.retention_grace_period_s,
        "objects": sum(kinds.values()),
        "size_bytes": sum(sizes.values()),
        "kinds": [{"kind": kind, "objects": kinds[kind], "size_bytes": sizes[kind]} for kind in sorted(kinds)],
        "shown": named,
        "stores": told,
        "problems": problems,
    }


def _look(collector: Collector, identity: Identity) -> Garbage | CkptError:
    """Return the garbage of a store, or what is wrong with the store."""
    try:
        return collector.find(identity)
    except (FormatError, NotFoundError, InvalidInputError) as problem:
        return problem


def _name_kind(blob: Blob) -> str:
    name = parse(blob.name)
    if isinstance(name, DeltaName):
        return "deltas"
    if isinstance(name, WinnerName):
        return "winners"
    if name is not None:
        return "manifests of snapshots"
    return "table files" if is_table_object(blob.name) else "unfinished uploads"
