"""What a whole checkpoint holds, read without Spark: a digest and a number of rows for every store and version."""

from __future__ import annotations

import hashlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark_ckpt.state_store.checkpoint import Checkpoint
from pyspark_ckpt.state_store.database import Tuning
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.keys import MARKER_KEY
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.restore import Restorer
from pyspark_ckpt.state_store.winners import resolve

TUNING = Tuning(1 << 20)


def digests(location: Path, first: int = 1) -> dict[str, list[str]]:
    """For every store, by operator, partition and name, and version from ``first`` on: rows, and a digest of them."""
    checkpoint = Checkpoint(str(location), parse({}))
    found: dict[str, list[str]] = {}
    for _, identity in checkpoint.stores():
        place = checkpoint.place_of(identity)
        for version in range(first, checkpoint.newest_version + 1):
            commit = resolve(place, checkpoint.place, version, identity.operator, identity.partition, str(identity))
            with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
                log = StoreLog(__name__, identity.short)
                restorer = Restorer(place, TUNING, pool, FailPoints(""), log, str(identity))
                database = restorer.restore(commit, Path(folder), set(), lambda _commit, _folder: None).database
                rows = [(key, value) for key, value in database.rows() if key != MARKER_KEY]
                database.close()
            digest = hashlib.sha256(repr(rows).encode()).hexdigest()[:16]
            found.setdefault(identity.short, []).append(f"{len(rows)} {digest}")
    return found
