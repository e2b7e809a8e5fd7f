"""All packs of a query by their indexes, for tools, which have no ids of most commits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.errors import CkptError, FormatError, NotFoundError
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.packs.pack import Indexes, PackedCommit
from pyspark_ckpt.state_store.packs.slots import parse_pack
from pyspark_ckpt.state_store.packs.store_place import StorePlace

THREADS = 16


class Catalog:
    """The packs in one place. Each index is read once. Safe to use from many threads."""

    def __init__(self, packs: BlobPlace) -> None:
        """Know nothing yet of ``packs``."""
        self.place = packs
        self.damaged: dict[str, FormatError] = {}
        """Packs whose index cannot be read, by their names. Their commits are found by the ids of later ones."""
        self._lock = threading.Lock()
        self._indexes = Indexes(packs)
        self._by_store: dict[Identity, list[tuple[Blob, PackedCommit]]] | None = None

    def look_again(self) -> None:
        """List the packs again when they are needed next."""
        with self._lock:
            self._by_store = None

    def show(self, place: StorePlace, store: Identity) -> None:
        """Let the place of a store show all its commits in packs. Raises StorageError."""
        with self._lock:
            if self._by_store is None:
                self._by_store = self._look()
            commits = self._by_store.get(store, [])
        for blob, commit in commits:
            version, pack = parse_pack(blob.name) or (0, "")
            place.note(version, commit.find_id(pack), commit.delta_name(version).parent, blob.modified_s)

    def _look(self) -> dict[Identity, list[tuple[Blob, PackedCommit]]]:
        packs = [blob for blob in self.place.list() if parse_pack(blob.name) is not None]
        self._indexes.keep_only(packs)
        self.damaged = {}
        by_store: dict[Identity, list[tuple[Blob, PackedCommit]]] = {}
        with ThreadPoolExecutor(THREADS, thread_name_prefix="packs") as pool:
            for blob, found in self._indexes.read(packs, pool).items():
                if isinstance(found, FormatError):
                    self.damaged[blob.name] = found
                elif isinstance(found, NotFoundError):  # deleted since the listing
                    continue
                elif isinstance(found, CkptError):
                    raise found
                else:
                    for commit in found:
                        by_store.setdefault(commit.identity, []).append((blob, commit))
        return by_store
