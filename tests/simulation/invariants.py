"""What must be true of the stored objects, looked at past any fault, after each request that changes one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import xxhash

from pyspark_ckpt.state_store.blobs import Blob, Traffic
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.names import RUNS_FOLDER, parse_epoch
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.packs.catalog import Catalog
from pyspark_ckpt.state_store.packs.pack import read_index
from pyspark_ckpt.state_store.packs.slots import PACKS_FOLDER, parse_pack, split_id
from pyspark_ckpt.state_store.packs.store_place import StorePlace
from tests.labs.stored_objects import StoredObjects
from tests.simulation.history import Batch
from tests.simulation.object_service import ObjectService
from tests.simulation.shared_folder import SharedFolder

KINDS = frozenset({"delta", "replaced", "snapshot", "sst", "winner", "notice"})


class Violation(BaseException):
    """Something is so that must never be. No code of the engine can catch this."""


class StoredQuery:
    """The checkpoint of a query as it lies in its place.

    ``newest`` is the newest version that the commit log has, and ``first_kept`` the oldest that nobody may delete.
    """

    def __init__(self, service: ObjectService | SharedFolder, url: str, keep: int, *, is_careless: bool) -> None:
        """Look at the checkpoint at ``url``. ``keep`` versions below the newest are retained.

        ``is_careless``: the service lets two writers put one snapshot, each with files of its own.
        """
        self._is_careless = is_careless
        self._service = service
        self._place = service.place(url)
        self._keep = keep
        self._packs = service.place(f"{url}/{PACKS_FOLDER}")
        self._catalog = Catalog(self._packs)
        self._tables: dict[int, dict[Blob, frozenset[str]]] = {}
        self.newest = 0
        self.first_kept = 0
        self._rotten: set[bytes] = set()
        self._damaged: dict[str, bytes] = {}
        """The checksums of damaged objects, by key."""
        self.damages: Callable[[str], object] | None = None
        """Damages a key: the next table file that is written."""
        self._published: set[Marker] = set()
        self.deleted: Counter[str] = Counter()
        """How many objects of each kind were deleted."""
        service.on_change = self._look

    def key(self, name: str) -> str:
        """Return the key of an object of the checkpoint."""
        return f"{self._place.url}/{name}"

    def numbers(self, log: str) -> list[int]:
        """Return the numbers of all entries of one of Spark's logs."""
        return sorted(int(blob.name.rpartition("/")[2]) for blob in self._place.list(log))

    @property
    def newest_epoch(self) -> int:
        """The number of the newest run."""
        return max((parse_epoch(blob.name) or 0 for blob in self._place.list(RUNS_FOLDER)), default=0)

    def ids_of(self, number: int) -> list[str] | None:
        """Return the ids that an entry of the commit log names, by partition; None in format 1."""
        located = self.located_ids_of(number)
        return None if located is None else [split_id(each)[0] for each in located]

    def located_ids_of(self, number: int) -> list[str] | None:
        """Return the ids as Spark keeps them."""
        content = self._place.get(f"commits/{number}")
        ids = json.loads(content.partition(b"\n")[2]).get("stateUniqueIds")
        return None if ids is None else [each[0] for each in ids["0"]]

    def chain_of(self, number: int) -> str:
        """Return the history that a batch has made."""
        return Batch.decode(number, self._place.get(f"offsets/{number}")).chain

    def retained(self) -> list[int]:
        """Return the batches whose versions must be there."""
        planned = set(self.numbers("offsets"))  # of a batch that is being purged, one entry may be gone
        return [number for number in self.numbers("commits") if number in planned and number + 1 >= self.first_kept]

    def note_rot(self, content: bytes) -> None:
        """Note that a local file has this content, which must never become an object."""
        self._rotten.add(xxhash.xxh3_128_digest(content))

    def _is_rotten(self, key: str) -> bool:
        return xxhash.xxh3_128_digest(self._service.read(key)) in self._rotten

    def note_published(self, url: str, marker: Marker) -> None:
        """Note that a snapshot was published in the store at ``url``. Fail unless it is whole."""
        store = url.removeprefix("s3://").removeprefix(self.key("state/0/"))
        if store.isdecimal() and not self._is_careless:
            self._published.add(marker)
            self._require_whole(int(store), "it was published")

    def forget_published(self) -> None:
        """Forget which snapshots were published. A loss of power may undo the deletion of one, but not of its files."""
        self._published.clear()

    @property
    def damaged(self) -> list[str]:
        """The keys of damaged objects that nobody has mended or deleted since."""
        left = {key: checksum for key, checksum in self._damaged.items() if self._checksum(key) == checksum}
        self._damaged = left
        return list(left)

    def _checksum(self, key: str) -> bytes | None:
        content = self._service.find(key)
        return None if content is None else xxhash.xxh3_128_digest(content)

    def _damage(self, key: str) -> None:
        if self.damages is not None:
            damage, self.damages = self.damages, None
            damage(key)
            checksum = self._checksum(key)
            assert checksum is not None
            self._damaged[key] = checksum

    def _look(self, verb: str, key: str) -> None:
        name = key.removeprefix(self.key(""))
        if verb == "put" and name.startswith("state/") and "/sst/" in name:
            self._damage(key)
        if verb == "put" and self._rotten and "/sst/" in key and self._is_rotten(key):
            raise Violation(f"{key} is a local file that has rotted")
        if name.startswith("commits/"):
            self.look_again()
        elif verb == "delete" and name.startswith("state/"):
            self.deleted[f"deleted: {_kind_of(name)}"] += 1
            self._require_restorable(int(name.split("/")[2]), name)
            self._require_whole(int(name.split("/")[2]), f"{name} was deleted")
        elif verb == "delete" and name.startswith(PACKS_FOLDER):
            self.deleted["deleted: pack"] += 1
            for partition in list(self._tables):
                self._require_restorable(partition, name)

    def look_again(self) -> None:
        """Look which version is the newest."""
        self.newest = max(self.numbers("commits"), default=-1) + 1
        self.first_kept = max(self.first_kept, self.newest - self._keep)

    def find_left_over(self) -> list[str]:
        """Return what a clean-up should have deleted. In format 1, any commit may be the one that stands."""
        number = self.numbers("commits")[-1]
        ids, found, bases = self.ids_of(number), list[str](), dict[int, int]()
        for partition in self._tables:
            objects, place = self._look_at(partition)
            lineage = Lineage.read(place)
            commits = [Marker(number + 1, ids[partition])] if ids else lineage.list_commits(number + 1)
            left = set.intersection(*(objects.litter(commit, self._keep) for commit in commits))
            found += [f"{place.url}/{name}" for name in sorted(left)]
            bases[partition] = min(objects.base(commit, self._keep, lineage).version for commit in commits)
        for blob in self._packs.list():
            version, _ = parse_pack(blob.name) or (0, "")
            index = read_index(self._packs, blob)
            if all(version <= bases.get(commit.partition, 0) for commit in index):
                found.append(f"{self._packs.url}/{blob.name}")
        return found

    def _look_at(self, partition: int) -> tuple[StoredObjects, StorePlace]:
        """Return the objects of a store, and its place, which shows all its commits in packs."""
        place = StorePlace(self._service.place(self.key(f"state/0/{partition}")), self._packs, Traffic())
        self._catalog.look_again()
        self._catalog.show(place, Identity(0, partition, "default"))
        objects = StoredObjects(place, self._tables.setdefault(partition, {}))
        objects.damaged = {key.removeprefix(f"{place.url}/") for key in (self.damaged if self._damaged else ())}
        return objects, place

    def _require_whole(self, partition: int, happened: str) -> None:
        """Fail unless each published snapshot of a store that is there has all its table files."""
        objects, place = self._look_at(partition)
        for marker, manifest in Lineage.read(place.bare).snapshots.items():
            if marker in self._published and (lost := objects.find_missing(manifest)):
                raise Violation(f"the published snapshot of {marker} of {partition} lacks {lost}, as {happened}")

    def _require_restorable(self, partition: int, deleted: str) -> None:
        """Fail unless every retained version of a store can be restored from what is stored."""
        objects, place = self._look_at(partition)
        lineage = Lineage.read(place)
        for number in self.retained():
            version, ids = number + 1, self.ids_of(number)
            # Without ids, only the engine knows which commit stands: one of them at least must be there.
            commits = lineage.list_commits(version) if ids is None else [Marker(version, ids[partition])]
            if all(objects.find_hole(commit, lineage) is not None for commit in commits):
                raise Violation(f"version {version} of {partition} cannot be restored after {deleted} was deleted")


def _kind_of(name: str) -> str:
    kind = name.rpartition(".")[2]
    return kind if kind in KINDS else "other"
