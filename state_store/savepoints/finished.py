"""Tell a user who repeats a restore that has finished what is in its target now."""

from __future__ import annotations

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_kind
from pyspark_ckpt.state_store.checkpoints.query_log import read_partitions
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.savepoints.nesting import is_within
from pyspark_ckpt.state_store.savepoints.request import RecordedRequest


def refuse_checkpoint(place: BlobPlace, wanted: RecordedRequest, origin: str, options: Options) -> None:
    """Raise InvalidInputError if the target of a restore is the checkpoint of a query already.

    The error says whether the restore that is ``wanted`` has made it, as far as the checkpoint shows that. ``origin``:
    the checkpoint of which the savepoint was taken, else empty. Raises StorageError.
    """
    if find_kind(place) is not FolderKind.CHECKPOINT:
        return
    there, partitions = _open(place, options)
    is_origin = bool(origin) and is_within(place, origin)
    is_like = there.newest_version >= wanted.version and partitions == wanted.partitions and not is_origin
    if is_like and there.query_id == wanted.query_id:
        has_run = " The query has run since." if there.newest_version > wanted.version else ""
        raise InvalidInputError(
            f"{place.url} is not empty: this restore has finished already. It is {_describe(there, partitions)}."
            f"{has_run}",
            hint=f"Start the query there, with spark.sql.shuffle.partitions={partitions}. To restore once more, name a "
            "new folder.",
        )
    is_perhaps = is_like and not wanted.keeps_id and there.query_id != wanted.source_query
    perhaps = "An earlier run of this restore may have made it, under a new query id. " if is_perhaps else ""
    raise InvalidInputError(
        f"{place.url} is not empty: it is {_describe(there, partitions)}.",
        hint=f"{perhaps}Name a new folder for a checkpoint.",
    )


def refuse_claimed(source: BlobPlace, place: BlobPlace, options: Options) -> None:
    """Raise InvalidInputError if nothing is left of the savepoint to claim, and its target is a checkpoint already.

    Raises StorageError.
    """
    if find_kind(source) is not None or find_kind(place) is not FolderKind.CHECKPOINT or source.walk():
        return
    raise InvalidInputError(
        f"{source.url} is not a savepoint: nothing is there. {place.url} is {_describe(*_open(place, options))}.",
        hint="If this restore has finished before, it has deleted the savepoint that it claimed, and there is nothing "
        "left to do: start the query there.",
    )


def _open(place: BlobPlace, options: Options) -> tuple[Checkpoint, int | None]:
    """Return a checkpoint, and the number of its partitions, if its log of the newest batch says that."""
    there = Checkpoint(place.url, options)
    try:
        return there, read_partitions(place, there.newest_version - 1)
    except (NotFoundError, FormatError):  # no batch is committed, or the log is damaged: what is known is enough
        return there, None


def _describe(checkpoint: Checkpoint, partitions: int | None) -> str:
    with_partitions = "" if partitions is None else f", with {partitions} partitions"
    return f"the checkpoint of query {checkpoint.query_id} at version {checkpoint.newest_version}{with_partitions}"
