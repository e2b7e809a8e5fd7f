"""Find the keys that the commits between two versions of a store have written or deleted, from their deltas."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.format.delta import read_delta
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.sst.table import SortedTable

MAX_DELTA_BYTES = 64 << 20
"""Larger deltas are not read for their keys, which are held in memory."""


def list_touched_keys(
    place: BlobPlace, older: Marker, newer: Marker, wanted: tuple[bytes, bytes], folder: Path
) -> list[bytes] | None:
    """Return the keys from ``wanted[0]`` up to ``wanted[1]`` that commits after ``older`` up to ``newer`` name, sorted.

    A key is included even if it has the same value in the end. None if the deltas do not tell: some are missing, are
    larger than MAX_DELTA_BYTES, or ``newer`` does not descend from ``older``. ``folder``, a new one, gets the deltas
    one by one. Raises FormatError, StorageError.
    """
    lineage = Lineage.read(place)
    try:
        base, steps = lineage.chain(newer, lambda at: at.version <= older.version or at not in lineage.deltas)
        sizes = [lineage.deltas[step.commit][1].size_bytes for step in steps]
        if base != older or sum(sizes) > MAX_DELTA_BYTES:
            return None
        found: set[bytes] = set()
        for step, size_bytes in zip(steps, sizes, strict=True):
            delta = read_delta(place, step, size_bytes, folder)
            for path in delta.files:
                with closing(SortedTable(path, wanted)) as table:
                    if table.hidden:
                        return None
                    begin, end = wanted
                    for entries in table.span(begin, end).entries():
                        found.update(key for key in entries.keys.strings() if begin <= key < end)
            shutil.rmtree(folder)
    except NotFoundError:  # retention has deleted one meanwhile
        return None
    return sorted(found)
