"""The manifest of a snapshot: a JSON object whose creation publishes the snapshot.

::

    {"format": 1, "store": {...StoreMeta...}, "max_parallelism": 32768, "key_groups": [0, 32768],
     "files": [{"name": "000012.sst", "bytes", "sha256", "xxh3", "object": "sst/<sha256>-<tail>.sst",
                "first_key", "last_key" (base64), "rows"},
               {"name": "CURRENT", "bytes", "sha256", "xxh3", "data": (base64)}],
     "xxh3": "<of all that, see json_objects>"}

The files are a complete RocksDB folder. A restore places them in a folder and opens it. Table files are objects that
snapshots share. RocksDB's own small files (MANIFEST, CURRENT, OPTIONS) are inside the manifest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final

import msgspec
import xxhash

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.blobs.transfers import StoredFile
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.meta import FORMAT_VERSION, StoreMeta
from pyspark_ckpt.state_store.format.names import is_table_object, snapshot_name
from pyspark_ckpt.state_store.json_objects import (
    Count,
    FileName,
    Groups,
    Sha256,
    TableObject,
    Xxh3,
    check_format_in,
    decode_as,
    read_again,
    seal,
    unseal,
)

MAX_FILE_BYTES: Final = 1 << 44
CURRENT: Final = "CURRENT"

_TABLE_NAME = re.compile(r"[0-9]{6,20}\.sst")
_OTHER_NAME = re.compile(rf"{CURRENT}|(MANIFEST|OPTIONS)-[0-9]{{6,20}}|rocksdict-config\.json")


class ManifestFile(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename={"size_bytes": "bytes", "object_name": "object"},
):
    """A file of the RocksDB folder: an object of its own, or inline ``data``."""

    name: FileName
    size_bytes: Count
    sha256: Sha256
    xxh3: Xxh3
    object_name: TableObject | None = None
    data: bytes | None = None
    first_key: bytes | None = None
    last_key: bytes | None = None
    rows: Count | None = None

    @property
    def as_stored_file(self) -> StoredFile:
        """The object that holds the file. The file must not be inline."""
        return StoredFile(str(self.object_name), self.size_bytes, self.xxh3)


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a restore of one snapshot needs."""

    format: int
    store: StoreMeta
    max_parallelism: Groups
    key_groups: tuple[Groups, Groups]
    files: tuple[ManifestFile, ...]

    def objects(self) -> dict[str, ManifestFile]:
        """Return the table files by the names of their objects."""
        return {file.object_name: file for file in self.files if file.object_name is not None}

    def encode(self) -> bytes:
        """Return the content of the manifest object."""
        return seal(self)


def is_inline(name: str) -> bool:
    """Return whether a file of a RocksDB folder belongs inside the manifest."""
    return _OTHER_NAME.fullmatch(name) is not None


def inline_file(name: str, data: bytes) -> ManifestFile:
    """Describe a small file that is stored inside the manifest."""
    digest = hashlib.sha256(data).hexdigest()
    return ManifestFile(name, len(data), digest, xxhash.xxh3_128_hexdigest(data), data=data)


def decode(content: bytes, where: str) -> Manifest:
    """Read and check a manifest. Raises FormatError that names ``where``."""
    check_format_in(content, FORMAT_VERSION, where)  # first: another format may be sealed otherwise
    manifest = decode_as(unseal(content, where), Manifest, where)
    files = {file.name: file for file in manifest.files}
    bad = next((file.name for file in manifest.files if not _acceptable(file)), None)
    if bad is not None or len(files) != len(manifest.files) or not _names_its_manifest(files):
        raise FormatError(f"{where} is damaged: its list of files is not that of a database folder ({bad!r}).")
    return manifest


def read_manifest(place: BlobPlace, base: Marker) -> tuple[bytes, Manifest]:
    """Return the manifest of the snapshot of a commit, as stored bytes and decoded.

    Raises NotFoundError, FormatError (also for a manifest of another commit), StorageError.
    """
    name = snapshot_name(base)

    def read() -> tuple[bytes, Manifest]:
        content = place.get(name)
        manifest = decode(content, f"{place.url}/{name}")
        if manifest.store.marker != base:
            raise FormatError(f"{place.url}/{name} is damaged: it holds {manifest.store.marker} instead.")
        return content, manifest

    return read_again(read)


def _names_its_manifest(files: Mapping[str, ManifestFile]) -> bool:
    """Return whether CURRENT names a RocksDB manifest among the files: RocksDB follows that name."""
    current = files.get(CURRENT)
    name = b"" if current is None or current.data is None else current.data.removesuffix(b"\n")
    return name.startswith(b"MANIFEST-") and name.decode("ascii", errors="replace") in files


def _acceptable(file: ManifestFile) -> bool:
    if not 0 <= file.size_bytes <= MAX_FILE_BYTES:
        return False
    if file.data is not None:
        intact = len(file.data) == file.size_bytes and xxhash.xxh3_128_hexdigest(file.data) == file.xxh3
        return file.object_name is None and is_inline(file.name) and intact
    return (
        file.object_name is not None
        and is_table_object(file.object_name)
        and _TABLE_NAME.fullmatch(file.name) is not None
    )
