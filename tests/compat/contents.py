"""What a whole checkpoint holds, read without Spark: a digest and a number of rows for every store and version."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.store_contents import restore_store
from pyspark_ckpt.state_store.format.keys import MARKER_KEY
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.options import parse


def digests(location: Path, first: int = 1) -> dict[str, list[str]]:
    """For every store, by operator, partition and name, and version from ``first`` on: rows, and a digest of them."""
    checkpoint = Checkpoint(str(location), parse({}))
    found: dict[str, list[str]] = {}
    for _, identity in checkpoint.stores():
        log = StoreLog(__name__, identity.short)
        for version in range(first, checkpoint.newest_version + 1):
            with restore_store(checkpoint, identity, checkpoint.find_commit(identity, version), log) as restored:
                rows = [(key, value) for key, value in restored.database.rows() if key != MARKER_KEY]
            digest = hashlib.sha256(repr(rows).encode()).hexdigest()[:16]
            found.setdefault(identity.short, []).append(f"{len(rows)} {digest}")
    return found
