"""The lineage of a store, some of whose commits are in packs that no listing of its folder shows."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.format.delta import read_meta
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.slots import split_id
from pyspark_ckpt.state_store.packs.store_place import StorePlace


def read_lineage(place: BlobPlace, commit: Marker, is_base: Callable[[Lineage, Marker], bool] | None = None) -> Lineage:
    """List a store, and find its commits in packs from ``commit`` back to the nearest base, a snapshot by default.

    A delta names those before it. So this makes one listing, and one or two other requests if there are packs. A pack
    that is gone is no error here: the lineage then ends there. Raises FormatError, StorageError.
    """
    lineage = Lineage.read(place)
    if isinstance(place, StorePlace):
        is_base = is_base or (lambda known, marker: marker in known.snapshots)
        while _find_more(place, lineage, commit, is_base):
            lineage.add(place.shown())
    return lineage


def _find_more(
    place: StorePlace, lineage: Lineage, commit: Marker, is_base: Callable[[Lineage, Marker], bool]
) -> bool:
    """Learn commits before ``commit``, unless a base is in reach. Return whether any was found."""
    if next(lineage.chains(commit, lambda marker: is_base(lineage, marker)), None) is not None:
        return False
    *before, last = lineage.walk(commit)
    if last == EMPTY:
        return False
    try:
        meta = place.read_slot_meta(last)
        if meta is not None:
            place.note_chain(last, meta.chain or (meta.store.parent,), time.time())
            return True
        name, blob = lineage.deltas[before[-1]] if before else (None, None)
        chain = () if name is None or blob is None else read_meta(place, name, blob.size_bytes).chain
    except NotFoundError:
        return False
    if not chain or split_id(chain[0])[1] is None:
        return False
    place.note_chain(before[-1], chain, time.time())
    return True
