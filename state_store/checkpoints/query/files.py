"""The files that Spark writes into a checkpoint next to state: savepoints copy them, and restores change them.

::

    metadata                              {"id": "<query id>"}
    offsets/<batch>                       v1 or v2, then JSON with the confs that the query keeps, then its offsets
    commits/<batch>                       v1, v2 or v3, then JSON, perhaps with the ids of state (see commit_log)
    sources/...                           files of the sources
    state/<operator>/_metadata/...        name, stores and number of partitions of an operator
    state/<operator>/_stateSchema/...     schemas of transformWithState
    state/<operator>/0/<store>/_metadata/schema

A restore may have added _ckpt/non-restored-state.allowed, and changes of state _ckpt/migrations.json. A query with
inputs that can be idle also has _ckpt/watermarks/<batch>, v1 and JSON, which the jar writes before Spark commits the
batch. If a restore has carried over the plans of later batches, these are in _ckpt/replay/<batch>, in the form of
offsets/<batch>, until they have run; _ckpt/replay.json names the last of them.

To continue after batch N, a query needs the offsets of N - 1 and N and the commit of N. If batch N + 1 was planned but
not committed, it runs again with its offsets: a sink that has seen some of its rows then sees the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyspark_ckpt.state_store.attempts.damaged_logs import advise_repair
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.query.carried_plans import CARRIED_FILE
from pyspark_ckpt.state_store.errors import InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.names import (
    CARRIED_NAME,
    CHECKPOINT_FOLDER,
    MIGRATIONS_NAME,
    NON_RESTORED_STATE_NAME,
    REPLAY_FOLDER,
    WATERMARKS_FOLDER,
)
from pyspark_ckpt.state_store.json_objects import MAX_LONG

QUERY = "metadata"
SOURCES = "sources"
LOGS = ("offsets", "commits")
_STATE_ROWS = re.compile(r"state/[0-9]+/[0-9]+/(?!(?:[^/]+/)?_metadata/)")
_LATER_METADATA = re.compile(r"(state/[0-9]+/_metadata/v2)/([0-9]{1,19})")
BATCH = re.compile(r"[0-9]{1,19}")


def list_batches(checkpoint: BlobPlace, log: str) -> set[int]:
    """Return the batches that have an entry in a log: ``offsets`` or ``commits``. Raises StorageError."""
    names = (blob.name.rpartition("/")[2] for blob in checkpoint.list(log))
    return {batch for name in names if BATCH.fullmatch(name) and (batch := int(name)) < MAX_LONG}


def log_names(checkpoint: BlobPlace, batch: int) -> Iterator[str]:
    """Yield the names of the logs that the query needs to continue after ``batch``, and of the files of its sources.

    The logs come first: a source records the input of a batch before the offsets are logged. Raises NotFoundError if
    the query has deleted logs of the batch, InvalidInputError for a link to a folder, StorageError.
    """
    watermarks = find_watermarks(checkpoint, batch)  # first: the query keeps the logs no longer than these
    wanted = {f"offsets/{each}" for each in (batch - 1, batch) if each >= 0} | {f"commits/{batch}"}
    found = {blob.name for folder in ("offsets", "commits") for blob in checkpoint.list(folder)}
    missing = sorted(wanted - found)
    if missing:
        raise make_missing_error(checkpoint, missing[0], batch)
    yield from sorted(found & (wanted | {f"commits/{batch - 1}", f"offsets/{batch + 1}"}))
    yield from watermarks
    yield from _find_replay(checkpoint, batch + (2 if f"offsets/{batch + 1}" in found else 1))
    yield from source_file_names(checkpoint)


def make_missing_error(checkpoint: BlobPlace, name: str, batch: int) -> NotFoundError:
    """Return the error for a log that is missing although ``batch`` needs it. Raises StorageError."""
    return NotFoundError(
        f"{checkpoint.url}/{name} is missing, and without it no query can continue after batch {batch}.",
        hint="If the query runs, raise spark.sql.streaming.minBatchesToRetain, the number of batches whose logs it "
        f"keeps. If it has stopped, restore the file from a backup. {advise_repair(checkpoint)}".rstrip(),
    )


def find_watermarks(checkpoint: BlobPlace, batch: int) -> list[str]:
    """Return the file of a batch about inputs that can be idle, if there is one. Raises StorageError."""
    name = f"{WATERMARKS_FOLDER}/{batch}"
    return [blob.name for blob in checkpoint.list(WATERMARKS_FOLDER, prefix=str(batch)) if blob.name == name]


def _find_replay(checkpoint: BlobPlace, batch: int) -> Iterator[str]:
    """Yield the plans of ``batch`` and later ones that a restore has carried over, and the file that counts them.

    Raises StorageError.
    """
    there = list_batches(checkpoint, REPLAY_FOLDER)
    if batch in there:
        yield from find_last_carried(checkpoint)
    while batch in there:
        yield f"{REPLAY_FOLDER}/{batch}"
        batch += 1


def find_last_carried(checkpoint: BlobPlace) -> list[str]:
    """Return the file that names the last batch whose plan was carried over, if it is there. Raises StorageError."""
    return [blob.name for blob in checkpoint.list(CHECKPOINT_FOLDER, prefix=CARRIED_NAME) if blob.name == CARRIED_FILE]


def operator_names(checkpoint: BlobPlace) -> Iterator[str]:
    """Yield the names of the files that describe operators, stores, types and migrations, or allow undeclared state.

    Raises InvalidInputError for a link to a folder, StorageError.
    """
    yield from _walk(checkpoint, "state", but_for=_STATE_ROWS)
    for own in (NON_RESTORED_STATE_NAME, MIGRATIONS_NAME):
        yield from (blob.name for blob in checkpoint.list(CHECKPOINT_FOLDER, prefix=own))


def source_file_names(checkpoint: BlobPlace) -> Iterator[str]:
    """Yield the names of the files of sources. Raises InvalidInputError for a link to a folder, StorageError."""
    yield from _walk(checkpoint, SOURCES)


def list_operator_files(checkpoint: BlobPlace) -> list[str]:
    """Return the names of the files that describe operators, stores and types. Raises StorageError.

    Links to folders are left out, and so are older forms of the metadata of an operator.
    """
    names = [blob.name for blob in checkpoint.walk("state") if not _STATE_ROWS.match(blob.name)]
    newest: dict[str, int] = {}
    for name in names:
        if match := _LATER_METADATA.fullmatch(name):
            newest[match[1]] = max(newest.get(match[1], 0), int(match[2]))
    return [
        name
        for name in names
        if not name.endswith("/")
        and ((match := _LATER_METADATA.fullmatch(name)) is None or int(match[2]) == newest[match[1]])
    ]


def _walk(checkpoint: BlobPlace, folder: str, but_for: re.Pattern[str] | None = None) -> Iterator[str]:
    """Yield the names of all objects below a folder except ``but_for``. Raises InvalidInputError for a folder link."""
    for blob in checkpoint.walk(folder):
        if but_for is not None and but_for.match(blob.name):
            continue
        if blob.name.endswith("/"):
            raise InvalidInputError(
                f"{checkpoint.url}/{blob.name} is a link to another folder: a copy would not contain that folder.",
                hint="Replace the link with the folder itself.",
            )
        yield blob.name
