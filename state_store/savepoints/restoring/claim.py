"""The claim of a restore on its target: who may make a checkpoint there, since when, and what an earlier run left.

A restore claims its target with two objects. The request, ``_ckpt/restore/request.json``, says what is restored there;
the first of several calls writes it. The mark, in the place of Spark's ``metadata``, says that this is no checkpoint
yet, so that no query starts there. A call that finds the request of the same restore continues from what the earlier
run left. Once ``metadata`` has the query's id, the target is a checkpoint, and the claim has ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress

from pyspark_ckpt.state_store.blobs import RetryPolicy, with_retries
from pyspark_ckpt.state_store.blobs.exclusive import require_exclusive
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_kind
from pyspark_ckpt.state_store.checkpoints.ownership import OWNER_NAME, claim, other_owner, refuse_links_below
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY
from pyspark_ckpt.state_store.errors import CkptError, ConflictError, InvalidInputError
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.json_objects import seal
from pyspark_ckpt.state_store.savepoints.possession import LOOK_S, OwnFolder
from pyspark_ckpt.state_store.savepoints.restoring.finished import refuse_checkpoint
from pyspark_ckpt.state_store.savepoints.restoring.plan import RestorePlan
from pyspark_ckpt.state_store.savepoints.restoring.request import FinishedRequest, RecordedRequest, Restored
from pyspark_ckpt.state_store.savepoints.restoring.target_records import (
    REQUEST_NAME,
    RESULT_NAME,
    describe_complete,
    forget,
    forget_request,
    has_request,
    is_complete,
    is_unfinished,
    make_mark,
    make_refusal,
    read_recorded,
)
from pyspark_ckpt.state_store.savepoints.savepoint import find_inside, refuse_unless_empty


class RestoreClaim:
    """The right of one restore to make a checkpoint in its target.

    ``recorded`` is the request that counts: the first run's. ``folder`` writes only while the claim stands.
    """

    def __init__(self, plan: RestorePlan) -> None:
        """Claim nothing yet. Raises NotFoundError (a log of the source is missing), StorageError."""
        self._plan, self._place = plan, plan.place
        self.recorded = _make_request(plan)
        self.folder = OwnFolder(plan.place, lambda: self.require(self.stands))
        self._has_begun = False

    def take(self, refuse_damaged_source: Callable[[], object]) -> Restored | None:
        """Take possession of an empty target, or continue from what an earlier run of this restore left there.

        Return the earlier run's result if that run had moved all state. ``refuse_damaged_source`` is called before the
        first write. Raises InvalidInputError (the target is in use), ConflictError, FormatError, StorageError.
        """
        self._require_exclusive_writes()
        wanted = self.recorded
        before, done = read_recorded(self._place)
        if before is None:
            refuse_checkpoint(self._plan, wanted)
            try:
                refuse_unless_empty(self._place, "a checkpoint")
            except InvalidInputError:
                before, done = read_recorded(self._place)  # another run may have begun meanwhile
                if before is None:
                    raise
            else:
                self.refuse_state_of_others()
                refuse_damaged_source()
                before = self._record(wanted)
        if not before.is_repeated_by(wanted):
            raise make_refusal(self._place, before, wanted)
        self.recorded, self._has_begun = before, True
        if done is None:
            self._mark(is_first=before is wanted)
        elif not self._place.list(prefix=QUERY):  # it was there when the result was written
            raise InvalidInputError(
                f"{self._place.url} has the result of this restore, but no metadata: it was deleted afterwards, "
                "perhaps with more.",
                hint="Restore into a new folder.",
            )
        return done

    def keep_result(self, done: Restored) -> None:
        """Record that all state was moved: only ``metadata`` is missing. Raises ConflictError, StorageError."""
        self.folder.put(RESULT_NAME, seal(FinishedRequest(self.recorded, done)))

    @property
    def stands(self) -> bool:
        """Whether this restore owns the target, and it is no checkpoint yet. Raises StorageError."""
        return is_unfinished(self._place, self.recorded)

    def require_complete(self) -> None:
        """Raise ConflictError unless the target is the checkpoint that this restore made; StorageError."""
        self.require(is_complete(self._place, self.recorded))

    def require_complete_and_own(self) -> None:
        """Raise ConflictError unless it is, and the request proves that it is still the same folder; StorageError."""
        self.require(is_complete(self._place, self.recorded) and has_request(self._place, self.recorded))

    @property
    def has_request(self) -> bool:
        """Whether the request is still in the target. Raises FormatError, StorageError."""
        return has_request(self._place, self.recorded)

    def forget(self) -> None:
        """Delete the records of the restore from the complete checkpoint. Raises StorageError."""
        forget(self._place, self.recorded)

    def refuse_state_of_others(self) -> None:
        """Raise InvalidInputError if another query uses the folder of the query's id below ``remote``; StorageError."""
        folder = self._plan.folder_of_query(self._plan.query_id)
        if folder is None:
            return
        names = [blob.name for blob in folder.walk() if blob.name != OWNER_NAME]
        if owner := other_owner(folder, self._place):
            remedy = f"If no query will ever run on {owner} again, and its state is not needed, delete {folder.url}."
            if (inside := find_inside(folder, names)) is not None:
                remedy = f"Do not delete {folder.url}: it has {inside[0].value} in {folder.url}/{inside[1]}."
            raise InvalidInputError(
                f"{folder.url} belongs to the checkpoint {owner}, whose query has the same id.",
                hint=f"Restore with `query_id` 'new', or name another folder in the option remote. {remedy}",
            )
        if names:
            raise InvalidInputError(
                f"{folder.url} already has the state of a query with the same id, perhaps from an earlier restore to "
                f"{self._place.url}.",
                hint="Restore with `query_id` 'new', or name another folder in the option remote.",
            )

    def describe_what_is_left(self) -> str:
        """Return what a failed restore has left in the target, and what to do; empty if nothing is left."""
        if not self._has_begun:
            return ""
        place = with_retries(self._place, RetryPolicy(LOOK_S))
        with suppress(CkptError):  # if this fails, assume that the last writes are left
            if is_complete(place, self.recorded):
                return describe_complete(self._place)
            if find_kind(place) is FolderKind.CHECKPOINT or not is_unfinished(place, self.recorded):
                return ""
        left = (
            f"An unfinished restore is left in {self._place.url}: remove the cause, then repeat the call with the same "
            "arguments to finish it. Or restore into a new folder."
        )
        if (folder := self._plan.folder_of_query(self.recorded.query_id)) is not None:
            left += f" For a new folder, also change the option remote: {folder.url} has state of this restore."
        return left

    def require(self, is_own: bool) -> None:  # noqa: FBT001
        """Raise ConflictError unless this restore still owns the target."""
        if not is_own:
            raise ConflictError(
                f"{self._place.url} is no longer the target of this restore: it was deleted, or its metadata was "
                "replaced, perhaps by another run of the same restore that has finished.",
                hint="See what is there now. If it is not the checkpoint of this restore, name a new folder.",
            )

    def _require_exclusive_writes(self) -> None:
        require_exclusive(self._place, "restores", "Restore to another place.")
        if (folder := self._plan.folder_of_query(self.recorded.query_id)) is not None:
            require_exclusive(folder, "restores", "Name another place in the option remote.")

    def _record(self, wanted: RecordedRequest) -> RecordedRequest:
        """Record the restore in the target; return the record of another run that was first."""
        if self._place.put_if_absent(REQUEST_NAME, seal(wanted)):
            return wanted
        return read_sealed(self._place, REQUEST_NAME, RecordedRequest)

    def _mark(self, *, is_first: bool) -> None:
        """Mark the target as unfinished, and claim the query's folder below ``remote``, where one restore may write."""
        folder = self._plan.folder_of_query(self.recorded.query_id)
        if not is_first:  # this run replaces objects there
            for each in (self._place, *([] if folder is None else [folder])):
                refuse_links_below(each)
        is_marked = self._place.put_if_absent(QUERY, make_mark(self.recorded, self._place.url))
        if not is_marked and not self.stands:
            if is_first:  # the other restore had finished before this one was recorded
                forget_request(self._place, self.recorded)
            raise InvalidInputError(
                f"{self._place.url} is now a checkpoint, or the target of another restore: its metadata is not this "
                "restore's.",
                hint="Restore into a new folder.",
            )
        if folder is not None:
            claim(folder, self._place, self._plan.options.remote)


def _make_request(plan: RestorePlan) -> RecordedRequest:
    request = plan.request
    return RecordedRequest(
        source=plan.source.url,
        source_query=plan.source.checkpoint.query_id,
        version=plan.source.version,
        partitions=plan.partitions,
        uid_map=dict(request.uid_map),
        query_id=plan.query_id,
        keeps_id=request.query_id == "keep",
        remote=plan.options.remote,
        source_digest=plan.source.digest(),
        run=uuid.uuid4().hex,
        source_names=request.source_names,
        provider=request.provider,
        replay_from="".join(request.replay_from[:1]),
        replay_also_from=request.replay_from[1:],
    )
