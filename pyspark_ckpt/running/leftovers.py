"""The files of two checkpoints of one query: return a plan to the old one, and delete what is no longer needed."""

from __future__ import annotations

import time
from contextlib import suppress

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.ownership import OWNER_NAME, find_owner, other_owner
from pyspark_ckpt.state_store.checkpoints.query.files import LOGS, QUERY, SOURCES
from pyspark_ckpt.state_store.checkpoints.query.rewriter import LogRewriter
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.names import CHECKPOINT_FOLDER
from pyspark_ckpt.state_store.format.remote import query_id

LOOKS = 5
PAUSE_S = 0.2
_FOLDERS = (*LOGS, SOURCES, "state", CHECKPOINT_FOLDER)


def return_plan(new: BlobPlace, old: BlobPlace, query_id: str, batch: int, partitions: int) -> bool:
    """Give the old checkpoint the offsets of ``batch``, which the new one has planned but not committed.

    The sink may already have rows of this batch. A sink that knows a batch by its number takes it once, so the batch
    must have the same rows when it runs again, with ``partitions`` partitions. Return whether the new checkpoint had
    planned it. Raises FormatError, StorageError.
    """
    name = f"offsets/{batch}"
    try:
        planned = new.get(name)
    except NotFoundError:
        return False
    known = {blob.name for blob in old.walk(SOURCES)}
    for blob in new.walk(SOURCES):  # before the offsets, as Spark does
        if blob.name not in known:
            old.put_if_absent(blob.name, new.get(blob.name))
    rewrite = LogRewriter(batch - 1, partitions, {}, query_id, old.url)
    old.put_if_absent(name, rewrite(name, planned, f"{new.url}/{name}"))
    return True


def refuse_other_files(checkpoint: BlobPlace) -> None:
    """Raise InvalidInputError if a checkpoint that is to be deleted has files that do not belong to a checkpoint.

    Raises StorageError.
    """
    for blob in checkpoint.walk():
        first, _, rest = blob.name.partition("/")
        if (rest and first not in _FOLDERS) or (not rest and first != QUERY) or blob.name.endswith("/"):
            raise InvalidInputError(
                f"{checkpoint.url} cannot be deleted: it has {blob.name}, which does not belong to a checkpoint.",
                hint="Leave out old_checkpoint='delete', and delete what you do not need yourself.",
            )


def delete_state(checkpoint: BlobPlace, query: str) -> None:
    """Delete the rows of a checkpoint of ``query`` that will not be used, and leave the logs.

    Raises InvalidInputError (it is not that query's: nothing was deleted), StorageError.
    """
    _require_query(checkpoint, query)
    _delete_all(checkpoint, "state")


def _delete_all(place: BlobPlace, folder: str = "", kept: str = "") -> None:
    """Delete all files of a folder but ``kept``, also those that a snapshot of the stopped query adds meanwhile."""
    for _ in range(LOOKS):
        found = [blob.name for blob in place.walk(folder) if blob.name != kept]
        for name in found:
            place.delete(name)
        if not found:
            return
        time.sleep(PAUSE_S)


def _require_query(checkpoint: BlobPlace, query: str) -> None:
    """Raise InvalidInputError unless a checkpoint is of ``query``: another may have been made there meanwhile."""
    with suppress(NotFoundError, FormatError):
        if query_id(checkpoint) == query:
            return
    raise InvalidInputError(
        f"{checkpoint.url} is no longer the checkpoint of query {query}: nothing was deleted.",
        hint="Look at what is there, and delete what you do not need yourself.",
    )


def delete_checkpoint(checkpoint: BlobPlace, query: str, state: BlobPlace | None) -> None:
    """Delete a checkpoint of ``query``, and the folder of its ``state`` below the option ``remote``, if it has one.

    ``metadata`` goes first, so that no query starts there with half of its state. Raises InvalidInputError (it is not
    that query's, or has other files: nothing was deleted), StorageError.
    """
    _require_query(checkpoint, query)
    refuse_other_files(checkpoint)
    is_own = state is not None and bool(find_owner(state)) and not other_owner(state, checkpoint)
    checkpoint.delete(QUERY)
    _delete_all(checkpoint)
    checkpoint.remove_empty_folders()
    if state is not None and is_own:
        _delete_all(state, kept=OWNER_NAME)
        state.delete(OWNER_NAME)  # last: it says whose the rest is
        state.remove_empty_folders()
