"""Delete a savepoint: all of it and nothing else, also when that is interrupted and done again.

``savepoint.unfinished`` is put first and deleted last, and ``savepoint.json`` is the first to go: what there is in
between is a savepoint that did not finish, which is listed, restored by nobody, and deleted as any other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.checkpoints.query_log import QUERY
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import ConflictError, FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.names import (
    CHECKPOINT_FOLDER,
    NON_RESTORED_STATE_NAME,
    ROWS_FOLDER,
    DeltaName,
    is_table_object,
    parse,
)
from pyspark_ckpt.state_store.format.remote import store_folder
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.jobs import DONE_FOLDER
from pyspark_ckpt.state_store.savepoints.request import Request, Restored
from pyspark_ckpt.state_store.savepoints.restoration import forget, standing
from pyspark_ckpt.state_store.savepoints.savepoint import NAME, UNFINISHED, read_info

DELETING = b"deleting"
"""How the content of ``savepoint.unfinished`` begins from then on; the version of the savepoint follows."""

_MARKS = (NAME, UNFINISHED)
_FILES = (*_MARKS, QUERY)
_LOG = re.compile(r"(offsets|commits)/([0-9]{1,18})")
_STATE = re.compile(r"(state/[0-9]+/[0-9]+(?:/(?!_metadata/|sst/)[^/]+)?)/((?:sst/)?[^/]+)")
"""An object in the folder of a store."""
_OTHERS = re.compile(
    r"sources/[0-9]+/.+|state/[0-9]+/(?:[0-9]+/)?(?:[^/]+/)?_[^/]+/.+"
    rf"|{ROWS_FOLDER}/[0-9]+/[^/]+/[0-9]+\.parquet"
    rf"|{CHECKPOINT_FOLDER}/{re.escape(NON_RESTORED_STATE_NAME)}|{DONE_FOLDER}/[^/]+\.json"
)
"""What else a savepoint may have that did not finish, and so does not say what it has."""
_CHECKSUM = re.compile(r"((?:.+/)?)\.([^/]+)\.crc")
"""What Hadoop's local file system writes beside each object, and tools copy with it."""
_ANY_AGE = -math.inf


def delete(location: str, options: Options) -> int:
    """Delete a savepoint, also one that did not finish; returns how many objects that were.

    What was interrupted is finished by the same call. Raises InvalidInputError, before anything is deleted, for a
    place that is neither or has anything else in it, such as the batches of a query that has gone on there;
    ConflictError if something came meanwhile, which is left; StorageError.
    """
    place = Workplace(options).resolve(location)
    blobs = place.walk()
    if not any(blob.name in _MARKS for blob in blobs):
        raise InvalidInputError(
            f"{place.url} is no savepoint: nothing was deleted.",
            hint="Name the folder of a savepoint. The folder of a checkpoint is not deleted by this command.",
        )
    own = refuse_others(place, blobs)
    was_marked = any(blob.name == UNFINISHED for blob in blobs)
    place.put(UNFINISHED, DELETING if own.version is None else DELETING + b" %d" % own.version)
    try:
        refuse_others(place, place.walk(), own)  # a query that has begun there since
    except InvalidInputError:
        if not was_marked:
            place.delete(UNFINISHED)
        raise
    for blob in sorted(blobs, key=lambda blob: blob.name != NAME):
        if blob.name != UNFINISHED:
            place.delete(blob.name)
    left = [blob.name for blob in place.walk() if blob.name != UNFINISHED]
    if left:
        raise ConflictError(
            f"{place.url}: {left[0]} was written while the savepoint was deleted. The savepoint is gone, and this "
            "object is left.",
            hint="Stop the query that was started there, and restore another savepoint.",
        )
    place.discard_unfinished(_ANY_AGE)
    place.remove_empty_folders()
    place.delete(UNFINISHED)
    return len(blobs)


@dataclass(frozen=True)
class Own:
    """What is of a savepoint, as far as it is known: its version, the names of objects, the folders of its stores."""

    version: int | None = None
    files: frozenset[str] | None = None
    stores: frozenset[str] = frozenset()

    @classmethod
    def of(cls, place: BlobPlace) -> Own:
        """What the savepoint in ``place`` says, or the deletion of it that was interrupted. Raises StorageError."""
        try:
            info = read_info(place)
        except FormatError:  # nobody can use it any more, and it can be deleted as one that did not finish
            return cls()
        except InvalidInputError:
            return cls(version=_version_that_goes(place))
        rows = (file.name for saved in info.rows for file in saved.files)
        stores = (store_folder(Identity(each.operator, each.partition, each.name)) for each in info.stores)
        return cls(info.version, frozenset([*(file.name for file in info.files), *rows]), frozenset(stores))

    def has(self, name: str) -> bool:
        """Whether an object may be one of the savepoint in whose place it is, and is of none that lies deeper."""
        if (checksum := _CHECKSUM.fullmatch(name)) is not None:
            return self.has(checksum[1] + checksum[2])
        if name in _FILES:
            return True
        if name.rpartition("/")[2] in _MARKS or self.is_beyond(name):
            return False
        if self.files is None:
            return any(known.fullmatch(name) for known in (_LOG, _OTHERS)) or self._is_state(name)
        return name in self.files or self._is_state(name)

    def is_beyond(self, name: str) -> bool:
        """Whether an object is of a batch after that of the savepoint: a query has gone on."""
        if self.version is None or (self.files is not None and name in self.files):
            return False
        log, state = _LOG.fullmatch(name), _STATE.fullmatch(name)
        if log is not None:  # one batch may be planned
            return int(log[2]) >= self.version + (self.files is None and log[1] == "offsets")
        commit = None if state is None else parse(state[2])
        version = commit.commit.version if isinstance(commit, DeltaName) else 0 if commit is None else commit.version
        return version > self.version

    def _is_state(self, name: str) -> bool:
        found = _STATE.fullmatch(name)
        if found is None or (self.files is not None and found[1] not in self.stores):
            return False
        return is_table_object(found[2]) or isinstance(parse(found[2]), DeltaName | Marker)


def refuse_others(place: BlobPlace, blobs: Sequence[Blob], own: Own | None = None) -> Own:
    """Raise InvalidInputError if any of ``blobs``, all that a savepoint's place has, is not of the savepoint.

    Returns what is of it.
    """
    is_of = own or Own.of(place)
    names = [blob.name for blob in blobs]
    beyond = _find_later_logs(names) if is_of.version is None else [name for name in names if is_of.is_beyond(name)]
    others = sorted(beyond, key=lambda name: _LOG.fullmatch(name) is None)
    others += [name for name in names if name not in beyond and not is_of.has(name)]
    if not others:
        return is_of
    more = f" and {len(others) - 1} more" if others[1:] else ""
    if beyond:
        raise InvalidInputError(
            f"{place.url} has more than a savepoint, {others[0]}{more}: a query has gone on here, so it is "
            "the checkpoint of that query now: nothing was deleted.",
            hint="Keep it as a checkpoint, or delete it by your own means. Restore a savepoint into another folder "
            "before a query goes on from it.",
        )
    raise InvalidInputError(
        f"{place.url} has more than a savepoint, {others[0]}{more}, which would be deleted with it: "
        "nothing was deleted.",
        hint="If a query was started in this folder, it is a live checkpoint: keep it. Else delete or move what is not "
        "of the savepoint, such as other savepoints and checkpoints, first.",
    )


def _find_later_logs(names: Sequence[str]) -> list[str]:
    """Logs of a savepoint that says nothing of itself, if they are of more batches than a savepoint has."""
    logs = [(name, *log.groups()) for name in names if (log := _LOG.fullmatch(name)) is not None]
    commits = {int(number) for _, folder, number in logs if folder == "commits"}
    offsets = {int(number) for _, folder, number in logs if folder == "offsets"}
    last = max(commits, default=-1)
    has_one = not commits or (commits <= {last - 1, last} and offsets <= {last - 1, last, last + 1})
    first = min(last, min(commits, default=last) + 2)  # a savepoint has the commit before its own, too
    return [] if has_one else [name for name, _, number in logs if int(number) >= first]


def _version_that_goes(place: BlobPlace) -> int | None:
    """The version of a savepoint that is half deleted, as far as it is known. Raises StorageError."""
    try:
        number = place.get(UNFINISHED).removeprefix(DELETING).strip()
    except NotFoundError:
        return None
    return int(number) if re.fullmatch(rb"[0-9]{1,18}", number) else None


def finish_claim(location: str, target: str, request: Request, options: Options) -> Restored | None:
    """End a restore that was interrupted while it deleted its savepoint; None if there is none such.

    Without ``request.partitions`` it may have been to any number of them. Raises FormatError, StorageError.
    """
    source, place = Workplace(options).resolve(location), Workplace(replace(options, remote="")).resolve(target)
    if any(blob.name == NAME for blob in source.list(prefix=NAME)):
        return None
    finished = standing(place)
    if finished is None or not finished.request.is_of(source.url, request, options.remote):
        return None
    if _is_half_deleted(source):
        delete(location, options)
    forget(place)
    return finished.result


def _is_half_deleted(place: BlobPlace) -> bool:
    try:
        return place.get(UNFINISHED).startswith(DELETING)
    except NotFoundError:
        return False
