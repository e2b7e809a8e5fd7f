"""Move the rows of every operator into the stores of a new checkpoint, and prove that they are the same.

Every state is read before and after, even if the stores stay as they are and are copied object by object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor

import xxhash

from pyspark_ckpt.state_store.attempts.runs import NO_RUN_EPOCH
from pyspark_ckpt.state_store.attempts.winners import declare_winner
from pyspark_ckpt.state_store.checkpoints.digests import Digest, Digests, combine, require_equal
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.workplace import THREADS, StoreVersion
from pyspark_ckpt.state_store.errors import ConflictError
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.meta import is_keyed
from pyspark_ckpt.state_store.format.remote import folder_in, store_folder
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.local.worker_process import Task
from pyspark_ckpt.state_store.redistribution.assembly import NewStore
from pyspark_ckpt.state_store.redistribution.copy_task import Copied, CopyTask
from pyspark_ckpt.state_store.redistribution.jobs import Progress, RecordedTask, Runner
from pyspark_ckpt.state_store.redistribution.merged_states import Merged, merge_states
from pyspark_ckpt.state_store.redistribution.partition_states import (
    Gathered,
    GatherTask,
    RowsOfFiles,
    RowsOfStores,
    require_placed,
    select_partition_states,
)
from pyspark_ckpt.state_store.redistribution.regrouping import count_groups
from pyspark_ckpt.state_store.redistribution.store_digests import make_digest_tasks, require_recorded
from pyspark_ckpt.state_store.redistribution.strategies.base import Strategy
from pyspark_ckpt.state_store.redistribution.strategies.groups_of_stores import MoveByGroupsOfStores
from pyspark_ckpt.state_store.redistribution.strategies.key_groups import MoveByKeyGroups
from pyspark_ckpt.state_store.redistribution.strategies.remainders import MoveByRemainders
from pyspark_ckpt.state_store.redistribution.strategies.saved_rows import MoveSavedRows
from pyspark_ckpt.state_store.savepoints.restoring.plan import RestorePlan
from pyspark_ckpt.state_store.savepoints.restoring.request import ProvenState, RecordedRequest
from pyspark_ckpt.state_store.savepoints.restoring.target_records import digest_request


def begin_commit_id(recorded: RecordedRequest, identity: Identity) -> str:
    """Return the beginning of the id of a new store's first commit: it tells which restore made the store."""
    source = f"{recorded.source} {recorded.source_digest} {recorded.version}"
    return xxhash.xxh3_64_hexdigest(f"{recorded.query_id} {source} {recorded.partitions} {identity.short}".encode())


def make_commit_id(recorded: RecordedRequest, identity: Identity) -> str:
    """Return the id of the first commit of a new store: the same whenever the restore is repeated until it finishes.

    If the folder is deleted and the same restore is repeated, the ids differ: writes and deletions of a process that
    stood still since then do not affect the new checkpoint.
    """
    return begin_commit_id(recorded, identity) + xxhash.xxh3_64_hexdigest(f"{recorded.run} {identity.short}".encode())


class Movement:
    """The tasks of one restore, operator by operator."""

    def __init__(
        self,
        plan: RestorePlan,
        recorded: RecordedRequest,
        runner: Runner,
        progress: Progress,
        require: Callable[[], object],
    ) -> None:
        """Do what is planned and ``recorded`` in the target. ``require`` raises if another owns the target now."""
        self._plan, self._recorded, self._runner, self._progress = plan, recorded, runner, progress
        self._require = require
        self._options, self._workplace, self._place = plan.options, plan.workplace, plan.place
        self.pointers: list[tuple[Identity, str]] = []
        self._urls: dict[Identity, str] = {}
        self.copied_bytes = self.rewritten_bytes = 0

    def redistribute(self, operator: OperatorVersion) -> tuple[list[ProvenState], dict[Identity, str]]:
        """Make the new stores of an operator; return its states with their digests, and the ids of the new commits."""
        proven: list[ProvenState] = []
        ids: dict[Identity, str] = {}
        for name, stores in operator.stores.items():
            if self._plan.is_copied(operator):
                before, made = self._copy(operator, name)
            else:
                before, made = self._make(operator, name, stores)
            proven += [ProvenState(operator.operator.number, name, state, each) for state, each in before.items()]
            ids |= made
        return proven, ids

    def decide_winners(self, made: Mapping[Identity, str]) -> None:
        """Say by their ids which commits of new stores stand, if the commit log will not say it: see ``winners``.

        A call for this target that has stood still meanwhile may add commits of its own. Raises ConflictError,
        StorageError.
        """
        self._require()

        def decide(identity: Identity) -> None:
            place, commit = self._workplace.place(self._urls[identity]), Marker(self._recorded.version, made[identity])
            if declare_winner(place, commit, NO_RUN_EPOCH, self._recorded.run) != commit:
                raise ConflictError(
                    f"{place.url} has a commit of another restore, and that commit counts there.",
                    hint="Name a new folder.",
                )

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(decide, made))

    def _copy(self, operator: OperatorVersion, name: str) -> tuple[dict[str, Digest], dict[Identity, str]]:
        stores, what = operator.stores[name], f"operator {operator.operator.number}, store {name!r}"
        shares, ids = self._plan.request.shares, {store.identity: store.meta.id for store in stores}
        tasks = [CopyTask(self._workplace, store, self._target(store.identity), shares) for store in stores]
        results: list[Copied] = self._run(tasks, Copied)
        self.copied_bytes += sum(each.size_bytes for each in results)
        if shares and all(each.is_shared for each in results):  # nothing was copied, so nothing can differ
            return {state: Digest(rows, None) for state, rows in operator.count_rows(name).items()}, ids
        before, after = make_digest_tasks(self._workplace, stores, [task.target for task in tasks])
        digests: list[dict[str, Digest]] = self._run([*before, *after], dict[str, Digest])
        old, new = combine(digests[: len(before)]), combine(digests[len(before) :])
        require_equal(old, new, what)
        require_recorded(self._plan.source.get_recorded(operator, name), old, f"{self._plan.source.url}, {what}")
        return old, ids

    def _make(
        self, operator: OperatorVersion, name: str, stores: Sequence[StoreVersion]
    ) -> tuple[dict[str, Digest], dict[Identity, str]]:
        what = f"operator {operator.operator.number}, store {name!r}"
        whole = merge_states([store.meta for store in stores], what).rename(self._recorded.uid_map)
        new = list(self._new_stores(operator, name, whole))
        gathered = self._gather(operator, name, stores, new)
        moved = self._strategy(operator, name, len(new), gathered).move(stores, new, self._run)
        if gathered.placed:
            require_placed(gathered, [each.digests for each in moved.made], what)
        is_saved = self._plan.source.get_saved(operator, name) is not None  # if so, the strategy has read all rows
        read = combine([*moved.before, *(() if is_saved else gathered.before)])
        recorded = self._plan.source.get_recorded(operator, name)
        known = {state: each for state, each in recorded.items() if state in read}
        require_recorded(known, read, f"{self._plan.source.url}, {what}")
        digests = {whole.names.get(state, state): each for state, each in read.items()}
        other = {state.name for state in whole.states if operator.layout is Layout.KEY_GROUPS and not is_keyed(state)}
        other |= {state.name for state in select_partition_states(whole.states)}
        after = combine(each.digests for each in moved.made)
        require_equal(_without(digests, other), _without(after, other), what)
        self.copied_bytes += sum(each.copied_bytes for each in moved.made)
        self.rewritten_bytes += sum(each.rewritten_bytes for each in moved.made)
        return digests, {each.identity: each.commit_id for each in new}

    def _gather(
        self, operator: OperatorVersion, name: str, stores: Sequence[StoreVersion], new: Sequence[NewStore]
    ) -> Gathered:
        """Redistribute the states that belong to partitions, if there are any."""
        merged = new[0].merged
        states = select_partition_states(merged.states)
        if not states:
            return Gathered([], [], {})
        saved, source = self._plan.source.get_saved(operator, name), self._plan.source.url
        rows = RowsOfStores(tuple(stores)) if saved is None else RowsOfFiles(source, saved)
        task = GatherTask(
            self._workplace,
            new[0].identity,
            rows,
            states,
            merged.names,
            self._place.url,
            self._plan.old_partitions,
            len(new),
        )
        done: list[Gathered] = self._run([task], Gathered)
        return done[0]

    def _strategy(self, operator: OperatorVersion, name: str, partitions: int, gathered: Gathered) -> Strategy:
        if self._plan.target is not None:
            return self._plan.target.strategy(operator)
        if self._plan.source.others is not None:
            return self._plan.source.others.strategy(operator, self._place.url)
        is_keyed_operator = operator.layout is Layout.KEY_GROUPS
        key_groups = operator.key_groups if is_keyed_operator else 0
        if (saved := self._plan.source.get_saved(operator, name)) is not None:
            files = gathered.files
            return MoveSavedRows(self._workplace, self._plan.source.url, saved, self._place.url, key_groups, files)
        if is_keyed_operator:
            width, url = self._runner.width, self._place.url
            return MoveByKeyGroups(self._workplace, url, key_groups, width, gathered.files)
        if groups := count_groups(len(operator.stores[name]), partitions, self._runner.width):
            return MoveByGroupsOfStores(self._workplace, groups)
        return MoveByRemainders(self._workplace, self._place.url)

    def _new_stores(self, operator: OperatorVersion, name: str, whole: Merged) -> Iterator[NewStore]:
        for partition in range(self._plan.count_partitions(operator)):
            identity = Identity(operator.operator.number, partition, name)
            commit_id = make_commit_id(self._recorded, identity)
            yield NewStore(
                identity, self._target(identity), whole, self._recorded.version, commit_id, self._plan.partitions
            )

    def _target(self, identity: Identity) -> str:
        """Return the URL of the folder of a new store; note a pointer to it if the state is below ``remote``."""
        if self._options.remote:
            url = folder_in(self._options.remote, self._recorded.query_id, identity)
            self.pointers.append((identity, url))
        else:
            url = f"{self._place.url}/{store_folder(identity)}"
        self._urls[identity] = url
        return url

    def _run(self, tasks: Sequence[Task], kind: object) -> list:  # type: ignore[type-arg]  # as the tasks say
        self._require()
        request = digest_request(self._recorded)
        recorded = [RecordedTask(self._workplace, task, self._place.url, kind, request) for task in tasks]
        return self._runner(recorded, self._progress)


def _without(digests: Digests, names: AbstractSet[str]) -> dict[str, Digest]:
    return {name: each for name, each in digests.items() if name not in names}
