"""Explain why a version of a store is not in the expected place: the state may be in another place."""

from __future__ import annotations

from pyspark_ckpt.state_store.blobs import BlobPlace, find_options
from pyspark_ckpt.state_store.checkpoints.folder_kind import (
    COPY_AGAIN,
    FolderKind,
    advise_on_unfinished,
    find_savepoint_kind,
)
from pyspark_ckpt.state_store.display import write_command, write_rescale
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.names import ROWS_FOLDER
from pyspark_ckpt.state_store.format.remote import POINTER_NAME, is_same_place, read_pointer, store_folder
from pyspark_ckpt.state_store.identity import Identity

_OPTION = "spark.sql.streaming.stateStore.ckpt.remote"


def explain_missing(
    problem: NotFoundError, place: BlobPlace, checkpoint: BlobPlace, identity: Identity, remote: str
) -> NotFoundError:
    """Return the error for a version that is not in ``place``: ``problem``, or one that says where the state is.

    The checkpoint's pointer, the checkpoint's own folder of the store, and the marks of savepoints decide. ``remote``
    is the option of the session. Raises StorageError, FormatError.
    """
    folder = store_folder(identity)
    own, pointed = f"{checkpoint.url}/{folder}", read_pointer(checkpoint, identity, remote)
    if pointed is not None and not is_same_place(pointed, place.url):
        return _is_elsewhere(problem, place, f"{own}/{POINTER_NAME}", pointed, folder, remote)
    if not is_same_place(own, place.url):
        here = Lineage.of(checkpoint.list(folder), lead=f"{folder}/")
        here.where = own
        if not here.is_empty:
            return _is_here(problem, place, here, checkpoint, remote)
    if not Lineage.read(place).is_empty:
        is_lost = find_savepoint_kind(checkpoint) is FolderKind.SAVEPOINT
        return NotFoundError(problem.message, hint=COPY_AGAIN) if is_lost else problem
    if pointed is not None:
        return NotFoundError(
            f"{problem.message} {own}/{POINTER_NAME} says that this state is in {pointed}, but nothing is there.",
            hint="Restore that folder from a backup, or put it back if it was moved: a checkpoint and its state belong "
            "together.",
        )
    return _is_of_a_savepoint(problem, checkpoint)


def _is_elsewhere(
    problem: NotFoundError, place: BlobPlace, pointer: str, pointed: str, folder: str, remote: str
) -> NotFoundError:
    its = pointed.removesuffix(f"/{folder}").rpartition("/")[0]
    has = f"this session has the value {remote!r}" if remote else "this session does not have it"
    return NotFoundError(
        f"{problem.message} But {pointer} says that this state is in {pointed}, not in {place.url}: the query was "
        f"started with the option remote, and {has}.",
        hint=f"Set {_OPTION} to {its} in this session.",
    )


def _is_here(
    problem: NotFoundError, place: BlobPlace, here: Lineage, checkpoint: BlobPlace, remote: str
) -> NotFoundError:
    rescale = write_rescale(checkpoint.url, remote=remote, **find_options(checkpoint, place))
    return NotFoundError(
        f"{problem.message} But {here.describe()}: this state is in the checkpoint, not in {place.url}. The query was "
        f"started without the option remote, and this session has the value {remote!r}.",
        hint=f"Remove {_OPTION} from this session. To move the state there, make a new checkpoint: {rescale}.",
    )


def _is_of_a_savepoint(problem: NotFoundError, checkpoint: BlobPlace) -> NotFoundError:
    kind = find_savepoint_kind(checkpoint)
    if kind is FolderKind.UNFINISHED_SAVEPOINT:
        return NotFoundError(
            f"{problem.message} {checkpoint.url} is {kind.value}.",
            hint=advise_on_unfinished(checkpoint),
        )
    if kind is FolderKind.SAVEPOINT and checkpoint.walk(ROWS_FOLDER):
        restore = write_command("savepoint", "restore", checkpoint.url, "NEW_CHECKPOINT", **find_options(checkpoint))
        return NotFoundError(
            f"{problem.message} {checkpoint.url} is a canonical savepoint, on which no query can start.",
            hint=f"Restore it: {restore}.",
        )
    return problem
