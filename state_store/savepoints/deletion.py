"""Delete a savepoint: all of it and nothing else, even if the deletion is interrupted and repeated.

``savepoint.unfinished`` is written first and deleted last, and ``savepoint.json`` is deleted before all others. In
between there is an unfinished savepoint: it is listed, cannot be restored, and can be deleted like any other.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace, names_scheme
from pyspark_ckpt.state_store.checkpoints.folder_kind import DELETING, MARK_VERSION, read_mark
from pyspark_ckpt.state_store.checkpoints.query_log import QUERY
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import ConflictError, FormatError, InvalidInputError
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
from pyspark_ckpt.state_store.savepoints.finished import refuse_claimed
from pyspark_ckpt.state_store.savepoints.possession import explaining_what_is_left
from pyspark_ckpt.state_store.savepoints.query_restore import describe_complete, find_finished, forget
from pyspark_ckpt.state_store.savepoints.request import Restored, RestoreRequest
from pyspark_ckpt.state_store.savepoints.savepoint import NAME, UNFINISHED, read_info

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
"""Other objects that an unfinished savepoint may have. It does not list its own objects."""
_CHECKSUM = re.compile(r"((?:.+/)?)\.([^/]+)\.crc")
"""A checksum file that Hadoop's local file system writes next to each object, and that tools copy with it."""
_ANY_AGE = -math.inf


def delete(location: str, options: Options) -> int:
    """Delete a savepoint, finished or not; return how many objects it had.

    The same call finishes an interrupted deletion. Raises InvalidInputError, before anything is deleted, if the place
    is a link, has no savepoint or has anything else in it, such as the batches of a query that was started there;
    ConflictError if an object was written meanwhile, which is left; StorageError.
    """
    place = Workplace(options).resolve(location)
    refuse_link(place)
    blobs = place.walk()
    if not any(blob.name in _MARKS for blob in blobs):
        raise InvalidInputError(
            f"{place.url} is not a savepoint: nothing was deleted.",
            hint="Name the folder of a savepoint. The folder of a checkpoint is not deleted by this command.",
        )
    own = refuse_others(place, blobs)
    before = read_mark(place) if any(blob.name == UNFINISHED for blob in blobs) else None
    place.put(UNFINISHED, DELETING if own.version is None else DELETING + b" %d" % own.version)
    try:
        blobs = place.walk()  # the writer of an unfinished one may have finished it since, or a query been started
        refuse_others(place, blobs, own)
    except InvalidInputError:
        if before is None:
            place.delete(UNFINISHED)
        else:
            place.put(UNFINISHED, before)
        raise
    for blob in sorted(blobs, key=lambda blob: blob.name != NAME):
        if blob.name != UNFINISHED:
            place.delete(blob.name)
    left = [blob.name for blob in place.walk() if blob.name != UNFINISHED]
    if left:
        raise ConflictError(
            f"{place.url}: {left[0]} was written while the savepoint was being deleted. The savepoint is gone, and "
            "this object is left.",
            hint="If a query was started there, stop it, and restore another savepoint. If the savepoint was being "
            "taken, wait until that has ended, and delete it again.",
        )
    place.discard_unfinished(_ANY_AGE)
    place.remove_empty_folders()
    place.delete(UNFINISHED)
    return len(blobs) - (before is None)


@dataclass(frozen=True)
class SavepointContent:
    """What belongs to a savepoint, as far as known: its version, names of objects, and folders of its stores."""

    version: int | None = None
    files: frozenset[str] | None = None
    stores: frozenset[str] = frozenset()

    @classmethod
    def of(cls, place: BlobPlace) -> SavepointContent:
        """Read it from the savepoint in ``place``, or from its interrupted deletion. Raises StorageError."""
        try:
            info = read_info(place)
        except FormatError:  # it is unusable, and is deleted like an unfinished one
            return cls()
        except InvalidInputError:
            return cls(version=_find_marked_version(place))
        rows = (file.name for saved in info.rows for file in saved.files)
        stores = (store_folder(Identity(each.operator, each.partition, each.name)) for each in info.stores)
        return cls(info.version, frozenset([*(file.name for file in info.files), *rows]), frozenset(stores))

    def has(self, name: str) -> bool:
        """Return whether an object may belong to this savepoint, and not to another one in a folder below."""
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
        """Return whether an object is of a batch after the savepoint's: a query was started here."""
        if self.version is None or (self.files is not None and name in self.files):
            return False
        log, state = _LOG.fullmatch(name), _STATE.fullmatch(name)
        if log is not None:  # the offsets of one more batch may be there, planned and not committed
            return int(log[2]) >= self.version + (self.files is None and log[1] == "offsets")
        commit = None if state is None else parse(state[2])
        version = commit.commit.version if isinstance(commit, DeltaName) else 0 if commit is None else commit.version
        return version > self.version

    def _is_state(self, name: str) -> bool:
        found = _STATE.fullmatch(name)
        if found is None or (self.files is not None and found[1] not in self.stores):
            return False
        return is_table_object(found[2]) or isinstance(parse(found[2]), DeltaName | Marker)


def refuse_link(place: BlobPlace) -> None:
    """Raise InvalidInputError if the folder of a savepoint that is to be deleted is a link to another folder."""
    if names_scheme(place.url) or not os.path.islink(place.url):  # noqa: PTH114 - Path.is_symlink may raise
        return
    target = os.path.realpath(place.url)
    raise InvalidInputError(
        f"{place.url} is a link to {target}: nothing was deleted.",
        hint=f"To delete what the link leads to, name {target}. The link itself is removed like a file.",
    )


def refuse_others(place: BlobPlace, blobs: Sequence[Blob], own: SavepointContent | None = None) -> SavepointContent:
    """Raise InvalidInputError if any of ``blobs``, all objects in a savepoint's place, is not of the savepoint.

    Return what belongs to the savepoint.
    """
    is_of = own or SavepointContent.of(place)
    names = [blob.name for blob in blobs]
    beyond = _find_later_logs(names) if is_of.version is None else [name for name in names if is_of.is_beyond(name)]
    others = sorted(beyond, key=lambda name: _LOG.fullmatch(name) is None)
    others += [name for name in names if name not in beyond and not is_of.has(name)]
    if not others:
        return is_of
    more = f" and {len(others) - 1} more" if others[1:] else ""
    if beyond:
        raise InvalidInputError(
            f"{place.url} has more than a savepoint, {others[0]}{more}: a query was started here, so it is "
            "the checkpoint of that query now: nothing was deleted.",
            hint="Keep it as a checkpoint, or delete the folder yourself. To start a query from a savepoint, restore "
            "the savepoint into another folder first.",
        )
    raise InvalidInputError(
        f"{place.url} has more than a savepoint, {others[0]}{more}, which would be deleted with it: "
        "nothing was deleted.",
        hint="If a query was started in this folder, it is a live checkpoint: keep it. Otherwise first delete or move "
        "what is not part of the savepoint, such as other savepoints and checkpoints.",
    )


def _find_later_logs(names: Sequence[str]) -> list[str]:
    """Return the later logs in a place without a readable ``savepoint.json``, if there are too many for a savepoint."""
    logs = [(name, *log.groups()) for name in names if (log := _LOG.fullmatch(name)) is not None]
    commits = {int(number) for _, folder, number in logs if folder == "commits"}
    offsets = {int(number) for _, folder, number in logs if folder == "offsets"}
    last = max(commits, default=-1)
    has_one = not commits or (commits <= {last - 1, last} and offsets <= {last - 1, last, last + 1})
    first = min(last, min(commits, default=last) + 2)  # a savepoint has the commit before its own, too
    return [] if has_one else [name for name, _, number in logs if int(number) >= first]


def _find_marked_version(place: BlobPlace) -> int | None:
    """Return the version of a savepoint that is unfinished or half deleted, or None. Raises StorageError."""
    version = MARK_VERSION.fullmatch(read_mark(place))
    return None if version is None else int(version[1])


def finish_claim(location: str, target: str, request: RestoreRequest, options: Options) -> Restored | None:
    """Finish a restore that was interrupted while it deleted its savepoint; return None if there is no such restore.

    Without ``request.partitions``, a restore to any number of partitions matches. Raises InvalidInputError (it has
    finished, or ``location`` is a link), FormatError, StorageError.
    """
    refuse_link(Workplace(options).resolve(location))
    source, place = Workplace(options).resolve(location), Workplace(replace(options, remote="")).resolve(target)
    if any(blob.name == NAME for blob in source.list(prefix=NAME)):
        return None
    finished = find_finished(place)
    if finished is None or not finished.request.matches(source.url, request, options.remote):
        refuse_claimed(source, place, replace(options, remote=""))
        return None
    with explaining_what_is_left(lambda: describe_complete(place)):
        if _is_half_deleted(source):
            delete(location, options)
        forget(place)
    return finished.result


def _is_half_deleted(place: BlobPlace) -> bool:
    return read_mark(place).startswith(DELETING)
