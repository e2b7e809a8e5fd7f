"""Copy the objects of a version of a store unchanged to another place: table files, manifest and deltas."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.blobs.transfers import (
    copy_object,
    describe,
    fetch,
    is_copied_by_service,
    is_intact,
    link_object,
    send,
)
from pyspark_ckpt.state_store.checkpoints.workplace import THREADS, StoreVersion, Workplace
from pyspark_ckpt.state_store.errors import ConflictError, FormatError, NotFoundError
from pyspark_ckpt.state_store.format.delta import download_delta
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.manifest import ManifestFile, read_manifest
from pyspark_ckpt.state_store.format.names import TABLE_FOLDER, DeltaName, snapshot_name
from pyspark_ckpt.state_store.json_objects import Count, ObjectName, read_again
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.packs.lineages import read_lineage
from pyspark_ckpt.state_store.restore.store_restorer import make_damage_error
from pyspark_ckpt.state_store.sst.table_check import check_table


class CopiedObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object of a store: its name in the store's folder, and its size, which is 0 if it is a link to the old one."""

    name: ObjectName
    size_bytes: Count


class Copied(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The copied objects of one store."""

    objects: list[CopiedObject]

    @property
    def size_bytes(self) -> int:
        """Bytes of all objects."""
        return sum(each.size_bytes for each in self.objects)

    @property
    def is_shared(self) -> bool:
        """Whether all table files are links to the old ones."""
        tables = [each for each in self.objects if each.name.startswith(f"{TABLE_FOLDER}/")]
        return all(each.size_bytes == 0 for each in tables)


@dataclass(frozen=True)
class CopyTask:
    """Copies one store into the folder at the URL ``target``. Objects that another attempt has copied there stay.

    ``shares``: on a file system, the new names of table files are links to the old files.
    """

    workplace: Workplace
    source: StoreVersion
    target: str
    shares: bool = False

    @property
    def key(self) -> str:
        """The name of the task, unique in its job."""
        return f"copy-{self.source.identity.key}"

    def __call__(self) -> Copied:
        """Copy the store. If the newest snapshot is damaged, an older one and more deltas are copied.

        Every checksum is compared on the way. Raises NotFoundError, FormatError (damage that cannot be avoided),
        StorageError.
        """
        source, target = self.workplace.store_place(self.source), self.workplace.place(self.target)
        log = StoreLog(f"offline.{self.source.identity.short}", self.source.identity.short)
        lineage = read_lineage(source, self.source.meta.marker)
        troubles = []
        for base, steps in lineage.chains(self.source.meta.marker, lineage.snapshots.__contains__):
            try:
                copied = self._snapshot(source.bare, target, base) if base in lineage.snapshots else []
            except (FormatError, NotFoundError) as problem:
                log.warning("%s; an older snapshot and more deltas are copied instead", problem)
                troubles.append(f"{problem}")
            else:
                return Copied([*copied, *self._deltas(source, target, lineage, steps)])
        broken = lineage.find_break(self.source.meta.marker)
        if not troubles:
            raise NotFoundError(f"{self.source.identity}: {broken}", hint=broken.hint)
        reasons = "; ".join((*troubles, f"{broken}"))
        raise FormatError(f"{self.source.identity} cannot be copied: {reasons}", hint=broken.hint)

    def _snapshot(self, source: BlobPlace, target: BlobPlace, base: Marker) -> list[CopiedObject]:
        """Copy the table files, and then the manifest, which makes them a snapshot."""
        content, manifest = read_manifest(source, base)
        with self.workplace.folder() as folder, ThreadPoolExecutor(THREADS) as pool:
            copied = list(pool.map(lambda file: self._table(source, file, target, folder), manifest.objects().values()))
        target.put(snapshot_name(base), content)
        return [*copied, CopiedObject(snapshot_name(base), len(content))]

    def _table(self, source: BlobPlace, file: ManifestFile, target: BlobPlace, folder: Path) -> CopiedObject:
        name = file.as_stored_file.name
        if self.shares:
            with suppress(ConflictError):  # another attempt was here: its object is verified
                if link_object(source, name, target, name):
                    _require_intact(target, file)
                    return CopiedObject(name, 0)
        return _copy_table(source, file, target, folder)

    def _deltas(
        self, source: BlobPlace, target: BlobPlace, lineage: Lineage, steps: Sequence[DeltaName]
    ) -> list[CopiedObject]:
        with self.workplace.folder() as folder, ThreadPoolExecutor(THREADS) as pool:
            sizes = [lineage.deltas[step.commit][1].size_bytes for step in steps]
            return list(pool.map(lambda step, size: _copy_delta(source, step, size, target, folder), steps, sizes))


def _copy_table(source: BlobPlace, file: ManifestFile, target: BlobPlace, folder: Path) -> CopiedObject:
    """Copy a table file. If it passes through this process, check its own checksums: it may have been stored damaged.

    Raises NotFoundError, FormatError that names the object, StorageError.
    """
    stored = file.as_stored_file

    def copy() -> None:
        try:
            if is_copied_by_service(source, target):
                copy_object(source, stored, target, stored.name)
            else:
                _copy_checked(source, file, target, folder / file.name)
        except ConflictError:  # another attempt was here
            _require_intact(target, file)

    read_again(copy)
    return CopiedObject(stored.name, stored.size_bytes)


def _require_intact(target: BlobPlace, file: ManifestFile) -> None:
    """Raise FormatError for a table file whose checksum differs from the manifest, and delete it."""
    stored = file.as_stored_file
    if not is_intact(target, stored):
        target.delete(stored.name)
        raise FormatError(f"{target.url}/{stored.name} is damaged: its checksum is wrong.")


def _copy_checked(source: BlobPlace, file: ManifestFile, target: BlobPlace, path: Path) -> None:
    stored = file.as_stored_file
    fetch(source, stored, path)
    try:
        check_table(path)
    except FormatError as problem:
        raise make_damage_error(f"{source.url}/{stored.name}", path, problem) from problem
    if send(target, stored.name, path) != stored:
        target.delete(stored.name)
        raise FormatError(f"{path} is damaged: it has changed since its checksums were verified.")


def _copy_delta(source: BlobPlace, name: DeltaName, size_bytes: int, target: BlobPlace, folder: Path) -> CopiedObject:
    """Copy a delta. It has no checksum as a whole: it is verified here, and the verified bytes are sent."""
    path = folder / str(name)
    read_again(lambda: download_delta(source, name, size_bytes, path))
    try:
        send(target, str(name), path)
    except ConflictError:  # another attempt was here
        if not is_intact(target, describe(str(name), path)):
            raise
    return CopiedObject(str(name), size_bytes)
