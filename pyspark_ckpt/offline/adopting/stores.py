"""The rows of one store of Spark's own providers at one version, read from its files.

::

    <store>/<version>.snapshot, <version>.delta              HDFS-backed provider
    <store>/<version>[_<id>].zip, SSTs/, <version>[_<id>].changelog     RocksDB provider

A zip has the small files of a RocksDB database, and ``metadata``: which table files below ``SSTs`` it has. With ids
(checkpoint format 2), a changelog names the commits since the last snapshot; without, versions follow one another.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from pyspark_ckpt.offline.adopting.records import Change, LineageItem, read_changelog, read_changes
from pyspark_ckpt.offline.adopting.row_sums import check_changes
from pyspark_ckpt.offline.adopting.streams import ByteStream, open_stream
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.database.scratch import ScratchDatabase
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.keys import EMPTY_ID
from pyspark_ckpt.state_store.json_objects import DAMAGE, Count, Family, FileName, KeyCount, Name
from pyspark_ckpt.state_store.sst.merged_rows import has_merges, merge_rows, needs_own_reader

Provider: TypeAlias = Literal["rocksdb", "hdfs"]

CHANGES_AT_ONCE = 4096
BYTES_AT_ONCE = 16 << 20
MAX_ZIP_BYTES = 1 << 30
"""The small files of a database are a few kilobytes; RocksDB's own log may be larger."""
METADATA = "metadata"
FAMILY_BYTES = 2
"""The number of a state, little-endian, before the keys of a store with several."""
TABLES = "SSTs"
_LOGS = "logs"


class Step(NamedTuple):
    """A commit of a store: its version, and its id in checkpoint format 2, else empty."""

    version: int
    id: str

    def name(self, suffix: str) -> str:
        """Return the name of a file of this commit."""
        return f"{self.version}_{self.id}.{suffix}" if self.id else f"{self.version}.{suffix}"


class Chain(NamedTuple):
    """What makes a version: the snapshot, None for an empty store, and the later commits in order."""

    base: Step | None
    later: tuple[Step, ...]


class TableName(msgspec.Struct):
    """A table file of a snapshot: its name in the database, its name below ``SSTs``, and its size."""

    localFileName: FileName  # noqa: N815 - Spark's names, here and below
    dfsSstFileName: FileName  # noqa: N815
    sizeBytes: Count  # noqa: N815


class _LogFile(msgspec.Struct):
    localFileName: FileName  # noqa: N815
    dfsLogFileName: FileName  # noqa: N815
    sizeBytes: Count  # noqa: N815


class Metadata(msgspec.Struct, omit_defaults=True):
    """What a snapshot of Spark's RocksDB provider says of itself."""

    sstFiles: list[TableName]  # noqa: N815
    numKeys: KeyCount  # noqa: N815
    logFiles: list[_LogFile] | None = None  # noqa: N815
    numInternalKeys: KeyCount | None = None  # noqa: N815
    columnFamilyMapping: dict[Name, Family] | None = None  # noqa: N815
    columnFamilyTypeMap: dict[Name, bool] | None = None  # noqa: N815
    maxColumnFamilyId: Family | None = None  # noqa: N815


class LoadedStore(NamedTuple):
    """A database with the rows of a store under Spark's keys, and the names of its states by their numbers.

    There are no names if the store has one state, whose keys have no number.
    """

    database: ScratchDatabase
    families: dict[int, str]


@dataclass(frozen=True)
class Form:
    """How a query has stored its state. ``delimiter``: what RocksDB has put between values that were added to a key.

    ``has_sums``: whether rows have checksums, see ``row_sums.py``. ``is_avro``: whether those of ``transformWithState``
    are Avro.
    """

    provider: Provider
    delimiter: bytes = b""
    has_sums: bool = False
    is_avro: bool = False


@dataclass(frozen=True)
class StoreFiles:
    """The files of one store in ``place``, of the commit ``step``."""

    place: BlobPlace
    form: Form
    step: Step

    @classmethod
    def of(cls, workplace: Workplace, store: StoreVersion, form: Form) -> StoreFiles:
        """Return the files of a store, whose id is that of Spark's commit log. Raises InvalidInputError."""
        commit_id = "" if store.meta.id == EMPTY_ID else store.meta.id
        return cls(workplace.place(store.url), form, Step(store.meta.version, commit_id))

    def load(self, folder: Path) -> LoadedStore:
        """Return the rows of the store, in a database in the new ``folder``.

        Raises NotFoundError (a file is missing), FormatError (damage), InvalidInputError (rows that cannot be read),
        StorageError. Each names the file.
        """
        return _load_rocksdb(self, folder) if self.form.provider == "rocksdb" else _load_hdfs(self, folder)

    def read_state_names(self, folder: Path) -> set[str]:
        """Return the names of the states that the snapshot has a number for. ``folder``: for files meanwhile.

        Only the small files of a snapshot are fetched. Raises as ``load``.
        """
        base = find_chain(self, self.names(), folder).base
        if base is None:
            return set()
        name = base.name("zip")
        path, where = self.fetch(name, folder / "snapshot.zip"), self.where(name)
        with _naming_damage(where), zipfile.ZipFile(path) as archive:
            if archive.getinfo(METADATA).file_size > MAX_ZIP_BYTES:
                raise FormatError(f"{where} is damaged: its metadata is too large.")
            content = archive.read(METADATA)
        return set(_decode_metadata(content, where).columnFamilyMapping or {})

    def find_states_with_rows(self, folder: Path, names: Collection[str]) -> set[str]:
        """Return which of the states ``names`` have rows. ``folder``: a new one. Raises as ``load``."""
        loaded = self.load(folder)
        with closing(loaded.database) as database:
            numbers = {key[:FAMILY_BYTES] for rows in database.portions() for key, _ in rows}
        found = {loaded.families.get(int.from_bytes(each, "little"), "") for each in numbers}
        return found & set(names)

    def names(self) -> set[str]:
        """Return the names of all files of the store, without those of its sub-folders."""
        return {blob.name for blob in self.place.list()}

    def fetch(self, name: str, path: Path) -> Path:
        """Download a file to ``path``. Raises NotFoundError, StorageError."""
        self.place.download(name, path)
        return path

    def where(self, name: str) -> str:
        """Return what messages call a file."""
        return f"{self.place.url}/{name}"


def _load_hdfs(files: StoreFiles, folder: Path) -> LoadedStore:
    folder.mkdir(mode=0o700)
    names, version = files.names(), files.step.version
    snapshots = [each for each in range(version, 0, -1) if f"{each}.snapshot" in names]
    base = snapshots[0] if snapshots else 0
    parts = [f"{base}.snapshot"] * bool(base) + [f"{each}.delta" for each in range(base + 1, version + 1)]
    _require(files, parts, names)
    database = ScratchDatabase(folder / "db")
    _replay(database, (_read_delta(files, name, folder) for name in parts), files.form.delimiter)
    return LoadedStore(database, {})


def _load_rocksdb(files: StoreFiles, folder: Path) -> LoadedStore:
    folder.mkdir(mode=0o700)
    names = files.names()
    chain = find_chain(files, names, folder)
    _require_changelogs(files, chain.later, names)
    metadata = Metadata([], 0) if chain.base is None else _unpack(files, chain.base, folder / "db")
    database = _open_tables(folder, metadata, files.form.delimiter)
    logs = (_read_logged(files, step.name("changelog"), folder) for step in chain.later)
    _replay(database, logs, files.form.delimiter)
    return LoadedStore(database, {number: name for name, number in (metadata.columnFamilyMapping or {}).items()})


def _open_tables(folder: Path, metadata: Metadata, delimiter: bytes) -> ScratchDatabase:
    """Return the database of a snapshot, in which each row has a value of its own."""
    names = [each.localFileName for each in metadata.sstFiles]
    if needs_own_reader(folder / "db", names):
        if logs := [path.name for path in (folder / "db").glob("*.log") if path.stat().st_size]:
            raise InvalidInputError(
                f"The snapshot has rows in RocksDB's own log {logs[0]}, and table files with zlib: these cannot be "
                "read together.",
                hint="Run one more batch of the query, so that Spark makes another snapshot.",
            )
        return _merge(folder, names, delimiter)
    database = ScratchDatabase(folder / "db")
    # in a store with one state, nothing is added to a value
    return _without_merges(database, folder, delimiter) if metadata.columnFamilyMapping else database


def _without_merges(database: ScratchDatabase, folder: Path, delimiter: bytes) -> ScratchDatabase:
    """Return a database with the same rows, of which each has a value of its own."""
    try:
        files = database.table_files()
        if not has_merges(database.folder, [file.name for file in files]):
            return database
        merged = _merge(folder, [file.name for file in files], delimiter)
    except BaseException:
        database.close()
        raise
    database.close()
    return merged


def _merge(folder: Path, names: Sequence[str], delimiter: bytes) -> ScratchDatabase:
    """Return a new database with the rows of table files."""
    merged = ScratchDatabase(folder / "merged")
    try:
        merged.write(merge_rows(folder / "db", names, delimiter))
    except BaseException:
        merged.close()
        raise
    return merged


def _replay(database: ScratchDatabase, logs: Iterable[Iterator[Change]], delimiter: bytes) -> None:
    """Apply logs in their order. After an error, the database is closed."""
    try:
        for changes in logs:
            _apply(database, changes, delimiter)
    except BaseException:
        database.close()
        raise


def _apply(database: ScratchDatabase, changes: Iterator[Change], delimiter: bytes) -> None:
    """Write changes in their order. What is added to a key is joined when it is written."""
    waiting: dict[bytes, list[bytes]] = {}  # no values: the key is deleted
    size = 0

    def write() -> None:
        database.write((key, delimiter.join(values) if values else None) for key, values in waiting.items())
        waiting.clear()

    for key, value, is_added in changes:
        size += len(key) + len(value or b"")
        if is_added and value is not None:
            if key not in waiting:
                before = database.get(key)
                waiting[key] = [] if before is None else [before]
                size += len(before or b"")
            waiting[key].append(value)
        else:
            waiting[key] = [] if value is None else [value]
        if len(waiting) >= CHANGES_AT_ONCE or size >= BYTES_AT_ONCE:
            write()
            size = 0
    write()


def find_chain(files: StoreFiles, names: set[str], folder: Path) -> Chain:
    """Return the newest snapshot at or before the commit, and the commits after it. Raises as ``load``."""
    step: Step | None = files.step
    later: list[Step] = []
    while step is not None and step.name("zip") not in names:
        later.insert(0, step)
        step = _before(files, step, names, folder)
    return Chain(step, tuple(later))


def _before(files: StoreFiles, step: Step, names: set[str], folder: Path) -> Step | None:
    """Return the commit before another one; None for the empty store."""
    if step.version <= 1:
        return None
    if not step.id:
        return Step(step.version - 1, "")
    name = step.name("changelog")
    _require_changelogs(files, [step], names)
    lineage = _read_lineage(files, name, folder)
    found = [each for each in lineage if each.version == step.version - 1]
    if not found:
        raise FormatError(f"{files.where(name)} is damaged: its lineage does not name version {step.version - 1}.")
    return Step(found[0].version, found[0].checkpointUniqueId)


def _read_lineage(files: StoreFiles, name: str, folder: Path) -> tuple[LineageItem, ...]:
    with _open(files, name, folder) as stream:
        return read_changelog(stream, files.where(name)).lineage or ()


def _read_delta(files: StoreFiles, name: str, folder: Path) -> Iterator[Change]:
    with _open(files, name, folder) as stream:
        yield from _check(files, read_changes(stream, files.where(name)), name)


def _read_logged(files: StoreFiles, name: str, folder: Path) -> Iterator[Change]:
    with _open(files, name, folder) as stream:
        yield from _check(files, read_changelog(stream, files.where(name)).changes, name)


def _check(files: StoreFiles, changes: Iterator[Change], name: str) -> Iterator[Change]:
    return check_changes(changes, files.where(name)) if files.form.has_sums else changes


@contextmanager
def _open(files: StoreFiles, name: str, folder: Path) -> Iterator[ByteStream]:
    """Download a file to ``folder`` and open it; delete it afterwards."""
    path = files.fetch(name, folder / name)
    with open_stream(path, files.where(name)) as stream:
        yield stream
    path.unlink()


def _unpack(files: StoreFiles, step: Step, folder: Path) -> Metadata:
    """Make ``folder`` the database of a snapshot."""
    folder.mkdir(mode=0o700)
    name = step.name("zip")
    path, where = files.fetch(name, folder.with_name("snapshot.zip")), files.where(name)
    with _naming_damage(where), zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            _require_plain(entry.filename, where)
            if entry.file_size > MAX_ZIP_BYTES:
                raise FormatError(f"{where} is damaged: {entry.filename!r} has {entry.file_size} bytes.")
            archive.extract(entry, folder)
    path.unlink()
    metadata = _read_metadata(folder / METADATA, where)
    stored = [(each.localFileName, f"{TABLES}/{each.dfsSstFileName}", each.sizeBytes) for each in metadata.sstFiles]
    logs = metadata.logFiles or []
    stored += [(each.localFileName, f"{_LOGS}/{each.dfsLogFileName}", each.sizeBytes) for each in logs]
    for local, remote, size_bytes in stored:
        _require_plain(local, where)
        if files.place.download(remote, folder / local) != size_bytes:
            raise FormatError(f"{files.where(remote)} is damaged: it should have {size_bytes} bytes.")
    return metadata


@contextmanager
def _naming_damage(where: str) -> Iterator[None]:
    """Turn what a damaged zip raises into FormatError that names ``where``."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, KeyError) as problem:
        raise FormatError(f"{where} is damaged: {problem}.") from problem


def _read_metadata(path: Path, where: str) -> Metadata:
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise FormatError(f"{where} is damaged: its metadata cannot be read: {problem}.") from problem
    path.unlink()
    return _decode_metadata(content, where)


def _decode_metadata(content: bytes, where: str) -> Metadata:
    try:
        return msgspec.json.decode(content.partition(b"\n")[2], type=Metadata)
    except DAMAGE as problem:
        raise FormatError(f"{where} is damaged: its metadata cannot be read: {problem}.") from problem


def _require_plain(name: str, where: str) -> None:
    if "/" in name or "\0" in name or name in ("", ".", ".."):
        raise FormatError(f"{where} is damaged: it names the file {name!r}.")


def _require_changelogs(files: StoreFiles, steps: Sequence[Step], names: set[str]) -> None:
    """Raise NotFoundError unless each commit has a changelog: none of them has a snapshot."""
    for step in steps:
        name, snapshot = step.name("changelog"), step.name("zip")
        if name not in names:
            raise NotFoundError(
                f"{files.place.url} has neither {snapshot} nor {name}, but version {files.step.version} of the store "
                "needs one of them.",
                hint="Restore the file from a backup of the checkpoint.",
            )


def _require(files: StoreFiles, wanted: list[str], names: set[str]) -> None:
    missing = [name for name in wanted if name not in names]
    if missing:
        raise NotFoundError(
            f"{files.where(missing[0])} is missing, but version {files.step.version} of the store needs it.",
            hint="Restore the file from a backup of the checkpoint.",
        )
