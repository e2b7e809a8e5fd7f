"""Whether a query can continue exactly once after a batch, according to the files that Spark and its sources keep.

Spark needs the commit of the batch, and the offsets of this batch and of the one before. If the next batch was planned,
and the files of its sources are there, it runs again with the same rows; so do the batches whose plans a restore has
carried over. If a plan is lost, this batch and all later ones get new plans.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from pyspark_ckpt.state_store.checkpoints.query.spark_files import choose_source_files
from pyspark_ckpt.state_store.checkpoints.query_start import assign_files
from pyspark_ckpt.state_store.format.names import WATERMARKS_FOLDER
from pyspark_ckpt.state_store.repair.entries import Entries

NONE_COMMITTED = -1
"""Stands for the batch before the first one."""

_NUMBERED = re.compile(r"sources/([A-Za-z0-9_]{1,255})/([0-9]{1,18})(\.compact)?")
_SOURCE = re.compile(r"sources/([A-Za-z0-9_]{1,255})/")


@dataclass(frozen=True)
class Continuation:
    """The query continues after ``batch``. ``last_planned``: the last batch whose rows are fixed.

    That is ``batch`` if the plan of the next one is not whole; else the next one, or the last of the plans that a
    restore has carried over and that follow without a gap.
    """

    batch: int
    last_planned: int

    @property
    def last_logged(self) -> int:
        """The last batch that Spark's own log may have: later ones come from carried plans."""
        return min(self.last_planned, self.batch + 1)


@dataclass(frozen=True)
class Obstacle:
    """Why the query cannot continue after ``batch``."""

    batch: int
    reason: str


def find_continuations(entries: Entries) -> Iterator[Continuation | Obstacle]:
    """Yield each batch with a whole commit, newest first, and what Spark makes of it, as far as its own files tell."""
    for batch in reversed(entries.list_numbers("commits")):
        if entries.is_whole(f"commits/{batch}"):
            yield _judge(entries, batch)
    if max([*entries.list_numbers("offsets"), *entries.list_numbers("commits")], default=0) == 0:
        yield Continuation(NONE_COMMITTED, 0 if _is_planned(entries, 0) else NONE_COMMITTED)


def _judge(entries: Entries, batch: int) -> Continuation | Obstacle:
    for name in (f"offsets/{each}" for each in (batch, batch - 1) if each >= 0):
        if not entries.is_whole(name):
            return Obstacle(batch, f"{name} is {_describe(entries, name)}")
    watermarks = f"{WATERMARKS_FOLDER}/{batch}"
    is_expected = watermarks in entries.names or f"{WATERMARKS_FOLDER}/{batch - 1}" in entries.names
    if is_expected and not entries.is_whole(watermarks):
        return Obstacle(batch, f"{watermarks} is {_describe(entries, watermarks)}")
    for folder in sorted(entries.metadata_folders):
        newest = max((each for each in entries.list_numbers(folder) if each <= batch), default=None)
        if newest is not None and not entries.is_whole(f"{folder}/{newest}"):
            return Obstacle(batch, f"{folder}/{newest} is {_describe(entries, f'{folder}/{newest}')}")
    if lost := _find_lost_files(entries, batch):
        return Obstacle(batch, f"{lost[0]} is {_describe(entries, lost[0])}, and the source needs it")
    return Continuation(batch, _find_last_planned(entries, batch))


def _find_last_planned(entries: Entries, batch: int) -> int:
    last = batch
    while (last == batch or last + 1 in entries.carried) and _is_planned(entries, last + 1):
        last += 1
    return last


def _is_planned(entries: Entries, batch: int) -> bool:
    return bool(entries.find_plan(batch)) and not _find_lost_files(entries, batch)


def _describe(entries: Entries, name: str) -> str:
    return "damaged" if name in entries.names else "missing"


def _find_lost_files(entries: Entries, planned: int) -> list[str]:
    """Return the first log that each file source lacks for the offsets of a batch."""
    return assign_files(entries.find_plan(planned), entries.whole_source_files)[1]


def find_useless_source_files(entries: Entries, last_planned: int) -> list[str]:
    """Return the files of sources that a start after ``last_planned`` must not find.

    A file source continues from the newest log that it finds, and needs all logs before. So the logs after a gap must
    go, and their files are read again.
    """
    found = [name for name in entries.source_files if name not in entries.whole_source_files]
    plan = entries.find_plan(last_planned)
    for source, newest in assign_files(plan, entries.whole_source_files)[0].items():
        its = [name for name in entries.source_files if name.startswith(f"sources/{source}/")]
        found += _find_logs_after_gap(entries, its, newest)
    return sorted(set(found))


def _find_logs_after_gap(entries: Entries, names: Iterable[str], newest: int) -> Iterator[str]:
    numbers: dict[int, list[str]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            numbers.setdefault(int(match[2]), []).append(name)
    is_after_gap, expected = False, newest + 1
    for number in sorted(each for each in numbers if each > newest):
        is_after_gap |= number != expected or any(not entries.is_whole(name) for name in numbers[number])
        expected = number + 1
        if is_after_gap:
            yield from numbers[number]


def find_lost_starts(entries: Entries, last_logged: int) -> list[str]:
    """Return the damaged files of sources without which a source's position is not known.

    ``last_logged``: the batch whose plan Spark takes up at the start.

    In these files, Kafka's source keeps its first offsets, and no longer reads them once the query has offsets of it. A
    file source has its logs. The content of other sources' files is not known.
    """
    damaged = [name for name in entries.source_files if name in entries.problems]
    if last_logged == NONE_COMMITTED or not damaged:
        return []
    content = entries.find_plan(last_logged)
    of_files = assign_files(content, entries.whole_source_files)[0]
    lines = _split_offsets(content)
    known = {source for source, offset in lines.items() if _is_of_kafka(offset)} | set(of_files)
    needed = set(choose_source_files(entries.source_files))
    return [name for name in damaged if name in needed and not _is_of(name, known)]


def _is_of(name: str, sources: Iterable[str]) -> bool:
    match = _SOURCE.match(name)
    return match is not None and match[1] in sources


def _split_offsets(content: bytes) -> dict[str, bytes]:
    version, *lines = content.split(b"\n")
    if version == b"v1":
        return {str(number): line for number, line in enumerate(lines[1:])}
    return {
        source.decode(errors="replace"): offset for source, _, offset in (line.partition(b":") for line in lines[1:])
    }


def _is_of_kafka(offset: bytes) -> bool:
    try:
        msgspec.json.decode(offset, type=dict[str, dict[str, int]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
