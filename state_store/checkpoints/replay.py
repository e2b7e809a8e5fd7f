"""Plans of a query's batches after a savepoint, for a checkpoint that is restored from that savepoint.

A sink knows a batch by its number. A query that goes back would plan these batches again, with other rows under the
same numbers. With the plans of the earlier runs, each number keeps its rows. They are entries of the offset log, in
``_ckpt/replay/<batch>``: Spark takes up only one planned batch at a start, so the jar moves the next one to ``offsets``
when all before it are committed. ``_ckpt/replay.json`` names the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark_ckpt.state_store.attempts.runs import Epochs
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_kind
from pyspark_ckpt.state_store.checkpoints.query.carried_plans import (
    CARRIED_FILE,
    read_last_carried,
    write_last_carried,
)
from pyspark_ckpt.state_store.checkpoints.query.content import ContentRewrite
from pyspark_ckpt.state_store.checkpoints.query.copying import Target, copy_files
from pyspark_ckpt.state_store.checkpoints.query.entries import require_partitions
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY, list_batches, source_file_names
from pyspark_ckpt.state_store.checkpoints.query.sources import Offsets, parse_offsets
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.names import REPLAY_FOLDER
from pyspark_ckpt.state_store.format.remote import query_id

MAX_MOVES = 16
"""How many rescalings of one query are followed."""


def find_last_planned(earlier: BlobPlace, query: str) -> int | None:
    """Return the last batch that a query has planned on a checkpoint; None if none, or if the query is another.

    Raises FormatError, StorageError.
    """
    if find_kind(earlier) is not FolderKind.CHECKPOINT or query_id(earlier) != query:
        return None
    return max(_list_plans(earlier), default=None)


def follow_moves(resolve: Callable[[str], BlobPlace], location: str) -> list[BlobPlace]:
    """Return the place of a checkpoint, and those on which its query has continued since, as rescalings have recorded.

    ``resolve``: makes a place from a location. Raises FormatError, StorageError.
    """
    found = [resolve(location)]
    while len(found) <= MAX_MOVES:
        newest = Epochs(found[-1]).find_newest()
        if newest is None or not newest.moves_to:
            break
        there = resolve(newest.moves_to)
        if there.url in {each.url for each in found}:
            break
        found.append(there)
    return found


def _list_plans(checkpoint: BlobPlace) -> dict[int, str]:
    """Return the names of a checkpoint's plans, by their batches. Raises StorageError."""
    carried = {each: f"{REPLAY_FOLDER}/{each}" for each in list_batches(checkpoint, REPLAY_FOLDER)}
    return carried | {each: f"offsets/{each}" for each in list_batches(checkpoint, "offsets")}


@dataclass(frozen=True)
class _Run:
    """A checkpoint on which a query has run, and the names of its plans by their batches."""

    place: BlobPlace
    plans: Mapping[int, str]

    @classmethod
    def of(cls, place: BlobPlace, source: BlobPlace, batch: int) -> _Run:
        """Raises InvalidInputError (it is none, or another query's), FormatError, StorageError."""
        if find_kind(place) is not FolderKind.CHECKPOINT:
            raise InvalidInputError(f"`replay_from` is {place.url}, which is not the checkpoint of a query.")
        if query_id(place) != query_id(source):
            raise InvalidInputError(
                f"`replay_from` is {place.url}, the checkpoint of query {query_id(place)}, but {source.url} is of "
                f"query {query_id(source)}.",
                hint=f"Name the checkpoint on which the query ran after batch {batch}.",
            )
        return cls(place, _list_plans(place))

    def read(self, batch: int) -> bytes:
        """Return a plan. Raises NotFoundError, FormatError, StorageError."""
        content, where = self.place.get(self.plans[batch]), f"{self.place.url}/{self.plans[batch]}"
        require_partitions(content, where)
        parse_offsets(content, where)
        return content

    def read_offsets(self, batch: int) -> Offsets:
        """Return the offsets of a plan. Raises as ``read``."""
        return parse_offsets(self.read(batch), f"{self.place.url}/{self.plans[batch]}")

    def is_copied(self, batch: int) -> bool:
        """Return whether a plan was there before ``metadata``, which a restore writes last, and Spark first."""
        name = self.plans[batch]
        written = {blob.name: blob.modified_s for blob in (*self.place.list("offsets"), *self.place.list(prefix=QUERY))}
        return name in written and written[name] <= written.get(QUERY, 0)


class Replay:
    """A query's plans after a batch of ``source``, to which it goes back, from the checkpoints on which it has run."""

    def __init__(self, earlier: Sequence[BlobPlace], source: BlobPlace, batch: int) -> None:
        """Find the plans. If several of ``earlier`` have planned a batch, the last of them counts.

        Raises InvalidInputError (another query, missing plans, or plans that do not follow each other), FormatError,
        StorageError.
        """
        self._runs = [_Run.of(place, source, batch) for place in earlier]
        chosen = {each: run for run in self._runs for each in run.plans if each > batch}
        self._require_all(chosen, batch)
        of_source = list_batches(source, "offsets")
        for run in self._runs:
            for known in sorted({batch, batch + 1} & of_source & {*run.plans}):
                self._require_equal(run, source, known)
        for each in sorted(chosen):
            self._require_following(chosen, each)
        self._plans = {each: (chosen[each].place, chosen[each].read(each)) for each in sorted(chosen)}

    def _require_all(self, chosen: Mapping[int, _Run], batch: int) -> None:
        last = max([batch, *chosen, *(read_last_carried(run.place) for run in self._runs)])
        missing = next((each for each in range(batch + 1, last + 1) if each not in chosen), None)
        if missing is None:
            return
        first = min((each for each in chosen if each > missing), default=None)
        having = [run for run in self._runs if first is not None and first in run.plans]
        urls = [run.place.url for run in self._runs]
        none = f"{urls[0]} has no" if len(urls) == 1 else f"none of {', '.join(urls)} has"
        if first is not None and all(first == min(run.plans) and run.is_copied(first) for run in having):
            hint = (
                f"{having[0].place.url} begins with offsets/{first}: a restore or a rescaling has made it. In "
                "`replay_from`, also name the checkpoint from which it was made."
            )
        else:
            hint = (
                "If the query was moved (restore, rescale), name in `replay_from` all checkpoints on which it has run "
                "since the savepoint. Otherwise Spark has deleted this entry: it keeps the last "
                "spark.sql.streaming.minBatchesToRetain entries, 100 by default. In that case restore a later "
                "savepoint, or restore without `replay_from`, for a query with another sink."
            )
        raise InvalidInputError(
            f"`replay_from`: {none} offsets/{missing}: the batches after {batch} cannot have the same rows again.",
            hint=hint,
        )

    def _require_equal(self, run: _Run, source: BlobPlace, batch: int) -> None:
        name = f"offsets/{batch}"
        if parse_offsets(source.get(name), f"{source.url}/{name}") != run.read_offsets(batch):
            raise InvalidInputError(
                f"`replay_from` is {run.place.url}, whose {run.plans[batch]} differs from that of {source.url}: the "
                "query has not continued there from this savepoint.",
                hint="Name the checkpoint on which it has, or restore without `replay_from`.",
            )

    def _require_following(self, chosen: Mapping[int, _Run], batch: int) -> None:
        """Raise InvalidInputError if a plan does not begin where the one before it ends."""
        run, before = chosen[batch], chosen.get(batch - 1)
        if before in (None, run) or batch - 1 not in run.plans:
            return
        if run.read_offsets(batch - 1) != before.read_offsets(batch - 1):
            raise InvalidInputError(
                f"`replay_from`: batch {batch - 1} has other rows on {run.place.url} than on {before.place.url}, and "
                f"only {run.place.url} has batch {batch}, which follows on its own batch {batch - 1}.",
                hint=f"Name last the checkpoint whose batches the sink has. Without {run.place.url}, the batches up to "
                f"{batch - 1} are those of the others.",
            )

    def copy(self, target: Target, sources: Target, change: ContentRewrite) -> None:
        """Write the plans, and the files of sources that they refer to, after those of the savepoint.

        Raises NotFoundError, FormatError, InvalidInputError (a link to a folder), StorageError.
        """
        for run in self._runs:
            copy_files(partial(source_file_names, run.place), run.place, sources, change)
        if self._plans:
            target.put(CARRIED_FILE, write_last_carried(max(self._plans)))
        for batch, (place, plan) in self._plans.items():
            target.put(f"{REPLAY_FOLDER}/{batch}", change(f"offsets/{batch}", plan, f"{place.url}: {batch}"))
