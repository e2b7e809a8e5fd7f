"""Every store of a checkpoint or savepoint at one version: the input of operations on all of its state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.layout import Layout, count_key_groups, find_layout
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion
from pyspark_ckpt.state_store.errors import CkptError, FormatError, NotFoundError
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.manifest import Manifest, read_manifest
from pyspark_ckpt.state_store.format.meta import StoreMeta
from pyspark_ckpt.state_store.format.names import DeltaName
from pyspark_ckpt.state_store.identity import Identity

THREADS = 16
FIRST_VERSION = 1
"""What remains of a first batch that was not committed."""


def find_last_version(checkpoint: Checkpoint, stores: Iterable[Identity]) -> int:
    """Return the newest version that any of these stores has, committed or not; 0 if there is none.

    Raises StorageError.
    """
    return max((Lineage.read(checkpoint.find_place(identity)).newest_version for identity in stores), default=0)


def describe_lost_log(checkpoint: Checkpoint, last: int) -> str:
    """Return a message about state up to ``last`` while the commit log has no batch; empty if that may be."""
    if last <= FIRST_VERSION:
        return ""
    return (
        f"{checkpoint.place.url}/commits has no entry, but there is state of version {last}: the commit log is lost; "
        "restore it from a backup"
    )


@dataclass(frozen=True)
class OperatorVersion:
    """All stores of an operator at one version, by store name and then by partition."""

    operator: Operator
    stores: dict[str, tuple[StoreVersion, ...]]
    saved_layout: Layout | None = None
    """The layout recorded in a savepoint that does not hold the stores themselves."""

    @cached_property
    def metas(self) -> list[StoreMeta]:
        """The metadata of all its stores."""
        return [each.meta for stores in self.stores.values() for each in stores]

    @property
    def partitions(self) -> int:
        """How many partitions have state."""
        return max((each.identity.partition + 1 for stores in self.stores.values() for each in stores), default=0)

    @cached_property
    def layout(self) -> Layout:
        """How its rows are spread over its partitions."""
        return self.saved_layout or find_layout(
            self.operator.name, self.operator.partitions, self.partitions, self.metas
        )

    @property
    def key_groups(self) -> int:
        """The number of key groups of a keyed operator."""
        return count_key_groups(self.operator.name, self.metas)

    @property
    def size_bytes(self) -> int:
        """How many bytes a restore of all of it fetches."""
        return sum(each.size_bytes for stores in self.stores.values() for each in stores)

    @property
    def objects(self) -> int:
        """How many objects a restore of all of it fetches."""
        return sum(each.objects for stores in self.stores.values() for each in stores)

    @property
    def uids(self) -> list[str]:
        """The uids of the keyed operators whose states it holds."""
        return sorted({uid for meta in self.metas for state in meta.states if (uid := state.uid)})

    def rows(self) -> dict[tuple[str, str], int]:
        """Return the number of rows of each state, by store and state."""
        return {(name, state): rows for name in self.stores for state, rows in self.count_rows(name).items()}

    def count_rows(self, name: str) -> dict[str, int]:
        """Return the number of rows of each state of one store."""
        found: dict[str, int] = {}
        for each in self.stores[name]:
            for state in each.meta.states:
                found[state.name] = found.get(state.name, 0) + state.rows
        return found


def list_operators(
    checkpoint: Checkpoint,
    version: int,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    damaged: dict[Identity, CkptError] | None = None,
) -> list[OperatorVersion]:
    """Return all operators at ``version``, with three or four requests for each store.

    ``damaged`` gets the stores that lack the version or are damaged, which are left out then, unless all are.

    Raises NotFoundError (a store has no such version), InvalidInputError (state of another provider, without names for
    its operators), FormatError, StorageError.
    """
    stores = list(checkpoint.stores())
    if not stores:
        checkpoint.refuse_other_provider()
    refuse_unnamed_operators(checkpoint, len({operator.number for operator, _ in stores}))
    found: dict[int, dict[str, list[StoreVersion]]] = {}

    def find(identity: Identity) -> StoreVersion | None:
        try:
            return _find_version(checkpoint, identity, version)
        except (NotFoundError, FormatError) as problem:
            if damaged is None:
                raise
            damaged[identity] = problem
            return None

    with ThreadPoolExecutor(THREADS) as pool:
        for done, each in enumerate(pool.map(lambda pair: find(pair[1]), stores), 1):
            if each is not None:
                found.setdefault(each.identity.operator, {}).setdefault(each.identity.name, []).append(each)
            progress(done, len(stores))
    if damaged and not found:
        raise next(iter(damaged.values()))
    operators = {operator.number: operator for operator, _ in stores}
    return [
        OperatorVersion(operators[number], {name: tuple(each) for name, each in by_name.items()})
        for number, by_name in sorted(found.items())
    ]


def refuse_unnamed_operators(checkpoint: Checkpoint, operators: int) -> None:
    """Raise FormatError if there is state of an operator beyond the first ``operators``: its metadata is lost."""
    logged = sorted(number for number in checkpoint.list_logged_operators() if number >= operators)
    if logged or checkpoint.place.walk(f"state/{operators}"):
        number = (logged or [operators])[0]
        raise FormatError(
            f"{checkpoint.place.url}/state/{operators}/_metadata does not say what operator {operators} is, "
            f"but there is state of operator {number}.",
            hint="Restore that folder, which Spark has written, from a backup of the checkpoint. Spark 3.5 does not "
            "write it for another state store: `pyspark-ckpt checkpoint adopt` moves such state, and needs Spark's "
            f"schemas in state/{number}/0/_metadata and below.",
        )


def _find_version(checkpoint: Checkpoint, identity: Identity, version: int) -> StoreVersion:
    place = checkpoint.find_place(identity)
    lineage = Lineage.read(place)
    commit = checkpoint.find_commit(identity, version, lineage)
    lineage.require(commit, str(identity))
    manifest, steps = _base(checkpoint, identity, commit, lineage)
    sizes = [lineage.deltas[step.commit][1].size_bytes for step in steps]
    if manifest is not None:
        sizes.append(lineage.snapshots[manifest.store.marker].size_bytes)
        sizes += [file.size_bytes for file in manifest.objects().values()]
    is_whole = manifest is not None and not steps  # then the manifest has the commit's metadata, as its delta would
    meta = manifest.store if manifest is not None and is_whole else checkpoint.read_meta(identity, commit, lineage)
    return StoreVersion(identity, place.url, meta, len(sizes), sum(sizes), place.find_id(commit))


def _base(
    checkpoint: Checkpoint, identity: Identity, commit: Marker, lineage: Lineage
) -> tuple[Manifest | None, list[DeltaName]]:
    """Return the snapshot a restore starts from, and the deltas. If a snapshot is damaged, an older one is taken."""
    damage = None
    for base, steps in lineage.chains(commit, lineage.snapshots.__contains__):
        try:
            return None if base == EMPTY else read_manifest(checkpoint.find_place(identity), base)[1], steps
        except FormatError as problem:
            damage = problem
    broken = lineage.find_break(commit)
    raise damage or NotFoundError(f"{identity}: {broken}", hint=broken.hint)
