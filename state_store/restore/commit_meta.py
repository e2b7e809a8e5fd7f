"""Reads the metadata of a store at one of its commits: from the delta if there is one, else from the snapshot."""

from __future__ import annotations

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.format.delta import read_meta
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.manifest import read_manifest
from pyspark_ckpt.state_store.format.meta import StoreMeta
from pyspark_ckpt.state_store.packs.store_place import StorePlace


def read_meta_at(place: BlobPlace, commit: Marker, lineage: Lineage) -> StoreMeta:
    """Return the states and row counts at a commit of the store in ``place``, which has this ``lineage``.

    Raises NotFoundError, FormatError, StorageError.
    """
    if commit in lineage.deltas:
        name, blob = lineage.deltas[commit]
        return read_meta(place, name, blob.size_bytes).store
    packed = place.read_slot_meta(commit) if isinstance(place, StorePlace) else None
    if packed is not None:
        return packed.store
    return read_manifest(place, commit)[1].store
