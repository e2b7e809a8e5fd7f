"""One version of one store for offline work: its location, its metadata, and how to restore it here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pyspark_ckpt.state_store.arguments import remove_dots
from pyspark_ckpt.state_store.blobs import BlobPlace, RetryPolicy, Traffic, names_scheme, place_at
from pyspark_ckpt.state_store.database import Tuning
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.meta import StoreMeta
from pyspark_ckpt.state_store.format.remote import store_folder
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.local.files import make_scratch_folder, take_open_files
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.packs.slots import PACKS_FOLDER
from pyspark_ckpt.state_store.packs.store_place import StorePlace
from pyspark_ckpt.state_store.restore.store_restorer import RestoredStore, StoreRestorer
from pyspark_ckpt.state_store.snapshots.restore_forecast import RestoreForecast

CACHE_BYTES = 16 << 20
THREADS = 8
"""How many threads handle the objects of one store."""


@dataclass(frozen=True)
class StoreVersion:
    """A commit of a store: the ``url`` of its folder, its metadata, and how much a restore of it fetches."""

    identity: Identity
    url: str
    meta: StoreMeta
    objects: int = 0
    size_bytes: int = 0
    located: str = ""
    """The id of the commit with its place in a pack, if it is in one: see ``packs.slots``."""


@dataclass(frozen=True)
class Workplace:
    """The tools of a task of offline work on its machine. They travel there with the task."""

    options: Options

    def place(self, url: str) -> BlobPlace:
        """Return the place at a URL. A bucket of ``s3a:`` is reached as S3A reaches it. Raises InvalidInputError."""
        return place_at(url, self.options.s3, self.options.hadoop, RetryPolicy(self.options.place_timeout_s))

    def store_place(self, store: StoreVersion) -> StorePlace:
        """Return the place of a store, which can find the commit and those before it in packs."""
        place = self.store_place_at(store.url, store.identity)
        if store.located:
            place.note(store.meta.version, store.located)
        return place

    def store_place_at(self, url: str, identity: Identity) -> StorePlace:
        """Return the place of a store whose folder is at a URL. Raises InvalidInputError."""
        root = url.removesuffix(store_folder(identity)).rstrip("/")
        return StorePlace(self.place(url), self.place(f"{root}/{PACKS_FOLDER}"), Traffic())

    def resolve(self, location: str) -> BlobPlace:
        """Return the place that a user names. A relative path starts at the current folder, as in a shell.

        A ``..`` removes the name before it, as in Spark's paths, even if that is a link.

        Raises InvalidInputError.
        """
        is_path = location and not names_scheme(location)
        return self.place(os.path.normpath(Path(location).absolute()) if is_path else remove_dots(location))

    def tuning(self) -> Tuning:
        """Return RocksDB settings for databases that are read once and compact nothing. All share one cache."""
        return _tuning(self.options.compression)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield a folder that only this user can read, deleted afterwards, for databases whose files are all open.

        Raises StorageError (no folder can be made).
        """
        take_open_files()
        folder = make_scratch_folder()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def restore(self, store: StoreVersion, folder: Path) -> AbstractContextManager[RestoredStore]:
        """Restore a version into the new ``folder`` and yield the database. Raises as ``StoreRestorer.restore``."""
        log = StoreLog(f"offline.{store.identity.short}", store.identity.short)
        return self.restore_from(self.store_place(store), store.identity, store.meta.marker, folder, log)

    @contextmanager
    def restore_from(
        self, place: BlobPlace, identity: Identity, commit: Marker, folder: Path, log: StoreLog
    ) -> Iterator[RestoredStore]:
        """Do the same for a commit of the store at ``place``. Skipped damage is reported in ``log``."""
        folder.mkdir(mode=0o700)
        with ThreadPoolExecutor(THREADS) as pool:
            restorer = StoreRestorer(
                place, self.tuning(), pool, FailPoints(""), RestoreForecast(), log, str(identity), checks_tables=True
            )
            restored = restorer.restore(commit, folder, set(), lambda _commit, _folder: None)
            try:
                yield restored
            finally:
                restored.database.close()


@cache
def _tuning(compression: str) -> Tuning:
    return Tuning(CACHE_BYTES, compression, compacts=False)
