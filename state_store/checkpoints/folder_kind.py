"""What a folder is: a query's checkpoint or state, a savepoint, or what an unfinished savepoint or restore has left."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from pyspark_ckpt.state_store.attempts.damaged_logs import advise_repair
from pyspark_ckpt.state_store.blobs import Blob, BlobPlace, find_options, names_scheme
from pyspark_ckpt.state_store.checkpoints.ownership import OWNER_NAME, find_owner
from pyspark_ckpt.state_store.checkpoints.query.files import LOGS, QUERY
from pyspark_ckpt.state_store.display import write_command
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError, StorageError
from pyspark_ckpt.state_store.format.names import RESTORE_REQUEST_NAME, SAVEPOINT_NAME, UNFINISHED_NAME
from pyspark_ckpt.state_store.format.remote import query_id
from pyspark_ckpt.state_store.format.sealed_objects import read_json, read_sealed
from pyspark_ckpt.state_store.json_objects import Count, Location, Partitions, RandomId

DELETING = b"deleting"
"""How the content of ``savepoint.unfinished`` begins during a deletion, which replaces the writer's mark."""

COPY_AGAIN = "Copy the savepoint again from its original, or take another."
"""What to do about a savepoint without some objects: retention did not delete them, no checkpoint has the same."""

REPEAT_RESTORE = (
    "If it is running, wait. Otherwise finish it: repeat the same `restore` or `rescale` with the same arguments. Or "
    "name a new folder."
)
"""What to do about an unfinished restore."""

MAX_DEPTH = 5
"""How many folders above one are searched for a checkpoint: no file of a query lies deeper."""
MAX_NAMED = 3
"""How many checkpoints in a folder are named."""
_SAVEPOINT = "savepoint."
_MARK = re.compile(rb"[0-9a-z]+ ([0-9]{1,18})")
"""How the savepoint's version follows in ``savepoint.unfinished``, if it is known."""
_LOG = re.compile(rf"(?:{'|'.join(LOGS)})/[0-9]{{1,19}}")
_QUERY_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
"""An id that Spark gives to a query. It also names the folder of the query's state below ``remote``."""


class FolderKind(Enum):
    """What a folder is, in words."""

    CHECKPOINT = "the checkpoint of a query"
    SAVEPOINT = "a savepoint"
    UNFINISHED_SAVEPOINT = "an unfinished or half-deleted savepoint"
    UNFINISHED_RESTORE = "the target of an unfinished restore"
    STATE = "the state of a query, kept apart from its checkpoint"


_CONTAINERS: Mapping[FolderKind | None, str] = {
    FolderKind.CHECKPOINT: "checkpoint",
    FolderKind.SAVEPOINT: "savepoint",
}


class _NotFinished(msgspec.Struct):
    """The ``metadata`` of an unfinished restore. ``request``: the digest of its request."""

    request: RandomId
    id: Any = None


class _Request(msgspec.Struct):
    """The part of ``request.json`` that messages show."""

    source: Location
    version: Count
    partitions: Partitions


def is_query_id(text: str) -> bool:
    """Return whether a text has the form of Spark's ids of queries."""
    return _QUERY_ID.fullmatch(text) is not None


def find_kind(place: BlobPlace) -> FolderKind | None:
    """Return what the folder ``place`` is, or None. Most folders cost two listings.

    Raises StorageError.
    """
    if (kind := find_savepoint_kind(place)) is not None:
        return kind
    is_named_by_id = is_query_id(place.url.rpartition("/")[2])
    if is_named_by_id and any(blob.name == OWNER_NAME for blob in place.list(prefix=OWNER_NAME)):
        return FolderKind.STATE
    if not any(blob.name == QUERY for blob in place.list(prefix=QUERY)):
        return None
    if read_unfinished_request(place):
        return FolderKind.UNFINISHED_RESTORE
    with suppress(NotFoundError, FormatError):  # a file of another program
        if is_query_id(query_id(place)) or any(place.list(log) for log in LOGS):
            return FolderKind.CHECKPOINT
    return None


def find_open_kind(place: BlobPlace) -> FolderKind | None:
    """Return what a folder is; None also if this user may not look into it. Raises StorageError."""
    try:
        return find_kind(place)
    except StorageError as problem:
        if problem.is_denied:
            return None
        raise


def list_above(url: str) -> Iterator[str]:
    """Yield the folders above a folder, the nearest first; on a disk, the targets of links."""
    if not names_scheme(url):
        yield from map(str, Path(os.path.realpath(url)).parents)
        return
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    parts = path.strip("/").split("/")
    for number in reversed(range(len(parts) if path else 0)):
        yield f"{scheme}://{authority}/{'/'.join(parts[:number])}"


def is_missing(place: BlobPlace) -> bool:
    """Whether there is no such folder, and no file at it or above it. In S3 and HDFS an empty folder counts as missing.

    Raises StorageError.
    """
    where = place.url
    if names_scheme(where):
        return not place.walk()
    if os.path.lexists(where):
        return False
    while not os.path.lexists(where):
        where = os.path.dirname(where)  # noqa: PTH120 - as a text, without links followed
    return os.path.isdir(where)  # noqa: PTH112 - Path.is_dir may raise


def describe_kind(place: BlobPlace, kind: FolderKind) -> str:
    """Return what a folder of this kind is, in words; for state, with its checkpoint. Raises StorageError."""
    if kind is FolderKind.STATE:
        with suppress(FormatError):
            if owner := find_owner(place):
                return f"the state of the checkpoint {owner}"
    return kind.value


def find_savepoint_kind(place: BlobPlace) -> FolderKind | None:
    """Return which kind of savepoint the folder ``place`` is, or None, with one listing. Raises StorageError."""
    marks = {blob.name for blob in place.list(prefix=_SAVEPOINT)}
    if SAVEPOINT_NAME in marks:
        return FolderKind.SAVEPOINT
    return FolderKind.UNFINISHED_SAVEPOINT if UNFINISHED_NAME in marks else None


def read_mark(place: BlobPlace, folder: str = "") -> bytes:
    """Return the content of a folder's ``savepoint.unfinished``; empty if there is none. Raises StorageError."""
    try:
        return place.get(f"{folder}/{UNFINISHED_NAME}".lstrip("/"))
    except NotFoundError:
        return b""


def read_marked_version(mark: bytes) -> int | None:
    """Return the savepoint's version in the content of a ``savepoint.unfinished``; None if it has none."""
    version = _MARK.fullmatch(mark)
    return None if version is None else int(version[1])


def find_logs_of_query(blobs: Iterable[Blob], mark: bytes) -> list[str]:
    """Return the logs that are not of an unfinished savepoint: they show that a query was started in its folder.

    ``blobs``: objects of the folder. ``mark``: the content of its ``savepoint.unfinished``, which has the version. A
    savepoint has the logs of its batch and of the one before, and perhaps offsets of the next batch. It has them all
    before it gets its ``metadata``, which a query writes first, and before its deletion begins.
    """
    version = read_marked_version(mark)
    if version is None:
        return []
    seen = {blob.name: blob.modified_s for blob in blobs}
    own = {f"{log}/{batch}" for log in LOGS for batch in (version - 2, version - 1)} | {f"offsets/{version}"}
    last_s = seen.get(UNFINISHED_NAME if mark.startswith(DELETING) else QUERY, math.inf)
    return [name for name, at_s in seen.items() if _LOG.fullmatch(name) and (name not in own or at_s > last_s)]


def advise_on_unfinished(place: BlobPlace, folder: str = "") -> str:
    """Return what to do with a folder's unfinished or half-deleted savepoint: its writer may still be at work.

    Raises StorageError.
    """
    where, below, mark = f"{place.url}/{folder}".rstrip("/"), f"{folder}/".lstrip("/"), read_mark(place, folder)
    found = [*place.list(folder), *(blob for log in LOGS for blob in place.list(f"{below}{log}"))]
    if find_logs_of_query([replace(blob, name=blob.name.removeprefix(below)) for blob in found], mark):
        return (
            "A query was started in this folder: keep it. To use it as a checkpoint, delete only "
            f"{where}/{UNFINISHED_NAME}."
        )
    remove = write_delete(where, **find_options(place))
    if mark.startswith(DELETING):
        return f"Remove it: {remove}."
    return f"If it is still being taken, wait. Otherwise remove it: {remove}."


def write_delete(where: str, **options: str) -> str:
    """Return the command that deletes the savepoint in the folder ``where``; see ``write_command``.

    A folder named by a link is deleted only under its own name.
    """
    is_link = not names_scheme(where) and os.path.islink(where)  # noqa: PTH114 - Path.is_symlink may raise
    return write_command("savepoint", "delete", os.path.realpath(where) if is_link else where, **options)


def read_unfinished_request(place: BlobPlace, folder: str = "") -> str:
    """Return the digest of the unfinished restore in a folder; empty if there is none.

    Raises StorageError.
    """
    try:
        mark = read_json(place, f"{folder}/{QUERY}".lstrip("/"), _NotFinished)
    except (NotFoundError, FormatError):
        return ""
    return "" if isinstance(mark.id, str) else mark.request


def make_refusal(place: BlobPlace, open_place: Callable[[str], BlobPlace] | None = None) -> InvalidInputError:
    """Return the error for a folder that is not a checkpoint. It says what the folder is, and what to do.

    ``open_place``: opens the place at a URL, to name checkpoints near the folder. Raises StorageError.
    """
    where = place.url
    is_file = not names_scheme(where) and os.path.isfile(where)  # noqa: PTH113 - Path.is_file may raise
    if is_file or is_missing(place):
        what = "is not a checkpoint of a query: it is a file" if is_file else "does not exist"
        return InvalidInputError(f"{where} {what}.", hint="Name the checkpointLocation of the query.")
    kind = find_kind(place)
    if kind is FolderKind.UNFINISHED_RESTORE:
        return InvalidInputError(
            f"{where} is not a checkpoint yet: it is {_describe_restore(place)}.",
            hint=REPEAT_RESTORE,
        )
    if kind is FolderKind.UNFINISHED_SAVEPOINT:
        return InvalidInputError(
            f"{where} is not a checkpoint: it is {kind.value}.",
            hint=advise_on_unfinished(place),
        )
    if kind is FolderKind.SAVEPOINT:
        verify = write_command("savepoint", "verify", where, **find_options(place))
        return InvalidInputError(
            f"{where} is not a checkpoint of a query: it is a savepoint, whose metadata has no query id.",
            hint=f"See what is wrong with it: {verify}.",
        )
    if kind is FolderKind.STATE:
        return InvalidInputError(
            f"{where} is not a checkpoint of a query: it is {describe_kind(place, kind)}.",
            hint="Name the checkpointLocation of the query.",
        )
    return _refuse_without_id(place, open_place)


def _refuse_without_id(place: BlobPlace, open_place: Callable[[str], BlobPlace] | None) -> InvalidInputError:
    if any(place.list(log) for log in LOGS):
        return InvalidInputError(
            f"{place.url} has the logs of a query, but {place.url}/{QUERY} is missing or damaged: it has the query id.",
            hint=advise_repair(place),
        )
    hint = "Name the checkpointLocation of the query."
    if open_place is not None:
        for above in islice(list_above(place.url), MAX_DEPTH):
            if (what := _CONTAINERS.get(find_open_kind(open_place(above)))) is not None:
                return InvalidInputError(
                    f"{place.url} is not a checkpoint of a query. It is inside the {what} {above}: name that folder."
                )
        if below := list(islice(_find_checkpoints_in(place, open_place), MAX_NAMED)):
            hint = f"Name a checkpoint in it, such as {' or '.join(below)}."
    return InvalidInputError(
        f"{place.url} is not a checkpoint of a query: it has no metadata file with a query id.", hint=hint
    )


def _find_checkpoints_in(place: BlobPlace, open_place: Callable[[str], BlobPlace]) -> Iterator[str]:
    """Yield the checkpoints one level below a folder. Raises StorageError."""
    if names_scheme(place.url):
        found = [blob.name.split("/") for blob in place.walk()]
        names = [parts[0] for parts in found if parts[1:] == [QUERY]]
    else:
        names = sorted(path.parent.name for path in Path(place.url).glob(f"*/{QUERY}"))
    for name in names:
        if find_open_kind(open_place(f"{place.url}/{name}")) is FolderKind.CHECKPOINT:
            yield f"{place.url}/{name}"


def _describe_restore(place: BlobPlace) -> str:
    try:
        request = read_sealed(place, RESTORE_REQUEST_NAME, _Request)
    except (NotFoundError, FormatError):
        return FolderKind.UNFINISHED_RESTORE.value
    return f"an unfinished restore of {request.source}, version {request.version}, to {request.partitions} partitions"
