"""The lineage of a store, some of whose commits are in packs that no listing of its folder shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.format.delta import read_meta
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.packs.pack import read_index
from pyspark_ckpt.state_store.packs.slots import pack_name, split_id
from pyspark_ckpt.state_store.packs.store_place import StorePlace

IsBase = Callable[[Lineage, Marker], bool]


def _is_snapshot(lineage: Lineage, commit: Marker) -> bool:
    return commit in lineage.snapshots


def read_lineage(
    place: BlobPlace, commit: Marker, is_base: IsBase = _is_snapshot, *, passes_damage: bool = False
) -> Lineage:
    """List a store, and find its commits in packs from ``commit`` back to the nearest base, a snapshot by default.

    A delta names those before it. So this makes one listing, and one or two other requests if there are packs. A pack
    that is gone is no error here: the lineage then ends there. With ``passes_damage``, it also ends at a damaged one.
    Raises FormatError, StorageError.
    """
    lineage = Lineage.read(place)
    extend(lineage, place, commit, is_base, passes_damage=passes_damage)
    return lineage


def extend(lineage: Lineage, place: BlobPlace, commit: Marker, is_base: IsBase, *, passes_damage: bool = False) -> None:
    """Add to the ``lineage`` of a place its commits in packs from ``commit`` back to the nearest base.

    With ``passes_damage``, a damaged commit ends it as one that is gone does: a snapshot can then be made.
    Raises FormatError, StorageError.
    """
    try:
        while isinstance(place, StorePlace) and _find_more(place, lineage, commit, is_base):
            lineage.add(place.list_packed())
    except FormatError:
        if not passes_damage:
            raise


def add_named(lineage: Lineage, place: BlobPlace, store: Identity, version: int, named: Collection[str]) -> None:
    """Add to the ``lineage`` of a store its commit of ``version`` in a pack, by the ids that the commit log names.

    Makes no request if it is known or in no pack; else one if the partition has one store, or a listing and one for
    each pack. Raises FormatError, StorageError.
    """
    located = {each: slot for each in named if (slot := split_id(each)[1]) is not None}
    if not isinstance(place, StorePlace) or not located:
        return
    if any(place.knows(Marker(version, split_id(each)[0])) for each in located):
        return
    if len(named) == 1:
        _note_only(place, version, *named)
    else:
        wanted = {pack_name(version, slot.pack): slot.pack for slot in located.values()}
        for blob in place.packs.list(prefix=f"{version:020d}-"):
            for commit in read_index(place.packs, blob) if blob.name in wanted else ():
                each = commit.find_id(wanted[blob.name])
                if commit.identity == store and each in located:
                    place.note(version, each, commit.delta_name(version).parent, blob.modified_s)
    lineage.add(place.list_packed())


def _note_only(place: StorePlace, version: int, located: str) -> None:
    """Learn the only commit that the log names, and its parent. A pack that is gone is no error here."""
    commit = place.note(version, located, at_s=time.time())
    with suppress(NotFoundError):
        meta = place.read_slot_meta(commit)
        if meta is not None:
            place.note(version, located, Marker(version - 1, meta.store.parent))


def _find_more(place: StorePlace, lineage: Lineage, commit: Marker, is_base: IsBase) -> bool:
    """Learn commits before ``commit``, unless a base is in reach. Return whether any was found."""
    if next(lineage.chains(commit, lambda marker: is_base(lineage, marker)), None) is not None:
        return False
    *before, last = lineage.walk(commit)
    if last == EMPTY:
        return False
    try:
        meta = place.read_slot_meta(last)
        if meta is not None:
            return place.note_chain(last, meta.chain or (meta.store.parent,))
        name, blob = lineage.deltas[before[-1]] if before else (None, None)
        chain = () if name is None or blob is None else read_meta(place, name, blob.size_bytes).chain
    except NotFoundError:
        return False
    return bool(chain) and split_id(chain[0])[1] is not None and place.note_chain(before[-1], chain)
