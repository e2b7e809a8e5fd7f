"""Snapshots of table files with given contents, made by the product's own writer but without a database."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
import xxhash

from pyspark_ckpt.state_store.database import Tuning
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.manifest import Manifest, ManifestFile, inline_file
from pyspark_ckpt.state_store.format.meta import EMPTY_META, FORMAT_VERSION
from pyspark_ckpt.state_store.format.names import table_object_name
from pyspark_ckpt.state_store.snapshots.writer import SnapshotWriter
from tests.labs.memory_place import MemoryPlace

TUNING = Tuning(1 << 20, "none")


def publish(writer: SnapshotWriter, place: MemoryPlace, commit: Marker, contents: Sequence[bytes]) -> str:
    """Make a snapshot of table files with these contents, as the product does with those of a database.

    Returns "published", "given up" if table files went meanwhile, or "exists" if the commit has another one.
    """
    lineage = Lineage.read(place)
    if commit in lineage.snapshots:
        return "exists"
    known = writer._find_confirmed_objects(commit, lineage)
    files = [inline_file("CURRENT", b"MANIFEST-000001\n"), inline_file("MANIFEST-000001", b"files")]
    for number, content in enumerate(contents):
        sha256 = hashlib.sha256(content).hexdigest()
        name = known.get(sha256)
        if name is None:
            name = table_object_name(sha256, writer._make_id())
            with place.create(name) as sink:
                sink.write(content)
        xxh3 = xxhash.xxh3_128_hexdigest(content)
        files.append(ManifestFile(f"{number + 2:06d}.sst", len(content), sha256, xxh3, name))
    store = msgspec.structs.replace(EMPTY_META, version=commit.version, id=commit.id)
    manifest = Manifest(FORMAT_VERSION, store, 1, (0, 1), tuple(files))
    if not writer._is_complete(manifest):
        return "given up"
    if writer._put(manifest):
        return "published"
    return "exists" if writer._is_complete(manifest) else "given up"
