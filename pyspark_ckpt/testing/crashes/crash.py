"""``crash``: a query on real local Spark, killed again and again, must have the same result as without faults."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from os import PathLike, environ, pathsep, utime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_ckpt.operators.frames import resolve_columns
from pyspark_ckpt.operators.types.value_types import make_handed_schema
from pyspark_ckpt.savepoints import restore
from pyspark_ckpt.state_store.checkpoints.query.entries import PARTITIONS_CONF
from pyspark_ckpt.state_store.errors import InvalidInputError, ProcessError
from pyspark_ckpt.state_store.failpoints import FOLDER, REQUESTS, file_name
from pyspark_ckpt.state_store.options import PREFIX
from pyspark_ckpt.testing.comparison import count_rows, describe_differences, last_by_key
from pyspark_ckpt.testing.crashes.job import STARTED, Job
from pyspark_ckpt.testing.crashes.processes import (
    EXECUTOR_JVM,
    JVM,
    MARK,
    STATE_SERVER,
    find_marked,
    find_workers,
    kill,
    kill_marked,
)
from pyspark_ckpt.testing.crashes.states import read_states
from pyspark_ckpt.testing.given_rows import RowsLike, read_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_STEPS = ("begin.before", "begin.after_ticket", "commit.before_upload", "commit.after_upload", "commit.before_answer")
POINTS: Mapping[str, Sequence[str]] = {"step": _STEPS, "place": REQUESTS}
"""The fail points of each kind: at the steps of a commit, and at the requests to the place of the state."""
KINDS = ("driver", "server", "worker", *POINTS)
EXECUTOR = "executor"
EXECUTOR_MEMORY_MB = 1024
FIRST_FILE_S = 1_700_000_000
"""The time of the first file, in s since 1970: Spark reads files in the order of their times."""
LOOK_S = 0.05
MIN_S = 1.0
MAX_PASS = 6
"""A fail point fires at one of its first so many passes."""
RESCALES = 0.5
"""How likely a query is to be rescaled after its driver was killed."""
MAX_LIVES = 20
"""After so many lives, the query counts as one that never ends."""
LOG_CHARACTERS = 4000
_CONF = {
    "spark.master": "local[2,8]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True)
class Batches:
    """An input of a query that ``crash`` runs: columns, as a StructType or Spark DDL, and the rows of each batch."""

    columns: StructType | str
    batches: Sequence[RowsLike]

    def write(self, folder: Path) -> StructType:
        """Write a file for each batch, in the order in which Spark reads them; return the columns.

        Raises InvalidInputError.
        """
        schema = resolve_columns(self.columns, "The columns")
        arrow = make_handed_schema(schema)
        folder.mkdir(parents=True)
        for number, rows in enumerate(self.batches):
            batch = read_columns(rows, arrow, f"Batch {number}")
            path = folder / f"{number:06d}.parquet"
            pq.write_table(pa.Table.from_batches([batch]), path)
            utime(path, (FIRST_FILE_S + number,) * 2)
        return schema


@dataclass(frozen=True)
class Survived:
    """The result of a query.

    ``faults``: those that happened to it. ``rows``: all rows of its output, batch by batch. ``checkpoint``: its last
    one, which is gone unless ``folder`` was given.
    """

    faults: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    checkpoint: str


def crash(
    build: Callable[..., DataFrame],
    *,
    seed: int = 0,
    faults: int = 4,
    mode: str = "append",
    key: str | Sequence[str] = (),
    parallelism: int = 3,
    executors: int = 0,
    compare_states: bool = True,
    conf: Mapping[str, str] | None = None,
    timeout_s: float = 600,
    folder: str | PathLike[str] | None = None,
    **inputs: Batches,
) -> Survived:
    """Run a query on local Spark twice, once with ``faults`` that ``seed`` chooses; both must have the same output.

    ``build`` makes the query: it gets a streaming frame for each of the ``inputs``, by its name, and returns a frame. A
    batch of the query has the rows of one batch of each input. The query runs in separate processes, so ``build`` must
    be importable there, or a function that cloudpickle can copy.

    The faults: the driver, a state server, a Python worker or an executor is killed; the state server fails or dies at
    a step of a commit; a request to the place of the state fails, before it is sent or after a write was carried out,
    or the state server dies there. A query that has ended is started again, until it has read all of its input. After
    the death of a driver it may be rescaled, to up to ``parallelism`` partitions. ``executors``: how many there are,
    each a process of its own with one core; with 0, all tasks run in the driver.

    In append mode, each row must be output equally often; in update mode, the last row of each ``key``, given as names
    of output columns, must be equal. The contents of the states must be equal, too, unless ``compare_states`` is False;
    states that expire by processing time are not compared. ``conf``: confs of the session. ``timeout_s``: for each life
    of the query. ``folder``: keeps inputs, checkpoints, output and logs; by default they are temporary.

    Raises AssertionError that names the differences and the seed, ProcessError if the query fails without a fault, or
    does not end, and InvalidInputError.
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    if not inputs:
        hint = "Give each a name: visits=ckpt.testing.Batches('user string', [...])."
        raise InvalidInputError("crash: there are no inputs.", hint=hint)
    if mode.lower() == "update" and not names:
        raise InvalidInputError("crash: in update mode, `key` must name the columns by which rows replace others.")
    with tempfile.TemporaryDirectory(prefix="pyspark-ckpt-crash-") as temporary:
        home = Path(temporary if folder is None else folder)
        folders = {name: home / "inputs" / name for name in inputs}
        frames = {name: (each.write(folders[name]), str(folders[name])) for name, each in inputs.items()}
        base = {**_CONF, **_make_master(executors), PARTITIONS_CONF: str(parallelism)}
        job = Job(build, frames, mode, {**base, **(conf or {})}, "", "")
        calm, shaken = Query(job, home / "calm", timeout_s), Query(job, home / "shaken", timeout_s)
        calm.live(Faults(seed, (), 0, 0.0))
        happened = Faults(seed, (*KINDS, EXECUTOR) if executors else KINDS, faults, calm.seconds)
        while not shaken.is_done:
            shaken.live(happened)
            happened.perhaps_rescale(shaken, parallelism)
        if faults and not happened.done:
            raise ProcessError(
                f"crash: no fault has happened before the query ended (seed={seed}).",
                hint="Give it more batches, or more faults.",
            )
        found = shaken.read()
        lines = _compare(calm.read(), found, mode.lower(), names)
        if compare_states:
            lines += _compare_states(calm.checkpoint, shaken.checkpoint)
        if lines:
            how = f"seed={seed}, after {', '.join(happened.done)}"
            raise AssertionError("\n".join([f"The result differs ({how}):", *lines]))
        return Survived(tuple(happened.done), tuple(tuple(row.values()) for row in found), shaken.checkpoint)


class Faults:
    """The faults that a seed has chosen, and those that have happened."""

    def __init__(self, seed: int, kinds: Sequence[str], count: int, seconds: float) -> None:
        """Choose ``count`` faults of some ``kinds``, spread over the ``seconds`` that the query runs without any."""
        self._draw = draw = Random(seed)  # noqa: S311 - repeatable, as far as the machine is
        self._wait_s = max(seconds, MIN_S) / max(1, count)
        """The longest time between two faults."""
        chosen = [draw.choice(kinds) for _ in range(count)]
        self._left = [kind for kind in chosen if kind not in POINTS]
        self._points = [
            f"{draw.choice(POINTS[kind])}:{draw.choice(('kill', 'error'))}@{draw.randint(1, MAX_PASS)}"
            for kind in chosen
            if kind in POINTS
        ]
        self.done: list[str] = []
        self.kills_driver = False

    @property
    def points(self) -> str:
        """The fail points that have not fired yet, as the option has them."""
        return ",".join(self._points)

    def note_fired(self, files: Iterable[str]) -> None:
        """Note which fail points have fired, by the names of their files."""
        names = set(files)
        fired = [point for point in self._points if file_name(point) in names]
        self.done += fired
        self._points = [point for point in self._points if point not in fired]

    def draw_kill(self) -> tuple[str, float]:
        """Return the next process to be killed, and after how many seconds; an empty name for none."""
        return (self._left[-1], self._draw.uniform(0, self._wait_s)) if self._left else ("", 0.0)

    def note(self, kind: str) -> None:
        """Note that a process of this kind was killed."""
        self._left.pop()
        self.done.append(kind)
        self.kills_driver = kind == "driver"

    def perhaps_rescale(self, query: Query, parallelism: int) -> None:
        """Rescale a query whose driver was killed, as the seed decides."""
        if self.kills_driver and not query.is_done and self._draw.random() < RESCALES:
            partitions = self._draw.randint(1, parallelism)
            if query.rescale(partitions):
                self.done.append(f"rescale to {partitions}")
        self.kills_driver = False


class Query:
    """A query in a folder, through its lives."""

    def __init__(self, job: Job, folder: Path, timeout_s: float) -> None:
        folder.mkdir(parents=True)
        self._job = replace(job, checkpoint=str(folder / "checkpoint"), output=str(folder / "output"))
        self._folder, self._timeout_s = folder, timeout_s
        self.log = folder / "log"
        self.is_done = False
        self.lives = 0
        self.seconds = 0.0

    def live(self, faults: Faults) -> None:
        """Run the query until it ends. Raises ProcessError (it failed without a fault, or never ends)."""
        self.lives += 1
        if self.lives > MAX_LIVES:
            raise ProcessError(f"The query has not ended after {MAX_LIVES} lives; its log is {self.log}.")
        before, local = len(faults.done), self._folder / f"local-{self.lives}"
        own = {f"{PREFIX}localDir": str(local), f"{PREFIX}failPoints": faults.points}
        path, mark = self._folder / "job", uuid.uuid4().hex
        replace(self._job, conf={**self._job.conf, **own}).write(path)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pyspark_ckpt.testing.crashes.program", str(path)],
                stdout=subprocess.PIPE, stderr=log, env=_environment(self._folder, mark), text=True,
            )  # fmt: skip
        try:
            self._watch(process, mark, faults)
        finally:
            kill_marked(mark)
            process.wait()
        faults.note_fired(file.name for file in local.rglob(f"{FOLDER}/*"))
        self.is_done = process.returncode == 0
        if not self.is_done and len(faults.done) == before:
            text = self.log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:]
            raise ProcessError(f"The query failed without a fault. Its log ends with:\n{text}")

    def _watch(self, process: subprocess.Popen[str], mark: str, faults: Faults) -> None:
        """Kill parts of a life until it ends."""
        with closing(process.stdout or io.StringIO()) as lines:
            any(line.strip() == STARTED for line in lines)  # or its end
            begin = last = time.monotonic()
            kind, after_s = faults.draw_kill()
            while process.poll() is None:
                now = time.monotonic()
                if kind and now - last >= after_s and (victims := _VICTIMS[kind](mark)):
                    kill(victims[0])
                    faults.note(kind)
                    if kind == "driver":
                        process.kill()
                    last, (kind, after_s) = now, faults.draw_kill()
                if now - begin > self._timeout_s:
                    raise ProcessError(f"The query did not end within {self._timeout_s} s; its log is {self.log}.")
                time.sleep(LOOK_S)
            self.seconds = time.monotonic() - begin

    def rescale(self, partitions: int) -> bool:
        """Continue with a copy of the checkpoint for so many partitions. Return False if no batch has committed."""
        before = Path(self._job.checkpoint)
        if not any((before / "commits").glob("[0-9]*")):
            return False
        after = str(self._folder / f"checkpoint-{self.lives}")
        restore(str(before), after, parallelism=partitions)
        self._job = replace(self._job, checkpoint=after, conf={**self._job.conf, PARTITIONS_CONF: str(partitions)})
        return True

    @property
    def checkpoint(self) -> str:
        """The present checkpoint."""
        return self._job.checkpoint

    def read(self) -> list[dict[str, Any]]:
        """Return the rows of the output, batch by batch."""
        batches = sorted(Path(self._job.output).glob("batch=*"))
        files = [file for batch in batches for file in sorted(batch.glob("*.parquet"))]
        return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


_WHERE = ("without faults", "with faults")
_VICTIMS: Mapping[str, Callable[[str], list[Any]]] = {
    "driver": lambda mark: find_marked(mark, JVM),
    "server": lambda mark: find_marked(mark, STATE_SERVER),
    "worker": find_workers,
    EXECUTOR: lambda mark: find_marked(mark, EXECUTOR_JVM),
}


def _make_master(executors: int) -> dict[str, str]:
    """Return the confs of a session with so many executors. Raises InvalidInputError."""
    given: object = executors
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise InvalidInputError(f"crash: executors must be an integer from 0 on, got {executors!r}.")
    if not executors:
        return {}
    return {
        "spark.master": f"local-cluster[{executors},1,{EXECUTOR_MEMORY_MB}]",
        "spark.executor.memory": f"{EXECUTOR_MEMORY_MB}m",
        "spark.task.maxFailures": "8",
        "spark.deploy.maxExecutorRetries": "-1",
    }


def _environment(folder: Path, mark: str) -> dict[str, str]:
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    path = pathsep.join(filter(None, sys.path))
    own = {MARK: mark, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**environ, **own, "TMPDIR": str(temporary)}


def _compare(
    expected: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], mode: str, key: Sequence[str]
) -> list[str]:
    """Return lines that say how two outputs differ."""

    def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[Any, Any]:
        if mode == "append":
            return count_rows([tuple(row.values()) for row in rows])
        return last_by_key([tuple(row.values()) for row in rows], list(rows[0]) if rows else list(key), key)

    first, second = summarise(expected), summarise(found)
    return [] if first == second else describe_differences("output", first, second, _WHERE)


def _compare_states(expected: str, found: str) -> list[str]:
    """Return lines that say how the states of two checkpoints differ."""
    first, second = read_states(expected), read_states(found)
    differing = [name for name in {**first, **second} if first.get(name, {}) != second.get(name, {})]
    return [
        line
        for name in differing
        for line in describe_differences(name, first.get(name, {}), second.get(name, {}), _WHERE)
    ]
