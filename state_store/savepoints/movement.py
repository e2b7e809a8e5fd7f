"""Move the rows of every operator into the stores of a new checkpoint, and prove that they are the same.

Every state is read before and after, also where stores stay as they are and are copied object by object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import xxhash

from pyspark_ckpt.state_store.checkpoints.digests import Digest, Digests, combined, require_equal
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout, overlaps
from pyspark_ckpt.state_store.checkpoints.state_rows import require_counts
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion
from pyspark_ckpt.state_store.format.key_groups import owned_hashes
from pyspark_ckpt.state_store.format.meta import is_keyed
from pyspark_ckpt.state_store.format.remote import folder_in, store_folder
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.local.worker_process import Task
from pyspark_ckpt.state_store.redistribution.assembly import Assembled, JoinTask, NewStore, run_files
from pyspark_ckpt.state_store.redistribution.canonical import ImportTask, SavedRows
from pyspark_ckpt.state_store.redistribution.clipping import Clip, Clipped, ClipTask, Part, grouped
from pyspark_ckpt.state_store.redistribution.copying import Copied, CopyTask
from pyspark_ckpt.state_store.redistribution.jobs import Progress, RecordedTask, Runner
from pyspark_ckpt.state_store.redistribution.merged_states import Merged, merged
from pyspark_ckpt.state_store.redistribution.regrouping import Regrouped, RegroupTask, groups_of
from pyspark_ckpt.state_store.redistribution.splitting import Split, SplitTask
from pyspark_ckpt.state_store.redistribution.store_digests import both_of, require_recorded
from pyspark_ckpt.state_store.savepoints.request import ProvenState, RecordedRequest

if TYPE_CHECKING:
    from pyspark_ckpt.state_store.savepoints.restoration import Restoration


class Movement:
    """The tasks of one restore, operator by operator."""

    def __init__(self, restoration: Restoration, recorded: RecordedRequest, runner: Runner, progress: Progress) -> None:
        """Do what ``restoration`` has planned, as is ``recorded`` in its target."""
        self._of, self._recorded, self._runner, self._progress = restoration, recorded, runner, progress
        self._options, self._workplace, self._place = restoration.options, restoration.workplace, restoration.place
        self._seed = f"{recorded.query_id} {recorded.source} {recorded.version} {recorded.partitions}"
        self.pointers: list[tuple[Identity, str]] = []
        self.copied_bytes = self.rewritten_bytes = 0

    def redistribute(self, operator: OperatorVersion) -> tuple[list[ProvenState], dict[Identity, str]]:
        """Make the new stores of an operator; what is proven of its states, and the ids of the new commits."""
        proven: list[ProvenState] = []
        ids: dict[Identity, str] = {}
        for name, stores in operator.stores.items():
            if self._of.is_copied(operator):
                before, made = self._copied(operator, name)
            else:
                before, made = self._made(operator, name, stores)
            proven += [ProvenState(operator.operator.number, name, state, each) for state, each in before.items()]
            ids |= made
        return proven, ids

    def _copied(self, operator: OperatorVersion, name: str) -> tuple[dict[str, Digest], dict[Identity, str]]:
        stores, what = operator.stores[name], f"operator {operator.operator.number}, store {name!r}"
        tasks = [CopyTask(self._workplace, store, self._target(store.identity)) for store in stores]
        results: list[Copied] = self._run(tasks, Copied)
        self.copied_bytes += sum(each.size_bytes for each in results)
        before, after = both_of(self._workplace, stores, [task.target for task in tasks])
        digests: list[dict[str, Digest]] = self._run([*before, *after], dict[str, Digest])
        old, new = combined(digests[: len(before)]), combined(digests[len(before) :])
        require_equal(old, new, what)
        require_recorded(self._of.recorded(operator, name), old, f"{self._of.source_url}, {what}")
        return old, {store.identity: store.meta.id for store in stores}

    def _made(
        self, operator: OperatorVersion, name: str, stores: Sequence[StoreVersion]
    ) -> tuple[dict[str, Digest], dict[Identity, str]]:
        what = f"operator {operator.operator.number}, store {name!r}"
        whole = merged([store.meta for store in stores], what).renamed(self._recorded.uid_map)
        new = list(self._new_stores(operator, name, whole))
        saved = self._of.saved(operator, name)
        if saved is not None:
            before, results = self._imported(operator, saved, new)
        elif operator.layout is Layout.KEY_GROUPS:
            before, results = self._clipped(operator, stores, new)
        elif groups := groups_of(len(stores), len(new), self._runner.width):
            before, results = self._regrouped(groups, stores, new)
        else:
            before, results = self._split(stores, new)
        read = combined(before)
        recorded = self._of.recorded(operator, name)
        known = {state: each for state, each in recorded.items() if state in read}
        require_recorded(known, read, f"{self._of.source_url}, {what}")
        digests = {whole.names.get(state, state): each for state, each in read.items()}
        spark = {state.name for state in whole.states if operator.layout is Layout.KEY_GROUPS and not is_keyed(state)}
        after = {
            state: each for state, each in combined(each.digests for each in results).items() if state not in spark
        }
        require_equal(digests, after, what)
        self.copied_bytes += sum(each.copied_bytes for each in results)
        self.rewritten_bytes += sum(each.rewritten_bytes for each in results)
        return digests, {each.identity: each.commit_id for each in new}

    def _split(
        self, stores: Sequence[StoreVersion], new: Sequence[NewStore]
    ) -> tuple[list[dict[str, Digest]], list[Assembled]]:
        numbers = new[0].merged.numbers
        url = self._place.url
        splits: list[Split] = self._run(
            [
                SplitTask(self._workplace, store, url, len(new), each)
                for store, each in zip(stores, numbers, strict=True)
            ],
            Split,
        )
        joins = [
            JoinTask(self._workplace, each, url, run_files([split.runs for split in splits], each.identity.partition))
            for each in new
        ]
        return [split.digests for split in splits], self._run(joins, Assembled)

    def _regrouped(
        self, groups: int, stores: Sequence[StoreVersion], new: Sequence[NewStore]
    ) -> tuple[list[dict[str, Digest]], list[Assembled]]:
        numbers = new[0].merged.numbers
        tasks = [
            RegroupTask(
                self._workplace,
                tuple(stores[group::groups]),
                tuple(numbers[group::groups]),
                tuple(new[group::groups]),
                len(new),
            )
            for group in range(groups)
        ]
        done: list[Regrouped] = self._run(tasks, Regrouped)
        return [each for group in done for each in group.before], [each for group in done for each in group.made]

    def _imported(
        self, operator: OperatorVersion, saved: SavedRows, new: Sequence[NewStore]
    ) -> tuple[list[dict[str, Digest]], list[Assembled]]:
        source, url = self._of.source_url, self._place.url
        groups = operator.key_groups if operator.layout is Layout.KEY_GROUPS else 0
        splits: list[Split] = self._run(
            [
                ImportTask(self._workplace, source, saved, number, url, len(new), groups)
                for number in range(len(saved.files))
            ],
            Split,
        )
        before = combined(split.digests for split in splits)
        require_equal(saved.digests, before, f"{source}, operator {saved.operator}, store {saved.name!r}")
        runs = [split.runs for split in splits]
        joins = [
            JoinTask(self._workplace, each, url, run_files(runs, each.identity.partition), saved.spark_rows)
            for each in new
        ]
        return [before], self._run(joins, Assembled)

    def _clipped(
        self, operator: OperatorVersion, stores: Sequence[StoreVersion], new: Sequence[NewStore]
    ) -> tuple[list[dict[str, Digest]], list[Assembled]]:
        most, old, number = operator.key_groups, len(stores), len(new)
        parts = [
            Part(store, owned_hashes(store.identity.partition, old, most), numbers)
            for store, numbers in zip(stores, new[0].merged.numbers, strict=True)
        ]
        clips: list[Clip] = []
        uncounted = set(parts)
        for partition, each in enumerate(new):
            mine = tuple(parts[i] for i in overlaps(partition, number, old, most))
            counted = tuple(part for part in mine if part in uncounted)
            uncounted.difference_update(counted)
            clips.append(Clip(each, owned_hashes(partition, number, most), mine, counted))
        groups = grouped(clips, self._runner.width)
        done: list[list[Clipped]] = self._run([ClipTask(self._workplace, group) for group in groups], list[Clipped])
        before: dict[Part, list[Digests]] = {part: [] for part in parts}
        counts: dict[Part, dict[str, int]] = {}
        made: list[Assembled] = []
        for group, results in zip(groups, done, strict=True):
            for clip, result in zip(group, results, strict=True):
                made.append(result.made)
                for part, digests in zip(clip.parts, result.before, strict=True):
                    before[part].append(digests)
                counts |= zip(clip.counted, result.counts, strict=True)
        whole = {part: combined(digests) for part, digests in before.items()}
        for part in uncounted:  # it has no key groups, for there are more partitions than these
            keyed = [state for state in part.store.meta.states if is_keyed(state)]
            counts[part] = {state.name: state.rows for state in keyed}
            whole[part] = {state.name: Digest() for state in keyed}
        for part, digests in whole.items():
            require_counts(counts[part], digests, str(part.store.identity))
        return list(whole.values()), made

    def _new_stores(self, operator: OperatorVersion, name: str, whole: Merged) -> Iterator[NewStore]:
        for partition in range(self._of.partitions_of(operator)):
            identity = Identity(operator.operator.number, partition, name)
            commit_id = xxhash.xxh3_128_hexdigest(f"{self._seed} {identity.short}".encode())  # of a second run as well
            yield NewStore(
                identity, self._target(identity), whole, self._recorded.version, commit_id, self._of.partitions
            )

    def _target(self, identity: Identity) -> str:
        """The URL of the folder of a new store."""
        if not self._options.remote:
            return f"{self._place.url}/{store_folder(identity)}"
        url = folder_in(self._options.remote, self._recorded.query_id, identity)
        self.pointers.append((identity, url))
        return url

    def _run(self, tasks: Sequence[Task], kind: object) -> list:  # type: ignore[type-arg]  # as the tasks say
        recorded = [RecordedTask(self._workplace, task, self._place.url, kind) for task in tasks]
        return self._runner(recorded, self._progress)
