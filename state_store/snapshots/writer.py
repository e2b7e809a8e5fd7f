"""Make a snapshot: upload the files of a frozen local copy that no snapshot of an ancestor has, then a manifest.

A snapshot is made in the background from a copy that nobody changes. No commit waits for it. Its name contains the
commit's id. A snapshot of a commit that Spark never confirms is harmless, because nobody asks for it.

Data that the local disk has damaged is not published. The pass that computes the digests of table files also verifies
their own checksums, and uploaded bytes are compared with these digests. RocksDB's small files, above all MANIFEST, are
verified by RocksDB: it opens exactly the bytes that the manifest of the snapshot will contain.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec
import xxhash

from pyspark_ckpt.state_store.blobs import BlobPlace, Sink
from pyspark_ckpt.state_store.blobs.base.place_clock import boot_s
from pyspark_ckpt.state_store.blobs.exclusive import is_exclusive
from pyspark_ckpt.state_store.blobs.transfers import copy_object, share_object, write_together
from pyspark_ckpt.state_store.chunks import CHUNK_BYTES, pour
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
from pyspark_ckpt.state_store.format.names import TABLE_FOLDER, new_id, snapshot_name, table_object_name
from pyspark_ckpt.state_store.format.notices import Notices
from pyspark_ckpt.state_store.local.copies import LocalCopy, reading
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.plain_files import open_plain, read_plain
from pyspark_ckpt.state_store.sst.table_check import check_chunks

TAKE_BACK_S = 3600.0
"""An older manifest is not withdrawn, even if its snapshot lacks files."""


@dataclass(frozen=True)
class Published:
    """The result of making a snapshot."""

    marker: Marker
    uploaded_files: int
    uploaded_bytes: int
    reused_files: int
    copied_bytes: int = 0
    files: tuple[ManifestFile, ...] = ()


@dataclass(frozen=True)
class Origin:
    """A table file in another store. ``is_sibling``: the store is of the same checkpoint and made with this one."""

    place: BlobPlace
    file: ManifestFile
    is_sibling: bool = False


NOWHERE: Mapping[str, Origin] = MappingProxyType({})


class FileDigests:
    """Digests of local table files. Each is computed once, of bytes with right checksums.

    The content of a table file never changes. The upload finds later damage by the disk.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._known: dict[tuple[int, int, int], tuple[str, str]] = {}

    def digest(self, path: Path) -> tuple[str, str]:
        """Return sha256 and xxh3 of a table file. Hard links share them. Raises FormatError, StorageError, OSError."""
        identity = _identity(path)
        if identity not in self._known:
            self._known[identity] = _digests(path)
        return self._known[identity]

    def keep_only(self, paths: list[Path]) -> None:
        """Forget all files except those of ``paths`` that exist."""
        wanted = {_identity(path) for path in paths if path.exists()}
        self._known = {identity: digests for identity, digests in self._known.items() if identity in wanted}


class SnapshotWriter:
    """Makes the snapshots of one store, one at a time."""

    def __init__(
        self,
        place: BlobPlace,
        partition: int,
        tuning: Tuning,
        failpoints: FailPoints,
        log: StoreLog,
        *,
        full: bool,
        make_id: Callable[[], str] = new_id,
    ) -> None:
        """Write the snapshots of a ``partition`` to ``place``. ``full`` snapshots share no object with others.

        Each uploaded table file is named by an id from ``make_id``.
        """
        self._make_id = make_id
        self._partition = partition
        self._full = full
        self._place = place
        self._tuning = tuning
        self._failpoints = failpoints
        self._log = log
        self._digests = FileDigests()
        self._notices = Notices(place)
        self.damaged: Collection[str] = ()
        """Names of objects known to be damaged. Their content is written again under other names."""

    def publish(
        self,
        copy: LocalCopy,
        lineage: Lineage,
        cancelled: Callable[[], bool],
        origins: Mapping[str, Origin] = NOWHERE,
    ) -> Published | None:
        """Make a snapshot of a frozen copy, which the caller leases. Return None if the commit already has one.

        On return the snapshot survives the loss of this machine. Unless snapshots are full, a table file is not
        uploaded if a published snapshot of an ancestor has the same content. A table file in another store
        (``origins``, by file name) is copied from there. Returns None also if another process deleted some of its table
        files meanwhile, as retention does if a snapshot takes longer than the grace period. A failure leaves at most
        objects that nothing refers to, or a manifest that retention and restore skip. Raises LifecycleError if
        ``cancelled`` returns True, DamagedCopyError (a file of the copy is damaged), StorageError, InternalError.
        """
        if copy.marker in lineage.snapshots:
            return None
        known = {} if self._full else self._find_confirmed_objects(copy.marker, lineage)
        with reading(copy):
            inline = {path.name: read_plain(path) for path in copy.db.iterdir() if is_inline(path.name)}
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
                    files.append(self._copy(origins[path.name], place))
                    copied.append(files[-1].size_bytes)
                elif path.name in tables:
                    file, is_new = self._table(copy, tables[path.name], known, place)
                    files.append(file)
                    uploaded.extend([file.size_bytes] if is_new else [])
                elif path.name in inline:
                    files.append(inline_file(path.name, inline[path.name]))
                elif path.suffix == ".log" and path.stat().st_size:
                    raise InternalError(f"{path} is not empty: rows would be missing from the snapshot.")
        manifest = Manifest(FORMAT_VERSION, copy.meta, *describe_groups(copy.meta, self._partition), tuple(files))
        self._failpoints.hit("snapshot.before_manifest")
        created = self._is_complete(manifest) and self._put(manifest)
        self._digests.keep_only([copy.db / name for name in tables if name not in origins])
        if not created:
            return None
        reused = len(tables) - len(uploaded) - len(copied)
        return Published(copy.marker, len(uploaded), sum(uploaded), reused, sum(copied), tuple(files))

    def _put(self, manifest: Manifest) -> bool:
        """Create the manifest. Withdraw it if a table file was deleted at the same time.

        A service that ignores conditions tells two writers that each was first. The manifest may then be the other
        writer's, who may rely on it. On such a service, an existing manifest is therefore not overwritten, and none is
        withdrawn; see ``retention``.
        """
        name, began = snapshot_name(manifest.store.marker), boot_s()
        is_first = is_exclusive(self._place)
        if not is_first and self._place.list(prefix=name):
            return False
        created = self._place.put_if_absent(name, manifest.encode())
        self._failpoints.hit("snapshot.after_manifest")
        missing, doomed = self._lacks(manifest) if created else ([], [])
        # Nobody relies on it yet, see retention. That is not certain if files are only doomed, or after a long time.
        if missing and is_first and boot_s() - began < TAKE_BACK_S:
            self._place.delete(name)
        return created and not missing and not doomed

    def _is_complete(self, manifest: Manifest) -> bool:
        return self._lacks(manifest) == ([], [])

    def _lacks(self, manifest: Manifest) -> tuple[list[str], list[str]]:
        """Return the missing table files of a snapshot, and those that a process may be about to delete."""
        doomed = self._list_doomed()  # before the listing: a process deletes before it withdraws its notice
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
        """Return the table files that may soon be deleted. Empty if a notice is damaged: retention then trusts none."""
        try:
            return self._notices.tables()
        except FormatError as problem:
            self._log.warning("a notice of deletion is damaged: %s", problem)
            return set()

    def _list(self) -> set[str]:
        return {blob.name for blob in self._place.list(TABLE_FOLDER)}

    def _tables(self, copy: LocalCopy, inline: Mapping[str, bytes]) -> list[TableFile]:
        """Return the table files that RocksDB finds by the small files as they will be published. All files exist."""
        folder = copy.folder / f"published-{self._make_id()[:8]}"
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
            sha256, xxh3 = self._digests.digest(path)
            size = path.stat().st_size
        name = known.get(sha256)
        is_new = name is None
        if name is None:
            name = table_object_name(sha256, self._make_id())
            with place.create(name) as sink:
                _upload(copy, path, xxh3, sink)
        described = ManifestFile(path.name, size, sha256, xxh3, name, None, table.first_key, table.last_key, table.rows)
        return described, is_new

    def _copy(self, origin: Origin, place: BlobPlace) -> ManifestFile:
        name = table_object_name(origin.file.sha256, self._make_id())
        copy = share_object if origin.is_sibling else copy_object
        copy(origin.place, origin.file.as_stored_file, place, name)
        return msgspec.structs.replace(origin.file, object_name=name)

    def _find_confirmed_objects(self, commit: Marker, lineage: Lineage) -> dict[str, str]:
        """Return the existing objects of the newest readable snapshot of an ancestor, by sha256."""
        ancestors = lineage.ancestors(commit)
        for base in sorted((marker for marker in lineage.snapshots if marker in ancestors), reverse=True):
            name = snapshot_name(base)
            try:
                manifest = read_manifest(self._place, base)[1]
            except CkptError as problem:
                self._log.warning("snapshot %s is not used as a base: %s", name, problem)
                continue
            # An object that is lost, or may soon be, must not be inherited by the next snapshot.
            doomed = self._list_doomed()
            usable = (self._list() - doomed).difference(self.damaged)
            return {file.sha256: name for name, file in manifest.objects().items() if name in usable}
        return {}


def _upload(copy: LocalCopy, path: Path, xxh3: str, sink: Sink) -> None:
    """Write the file to ``sink``. Raises DamagedCopyError if its bytes do not have the digest ``xxh3``."""
    digest = xxhash.xxh3_128()
    pour(_read(copy, path), digest.update, sink.write)
    with reading(copy):
        if digest.hexdigest() != xxh3:
            raise FormatError(f"{path} is damaged: it has changed since its checksums were verified.")


def _read(copy: LocalCopy, path: Path) -> Iterator[bytes]:
    """Yield the content of a file of the copy. Raises DamagedCopyError if it cannot be read."""
    with reading(copy):
        source = open_plain(path)
    with source:
        while True:
            with reading(copy):
                chunk = source.read(CHUNK_BYTES)
            if not chunk:
                return
            yield chunk


def _identity(path: Path) -> tuple[int, int, int]:
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def _digests(path: Path) -> tuple[str, str]:
    """Verify a table file and return its sha256 and xxh3. Raises FormatError, StorageError, FileNotFoundError."""
    sha256, xxh3 = hashlib.sha256(), xxhash.xxh3_128()
    pour(check_chunks(path), sha256.update, xxh3.update)
    return sha256.hexdigest(), xxh3.hexdigest()
