"""Plans of the batches that a query had after a savepoint, for a checkpoint that is restored from that savepoint.

A sink knows a batch by its number. A query that goes back would plan these batches anew, with other rows under the same
numbers. With the plans of the run that it goes back from, each number has the rows that it had. They are entries of the
offset log, in ``_ckpt/replay/<batch>``: Spark takes up only one planned batch at a start, so the jar moves the next one
to ``offsets`` when all before it are committed. ``_ckpt/replay.json`` says which is the last.
"""

from __future__ import annotations

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_kind
from pyspark_ckpt.state_store.checkpoints.query.carried_plans import (
    CARRIED_FILE,
    read_last_carried,
    write_last_carried,
)
from pyspark_ckpt.state_store.checkpoints.query.copying import Target, copy_files
from pyspark_ckpt.state_store.checkpoints.query.entries import ContentRewrite, require_partitions
from pyspark_ckpt.state_store.checkpoints.query.files import list_batches, source_file_names
from pyspark_ckpt.state_store.checkpoints.query.sources import parse_offsets
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.names import REPLAY_FOLDER
from pyspark_ckpt.state_store.format.remote import query_id


def find_last_planned(earlier: BlobPlace, query: str) -> int | None:
    """Return the last batch that a query has planned on a checkpoint; None if it has none, or is not the same query.

    Raises FormatError, StorageError.
    """
    if find_kind(earlier) is not FolderKind.CHECKPOINT or query_id(earlier) != query:
        return None
    return max(list_batches(earlier, "offsets"), default=None)


class Replay:
    """The plans of ``earlier``, the checkpoint of the run that a query goes back from, after a batch of ``source``."""

    def __init__(self, earlier: BlobPlace, source: BlobPlace, batch: int) -> None:
        """Read the plans. Raises InvalidInputError (another query, or plans that are deleted), FormatError."""
        self._earlier = earlier
        if find_kind(earlier) is not FolderKind.CHECKPOINT:
            raise InvalidInputError(f"`replay_from` is {earlier.url}, which is not the checkpoint of a query.")
        if query_id(earlier) != query_id(source):
            raise InvalidInputError(
                f"`replay_from` is {earlier.url}, the checkpoint of query {query_id(earlier)}. {source.url} is of "
                f"query {query_id(source)}.",
                hint=f"Name the checkpoint on which the query has run after batch {batch}.",
            )
        self._plans = self._read(source, batch)

    def _read(self, source: BlobPlace, batch: int) -> dict[int, bytes]:
        of_log = list_batches(self._earlier, "offsets")
        folders = dict.fromkeys(list_batches(self._earlier, REPLAY_FOLDER), REPLAY_FOLDER)
        folders |= dict.fromkeys(of_log, "offsets")
        later = sorted(each for each in folders if each > batch)
        last = max([read_last_carried(self._earlier), *later])
        if len(later) < last - batch:
            missing = next(each for each in range(batch + 1, last + 1) if each not in folders)
            raise InvalidInputError(
                f"{self._earlier.url}/offsets/{missing} is deleted: the batches after {batch} cannot have the rows "
                "that they had.",
                hint="Spark keeps as many entries as spark.sql.streaming.minBatchesToRetain says, 100 by default. "
                "Restore a later savepoint. Or restore without `replay_from`, for a query with another sink.",
            )
        for known in {batch, batch + 1} & of_log & list_batches(source, "offsets"):
            self._require_equal(source, f"offsets/{known}")
        return {each: self._get(f"{folders[each]}/{each}") for each in later}

    def _require_equal(self, source: BlobPlace, name: str) -> None:
        here = parse_offsets(source.get(name), f"{source.url}/{name}")
        there = parse_offsets(self._get(name), f"{self._earlier.url}/{name}")
        if here != there:
            raise InvalidInputError(
                f"`replay_from` is {self._earlier.url}, whose {name} is not that of {source.url}: the query has not "
                "gone on there from this savepoint.",
                hint="Name the checkpoint on which it has, or restore without `replay_from`.",
            )

    def _get(self, name: str) -> bytes:
        content, where = self._earlier.get(name), f"{self._earlier.url}/{name}"
        require_partitions(content, where)
        parse_offsets(content, where)
        return content

    def copy(self, target: Target, sources: Target, change: ContentRewrite) -> None:
        """Write the plans, and the files of sources that they refer to, after those of the savepoint.

        Raises NotFoundError, FormatError, InvalidInputError (a link to a folder), StorageError.
        """
        copy_files(lambda: source_file_names(self._earlier), self._earlier, sources, change)
        if self._plans:
            target.put(CARRIED_FILE, write_last_carried(max(self._plans)))
        for batch, plan in self._plans.items():
            target.put(f"{REPLAY_FOLDER}/{batch}", change(f"offsets/{batch}", plan, f"{self._earlier.url}: {batch}"))
