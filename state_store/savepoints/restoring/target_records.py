"""The target of a restore: who owns it, and what an earlier run of the restore has recorded there."""

from __future__ import annotations

import msgspec
import xxhash

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_kind, read_unfinished_request
from pyspark_ckpt.state_store.display import count_text
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.names import RESTORE_REQUEST_NAME, WORK_FOLDER
from pyspark_ckpt.state_store.format.remote import query_id
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.savepoints.restoring.request import FinishedRequest, RecordedRequest, Restored

REQUEST_NAME = RESTORE_REQUEST_NAME
RESULT_NAME = f"{WORK_FOLDER}/result.json"
MAX_RESULT_BYTES = 64 << 20


def read_recorded(place: BlobPlace) -> tuple[RecordedRequest | None, Restored | None]:
    """Return the request and the result that an earlier run has recorded in the target; None for a missing one.

    Raises FormatError, StorageError.
    """
    try:
        finished = read_sealed(place, RESULT_NAME, FinishedRequest, MAX_RESULT_BYTES)
    except NotFoundError:
        pass
    else:
        return finished.request, finished.result
    try:
        return read_sealed(place, REQUEST_NAME, RecordedRequest), None
    except NotFoundError:
        return None, None


def make_refusal(place: BlobPlace, before: RecordedRequest, recorded: RecordedRequest) -> InvalidInputError:
    """Return the error for a target of another restore, recorded as ``before``. Raises StorageError."""
    what = f"{before.source}, version {before.version}, to {count_text(before.partitions, 'partition')}"
    what += f" of {before.provider.rpartition('.')[2]}" if before.provider else ""
    is_complete = find_kind(place) is FolderKind.CHECKPOINT
    same_source = msgspec.structs.replace(recorded, source_digest=before.source_digest)
    if before.is_repeated_by(same_source):
        is_usable = f"Start the query on {place.url}: that checkpoint is complete. " if is_complete else ""
        changed = f"{before.source} has changed since: another savepoint or checkpoint is there now"
        if not before.source_digest:
            changed = f"the release that began it did not record what {before.source} held"
        return InvalidInputError(
            f"{place.url} has {'the checkpoint' if is_complete else 'an unfinished restore'} of {what}, and {changed}.",
            hint=f"{is_usable}To restore the present content, name a new folder.",
        )
    is_same_call = before.is_repeated_by(msgspec.structs.replace(same_source, version=before.version))
    is_later = is_same_call and recorded.version > before.version
    if is_complete and is_later:
        return InvalidInputError(
            f"{place.url} has the checkpoint of {what}, and {before.source} is at version {recorded.version} now.",
            hint=f"Start the query on {place.url}: that checkpoint is complete. For the newer version, name a new "
            "folder.",
        )
    if is_complete:
        return InvalidInputError(
            f"{place.url} is not empty: it is a complete checkpoint, made by a restore of {what}, and this is another "
            "restore.",
            hint="Name a new folder. The restore that made it was interrupted while it cleaned up; repeating it "
            "finishes the clean-up.",
        )
    hint = "Repeat that restore with the same arguments, or name a new folder."
    if is_later:
        hint = f"{before.source} is at version {recorded.version} now, so name a new folder."
    return InvalidInputError(
        f"{place.url} has an unfinished restore of {what}, and this is another restore"
        f"{f', of version {recorded.version}' if before.version != recorded.version else ''}.",
        hint=hint,
    )


def find_finished(place: BlobPlace) -> FinishedRequest | None:
    """Return the restore that was interrupted after its checkpoint in ``place`` was complete, or None.

    Raises FormatError, StorageError.
    """
    try:
        finished = read_sealed(place, RESULT_NAME, FinishedRequest, MAX_RESULT_BYTES)
    except NotFoundError:
        return None
    try:
        return finished if query_id(place) == finished.request.query_id else None
    except (NotFoundError, FormatError):  # deleted, or not complete
        return None


def is_complete(place: BlobPlace, recorded: RecordedRequest) -> bool:
    """Return whether the target of this restore is complete, and has its result. Raises FormatError, StorageError."""
    finished = find_finished(place)
    return finished is not None and finished.request == recorded


def has_request(place: BlobPlace, recorded: RecordedRequest) -> bool:
    """Return whether the request of this restore is in its target, which proves that the folder is still the same.

    Raises FormatError, StorageError.
    """
    try:
        return read_sealed(place, REQUEST_NAME, RecordedRequest) == recorded
    except NotFoundError:
        return False


def describe_complete(place: BlobPlace) -> str:
    """Return what is left if a restore fails after its checkpoint in ``place`` was complete."""
    return f"The checkpoint {place.url} is complete. Only the clean-up is left: the same call finishes it."


def forget(place: BlobPlace, recorded: RecordedRequest) -> None:
    """Delete the records of a restore from its target, which is now a complete checkpoint. Raises StorageError.

    The records of another restore that has begun there meanwhile are kept.
    """
    for blob in place.walk(WORK_FOLDER):
        if blob.name not in (REQUEST_NAME, RESULT_NAME):
            place.delete(blob.name)
    forget_request(place, recorded)
    if is_complete(place, recorded):
        place.delete(RESULT_NAME)  # last: a run that finds the result need not, and must not, repeat anything


def forget_request(place: BlobPlace, recorded: RecordedRequest) -> None:
    """Delete the request of a restore, but not that of another one. Raises FormatError, StorageError."""
    if has_request(place, recorded):
        place.delete(REQUEST_NAME)


def make_mark(recorded: RecordedRequest, target: str) -> bytes:
    """Return the ``metadata`` of a target before it is a checkpoint: Spark refuses to start a query on it.

    Spark's error shows this value in place of the query's id, so the value says what to do.
    """
    explained = (
        f"{target} is an unfinished restore of {recorded.source}, not a checkpoint. Repeat the same restore or rescale "
        "with the same arguments, which finishes it, or name a new folder"
    )
    return msgspec.json.encode({"id": [explained], "request": digest_request(recorded)})


def is_unfinished(place: BlobPlace, recorded: RecordedRequest) -> bool:
    """Return whether the ``metadata`` in ``place`` is the mark of this restore. Raises StorageError."""
    return read_unfinished_request(place) == digest_request(recorded)


def digest_request(recorded: RecordedRequest) -> str:
    """Return the digest of a restore's request, as in its mark."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(recorded))
