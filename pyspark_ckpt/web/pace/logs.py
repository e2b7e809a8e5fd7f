"""The newest batches in the offset log: their clock, their watermark, and how far their sources went.

An entry of the log never changes, so each is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.query.entries import split_lines
from pyspark_ckpt.state_store.checkpoints.query.sources import parse_offsets
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.json_objects import Count, Name, Words, decode_as
from pyspark_ckpt.web.pace.backlog import count_between

SHOWN_BATCHES = 30
AT_ONCE = 8


class EntryJson(msgspec.Struct):
    """The second line of an entry of the offset log. ``conf``: confs of its session that the query keeps."""

    batchWatermarkMs: Count = 0  # noqa: N815 - Spark's names, here and below
    batchTimestampMs: Count = 0  # noqa: N815
    conf: dict[Name, Words] = {}


@dataclass(frozen=True)
class LoggedBatch:
    """A batch that was planned. ``problem``: why its entry cannot be read; empty if it was read.

    ``offsets``: by the ids of sources, None for a source without one yet.
    """

    clock_ms: int = 0
    watermark_ms: int = 0
    offsets: Mapping[str, str | None] | None = None
    problem: str = ""

    def count_input(self, before: LoggedBatch | None) -> int | None:
        """Return how many offsets of all sources are new since the batch ``before``; None if unknown."""
        if before is None or self.offsets is None or before.offsets is None:
            return None
        found = [
            count_between(old, new)
            for source, new in self.offsets.items()
            if new is not None and (old := before.offsets.get(source)) is not None
        ]
        known = [each for each in found if each is not None]
        return sum(known) if known and len(known) == len(found) else None


def read_entry(place: BlobPlace, batch: int) -> EntryJson:
    """Return what the offset log keeps of a batch; nothing if it has no entry. Raises FormatError, StorageError."""
    name = f"offsets/{batch}"
    try:
        lines = place.get(name).split(b"\n")
    except NotFoundError:
        return EntryJson()
    return decode_as(lines[1] if len(lines) > 1 else b"", EntryJson, f"{place.url}/{name}")


class OffsetLog:
    """The entries of the newest batches of one query. Safe to use from many threads: an entry may be read twice."""

    def __init__(self) -> None:
        """Begin with no entry."""
        self._known: Mapping[tuple[str, int, float], LoggedBatch] = {}

    def read(self, place: BlobPlace, query_id: str, written_s: Mapping[int, float]) -> dict[int, LoggedBatch]:
        """Return the newest ``SHOWN_BATCHES`` of the batches whose entries were ``written_s``. Raises StorageError."""
        names = {batch: (query_id, batch, written_s[batch]) for batch in sorted(written_s)[-SHOWN_BATCHES:]}
        known = self._known
        missing = [batch for batch, name in names.items() if name not in known]
        self._known = {
            **{name: known[name] for name in names.values() if name in known},
            **{names[batch]: each for batch, each in _read_all(place, missing)},
        }
        return {batch: each for batch, name in names.items() if (each := self._known.get(name)) is not None}


def _read_all(place: BlobPlace, batches: Iterable[int]) -> list[tuple[int, LoggedBatch]]:
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="offset log") as pool:
        return list(pool.map(lambda batch: (batch, _read(place, batch)), batches))


def _read(place: BlobPlace, batch: int) -> LoggedBatch:
    name = f"offsets/{batch}"
    where = f"{place.url}/{name}"
    try:
        content = place.get(name)
        told = decode_as(split_lines(content, where)[1], EntryJson, where)
        return LoggedBatch(told.batchTimestampMs, told.batchWatermarkMs, parse_offsets(content, where).by_id)
    except NotFoundError:  # the query has deleted it since the listing
        return LoggedBatch(problem=f"{where} no longer exists")
    except FormatError as problem:
        return LoggedBatch(problem=problem.message)
