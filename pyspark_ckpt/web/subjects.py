"""A checkpoint on the page: data that every page needs, read with few requests and kept for a moment."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_ckpt.offline.descriptions.json_forms import Fields
from pyspark_ckpt.offline.descriptions.operators import OF_OURS, name_by_metas
from pyspark_ckpt.offline.reading.sources import state_at
from pyspark_ckpt.queries.handles import describe_failure
from pyspark_ckpt.queries.progress import has_run, read_progress
from pyspark_ckpt.state_store.attempts.runs import RunObject
from pyspark_ckpt.state_store.blobs.base.place_clock import ShownTimes
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion, list_operators, refuse_unnamed_operators
from pyspark_ckpt.state_store.checkpoints.query.files import BATCH
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.errors import CkptError, FormatError, NotFoundError, StorageError
from pyspark_ckpt.state_store.format.names import RUNS_FOLDER, parse_epoch
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import MAX_LONG
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.retention.pins import Pin, Pins
from pyspark_ckpt.state_store.savepoints.savepoint import Savepoint, SavepointInfo, read_info
from pyspark_ckpt.web.pace.batches import describe_batches
from pyspark_ckpt.web.pace.logs import LoggedBatch, OffsetLog, read_entry
from pyspark_ckpt.web.pace.verdict import judge_progress
from pyspark_ckpt.web.recollection import Progress, Recalled, Recollection
from pyspark_ckpt.web.survey import GLANCE_VERSIONS, Survey, survey_stores

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

FACTS_S, FACTS_WAIT_S = 2.0, 60.0
QUERY_S, QUERY_WAIT_S, QUERY_LATE_S = 0.1, 2.0, 10.0
"""How long a query's answer is kept, waited for, and taken for current while no other comes."""
GLANCE_S = 10.0
WHOLE_S = 60.0
METAS_S, DAMAGED_S = 3600.0, 30.0
"""Metadata of a commit never changes, but damaged metadata may be repaired."""
COPIED_S = 600.0
"""A batch is planned within moments of its clock: an entry written this much later was copied."""
MAX_SIZES = 500
AT_ONCE = 8


class CommitKey(NamedTuple):
    """Tells a commit from others of the same version, before a query was set back or a place was reused."""

    version: int
    query_id: str
    committed_s: float | None


@dataclass(frozen=True)
class KnownVersion:
    """The metadata of all stores at a commit. ``damaged``: those that cannot be read, and why."""

    commit: CommitKey
    operators: Sequence[OperatorVersion]
    damaged: Mapping[Identity, CkptError] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The version."""
        return self.commit.version


@dataclass(frozen=True)
class Facts:
    """What a page shows of every checkpoint. Times are Unix times of the place, read from its listings.

    ``commits`` and ``offsets``: when the entries of both logs were written, by batch. ``run``: the number of the newest
    run that has an object. ``names_ids``: whether the commit log says which commits count, as in checkpoint format 2.
    """

    checkpoint: Checkpoint
    version: int
    operators: Sequence[Operator]
    names: Mapping[int, str]
    partitions: Mapping[int, int]
    commits: Mapping[int, float]
    offsets: Mapping[int, float]
    pins: Sequence[Pin]
    run: tuple[int, str]
    watermark_ms: int
    clock_ms: int
    conf: Mapping[str, str]
    log_format: str
    names_ids: bool
    saved: SavepointInfo | None
    """Of a savepoint in which no query was started."""
    read_s: float = field(default_factory=time.time)

    @property
    def commit(self) -> CommitKey:
        """The commit of the newest version: not one of the same number from before the query was set back."""
        return CommitKey(self.version, self.checkpoint.query_id, self.commits.get(self.version - 1))

    @property
    def is_copied(self) -> bool:
        """Whether the logs were copied: the newest batch was planned long before its entry was written."""
        planned_s = self.offsets.get(self.version - 1)
        return bool(planned_s and self.clock_ms and planned_s - self.clock_ms / 1000 > COPIED_S)

    @property
    def kind(self) -> str:
        """What the folder is, in words."""
        return "checkpoint" if self.saved is None else f"{self.saved.kind} savepoint"

    @property
    def has_stores(self) -> bool:
        """Whether there are stores: a canonical savepoint has Parquet files."""
        return self.saved is None or self.saved.kind != "canonical"


class QueryRun(NamedTuple):
    """Whether a query runs, and its failure, or why it is unknown; empty if there is nothing to say.

    ``batches``: its last ones, the newest first. ``verdict``: whether it keeps up, see ``judge_progress``.
    """

    is_active: bool
    problem: str
    name: str = ""
    batches: Sequence[Fields] = ()
    verdict: Fields = {}  # noqa: RUF012 - never changed


class Subject:
    """One checkpoint or savepoint. Safe to use from many threads, which share what was read."""

    def __init__(
        self, number: int, location: str, options: Options, pool: ThreadPoolExecutor, query: StreamingQuery | None
    ) -> None:
        """Read ``location`` in the threads of ``pool``. ``query``: the query in this process that runs there."""
        self.number, self.location, self.options, self.query = number, location, options, query
        self.pool = pool
        self._run = Recollection[QueryRun](pool, QUERY_S)
        self._facts = Recollection[Facts](pool, FACTS_S)
        self._glance = Recollection[Survey](pool, GLANCE_S)
        self._whole = Recollection[Survey](pool, WHOLE_S)
        self._metas = Recollection[KnownVersion](pool, METAS_S)
        self._damage: tuple[CommitKey, int] | None = None
        self._sizes: dict[CommitKey, tuple[int, int]] = {}
        self._log = OffsetLog()

    def read_facts(self) -> Facts:
        """Return what is known of the checkpoint now. Raises CkptError."""
        facts = self.recall_facts(FACTS_WAIT_S)
        if facts is None:
            raise StorageError(f"{self.location} was not read within {FACTS_WAIT_S:.0f} seconds.")
        return facts

    def recall_facts(self, wait_s: float) -> Facts | None:
        """Like ``read_facts``, but return None if the place does not answer within ``wait_s``. Raises CkptError."""
        return self._facts.recall("", self._read_facts, wait_s).value

    def glance(self, facts: Facts, wait_s: float) -> Recalled[Survey]:
        """Survey the last few versions by the names of their objects. Raises CkptError."""

        def compute(progress: Progress) -> Survey:
            return survey_stores(facts.checkpoint, facts.version, GLANCE_VERSIONS, progress)

        return self._glance.recall(facts.commit, compute, wait_s)

    def count_all(self, facts: Facts, wait_s: float) -> Recalled[Survey]:
        """Survey all versions by the names of all objects. Raises CkptError."""

        def compute(progress: Progress) -> Survey:
            return survey_stores(facts.checkpoint, facts.version, None, progress)

        return self._whole.recall(facts.commit, compute, wait_s)

    def read_metas(self, facts: Facts, wait_s: float) -> Recalled[KnownVersion]:
        """Return the metadata of all stores at the newest version. Raises CkptError."""

        def compute(progress: Progress) -> KnownVersion:
            if isinstance(facts.checkpoint, Savepoint):
                return KnownVersion(facts.commit, facts.checkpoint.versions())
            damaged: dict[Identity, CkptError] = {}
            operators = list_operators(facts.checkpoint, facts.version, progress, damaged)
            self._damage = (facts.commit, len(damaged)) if damaged else None
            if not damaged:
                self._note_size(facts, operators)
            return KnownVersion(facts.commit, operators, damaged)

        look = int(time.monotonic() // DAMAGED_S) if self._damage else 0
        return self._metas.recall((facts.commit, look), compute, wait_s)

    def _note_size(self, facts: Facts, operators: Sequence[OperatorVersion]) -> None:
        """Remember how large the state is at the newest version."""
        stores = [each for operator in operators for stores in operator.stores.values() for each in stores]
        size = sum(each.meta.rows for each in stores), sum(each.size_bytes for each in stores)
        self._sizes = dict([*self._sizes.items(), (facts.commit, size)][-MAX_SIZES:])

    def list_sizes(self, facts: Facts) -> dict[int, tuple[int, int]]:
        """Return the rows and bytes of state that were seen since the page was opened, by version."""
        return {
            commit.version: size
            for commit, size in self._sizes.items()
            if commit.query_id == facts.commit.query_id and commit.version <= facts.version
        }

    def read_offset_log(self, facts: Facts) -> dict[int, LoggedBatch]:
        """Return the newest entries of the offset log, by batch. Raises StorageError."""
        return self._log.read(facts.checkpoint.place, facts.checkpoint.query_id, facts.offsets)

    def count_damaged(self, facts: Facts) -> int:
        """Return how many stores could not be read at the newest version, as far as they have been read."""
        return self._damage[1] if self._damage is not None and self._damage[0] == facts.commit else 0

    def _read_facts(self, _progress: Progress) -> Facts:
        checkpoint = state_at(self.location, self.options)
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="facts") as pool:
            commits = pool.submit(_list_log, checkpoint, "commits")
            offsets = pool.submit(_list_log, checkpoint, "offsets")
            operators = pool.submit(_read_operators, checkpoint)
            savepoint = pool.submit(_find_savepoint, checkpoint)
            pins = pool.submit(lambda: Pins(checkpoint.place, ShownTimes()).list_held(tidies=False))
            run = pool.submit(_find_run, checkpoint)
            version, saved = checkpoint.newest_version, savepoint.result()
            if saved is not None and saved.version != version:  # a query was started in it: it is a checkpoint now
                saved = None
            entry = pool.submit(read_entry, checkpoint.place, version - 1)
            log_format = pool.submit(_read_log_format, checkpoint, version)
            found = operators.result()
            checks = pool.submit(_check_operators, checkpoint, found)
            is_whole = saved is None or saved.kind != "canonical"
            names = dict(zip((each.number for each in found), pool.map(partial(_name, checkpoint), found), strict=True))
            partitions = {each.number: checkpoint.partitions_in_use(each) if is_whole else 1 for each in found}
            known = entry.result()
            checks.result()
            return Facts(
                checkpoint,
                version,
                found,
                names,
                partitions,
                commits.result(),
                offsets.result(),
                pins.result(),
                run.result(),
                known.batchWatermarkMs,
                known.batchTimestampMs,
                known.conf,
                log_format.result(),
                bool(version and checkpoint.list_logged_operators()),
                saved,
            )

    def read_run(self) -> QueryRun | None:
        """Return what the query in this process reports; None without one.

        It does not wait for a JVM that hangs.
        """
        if self.query is None:
            return None
        told = self._run.recall("", lambda _: ask(self.query), QUERY_WAIT_S)
        if told.value is None or (told.is_under_way and told.age_s > QUERY_LATE_S):
            return QueryRun(False, "its session has not answered yet")
        return told.value


def ask(query: Any) -> QueryRun:  # noqa: ANN401 - of a classic session, or of a client of Spark Connect
    """Return what a query in this process reports."""
    try:
        is_active, failure = query.isActive, query.exception()
        batches = read_progress(query)
        described = describe_batches([each for each in batches if has_run(each)])
        name = query.name or ""
    except Exception as problem:  # noqa: BLE001 - of any kind, if the JVM is gone: the page shows it
        return QueryRun(False, f"its session does not answer: {describe_failure(problem)}")
    told = "" if failure is None else describe_failure(failure)
    return QueryRun(is_active, told, name, described, judge_progress(batches, described))


def _find_savepoint(checkpoint: Checkpoint) -> SavepointInfo | None:
    """Return what ``savepoint.json`` says, if there is one."""
    if isinstance(checkpoint, Savepoint):
        return checkpoint.info
    if not any(blob.name == "savepoint.json" for blob in checkpoint.place.list(prefix="savepoint.json")):
        return None
    return read_info(checkpoint.place)


def _read_operators(checkpoint: Checkpoint) -> list[Operator]:
    try:
        return checkpoint.operators()
    except FormatError:
        checkpoint.refuse_other_provider()
        raise


def _check_operators(checkpoint: Checkpoint, operators: Sequence[Operator]) -> None:
    """Raise InvalidInputError for state of another provider, FormatError if some state cannot be identified."""
    checkpoint.refuse_other_provider()
    if checkpoint.has_stores and checkpoint.newest_version:
        refuse_unnamed_operators(checkpoint, len(operators))


def _name(checkpoint: Checkpoint, operator: Operator) -> str:
    """Return an operator's name; for one of this package with its uids, read from its first store."""
    if operator.name == OF_OURS and checkpoint.newest_version and checkpoint.has_stores:
        with suppress(NotFoundError, FormatError):  # other pages say what is wrong with the store
            meta = checkpoint.meta(Identity(operator.number, 0, operator.stores[0]), checkpoint.newest_version)
            return name_by_metas(operator.name, [meta])
    return operator.name


def _list_log(checkpoint: Checkpoint, log: str) -> dict[int, float]:
    """Return when the entries of a log were written, by batch."""
    return {
        batch: blob.modified_s
        for blob in checkpoint.place.list(log)
        if BATCH.fullmatch(name := blob.name.rpartition("/")[2]) and (batch := int(name)) < MAX_LONG
    }


def _read_log_format(checkpoint: Checkpoint, version: int) -> str:
    """Return the version line of the commit log, such as v2."""
    try:
        return checkpoint.place.get(f"commits/{version - 1}", 0, 8).split(b"\n")[0].decode("ascii", "replace").strip()
    except NotFoundError:
        return ""


def _find_run(checkpoint: Checkpoint) -> tuple[int, str]:
    """Return the number of the newest run of the query, and where its driver is; 0 if no run is known."""
    names = {epoch: blob.name for blob in checkpoint.place.list(RUNS_FOLDER) if (epoch := parse_epoch(blob.name))}
    newest = max(names, default=0)
    if newest:
        with suppress(NotFoundError, FormatError):  # of interest only; `checkpoint verify` says what is damaged
            return newest, read_sealed(checkpoint.place, names[newest], RunObject).driver
    return newest, ""
