"""Delete a savepoint: all of it and nothing else, even if the deletion is interrupted and repeated.

``savepoint.unfinished`` is written first and deleted last; ``savepoint.json`` is deleted before all others, then
``metadata``. In between, the savepoint is unfinished: it is listed, cannot be restored, and can be deleted like any
other. Nothing is deleted unless everything in the folder is proven to belong to the savepoint: see ``refuse_others``.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace, find_options, names_scheme
from pyspark_ckpt.state_store.checkpoints.folder_kind import (
    DELETING,
    find_logs_of_query,
    find_savepoint_kind,
    is_missing,
    read_mark,
    read_marked_version,
)
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.display import write_command
from pyspark_ckpt.state_store.errors import ConflictError, FormatError, InvalidInputError, NotFoundError, StorageError
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.names import (
    CARRIED_NAME,
    CHECKPOINT_FOLDER,
    MIGRATIONS_NAME,
    NON_RESTORED_STATE_NAME,
    REPLAY_FOLDER,
    ROWS_FOLDER,
    WATERMARKS_FOLDER,
    WORK_FOLDER,
    DeltaName,
    is_table_object,
    parse,
)
from pyspark_ckpt.state_store.format.remote import store_folder
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.packs.slots import PACKS_FOLDER, parse_pack
from pyspark_ckpt.state_store.retention.pins import FOLDER as PINS_FOLDER
from pyspark_ckpt.state_store.retention.pins import PIN_S, Pins
from pyspark_ckpt.state_store.savepoints.possession import OwnFolder
from pyspark_ckpt.state_store.savepoints.savepoint import NAME, UNFINISHED, SavepointInfo, read_info

_MARKS = (NAME, UNFINISHED)
_FILES = (*_MARKS, QUERY)
_LOG = re.compile(r"(offsets|commits)/([0-9]{1,18})")
_STATE = re.compile(r"(state/[0-9]+/[0-9]+(?:/(?!_metadata/|sst/)[^/]+)?)/((?:sst/)?[^/]+)")
"""An object in the folder of a store."""
_OWN = (NON_RESTORED_STATE_NAME, MIGRATIONS_NAME, CARRIED_NAME)
_OTHERS = re.compile(
    r"sources/[0-9]+/.+|state/[0-9]+/(?:[0-9]+/)?(?:[^/]+/)?_[^/]+/.+"
    rf"|{ROWS_FOLDER}/[0-9]+/[^/]+/[0-9]+\.parquet"
    rf"|{CHECKPOINT_FOLDER}/(?:{'|'.join(map(re.escape, _OWN))})"
    rf"|(?:{WATERMARKS_FOLDER}|{REPLAY_FOLDER})/[0-9]{{1,18}}"
    rf"|{WORK_FOLDER}/(?:done/[^/]+\.json|runs/[^/]+/[0-9]+/[^/]+\.(?:sst|arrow))"
)
"""Other objects that an unfinished savepoint may have. It keeps no list of its objects."""
_PIN = re.compile(rf"{PINS_FOLDER}/[^/]+\.pin")
"""What a copy of the savepoint leaves if its process is killed."""
_CHECKSUM = re.compile(r"((?:.+/)?)\.([^/]+)\.crc")
"""A checksum file that Hadoop's local file system writes next to each object, and that tools copy with it."""
_ANY_AGE = -math.inf


def delete(
    location: str,
    options: Options,
    expected: SavepointInfo | None = None,
    require: Callable[[], object] = lambda: None,
) -> int:
    """Delete a savepoint, finished or not; return how many objects it had.

    The savepoint is kept if it is not the ``expected`` one, or if ``require``, called once the deletion is marked,
    raises ConflictError.

    The same call finishes an interrupted deletion. Raises InvalidInputError, before anything is deleted, if the place
    is a link, has no savepoint or may hold anything else, such as the batches of a query that was started there;
    ConflictError if another savepoint is there, is deleted there meanwhile, or if an object was written, which is kept;
    StorageError.
    """
    place = Workplace(options).resolve(location)
    refuse_link(place)
    if find_savepoint_kind(place) is None:
        what = "does not exist" if is_missing(place) else "is not a savepoint"
        raise InvalidInputError(
            f"{place.url} {what}: nothing was deleted.",
            hint="Name the folder of a savepoint. The folder of a checkpoint is not deleted by this command.",
        )
    blobs = place.walk()
    own = refuse_others(place, blobs)
    if expected is not None and own.info != expected:
        raise _make_replaced_error(place)
    before = read_mark(place) if any(blob.name == UNFINISHED for blob in blobs) else None
    mark = DELETING if own.version is None else DELETING + b" %d" % own.version
    made_room = _mark(place, mark, blobs)
    folder = OwnFolder(place, lambda: _require_mark(place, mark))
    try:
        blobs = place.walk()  # meanwhile an unfinished one may have been finished, or a query started
        refuse_others(place, blobs, own)
        if SavepointContent.of(place).info not in (None, own.info):
            raise _make_replaced_error(place)
        require()
    except (InvalidInputError, ConflictError):
        if before is None:
            folder.delete(UNFINISHED)
        else:
            folder.put(UNFINISHED, before)
        raise
    for blob in sorted(blobs, key=lambda blob: (blob.name != NAME, blob.name != QUERY)):
        if blob.name != UNFINISHED:
            folder.delete(blob.name)
    left = [blob.name for blob in place.walk() if blob.name != UNFINISHED]
    if left:
        raise ConflictError(
            f"{place.url}: {left[0]} was written while the savepoint was being deleted. The savepoint is gone; this "
            "object is left.",
            hint="If a query was started there, stop it, and restore another savepoint. If the savepoint was still "
            "being taken, wait until that ends, and delete it again.",
        )
    folder.require()
    place.discard_unfinished(_ANY_AGE)
    place.remove_empty_folders()
    folder.delete(UNFINISHED)
    return len(blobs) + made_room - (before is None)


def _mark(place: BlobPlace, mark: bytes, blobs: Sequence[Blob]) -> int:
    """Put the mark of a savepoint's deletion; return how many of its ``blobs`` were deleted to make room for the mark.

    A full disk has no room for the mark. The savepoint's other mark still proves that the objects deleted first were
    its own.
    """
    try:
        place.put(UNFINISHED, mark)
    except NotFoundError as problem:  # another deletion has removed the file that was being written
        raise _make_other_call_error(place) from problem
    except StorageError as problem:
        others = [blob for blob in blobs if blob.name not in _MARKS]
        if not others or getattr(problem.__cause__, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
            raise
        place.delete(max(others, key=lambda blob: blob.size_bytes).name)
        place.put(UNFINISHED, mark)
        return 1
    return 0


def _make_replaced_error(place: BlobPlace) -> ConflictError:
    return ConflictError(
        f"{place.url} has changed: a savepoint was finished there meanwhile. Nothing was deleted.",
        hint="Look at it with `pyspark-ckpt savepoint list`. To delete it, repeat the call.",
    )


def _require_mark(place: BlobPlace, mark: bytes) -> None:
    if read_mark(place) != mark:
        raise _make_other_call_error(place)


def _make_other_call_error(place: BlobPlace) -> ConflictError:
    verify = write_command("savepoint", "verify", place.url, **find_options(place))
    return ConflictError(
        f"{place.url}: another call has deleted the savepoint meanwhile, or is taking one there.",
        hint=f"If there is a savepoint now, verify it: {verify}. If this call stalled for long, it may have deleted "
        "one of its objects.",
    )


@dataclass(frozen=True)
class SavepointContent:
    """What is known to belong to a savepoint: its version, names of objects, and folders of its stores.

    ``info``: of a finished one. ``mark``: of an unfinished one. ``problem``: why the version is not known.
    """

    version: int | None = None
    info: SavepointInfo | None = None
    files: frozenset[str] | None = None
    stores: frozenset[str] = frozenset()
    mark: bytes = b""
    problem: str = ""

    @classmethod
    def of(cls, place: BlobPlace) -> SavepointContent:
        """Read it from the savepoint in ``place``, or from its interrupted deletion. Raises StorageError."""
        try:
            info = read_info(place)
        except FormatError as problem:
            return cls(problem=problem.message)
        except InvalidInputError:
            mark, untold = read_mark(place), f"{place.url}/{UNFINISHED} does not say of which version it is."
            return cls(read_marked_version(mark), mark=mark, problem=untold)
        rows = (file.name for saved in info.rows for file in saved.files)
        stores = (store_folder(Identity(each.operator, each.partition, each.name)) for each in info.stores)
        return cls(info.version, info, frozenset([*(file.name for file in info.files), *rows]), frozenset(stores))

    def has(self, name: str) -> bool:
        """Return whether an object may belong to this savepoint, rather than to another one in a folder below."""
        if (checksum := _CHECKSUM.fullmatch(name)) is not None:
            return self.has(checksum[1] + checksum[2])
        if name in _FILES or _PIN.fullmatch(name):
            return True
        if name.rpartition("/")[2] in _MARKS:
            return False
        if self.files is None:
            return any(known.fullmatch(name) for known in (_LOG, _OTHERS)) or self._is_state(name)
        return name in self.files or self._is_state(name)

    def find_beyond(self, blobs: Sequence[Blob]) -> list[str]:
        """Return the objects of a query that was started in the folder of a savepoint of this version."""
        if self.version is None:
            return []
        if self.files is None:
            logs = find_logs_of_query(blobs, self.mark)
        else:
            logs = [blob.name for blob in blobs if blob.name not in self.files and _LOG.fullmatch(blob.name)]
        return [*logs, *(blob.name for blob in blobs if _read_version(blob.name) > self.version)]

    def _is_state(self, name: str) -> bool:
        found = _STATE.fullmatch(name)
        if found is None or (self.files is not None and found[1] not in self.stores):
            return False
        return is_table_object(found[2]) or isinstance(parse(found[2]), DeltaName | Marker)


def _read_version(name: str) -> int:
    """Return the version in the name of a store's object, or of a pack; 0 if it has none."""
    if name.startswith(f"{PACKS_FOLDER}/"):
        return (parse_pack(name.removeprefix(f"{PACKS_FOLDER}/")) or (0, ""))[0]
    state = _STATE.fullmatch(name)
    commit = None if state is None else parse(state[2])
    return commit.commit.version if isinstance(commit, DeltaName) else 0 if commit is None else commit.version


def refuse_link(place: BlobPlace) -> None:
    """Raise InvalidInputError if the folder of the savepoint to delete is a link to another folder."""
    if names_scheme(place.url) or not os.path.islink(place.url):  # noqa: PTH114 - Path.is_symlink may raise
        return
    target = os.path.realpath(place.url)
    if not os.path.isdir(target):  # noqa: PTH112 - Path.is_dir may raise
        raise InvalidInputError(
            f"{place.url} is a link that leads nowhere: nothing was deleted.", hint="Name the folder of a savepoint."
        )
    raise InvalidInputError(
        f"{place.url} is a link to {target}: nothing was deleted.",
        hint=f"To delete the folder that the link leads to, name {target}. Remove the link itself like a file.",
    )


def refuse_others(place: BlobPlace, blobs: Sequence[Blob], own: SavepointContent | None = None) -> SavepointContent:
    """Raise InvalidInputError unless all ``blobs``, the objects in a savepoint's place, are proven to belong to it.

    Return what belongs to the savepoint.
    """
    is_of = own or SavepointContent.of(place)
    names = [blob.name for blob in blobs]
    if is_of.version is None and QUERY in names:
        raise InvalidInputError(
            f"{place.url} may be the checkpoint of a query that was started here: nothing was deleted. Its objects "
            f"cannot be told from the savepoint's: {is_of.problem}",
            hint="If a query was started here, keep the folder. Otherwise delete the savepoint with the release that "
            f"wrote it, or put back {NAME} as it was written.",
        )
    beyond = is_of.find_beyond(blobs)
    others = beyond + [name for name in names if name not in beyond and not is_of.has(name)]
    if not others:
        if pins := Pins(place).list_held(tidies=False):
            raise InvalidInputError(
                f"{place.url} is being copied ({pins[0].name}). Nothing was deleted.",
                hint=f"Wait until the copy ends. If its process was killed, the pin ends within {PIN_S:.0f} s.",
            )
        return is_of
    more = f" and {len(others) - 1} more" if others[1:] else ""
    if beyond:
        raise InvalidInputError(
            f"{place.url} has more than a savepoint, {others[0]}{more}: a query was started here, so this is now that "
            "query's checkpoint. Nothing was deleted.",
            hint="Keep it as a checkpoint. To start a query from a savepoint, first restore the savepoint into another "
            "folder.",
        )
    raise InvalidInputError(
        f"{place.url} has more than a savepoint, {others[0]}{more}, which would be deleted with it. Nothing was "
        "deleted.",
        hint="If a query was started in this folder, it is a live checkpoint: keep it. Otherwise first move everything "
        "that is not part of the savepoint, such as other savepoints and checkpoints, to another folder.",
    )


def is_half_deleted(place: BlobPlace) -> bool:
    """Return whether the deletion of a savepoint has begun. Raises StorageError."""
    return read_mark(place).startswith(DELETING)
