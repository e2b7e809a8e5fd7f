"""Make a new checkpoint from a savepoint, or from the checkpoint of a stopped query, for any number of partitions.

The target is not a checkpoint until it is complete. Spark does not start a query without a valid ``metadata``. The
restore writes that file last; until then it says that a restore has not finished. Progress is recorded below
``_ckpt/restore``. A second run of the same restore continues from there.

Every state is read before and after. If the digests differ, the restore fails and the target stays unusable. Stores
that keep their number of partitions are copied object by object, with all checksums, and their rows are read, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TypeAlias

from pyspark_ckpt.state_store.attempts.damaged_logs import naming_repair
from pyspark_ckpt.state_store.checkpoints.folder_kind import find_savepoint_kind
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.query.content import checking_forms
from pyspark_ckpt.state_store.checkpoints.query.copying import (
    RenamingTarget,
    Target,
    copy_id,
    copy_logs,
    copy_operators,
    require_whole,
)
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY, operator_names, source_file_names
from pyspark_ckpt.state_store.checkpoints.query.proof import LogProof
from pyspark_ckpt.state_store.checkpoints.query.rewriter import Ids, LogRewriter
from pyspark_ckpt.state_store.checkpoints.query.source_names import SourceNames
from pyspark_ckpt.state_store.checkpoints.replay import Replay
from pyspark_ckpt.state_store.errors import ConflictError, FormatError
from pyspark_ckpt.state_store.format.names import CHECKPOINT_FOLDER, NON_RESTORED_STATE_NAME, PROVIDER_CLASS
from pyspark_ckpt.state_store.format.remote import point_to
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.savepoints.nesting import refuse_nested, refuse_nested_state
from pyspark_ckpt.state_store.savepoints.possession import advising_to_verify, explaining_what_is_left
from pyspark_ckpt.state_store.savepoints.restoring.claim import RestoreClaim
from pyspark_ckpt.state_store.savepoints.restoring.movement import Movement
from pyspark_ckpt.state_store.savepoints.restoring.plan import RestorePlan
from pyspark_ckpt.state_store.savepoints.restoring.request import ProvenState, Restored

AtEnd: TypeAlias = Callable[[Callable[[], object]], bool]


class QueryRestore:
    """Runs one planned restore."""

    def __init__(self, plan: RestorePlan) -> None:
        """Check that the plan is possible. Writes nothing. Raises InvalidInputError, FormatError, StorageError."""
        self.plan, self._source = plan, plan.source.checkpoint
        refuse_nested(plan.place, self._source, "a checkpoint")
        if (folder := plan.folder_of_query(plan.query_id)) is not None:
            refuse_nested_state(folder, self._source, plan.place)
        plan.require_restorable()
        self.claim = RestoreClaim(plan)
        batch, request = plan.source.version - 1, plan.request
        self._names = SourceNames(self._source.place, batch, request.source_names) if request.source_names else None
        earlier = [plan.workplace.resolve(each) for each in request.replay_from]
        self._replay = Replay(earlier, self._source.place, batch) if earlier else None

    def run(self, runner: Runner, progress: Progress, at_end: AtEnd | None = None) -> Restored:
        """Restore; on return the target is a durable checkpoint from which a query can continue.

        ``at_end`` is called when the checkpoint is complete. Its argument raises ConflictError unless the checkpoint
        still is. It returns False if something else is now at the URL of the source. If it fails, so does the restore;
        the same call finishes both. Raises InvalidInputError (the target is in use), ConflictError (it or the source
        was replaced meanwhile), NotFoundError, FormatError (damage, or a digest that differs), StorageError (the same
        call may be repeated).
        """
        is_ours = self.plan.source.others is None  # only such a source has a command that verifies it
        advising = advising_to_verify(self._source) if is_ours else nullcontext()
        with explaining_what_is_left(self.claim.describe_what_is_left), advising:
            # 1. Claim the target, or continue from what an earlier run left there.
            done = self.claim.take(self._refuse_damaged_files)
            if done is None:
                # 2. Move the state, and the query's files; check that the source has not changed meanwhile.
                done = self._move(runner, progress)
                self.plan.source.require_unchanged(self.claim.recorded.source_digest)
                # 3. Record the result. A later run of the same restore begins here.
                self.claim.keep_result(done)
            # 4. Write the query's id into metadata: from now on, a query can start.
            if self.claim.stands:
                copy_id(self._source.place, self.claim.folder, self._rewriting({}))
            self.claim.require_complete()
            # 5. Let the caller act on the source, such as by deleting it.
            if at_end is not None:
                self._end(at_end)
            # 6. Delete the records of the restore.
            self.claim.forget()
        return done

    def _end(self, at_end: AtEnd) -> None:
        if not self.claim.has_request:  # nothing proves any more that the restore made this
            self.claim.forget()
            self.claim.require(find_savepoint_kind(self._source.place) is not None)
            raise ConflictError(
                f"{self.plan.place.url} is a complete checkpoint, and an earlier run of this restore, or another call, "
                f"was cleaning up there. {self._source.place.url} is kept.",
                hint="Start the query there. If you do not need the savepoint, use `pyspark-ckpt savepoint delete`.",
            )
        self.claim.require_complete_and_own()
        if not at_end(self.claim.require_complete_and_own):
            self.claim.forget()
            raise ConflictError(
                f"{self._source.place.url} was deleted or replaced while it was being restored, so it is not claimed.",
                hint=f"The checkpoint {self.plan.place.url} is complete: start the query there.",
            )

    def _move(self, runner: Runner, progress: Progress) -> Restored:
        """Move the state, and then the files of the query that lead to it."""
        plan, own, recorded = self.plan, self.claim.folder, self.claim.recorded
        work = Movement(plan, recorded, runner, progress, own.require)
        proven: list[ProvenState] = []
        ids: dict[str, list[list[str]]] = {}
        logs = plan.source.read_logs()
        for operator in plan.source.operators:
            states, made = work.redistribute(operator)
            proven += states
            if plan.target is None:
                ids[str(operator.operator.number)] = self._ids(operator, made)
                if not self._source.ids(operator.operator.number):
                    work.decide_winners(made)
        own.require()
        for identity, url in work.pointers:
            point_to(plan.workplace.place(url), plan.place, identity)
        self._copy_files(logs, ids)
        return Restored(
            plan.place.url,
            recorded.query_id,
            plan.source.version,
            plan.partitions,
            tuple(proven),
            work.copied_bytes,
            work.rewritten_bytes,
        )

    def _copy_files(self, logs: Mapping[str, bytes], ids: Ids) -> None:
        """Copy the files of the query, with the new commits in the commit log by their ``ids``."""
        own, place = self.claim.folder, self._source.place
        if self.plan.request.allow_non_restored_state:
            own.put(f"{CHECKPOINT_FOLDER}/{NON_RESTORED_STATE_NAME}", b"")
        rewriting = self._rewriting(ids)
        change = self._proving(rewriting)
        renaming: Target = own if self._names is None else RenamingTarget(own, self._names.rename_file)
        copy_logs(logs, place, renaming, change)
        if self._replay is not None:
            self._replay.copy(own, renaming, rewriting)
        copy_operators(place, own, change)
        for name, content in self.plan.describe_operators().items():
            own.put(name, content)
        self._require_all(change)

    def _rewriting(self, ids: Ids) -> LogRewriter:
        plan = self.plan
        provider = PROVIDER_CLASS if plan.target is None else plan.target.provider_class
        batch, query_id = plan.source.version - 1, self.claim.recorded.query_id
        return LogRewriter(batch, plan.partitions, ids, query_id, plan.place.url, self._names, provider)

    def _proving(self, rewriting: LogRewriter) -> LogRewriter | LogProof:
        """Return the rewriter of the files, wrapped in a check of their content if it is known what they must be.

        ``metadata`` is not among them: it was checked when the savepoint was opened.
        """
        files = self.plan.source.files
        return rewriting if files is None else LogProof((each for each in files if each.name != QUERY), rewriting)

    def _require_all(self, change: LogRewriter | LogProof) -> None:
        """Raise NotFoundError if a file on the savepoint's list was not changed."""
        if isinstance(change, LogProof):
            change.require_all(self._source.place)

    def _refuse_damaged_files(self) -> None:
        """Raise any error that would prevent copying the files of the query. Writes nothing.

        Raises NotFoundError, FormatError, InvalidInputError (a link to a folder), StorageError.
        """
        place, change = self._source.place, self._proving(self._rewriting({}))
        with naming_repair(place) if self.plan.source.others is None else nullcontext():
            for name, content in self.plan.source.read_logs().items():
                change(name, content, f"{place.url}/{name}")
            names = (*source_file_names(place), *operator_names(place))
            is_proven = self.plan.source.files is not None
            require_whole(place, names, change if is_proven else checking_forms(names, change))
            self._require_all(change)

    def _ids(self, operator: OperatorVersion, made: Mapping[Identity, str]) -> list[list[str]]:
        """Return the ids that the commit log is to name, with the stores in the order of the old commit log."""
        number = operator.operator.number
        of_partition = self._source.ids(number)
        first = {name: stores[0].meta.id for name, stores in operator.stores.items()}
        order = [name for old in (of_partition or [[]])[0] for name, commit_id in first.items() if commit_id == old]
        if of_partition and sorted(order) != sorted(operator.stores):
            raise FormatError(
                f"{self._source.place.url}: the commit log names the stores {order} of operator {number}, "
                f"which has the stores {list(operator.stores)}."
            )
        return [
            [made[Identity(number, partition, name)] for name in order]
            for partition in range(self.plan.count_partitions(operator))
        ]
