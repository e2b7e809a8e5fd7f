"""Copy what a version of a store is made of as it is: table files, manifest and deltas, to another place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from pyspark_ckpt.state_store.assembly import clean
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.blobs.copying import copy_object
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.keys import Marker
from pyspark_ckpt.state_store.lineage import Lineage
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.manifest import Manifest, decode
from pyspark_ckpt.state_store.names import snapshot_name
from pyspark_ckpt.state_store.store_version import StoreVersion, Workplace

THREADS = 8


class CopiedObject(msgspec.Struct, frozen=True):
    """An object of a store: its name in the store's folder, and its size."""

    name: str
    size_bytes: int


class Copied(msgspec.Struct, frozen=True):
    """What was copied of one store."""

    objects: list[CopiedObject]

    @property
    def size_bytes(self) -> int:
        """Bytes of all objects."""
        return sum(each.size_bytes for each in self.objects)


@dataclass(frozen=True)
class CopyTask:
    """Copies one store into the folder at the URL ``target``, which is emptied first."""

    workplace: Workplace
    source: StoreVersion
    target: str

    @property
    def key(self) -> str:
        """Names the task among all of its job."""
        identity = self.source.identity
        return f"copy-{identity.operator}-{identity.partition}-{identity.name}"

    def __call__(self) -> Copied:
        """Copy; an older snapshot and more deltas are taken where the newest snapshot is damaged.

        Raises NotFoundError, FormatError (damage without a way round it), StorageError.
        """
        source, target = self.workplace.place(self.source.url), self.workplace.place(self.target)
        log = StoreLog(f"offline.{self.source.identity.short}", self.source.identity.short)
        lineage = Lineage.read(source)
        bases = set(lineage.snapshots)
        while True:
            base, steps = lineage.chain(self.source.meta.marker, lambda marker: marker in bases)
            clean(target)
            deltas = [(str(step), lineage.deltas[step.commit][1].size_bytes) for step in steps]
            try:
                copied = self._snapshot(source, target, base) if base in bases else []
            except (FormatError, NotFoundError) as problem:
                log.warning("%s; an older snapshot and more deltas are copied instead", problem)
                bases.discard(base)
                continue
            with ThreadPoolExecutor(THREADS) as pool:
                copied += pool.map(lambda each: _copied(source, each[0], each[1], target), deltas)
            return Copied(copied)

    def _snapshot(self, source: BlobPlace, target: BlobPlace, base: Marker) -> list[CopiedObject]:
        """The table files, and then the manifest, without which they are nothing."""
        name = snapshot_name(base)
        content = source.get(name)
        manifest: Manifest = decode(content, f"{source.url}/{name}")
        with ThreadPoolExecutor(THREADS) as pool:
            tables = manifest.objects().items()
            copied = list(
                pool.map(lambda each: _copied(source, each[0], each[1].size_bytes, target, each[1].xxh3), tables)
            )
        target.put(name, content)
        return [*copied, CopiedObject(name, len(content))]


def _copied(source: BlobPlace, name: str, size_bytes: int, target: BlobPlace, xxh3: str | None = None) -> CopiedObject:
    found = copy_object(source, name, size_bytes, target, name)
    if xxh3 is not None and found not in (None, xxh3):
        raise FormatError(f"{source.url}/{name} is damaged: its checksum is wrong.")
    return CopiedObject(name, size_bytes)
