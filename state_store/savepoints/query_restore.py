"""Make a new checkpoint from a savepoint, or from the checkpoint of a stopped query, for any number of partitions.

The target is not a checkpoint until it is complete. Spark does not start a query without a valid ``metadata``, and this
is written last; until then it says that a restore has not finished. What a restore has done is recorded below
``_ckpt/restore``. A second run of the same restore continues from there.

Every state is read before and after. If the digests differ, the restore fails and the target stays unusable. Stores
that keep their number of partitions are copied object by object, with all checksums, and their rows are read, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TypeAlias

from pyspark_ckpt.state_store.blobs import BlobPlace, RetryPolicy, with_retries
from pyspark_ckpt.state_store.blobs.exclusive import require_exclusive
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_kind, find_savepoint_kind
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion, list_operators
from pyspark_ckpt.state_store.checkpoints.ownership import OWNER_NAME, claim, other_owner, refuse_links_below
from pyspark_ckpt.state_store.checkpoints.query.copying import (
    RenamingTarget,
    Target,
    copy_id,
    copy_logs,
    copy_operators,
    read_logs,
)
from pyspark_ckpt.state_store.checkpoints.query.entries import read_partitions
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY, log_names, operator_names
from pyspark_ckpt.state_store.checkpoints.query.proof import LogProof, QueryFile
from pyspark_ckpt.state_store.checkpoints.query.rewriter import Ids, LogRewriter
from pyspark_ckpt.state_store.checkpoints.query.source_names import SourceNames
from pyspark_ckpt.state_store.checkpoints.replay import Replay
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import CkptError, ConflictError, FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.names import (
    CHECKPOINT_FOLDER,
    NON_RESTORED_STATE_NAME,
    PROVIDER_CLASS,
)
from pyspark_ckpt.state_store.format.remote import folder_of_query, point_to
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import seal
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.canonical import SavedRows
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.savepoints.finished import refuse_checkpoint
from pyspark_ckpt.state_store.savepoints.movement import Movement
from pyspark_ckpt.state_store.savepoints.nesting import refuse_nested, refuse_nested_state
from pyspark_ckpt.state_store.savepoints.plan import Origin, OtherStores, OtherTarget, RestorePlan
from pyspark_ckpt.state_store.savepoints.possession import (
    LOOK_S,
    OwnFolder,
    advising_to_verify,
    explaining_what_is_left,
)
from pyspark_ckpt.state_store.savepoints.request import (
    FinishedRequest,
    ProvenState,
    RecordedRequest,
    Restored,
    RestoreRequest,
)
from pyspark_ckpt.state_store.savepoints.restore_target import (
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
from pyspark_ckpt.state_store.savepoints.savepoint import Savepoint, find_inside, refuse_unless_empty

AtEnd: TypeAlias = Callable[[Callable[[], object]], bool]


class QueryRestore:
    """Plans and runs one restore."""

    def __init__(
        self,
        source: Checkpoint,
        version: int,
        operators: Sequence[OperatorVersion],
        target: str,
        request: RestoreRequest,
        options: Options,
        files: Sequence[QueryFile] | None = None,
        saved: Sequence[SavedRows] = (),
        others: OtherStores | None = None,
        other_target: OtherTarget | None = None,
    ) -> None:
        """Plan the restore of ``operators``, all at ``version``.

        ``files``: what Spark's files must be, if known. Their ``metadata`` is ignored: it was checked before.
        ``saved``: rows of the operators, if the source is a canonical savepoint. ``others``: what moves them, if they
        are in stores of another kind; ``other_target``: if they are to be. Raises InvalidInputError, FormatError.
        """
        self.source, self._version = source, version
        self._files = files
        self._request = request
        self._query_id = source.query_id if request.query_id == "keep" else str(uuid.uuid4())
        workplace, old_partitions = Workplace(replace(options, remote="")), read_partitions(source.place, version - 1)
        self.plan = RestorePlan(
            options,
            workplace,
            workplace.resolve(target),
            source.place.url,
            operators,
            old_partitions,
            old_partitions if request.partitions is None else request.partitions,
            request.uid_map,
            {(rows.operator, rows.name): rows for rows in saved},
            source.info if isinstance(source, Savepoint) else None,
            others,
            other_target,
            request.shares,
        )
        self._place = self.plan.place
        self._recorded: RecordedRequest | None = None
        self._origin = Origin(source, version, operators)
        self._check()
        names = request.source_names
        self._names = SourceNames(source.place, version - 1, names) if names else None
        earlier = request.replay_from
        runs = [workplace.resolve(each) for each in earlier]
        self._replay = Replay(runs, source.place, version - 1) if runs else None

    def run(self, runner: Runner, progress: Progress, at_end: AtEnd | None = None) -> Restored:
        """Restore; after return the target is a durable checkpoint from which a query can continue.

        ``at_end`` is called when the checkpoint is complete, with what raises ConflictError unless it still is. It
        returns False if something else is at the URL of the source now. If it fails, so does the restore; the same call
        finishes both. Raises InvalidInputError (the target is in use), ConflictError (it or the source was replaced
        meanwhile), NotFoundError, FormatError (damage, or a digest that differs), StorageError (the same call may be
        repeated).
        """
        is_ours = self.plan.others is None  # only then there is a command that verifies it
        advising = advising_to_verify(self.source) if is_ours else nullcontext()
        with explaining_what_is_left(self._describe_what_is_left), advising:
            recorded, before = self._begin()
            own = OwnFolder(self._place, lambda: self._require(is_unfinished(self._place, recorded)))
            if before is None:
                done = self._restore(recorded, runner, progress, own)
                self._origin.require_unchanged()
                own.put(RESULT_NAME, seal(FinishedRequest(recorded, done)))
            else:
                done = before
            if is_unfinished(self._place, recorded):
                copy_id(self.source.place, own, self._rewriting(recorded, {}))
            self._require(is_complete(self._place, recorded))
            if at_end is not None:
                if before is not None and self.plan.target is None:  # it may have lost state since the earlier run
                    list_operators(Checkpoint(self._place.url, self.plan.options), self._version)
                self._end(recorded, at_end)
            forget(self._place, recorded)
        return done

    def _end(self, recorded: RecordedRequest, at_end: AtEnd) -> None:
        def require_own() -> None:
            self._require(is_complete(self._place, recorded) and has_request(self._place, recorded))

        if not has_request(self._place, recorded):  # nothing shows any more that this is what the restore has made
            forget(self._place, recorded)
            self._require(find_savepoint_kind(self.source.place) is not None)
            raise ConflictError(
                f"{self._place.url} is a complete checkpoint, and an earlier run of this restore, or another call, was "
                f"cleaning up there: {self.source.place.url} is kept.",
                hint="Start the query there. If the savepoint is not needed, use `pyspark-ckpt savepoint delete`.",
            )
        require_own()
        if not at_end(require_own):
            forget(self._place, recorded)
            raise ConflictError(
                f"{self.source.place.url} was deleted or replaced while it was being restored: it is not claimed.",
                hint=f"The checkpoint {self._place.url} is complete: start the query there.",
            )

    def _describe_what_is_left(self) -> str:
        """Return what is left in the target if the restore has failed, and what to do; empty if nothing is."""
        place, recorded = with_retries(self._place, RetryPolicy(LOOK_S)), self._recorded
        if recorded is None:
            return ""
        with suppress(CkptError):  # else it is what was written last
            if is_complete(place, recorded):
                return describe_complete(self._place)
            if find_kind(place) is FolderKind.CHECKPOINT or not is_unfinished(place, recorded):
                return ""
        left = (
            f"An unfinished restore is left in {self._place.url}: once the cause is removed, the same call with the "
            "same arguments finishes it. Or restore into a new folder."
        )
        if self.plan.options.remote:
            folder = self._folder_of_query(recorded.query_id).url
            left += f" Then name another folder in the option remote, too: {folder} has state of this one."
        return left

    def _require(self, is_own: bool) -> None:  # noqa: FBT001
        """Raise ConflictError unless the target is still this restore's."""
        if not is_own:
            raise ConflictError(
                f"{self._place.url} is no longer the target of this restore: it was deleted, or its metadata was "
                "replaced, perhaps by another run of the same restore that has finished.",
                hint="See what is there now. To restore once more, name a new folder.",
            )

    def _restore(self, recorded: RecordedRequest, runner: Runner, progress: Progress, own: OwnFolder) -> Restored:
        work = Movement(self.plan, recorded, runner, progress, own.require)
        proven: list[ProvenState] = []
        ids: dict[str, list[list[str]]] = {}
        logs = read_logs(self.source.place, self._version - 1)  # first: a query that runs soon deletes them
        for operator in self.plan.operators:
            states, made = work.redistribute(operator)
            proven += states
            if self.plan.target is None:
                ids[str(operator.operator.number)] = self._ids(operator, made)
                if not self.source.ids(operator.operator.number):
                    work.decide_winners(made)
        own.require()
        for identity, url in work.pointers:
            point_to(self.plan.workplace.place(url), self._place, identity)
        if self._request.allow_non_restored_state:
            own.put(f"{CHECKPOINT_FOLDER}/{NON_RESTORED_STATE_NAME}", b"")
        change = self._proving(self._rewriting(recorded, ids))
        copy_logs(logs, self.source.place, self._rename_sources(own), change)
        if self._replay is not None:
            self._replay.copy(own, self._rename_sources(own), self._rewriting(recorded, ids))
        copy_operators(self.source.place, own, change)
        for name, content in self.plan.describe_operators().items():
            own.put(name, content)
        self._require_all(change)
        return Restored(
            self._place.url,
            recorded.query_id,
            self._version,
            self.plan.partitions,
            tuple(proven),
            work.copied_bytes,
            work.rewritten_bytes,
        )

    def _rewriting(self, recorded: RecordedRequest, ids: Ids) -> LogRewriter:
        batch, target = self._version - 1, self._place.url
        provider = PROVIDER_CLASS if self.plan.target is None else self.plan.target.provider_class
        return LogRewriter(batch, self.plan.partitions, ids, recorded.query_id, target, self._names, provider)

    def _rename_sources(self, own: OwnFolder) -> Target:
        return own if self._names is None else RenamingTarget(own, self._names.rename_file)

    def _proving(self, rewriting: LogRewriter) -> LogRewriter | LogProof:
        """Return what changes files, and checks them first if it is known what they must be."""
        return rewriting if self._files is None else LogProof(_but_the_id(self._files), rewriting)

    def _require_all(self, change: LogRewriter | LogProof) -> None:
        """Raise NotFoundError if a file that the savepoint lists was not changed."""
        if isinstance(change, LogProof):
            change.require_all(self.source.place)

    def _refuse_damaged_files(self, recorded: RecordedRequest) -> None:
        """Raise what copying the files of the query would be refused for. Writes nothing.

        Raises NotFoundError, FormatError, InvalidInputError (a link to a folder), StorageError.
        """
        place, change = self.source.place, self._proving(self._rewriting(recorded, {}))
        for name in (*log_names(place, self._version - 1), *operator_names(place)):
            with suppress(NotFoundError):  # replaced meanwhile by a query that runs
                change(name, place.get(name), f"{place.url}/{name}")
        self._require_all(change)

    def _check(self) -> None:
        refuse_nested(self._place, self.source, "a checkpoint")
        if self.plan.options.remote:
            refuse_nested_state(self._folder_of_query(self._query_id), self.source, self._place)
        if self._request.query_id not in ("keep", "new"):
            raise InvalidInputError(f"`query_id` must be 'keep' or 'new', got {self._request.query_id!r}.")
        self.plan.require_restorable(allows_non_restored_state=self._request.allow_non_restored_state)

    def _begin(self) -> tuple[RecordedRequest, Restored | None]:
        """Take possession of the target: an empty one, or what an earlier run of this restore left there.

        Return the recorded request, and the result if the earlier run got that far.
        """
        recorded = RecordedRequest(
            self.source.place.url,
            self.source.query_id,
            self._version,
            self.plan.partitions,
            dict(self._request.uid_map),
            self._query_id,
            self._request.query_id == "keep",
            self.plan.options.remote,
            self._origin.digest,
            uuid.uuid4().hex,
            self._request.source_names,
            self._request.provider,
            "".join(self._request.replay_from[:1]),
            self._request.replay_from[1:],
        )
        require_exclusive(self._place, "restores", "Restore to another place.")
        if self.plan.options.remote:
            require_exclusive(
                self._folder_of_query(recorded.query_id), "restores", "Name another place in the option remote."
            )
        before, done = read_recorded(self._place)
        if before is None:
            allows = self._request.allow_non_restored_state
            refuse_checkpoint(self.plan, recorded, allows_non_restored_state=allows)
            try:
                refuse_unless_empty(self._place, "a checkpoint")
            except InvalidInputError:
                before, done = read_recorded(self._place)  # another run may have begun since
                if before is None:
                    raise
            else:
                self.refuse_state_of_others()
                self._refuse_damaged_files(recorded)
                before = self._record(recorded)
        if not before.is_repeated_by(recorded):
            raise make_refusal(self._place, before, recorded)
        self._recorded = before
        if done is None:
            self._refuse_links(before, is_new=before is recorded)
            if not self._place.put_if_absent(QUERY, make_mark(before, self._place.url)):
                self._refuse_query(before, is_first=before is recorded)
            self._claim_folder(before)
        elif not self._place.list(prefix=QUERY):  # it was there when the result was written
            raise InvalidInputError(
                f"{self._place.url} has the result of this restore, and no metadata: it was deleted since, and perhaps "
                "more with it.",
                hint="Restore into a new folder.",
            )
        return before, done

    def _refuse_links(self, recorded: RecordedRequest, *, is_new: bool) -> None:
        """Raise InvalidInputError if there is a link in what an earlier run left: this one replaces objects there."""
        if is_new:
            return
        refuse_links_below(self._place)
        if self.plan.options.remote:
            refuse_links_below(self._folder_of_query(recorded.query_id))

    def _record(self, recorded: RecordedRequest) -> RecordedRequest:
        """Record in the target what is restored there; return the record of another run that was first."""
        if self._place.put_if_absent(REQUEST_NAME, seal(recorded)):
            return recorded
        return read_sealed(self._place, REQUEST_NAME, RecordedRequest)

    def refuse_state_of_others(self) -> None:
        """Raise InvalidInputError if the folder of the query's id below ``remote`` is in use by another query.

        ``run`` does so, too, before it writes anything. Raises StorageError.
        """
        if not self.plan.options.remote:
            return
        folder = self._folder_of_query(self._query_id)
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
                f"{folder.url} already has the state of a query with the same id, perhaps of an earlier restore to "
                f"{self._place.url}.",
                hint="Restore with `query_id` 'new', or name another folder in the option remote.",
            )

    def _claim_folder(self, recorded: RecordedRequest) -> None:
        """Claim the query's folder below ``remote``: of several restores with one query id, one may write there."""
        if self.plan.options.remote:
            claim(self._folder_of_query(recorded.query_id), self._place, self.plan.options.remote)

    def _folder_of_query(self, query_id: str) -> BlobPlace:
        return self.plan.workplace.place(folder_of_query(self.plan.options.remote, query_id))

    def _refuse_query(self, recorded: RecordedRequest, *, is_first: bool) -> None:
        if not is_unfinished(self._place, recorded):
            if is_first:  # the other restore had finished before this one was recorded
                forget_request(self._place, recorded)
            raise InvalidInputError(
                f"{self._place.url} is a checkpoint now, or the target of another restore: its metadata is not that of "
                "this restore.",
                hint="Restore into a new folder.",
            )

    def _ids(self, operator: OperatorVersion, made: Mapping[Identity, str]) -> list[list[str]]:
        """Return the ids that the commit log is to name, with the stores in the order of the old commit log."""
        of_partition = self.source.ids(operator.operator.number)
        first = {name: stores[0].meta.id for name, stores in operator.stores.items()}
        order = [name for old in (of_partition or [[]])[0] for name, commit_id in first.items() if commit_id == old]
        number = operator.operator.number
        if of_partition and sorted(order) != sorted(operator.stores):
            raise FormatError(
                f"{self.source.place.url}: the commit log names the stores {order} of operator {number}, "
                f"which has the stores {list(operator.stores)}."
            )
        return [
            [made[Identity(number, partition, name)] for name in order]
            for partition in range(self.plan.count_partitions(operator))
        ]


def _but_the_id(files: Iterable[QueryFile]) -> Iterator[QueryFile]:
    return (file for file in files if file.name != QUERY)
