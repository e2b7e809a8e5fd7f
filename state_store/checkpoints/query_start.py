"""The query's own files that Spark reads at a start on a checkpoint, and the consequences of missing ones.

Spark takes the newest entry of the offset log, the entry before it, and the newest entry of the commit log. If the
newest batch is committed, it plans the next one; else it runs that batch with the logged offsets. Plans that a restore
has carried over follow. Sources read their logs, and operators the metadata and the schemas of their state. The
consequences of missing files were tried with Spark 4.3, in both checkpoint formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from pyspark_ckpt.state_store.attempts.runs import Epochs
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.query.carried_plans import NONE_CARRIED, read_last_carried
from pyspark_ckpt.state_store.checkpoints.query.content import check_content
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY, find_watermarks, list_batches, list_operator_files
from pyspark_ckpt.state_store.checkpoints.query.migrations import read_migrations
from pyspark_ckpt.state_store.checkpoints.query.misplaced import find_misplaced
from pyspark_ckpt.state_store.checkpoints.query.sources import require_offsets
from pyspark_ckpt.state_store.checkpoints.query.spark_files import (
    check_form,
    choose_source_files,
    find_lost_source_files,
    guess_file_offsets,
)
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.format.names import REPLAY_FOLDER

NEIGHBOURS = 8
"""How many of the newest entries of the offset log are compared to check their order."""
START_ATTEMPTS = 3
"""How often the files are read if the query commits meanwhile."""


@dataclass(frozen=True)
class StartFiles:
    """The files that a start reads. Without ``problems``, the query continues after its newest committed batch.

    ``files``: of the query itself. ``source_files``: of its sources. ``operator_files``: metadata and schemas of
    operators.
    """

    files: int = 0
    source_files: int = 0
    operator_files: int = 0
    bytes_read: int = 0
    problems: tuple[str, ...] = ()


def verify_start(checkpoint: Checkpoint) -> StartFiles:
    """Read all that a start of the query needs. If the query runs, it is the start after the newest committed batch.

    If no batch is committed, only the first one may be planned: offsets of a later batch are a problem. Damage to an
    operator's metadata is not among the problems: ``Checkpoint.operators`` raises it.

    Raises StorageError.
    """
    for _ in range(START_ATTEMPTS):
        planned = list_batches(checkpoint.place, "offsets")
        checkpoint.look_again()
        version = checkpoint.newest_version
        found = _Start(checkpoint.place, version - 1, planned).read()
        if not found.problems:
            break
        checkpoint.look_again()
        if checkpoint.newest_version == version:
            break
    return found


class _Start:
    """Reads the files needed to continue after one batch."""

    def __init__(self, place: BlobPlace, batch: int, planned_before: set[int]) -> None:
        """``batch``: the newest committed one, or -1. ``planned_before``: the batches planned before that look."""
        self._place, self._batch, self._planned_before = place, batch, planned_before
        self._problems: list[str] = []
        self._bytes_read = 0
        self._file_offsets: dict[str, int] = {}

    def read(self) -> StartFiles:
        place, url = self._place, self._place.url
        carried = list_batches(place, REPLAY_FOLDER)  # first: a query logs a carried plan, then deletes it
        planned = list_batches(place, "offsets")
        newest = max(planned, default=self._batch)
        wanted = {f"offsets/{each}" for each in (newest - 1, newest) if each in planned}
        self._problems += _find_gaps(url, self._batch, planned, max(self._planned_before, default=-1))
        if self._batch >= 0:
            wanted |= {f"commits/{self._batch}", *find_watermarks(place, self._batch)}
        logs = self._read_files([QUERY, *sorted(wanted)])
        sources = [blob.name for blob in place.walk("sources") if not blob.name.endswith("/")]
        self._file_offsets, all_lost = assign_files(logs.get(f"offsets/{newest}", b""), sources)
        for lost in all_lost:
            self._problems.append(
                f"{url}/{lost} is missing, but {url}/offsets/{newest} says that the source has got further: Spark does "
                "not start the query"
            )
        plans = self._read_carried(newest + 1, carried, sources)
        self._find_misplaced([each for each in sorted(planned) if each <= newest][-NEIGHBOURS:], {**logs, **plans})
        of_sources = self._read_files(choose_source_files(sources), "or reads files again", may_go=True)
        of_operators = self._read_files(list_operator_files(place), may_go=True)
        try:
            read_migrations(place)
        except FormatError as problem:
            self._problems.append(f"{problem.message} The state of the query cannot be written or copied with it.")
        try:
            Epochs(place).find_newest()
        except FormatError as problem:
            self._problems.append(f"{problem.message} So it is unknown whether the query was rescaled: it is refused.")
        counts = len(logs) + len(plans), len(of_sources), len(of_operators)
        return StartFiles(*counts, self._bytes_read, tuple(self._problems))

    def _read_carried(self, first: int, carried: set[int], sources: Sequence[str]) -> dict[str, bytes]:
        """Return the plans from ``first`` on that a restore has carried over, if they are whole."""
        url = f"{self._place.url}/{REPLAY_FOLDER}"
        left = sorted(each for each in carried if each >= first)
        try:
            last = max([read_last_carried(self._place), *left])
        except FormatError as problem:
            self._problems.append(f"{problem.message} It says up to which batch there were plans in {url}.")
            last = max(left, default=NONE_CARRIED)
        missing = next(each for each in count(first) if each not in carried)
        if missing <= last:
            self._problems.append(
                f"{url}/{missing} is missing, but a restore has carried over plans up to batch {last}: the query fails "
                f"before batch {missing}, or gives it other rows than it had"
            )
        plans = self._read_files([f"{REPLAY_FOLDER}/{each}" for each in left], may_go=True)
        newest = next((name for name in reversed(plans)), "")
        for lost in assign_files(plans.get(newest, b""), sources)[1]:
            self._problems.append(
                f"{self._place.url}/{lost} is missing, but {self._place.url}/{newest} says that the source has got "
                "further: the query fails there, or reads other rows than it had"
            )
        return plans

    def _find_misplaced(self, batches: Sequence[int], needed: Mapping[str, bytes]) -> None:
        """Look among the ``needed`` entries for those of other batches, by comparison with the ``batches`` before."""
        entries: dict[str, bytes] = {}
        for name in (f"offsets/{batch}" for batch in batches):
            with suppress(NotFoundError, FormatError):  # one that is not needed
                content = needed[name] if name in needed else self._place.get(name)
                require_offsets(content, name)
                entries[name] = content
        entries |= {name: content for name, content in needed.items() if name.startswith(f"{REPLAY_FOLDER}/")}
        self._problems += [
            f"{self._place.url}/{name} {why}: the query would read wrong rows"
            for name, why in find_misplaced(entries).items()
            if name in needed
        ]

    def _read_files(self, names: Iterable[str], otherwise: str = "", *, may_go: bool = False) -> dict[str, bytes]:
        """Return the files that are whole. ``may_go``: a running query replaces some by others with the same meaning.

        ``otherwise``: what Spark does with a damaged file if it starts the query.
        """
        does = ", ".join(filter(None, ("Spark does not start the query with it", otherwise)))
        found: dict[str, bytes] = {}
        for name in names:
            where = f"{self._place.url}/{name}"
            try:
                content = check_content(name, self._place.get(name), where)
                check_form(name, content, where, self._file_offsets)
                if name.startswith(("offsets/", f"{REPLAY_FOLDER}/")):
                    require_offsets(content, where)
            except NotFoundError as problem:
                if not may_go:
                    self._problems.append(problem.message)
            except FormatError as problem:
                self._problems.append(f"{problem.message} {does}.")
            else:
                found[name] = content
                self._bytes_read += len(content)
        return found


def assign_files(offsets: bytes, names: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Return the file sources in an entry of the offset log, so that the fewest files are lost, and these files.

    ``names``: the existing files of sources.
    """
    best: tuple[dict[str, int], list[str]] | None = None
    for guess in guess_file_offsets(offsets):
        lost = find_lost_source_files(guess, names)
        if best is None or len(lost) < len(best[1]):
            best = guess, lost
        if not lost:
            break
    return best or ({}, [])


def _find_gaps(url: str, batch: int, planned: set[int], newest_before: int) -> Iterator[str]:
    """Yield the faults in the entries of the offset log, if ``batch`` is the newest in the commit log.

    A running query plans a batch after the last one is committed. So ``planned``, listed after the commit log, has all
    of its batches; and the commit log, listed after ``newest_before`` was planned, has all batches before that one.
    """
    newest = max(planned, default=-1)
    committed = f"but {url}/commits/{batch} says that the batch is committed"
    if newest < 0 <= batch:
        yield f"{url}/offsets has no entry, {committed}: Spark does not start the query"
    elif newest < batch:
        yield f"{url}/offsets/{batch} is missing, {committed}: Spark runs batch {newest} again, and the query fails"
    elif newest > 0 and newest - 1 not in planned:
        yield (
            f"{url}/offsets/{newest - 1} is missing, but {url}/offsets/{newest} is there: Spark does not start the "
            "query, because it needs both"
        )
    if (later := newest_before) > batch + 1:
        yield (
            f"{url}/commits/{later - 1} is missing, but {url}/offsets/{later} is there: Spark runs batch {later} from "
            f"version {later} of the state; in checkpoint format 2 it does not know its id, and the query fails"
        )
