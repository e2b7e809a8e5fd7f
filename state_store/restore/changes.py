"""The changes of single versions of stores: their deltas, one after another, as local files.

A feed follows the lineage of one commit, as a restore does. It does not contain the writes of a losing sibling. At most
two deltas are on local disk at a time: the current one and the next one.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import Executor, Future, wait
from itertools import count
from pathlib import Path
from typing import NamedTuple

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.format.delta import Delta, read_delta
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.names import DeltaName


class DeltaStep(NamedTuple):
    """A delta to fetch."""

    place: BlobPlace
    name: DeltaName
    size_bytes: int

    @property
    def version(self) -> int:
        """The version that it makes."""
        return self.name.commit.version


class ChangeFeed:
    """Deltas, in the order in which they are given. For one caller at a time."""

    def __init__(self, steps: Sequence[DeltaStep], folder: Path, pool: Executor) -> None:
        """Fetch ``steps`` into the empty ``folder``, which ``close`` deletes."""
        self._steps = iter(steps)
        self._numbers = count()
        self._folder = folder
        self._pool = pool
        self._shown: Path | None = None
        self._coming = self._fetch()

    def next(self) -> Delta | None:
        """Return the next delta, verified, or None after the last one. Its files stay until the next call.

        Raises NotFoundError (retired after the feed was opened), FormatError (damaged), StorageError.
        """
        self._drop_shown()
        if self._coming is None:
            return None
        folder, fetched = self._coming
        delta = fetched.result()
        self._shown = folder
        self._coming = self._fetch()
        return delta

    def close(self) -> None:
        """Delete all local files. May be called twice."""
        self._steps = iter(())
        if self._coming is not None:
            wait([self._coming[1]])
        shutil.rmtree(self._folder, ignore_errors=True)

    def _fetch(self) -> tuple[Path, Future[Delta]] | None:
        step = next(self._steps, None)
        if step is None:
            return None
        folder = self._folder / str(next(self._numbers))
        return folder, self._pool.submit(read_delta, *step, folder)

    def _drop_shown(self) -> None:
        if self._shown is not None:
            shutil.rmtree(self._shown)
            self._shown = None


def list_steps(place: BlobPlace, commit: Marker, first: int | None, lineage: Lineage, store: str) -> list[DeltaStep]:
    """Return the deltas from version ``first`` to ``commit``, oldest first; ``first`` None: all existing ones.

    Raises NotFoundError (``commit`` does not exist, or deltas are missing: the message lists the existing batches).
    """
    lineage.require(commit, store)
    begin = 1 if first is None else first
    missing, steps = lineage.chain(commit, lambda marker: marker.version < begin or marker not in lineage.deltas)
    if first is not None and missing.version >= first:
        there = f"batches {missing.version} to {commit.version - 1} can be read" if steps else "none can be read"
        raise NotFoundError(
            f"{store}: the changes of batch {missing.version - 1} (version {missing.version}) are missing; {there}.",
            hint="Begin with a later batch. Retention keeps the last spark.sql.streaming.minBatchesToRetain batches.",
        )
    return [DeltaStep(place, name, lineage.deltas[name.commit][1].size_bytes) for name in steps]
