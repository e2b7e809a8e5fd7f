"""Put a checkpoint back to a batch after which its query can continue. Removed files are kept in the checkpoint.

The repair takes the next run number, as a start of the query does: from then on, a driver that still runs there can
change nothing, and ends. If the query is started meanwhile, the repair ends. Each file is copied to
``_ckpt/removed/<time>/`` before it is deleted, so the same call finishes an interrupted repair.
"""

from __future__ import annotations

import socket
import time
import uuid
from dataclasses import dataclass

import msgspec

from pyspark_ckpt.state_store.attempts.runs import RUN_FORMAT, Epochs, RunObject
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.folder_kind import is_query_id
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY
from pyspark_ckpt.state_store.errors import ConflictError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.names import CHECKPOINT_FOLDER, RUNS_FOLDER, parse_epoch
from pyspark_ckpt.state_store.repair.damaged_checkpoint import DamagedCheckpoint
from pyspark_ckpt.state_store.repair.diagnosis import Diagnosis, diagnose

REMOVED_FOLDER = f"{CHECKPOINT_FOLDER}/removed"
NEW_ID = "new"


@dataclass(frozen=True)
class Repaired:
    """The result. ``kept_in``: the folder, in the checkpoint, of the removed files; empty if there are none.

    ``query_id``: the id that was written, or empty.
    """

    diagnosis: Diagnosis
    kept_in: str = ""
    query_id: str = ""

    @property
    def is_applied(self) -> bool:
        """Whether anything was changed."""
        return bool(self.kept_in or self.query_id)


def choose_query_id(diagnosis: Diagnosis, given: str) -> str:
    """Return the id for ``metadata``; empty if it has one. ``given``: by the user, a UUID or ``new``, or empty.

    Raises InvalidInputError: there already is an id, the given one has another form, or none is known or given.
    """
    if not diagnosis.lacks_id:
        if given:
            raise InvalidInputError(
                f"The checkpoint has a query id, {diagnosis.query_ids[0]}, which `query_id` cannot change."
            )
        return ""
    if given == NEW_ID:
        return str(uuid.uuid4())
    if given:
        if not is_query_id(given):
            raise InvalidInputError(f"`query_id` must be {NEW_ID!r} or an id as Spark makes it, a UUID; got {given!r}.")
        return given
    if len(diagnosis.query_ids) != 1:
        raise InvalidInputError(
            "The id of the query is lost with the file metadata, and nothing in the checkpoint shows it.",
            hint="Look for it in a log of the driver, where Spark writes `id = ...` at a start, or in progress events. "
            f"Then give it as `query_id`. Give {NEW_ID!r} if no sink recognises the query by its id.",
        )
    return diagnosis.query_ids[0]


def repair(checkpoint: DamagedCheckpoint, query_id: str, *, reads_all: bool) -> Repaired:
    """Move away the files that stop the query from continuing, if there are any. Durable on return.

    Any driver that runs the query ends. ``query_id``: see ``choose_query_id``. Raises InvalidInputError (also if no
    batch can be continued, or if lost files are only in a backup), ConflictError (the query was started meanwhile),
    LifecycleError (it continues in another checkpoint), StorageError.
    """
    found = diagnose(checkpoint, reads_all=reads_all)
    choose_query_id(found, query_id)
    if found.is_healthy:
        return Repaired(found)
    _require_possible(checkpoint, found)
    turn = _Turn.take(checkpoint.place)
    found = diagnose(checkpoint, reads_all=reads_all)  # commits before the turn count
    _require_possible(checkpoint, found)
    chosen = choose_query_id(found, query_id)
    folder = f"{REMOVED_FOLDER}/{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{turn.epoch}"
    for name in found.removed:
        turn.require(checkpoint.place)
        _move(checkpoint.place, name, f"{folder}/{name}")
    is_kept = bool(found.removed)
    if chosen:
        turn.require(checkpoint.place)
        is_kept |= _keep(checkpoint.place, QUERY, f"{folder}/{QUERY}")
        checkpoint.place.delete(f".{QUERY}.crc")  # Hadoop's checksum of the former content
        checkpoint.place.put(QUERY, msgspec.json.encode({"id": chosen}))
    return Repaired(found, folder if is_kept else "", chosen)


def _require_possible(checkpoint: DamagedCheckpoint, found: Diagnosis) -> None:
    if found.lost or found.continuation is None:
        raise InvalidInputError(
            f"{checkpoint.place.url} cannot be repaired from its own files, and was not changed.",
            hint="Restore the damaged or missing files from a backup of the checkpoint, or start again from a "
            "savepoint.",
        )


@dataclass(frozen=True)
class _Turn:
    """The number of a run that the repair has taken."""

    epoch: int
    run_id: str

    @classmethod
    def take(cls, place: BlobPlace) -> _Turn:
        """Take the next number. Damaged objects with numbers are not read. Raises StorageError."""
        run = RunObject(RUN_FORMAT, str(uuid.uuid4()), f"pyspark-ckpt checkpoint repair on {socket.gethostname()}")
        while True:
            last = _find_last(place)
            if Epochs(place).take_after(last, run):
                return cls(last + 1, run.run_id)

    def require(self, place: BlobPlace) -> None:
        """Raise ConflictError if another run has begun meanwhile; StorageError."""
        if _find_last(place) != self.epoch:
            raise ConflictError(
                f"The query of {place.url} was started, or another call began to repair it, during this repair.",
                hint="Stop the query, and repeat the repair, which continues where this one ended.",
            )


def _find_last(place: BlobPlace) -> int:
    found = (parse_epoch(blob.name) for blob in place.list(RUNS_FOLDER))
    return max((epoch for epoch in found if epoch is not None), default=0)


def _move(place: BlobPlace, name: str, new_name: str) -> None:
    """Move an object. If it is gone, an earlier call has moved it."""
    _keep(place, name, new_name)
    place.delete(name)


def _keep(place: BlobPlace, name: str, new_name: str) -> bool:
    """Copy an object. Return whether it was there."""
    try:
        content = place.get(name)
    except NotFoundError:
        return False
    place.put(new_name, content)
    return True
