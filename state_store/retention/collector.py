"""Clean up a checkpoint from outside its query: delete what the query would delete, or what it left when it stopped."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.blobs.base.place_clock import PlaceTimes, ShownTimes
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.ownership import require_own_state
from pyspark_ckpt.state_store.checkpoints.workplace import THREADS
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.names import CHECKPOINT_FOLDER
from pyspark_ckpt.state_store.format.remote import store_folder
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.retention.packs import PackRetention
from pyspark_ckpt.state_store.retention.pins import Pins
from pyspark_ckpt.state_store.retention.retention import UPLOAD_S, Garbage, Retention


class Collector:
    """Retention for all stores of a checkpoint. It may run while the query or another collector runs."""

    def __init__(self, checkpoint: Checkpoint, keep_versions: int, grace_s: float, *, only_finds: bool = False) -> None:
        """Keep ``keep_versions`` versions below the newest committed one, and everything within the grace period.

        With ``only_finds``, nothing is written, not even to learn the time of a place.
        """
        self._checkpoint = checkpoint
        self._keep_versions = keep_versions
        self._grace_s = grace_s
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="gc")
        self._times = ShownTimes() if only_finds else PlaceTimes()
        self._pins = Pins(checkpoint.place, self._times)
        self._retentions: dict[Identity, Retention] = {}
        self._pack_retentions: dict[str, PackRetention] = {}
        self._own = checkpoint.workplace.place(f"{checkpoint.place.url}/{CHECKPOINT_FOLDER}")

    def find(self, identity: Identity) -> Garbage:
        """Return the garbage of a store. Raises NotFoundError (the store lacks the newest version), StorageError."""
        return self._retention(identity).find(self._newest(identity), self._keep_versions)

    def clean(self, identity: Identity) -> int:
        """Delete the garbage; return the number of objects. Table files go in a second call, a grace period later.

        A failure midway leaves garbage, and never deletes a needed object. Raises NotFoundError, StorageError.
        """
        return self._retention(identity).clean(self._newest(identity), self._keep_versions)

    def find_packs(self, garbage: Mapping[Identity, Garbage]) -> list[tuple[str, Blob]]:
        """Return the packs that are not needed once the ``garbage`` of the stores is gone, with where they are.

        Raises StorageError.
        """
        replaced = {identity: each.replaced for identity, each in garbage.items()}
        return [(root, blob) for root, packs in self._packs().items() for blob in packs.find(replaced)]

    def clean_packs(self) -> int:
        """Delete the packs that no store needs; return how many. Raises StorageError."""
        return sum(packs.clean() for packs in self._packs().values())

    def _packs(self) -> dict[str, PackRetention]:
        """Return the retention of the packs of all stores whose garbage was looked for, by where the packs are."""
        roots = {
            place.url.removesuffix(f"/{store_folder(identity)}")
            for identity in self._retentions
            if (place := self._find_owned(identity)).url.endswith(f"/{store_folder(identity)}")
        }
        log, workplace = StoreLog("gc", "packs"), self._checkpoint.workplace
        for root in sorted(roots - self._pack_retentions.keys()):
            self._pack_retentions[root] = PackRetention(workplace.place(root), self._pool, log)
        return self._pack_retentions

    def find_unfinished(self) -> list[Blob]:
        """Return files that are of no store, such as pins, whose writers died before they had finished them.

        The names are below the folder ``_ckpt`` of the checkpoint. Raises StorageError.
        """
        return self._own.find_unfinished(max(self._grace_s, UPLOAD_S))

    def discard_unfinished(self) -> int:
        """Delete what ``find_unfinished`` finds; return the number of files. Raises StorageError."""
        return self._own.discard_unfinished(max(self._grace_s, UPLOAD_S))

    def waiting(self) -> list[Identity]:
        """Return the stores that have table files to delete a grace period after the first call."""
        return [identity for identity, retention in self._retentions.items() if retention.is_waiting]

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()

    def _newest(self, identity: Identity) -> Marker:
        """Return the newest commit. Look again if meanwhile the query has committed later ones, and retired it."""
        while True:
            version = self._checkpoint.newest_version
            try:
                return self._checkpoint.find_commit(identity, version)
            except NotFoundError:
                self._checkpoint.look_again()
                if self._checkpoint.newest_version <= version:
                    raise

    def _retention(self, identity: Identity) -> Retention:
        if identity not in self._retentions:
            place, log = self._find_owned(identity), StoreLog("gc", identity.short)
            self._retentions[identity] = Retention(
                place, self._pins, self._grace_s, self._pool, FailPoints(""), log, times=self._times
            )
        return self._retentions[identity]

    def _find_owned(self, identity: Identity) -> BlobPlace:
        """Return the place of a store's state. Raises InvalidInputError unless it is proven to be this checkpoint's."""
        checkpoint, place = self._checkpoint, self._checkpoint.find_place(identity)
        require_own_state(checkpoint.place, place, identity, checkpoint.workplace.place)
        return place
