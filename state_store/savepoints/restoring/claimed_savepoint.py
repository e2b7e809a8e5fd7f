"""Delete a savepoint that a restore has claimed, once its checkpoint is complete; also after an interruption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_kind
from pyspark_ckpt.state_store.checkpoints.inventory import list_operators
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.display import count_text
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.savepoints.deletion import delete, is_half_deleted, refuse_link
from pyspark_ckpt.state_store.savepoints.possession import explaining_what_is_left
from pyspark_ckpt.state_store.savepoints.restoring.finished import refuse_claimed
from pyspark_ckpt.state_store.savepoints.restoring.request import Restored, RestoreRequest
from pyspark_ckpt.state_store.savepoints.restoring.target_records import describe_complete, find_finished, forget
from pyspark_ckpt.state_store.savepoints.savepoint import NAME, SavepointInfo, read_info


def delete_claimed(
    location: str, target: str, options: Options, restored: SavepointInfo, require: Callable[[], object]
) -> bool:
    """Delete the savepoint that was ``restored`` to ``target``; if another is there now, keep it and return False.

    If its deletion has begun, finish it. The target must have all state: it may have lost some after an earlier run of
    the restore. Raises as ``delete``, and NotFoundError or FormatError if state is missing.
    """
    list_operators(Checkpoint(target, options), restored.version)
    place = Workplace(options).resolve(location)
    try:
        there = read_info(place)
    except InvalidInputError:
        if not is_half_deleted(place):
            return False
        delete(location, options, require=require)
        return True
    if there != restored:
        return False
    delete(location, options, restored, require)
    return True


def finish_claim(
    location: str, target: str, request: RestoreRequest, options: Options, *, claims: bool
) -> Restored | None:
    """Finish a restore that was interrupted while it deleted its savepoint; return None if there is no such restore.

    Without ``request.partitions``, a restore to any number of partitions matches. Raises InvalidInputError (the restore
    has finished, is another one or claims nothing, or ``location`` is a link), FormatError, StorageError.
    """
    source, place = Workplace(options).resolve(location), Workplace(replace(options, remote="")).resolve(target)
    if claims:
        refuse_link(source)
    if any(blob.name == NAME for blob in source.list(prefix=NAME)) or find_kind(source) is FolderKind.CHECKPOINT:
        return None
    finished = find_finished(place)
    if finished is None or finished.request.source != source.url:
        if claims:
            refuse_claimed(source, place, replace(options, remote=""))
        return None
    is_begun = is_half_deleted(source)
    if (is_begun and not claims) or not finished.request.matches(source.url, request, options.remote):
        raise InvalidInputError(
            f"{place.url} is a complete checkpoint. A restore of {source.url} to "
            f"{count_text(finished.request.partitions, 'partition')} made it, and was interrupted while it deleted the "
            "savepoint that it had claimed. This is another restore.",
            hint="Start the query there. To delete the rest of the savepoint, repeat that restore with the same "
            "arguments.",
        )
    with explaining_what_is_left(lambda: describe_complete(place)):
        if is_begun:
            delete(location, options)
        forget(place, finished.request)
    return finished.result
