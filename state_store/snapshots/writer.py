"""Make a snapshot: upload what a frozen local copy has and no confirmed snapshot has, then publish a manifest.

A snapshot is made in the background from a copy that nobody changes; no commit ever waits for it. Its name
carries the commit's id, so a snapshot of a commit that Spark never confirms is harmless: nobody asks for it.

Nothing is published that the local disk has damaged. Table files are checked by their own checksums in the pass that
takes their digests, and what is uploaded is compared with these digests. RocksDB's small files, MANIFEST before all,
are checked by RocksDB: it opens the very bytes that the manifest of the snapshot will have.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec
import xxhash

from pyspark_ckpt.state_store.blobs import BlobPlace, Sink
from pyspark_ckpt.state_store.blobs.base.place_clock import boot_s
from pyspark_ckpt.state_store.blobs.copying import copy_object, share_object, write_together
from pyspark_ckpt.state_store.blobs.exclusive import is_exclusive
from pyspark_ckpt.state_store.database import Database, TableFile, Tuning
from pyspark_ckpt.state_store.errors import (
    CkptError,
    FormatError,
    InternalError,
    LifecycleError,
    StorageError,
)
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.key_groups import describe_groups
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.manifest import (
    Manifest,
    ManifestFile,
    inline_file,
    is_inline,
    read_manifest,
)
from pyspark_ckpt.state_store.format.meta import FORMAT_VERSION
from pyspark_ckpt.state_store.format.names import TABLE_FOLDER, snapshot_name, table_object_name
from pyspark_ckpt.state_store.format.notices import Notices
from pyspark_ckpt.state_store.local.copies import LocalCopy, reading
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.sst.table_check import check_chunks

CHUNK_BYTES = 1 << 20
TAKE_BACK_S = 3600.0
"""A manifest that has stood for longer is not taken back, whatever is missing of its snapshot."""


@dataclass(frozen=True)
class Published:
    """What making one snapshot came to."""

    marker: Marker
    uploaded_files: int
    uploaded_bytes: int
    reused_files: int
    copied_bytes: int = 0
    files: tuple[ManifestFile, ...] = ()


@dataclass(frozen=True)
class Origin:
    """Where a table file is an object of another store; ``is_sibling``: of the same checkpoint, and made with it."""

    place: BlobPlace
    file: ManifestFile
    is_sibling: bool = False


NOWHERE: Mapping[str, Origin] = MappingProxyType({})


class Hashes:
    """Checksums of local table files, each computed once, of bytes that were right.

    Contents of a table file never change. What the disk makes of them later is found when they are uploaded.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: dict[tuple[int, int, int], tuple[str, str]] = {}

    def of(self, path: Path) -> tuple[str, str]:
        """Sha256 and xxh3 of a table file. A hard link is the same file. Raises FormatError, StorageError, OSError."""
        identity = _identity(path)
        if identity not in self._known:
            self._known[identity] = _digests(path)
        return self._known[identity]

    def keep_only(self, paths: list[Path]) -> None:
        """Forget every file but these, as far as they are there."""
        wanted = {_identity(path) for path in paths if path.exists()}
        self._known = {identity: digests for identity, digests in self._known.items() if identity in wanted}


class SnapshotWriter:
    """Makes the snapshots of one store, one at a time."""

    def __init__(
        self, place: BlobPlace, partition: int, tuning: Tuning, failpoints: FailPoints, log: StoreLog, *, full: bool
    ) -> None:
        """Write those of a ``partition`` to ``place``; ``full`` ones share no object with others."""
        self._partition = partition
        self._full = full
        self._place = place
        self._tuning = tuning
        self._failpoints = failpoints
        self._log = log
        self._hashes = Hashes()
        self._notices = Notices(place)
        self.damaged: Collection[str] = ()
        """Names of objects that are known to be damaged: they are written anew, under other names."""

    def publish(
        self,
        copy: LocalCopy,
        lineage: Lineage,
        cancelled: Callable[[], bool],
        origins: Mapping[str, Origin] = NOWHERE,
    ) -> Published | None:
        """Make a snapshot of a frozen copy that is leased meanwhile; None if there is one of that commit.

        After return it survives the loss of this machine. But for full snapshots, a table file is not uploaded
        again if a published snapshot of an ancestor has the same content, and what another store has (``origins``, by
        the names of the files) is copied from there. None also if another process deleted some of its table files
        meanwhile, as retention does with a snapshot that takes longer than the grace period.
        A failure leaves at most objects that nothing refers to, or a manifest that retention and restore
        pass over. Raises LifecycleError when ``cancelled`` says so, DamagedCopyError (a file of the copy is not what
        was written), StorageError, InternalError.
        """
        if copy.marker in lineage.snapshots:
            return None
        known = {} if self._full else self._find_confirmed_objects(copy.marker, lineage)
        with reading(copy):
            inline = {path.name: path.read_bytes() for path in copy.db.iterdir() if is_inline(path.name)}
            tables = {table.name: table for table in self._tables(copy, inline)}
            names = sorted({*inline, *tables, *(path.name for path in copy.db.iterdir())})
        files: list[ManifestFile] = []
        uploaded: list[int] = []
        copied: list[int] = []
        with write_together(self._place) as place:
            for path in (copy.db / name for name in names):
                if cancelled():
                    raise LifecycleError("The store was closed while a snapshot was made.")
                if path.name in tables and path.name in origins:
                    files.append(_copy(origins[path.name], place))
                    copied.append(files[-1].size_bytes)
                elif path.name in tables:
                    file, is_new = self._table(copy, tables[path.name], known, place)
                    files.append(file)
                    uploaded.extend([file.size_bytes] if is_new else [])
                elif path.name in inline:
                    files.append(inline_file(path.name, inline[path.name]))
                elif path.suffix == ".log" and path.stat().st_size:
                    raise InternalError(f"{path} is not empty: rows would be missing from a snapshot.")
        manifest = Manifest(FORMAT_VERSION, copy.meta, *describe_groups(copy.meta, self._partition), tuple(files))
        self._failpoints.hit("snapshot.before_manifest")
        created = self._is_complete(manifest) and self._put(manifest)
        self._hashes.keep_only([copy.db / name for name in tables if name not in origins])
        if not created:
            return None
        reused = len(tables) - len(uploaded) - len(copied)
        return Published(copy.marker, len(uploaded), sum(uploaded), reused, sum(copied), tuple(files))

    def _put(self, manifest: Manifest) -> bool:
        """Create the manifest, and take it back if a table file was deleted while it appeared.

        A service that ignores conditions tells each of two writers that he was first: there the manifest may be the
        other's, who may rely on it. So it is not put over one that is there, and none is taken back; see ``retention``.
        """
        name, began = snapshot_name(manifest.store.marker), boot_s()
        is_first = is_exclusive(self._place)
        if not is_first and self._place.list(prefix=name):
            return False
        created = self._place.put_if_absent(name, manifest.encode())
        self._failpoints.hit("snapshot.after_manifest")
        missing, doomed = self._lacks(manifest) if created else ([], [])
        # Nobody has relied on it, see retention; of one that is doomed only, or was left for long, nobody can say that.
        if missing and is_first and boot_s() - began < TAKE_BACK_S:
            self._place.delete(name)
        return created and not missing and not doomed

    def _is_complete(self, manifest: Manifest) -> bool:
        return self._lacks(manifest) == ([], [])

    def _lacks(self, manifest: Manifest) -> tuple[list[str], list[str]]:
        """The table files of a snapshot that are not there, and those that somebody may be about to delete."""
        doomed = self._list_doomed()  # before the listing: who withdraws a notice has deleted by then
        missing = sorted(manifest.objects().keys() - self._list())
        threatened = sorted(manifest.objects().keys() & doomed)
        if missing or threatened:
            self._log.warning(
                "the snapshot of %s is given up: its table files were deleted while it was made (%s); "
                "raise retentionGracePeriod if snapshots take longer than that",
                manifest.store.marker,
                ", ".join(missing or threatened),
            )
        return missing, threatened

    def _list_doomed(self) -> set[str]:
        """The table files that somebody may be about to delete; while nobody can tell, retention relies on nothing."""
        try:
            return self._notices.tables()
        except FormatError as problem:
            self._log.warning("a notice of deletion is damaged: %s", problem)
            return set()

    def _list(self) -> set[str]:
        return {blob.name for blob in self._place.list(TABLE_FOLDER)}

    def _tables(self, copy: LocalCopy, inline: Mapping[str, bytes]) -> list[TableFile]:
        """The table files that RocksDB finds with its small files as they will be published, all of which are there."""
        folder = copy.folder / f"published-{uuid.uuid4().hex[:8]}"
        folder.mkdir(mode=0o700)
        try:
            for name, content in inline.items():
                (folder / name).write_bytes(content)
            for path in copy.db.glob("*.sst"):
                os.link(path, folder / path.name)
            database = Database(folder, self._tuning, read_only=True)
            try:
                held, tables = database.marker(), database.table_files()
            finally:
                database.close()
        except (FormatError, StorageError) as problem:
            raise FormatError(problem.message.replace(str(folder), str(copy.db))) from problem
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if held != copy.marker:
            raise FormatError(f"{copy.db} is damaged: it holds {held}, not {copy.marker}.")
        return tables

    def _table(
        self, copy: LocalCopy, table: TableFile, known: dict[str, str], place: BlobPlace
    ) -> tuple[ManifestFile, bool]:
        path = copy.db / table.name
        with reading(copy):
            sha256, xxh3 = self._hashes.of(path)
            size = path.stat().st_size
        name = known.get(sha256)
        is_new = name is None
        if name is None:
            name = table_object_name(sha256)
            with place.create(name) as sink:
                _upload(copy, path, xxh3, sink)
        described = ManifestFile(path.name, size, sha256, xxh3, name, None, table.first_key, table.last_key, table.rows)
        return described, is_new

    def _find_confirmed_objects(self, commit: Marker, lineage: Lineage) -> dict[str, str]:
        """Objects by content that the newest readable snapshot of an ancestor refers to and that are there."""
        ancestors = lineage.ancestors(commit)
        for base in sorted((marker for marker in lineage.snapshots if marker in ancestors), reverse=True):
            name = snapshot_name(base)
            try:
                manifest = read_manifest(self._place, base)[1]
            except CkptError as problem:
                self._log.warning("snapshot %s is not used as a base: %s", name, problem)
                continue
            # One that is lost, or is about to be, must not be passed on from snapshot to snapshot.
            doomed = self._list_doomed()
            usable = (self._list() - doomed).difference(self.damaged)
            return {file.sha256: name for name, file in manifest.objects().items() if name in usable}
        return {}


def _copy(origin: Origin, place: BlobPlace) -> ManifestFile:
    name = table_object_name(origin.file.sha256)
    copy = share_object if origin.is_sibling else copy_object
    copy(origin.place, origin.file.as_stored_file, place, name)
    return msgspec.structs.replace(origin.file, object_name=name)


def _upload(copy: LocalCopy, path: Path, xxh3: str, sink: Sink) -> None:
    """Write the file to ``sink``. Raises DamagedCopyError if these are other bytes than those with that digest."""
    digest = xxhash.xxh3_128()
    with reading(copy):
        source = path.open("rb", buffering=0)
    with source:
        while True:
            with reading(copy):
                chunk = source.read(CHUNK_BYTES)
            if not chunk:
                break
            digest.update(chunk)
            sink.write(chunk)
    with reading(copy):
        if digest.hexdigest() != xxh3:
            raise FormatError(f"{path} is damaged: it has changed since its checksums were right.")


def _identity(path: Path) -> tuple[int, int, int]:
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def _digests(path: Path) -> tuple[str, str]:
    """Sha256 and xxh3 of a table file that is whole. Raises FormatError, StorageError, FileNotFoundError."""
    sha256, xxh3 = hashlib.sha256(), xxhash.xxh3_128()
    for chunk in check_chunks(path):
        sha256.update(chunk)
        xxh3.update(chunk)
    return sha256.hexdigest(), xxh3.hexdigest()
